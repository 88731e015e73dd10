"""Bulk work: a file of texts in, a file of answers out, in memory that does not grow with it."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprune.data.bad_rows import name_rows
from toprune.data.cells import as_text, as_words
from toprune.data.columns import Columns, choose_columns
from toprune.data.files import stream
from toprune.data.images import as_image, no_file
from toprune.errors import UserError
from toprune.io.atomic import draft
from toprune.io.progress import Advance
from toprune.run.runner import take_chunk
from toprune.tasks import Task

if TYPE_CHECKING:
    from toprune.run.manifest import Manifest
    from toprune.run.runner import Runner

PEEK = 1000  # rows whose fields are read before the first is scored: JSON lines may differ
FIX = "fix it, or leave such rows out with --skip-bad-rows"


class Empty(UserError):
    """A row has no text; the other rows can still be answered."""


@dataclass(frozen=True)
class Window:
    """Rows that are read ahead and answered together.

    The file alone decides which rows share a window, so an answer is the same on every machine.
    """

    first: int  # number of texts in the windows before
    rows: list[tuple[int, dict[str, Any]]]  # numbers from 1, and fields
    texts: list[Any]
    empty: list[int]  # rows without a text, from 0: left out


@dataclass(frozen=True)
class Rows:
    """A file and what to read from its rows. Small enough to be sent to another process."""

    source: Path
    columns: Columns
    present: tuple[str, ...]  # fields of the first rows
    task: Task
    skip_bad_rows: bool

    @classmethod
    def of(
        cls,
        source: Path,
        manifest: "Manifest",
        text: str | None,
        pair: str | None,
        skip_bad_rows: bool,
    ) -> "Rows":
        """Read the first rows to choose columns: bad ones are refused before any work is done."""
        task = manifest.build_task()
        columns = Columns(text, pair, images=manifest.images)
        sample = list(islice(stream(source, header=not columns.are_numbers), PEEK))
        present = tuple(dict.fromkeys(name for row in sample for name in row))
        if sample:
            columns = choose_columns(columns, present, task.READS)
        if columns.pair is not None and task.READS.alone:
            raise UserError(
                f"the task {task.NAME} answers one text at a time, not {columns.text!r} and "
                f"{columns.pair!r}; name the column with --text"
            )
        return cls(source, columns, present, task, skip_bad_rows)

    def windows(self) -> Iterator[Window]:
        """Read all rows, one window in memory at a time."""
        waiting: list[tuple[int, dict[str, Any]]] = []
        empty: list[int] = []

        def texts() -> Iterator[Any]:
            rows = stream(self.source, header=not self.columns.are_numbers)
            for number, row in enumerate(rows, 1):
                try:
                    text = self._text(row, number)
                except Empty:
                    if not self.skip_bad_rows:
                        raise
                    empty.append(number - 1)
                    continue
                waiting.append((number, _without_pixels(row) if self.columns.images else row))
                yield text

        first, remaining = 0, texts()
        while (chunk := take_chunk(remaining)) or empty:
            yield Window(first, waiting.copy(), chunk, empty.copy())
            first += len(chunk)
            waiting.clear()
            empty.clear()

    def _text(self, row: Mapping[str, Any], number: int) -> Any:
        text, pair = self.columns.text, self.columns.pair
        if self.columns.images:
            return _image(row, str(text), number, folder=self.source.parent)
        if self.task.READS.words:
            return _words(row, text, number)
        first = _cell(row, text, number)
        return first if pair is None else (first, _cell(row, pair, number))


def score_file(
    runner: "Runner",
    source: str | Path,
    out: str | Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    skip_bad_rows: bool = False,
    progress: Advance | None = None,
) -> int:
    """Answer every row of a file.

    `out` has one line for each row that has a text, in order: the row's fields and the answer (see
    `Runner.predict`). If the data already have fields of those names, such as labels, the answer
    is `predicted_label` and `predicted_score`. `out` appears only when it is complete.

    Args:
        runner: the loaded bundle.
        source: a JSONL, CSV, TSV or Parquet file, also with .gz.
        out: a new JSONL file.
        text: column of the text; None: guessed, as `columns.choose_columns` does.
        pair: column of the second text, if there is one.
        skip_bad_rows: leave rows without a text out with a warning, instead of refusing the file.
        progress: called with 1 after every row.

    Returns:
        The number of rows that were answered.
    """
    source, out = Path(source), Path(out)
    check_out(source, out)
    rows = Rows.of(source, runner.manifest, text, pair, skip_bad_rows)
    windows = (
        (answered_lines(runner, window, rows.present), window.empty) for window in rows.windows()
    )
    return write_lines(out, windows, progress)


def answered_lines(runner: "Runner", window: Window, present: Sequence[str]) -> Iterator[str]:
    """Answer the rows of a window: each row with its answer, as a line of JSON."""
    prefix: str | None = None
    answers = runner.predictions(window.texts, first=window.first)
    for (number, row), answer in zip(window.rows, answers, strict=True):
        if prefix is None:
            prefix = "" if answer.keys().isdisjoint(present) else "predicted_"
        answer = {prefix + name: value for name, value in answer.items()}
        if not answer.keys().isdisjoint(row):
            taken = ", ".join(answer.keys() & row.keys())
            raise UserError(f"row {number} already has a field {taken}; rename it")
        yield json.dumps(row | answer, default=str) + "\n"  # str: Parquet has dates


def write_lines(
    out: Path, windows: Iterable[tuple[Iterable[str], Sequence[int]]], progress: Advance | None
) -> int:
    """Write the lines of all windows to `out`, which appears only when it is complete.

    Args:
        out: the new file.
        windows: the lines of each window, and the numbers of the rows that were left out.
        progress: called with 1 after every line.

    Returns:
        The number of lines.
    """
    count = 0
    empty: list[int] = []
    try:
        with draft(out) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            for lines, left_out in windows:
                empty += left_out
                for line in lines:
                    file.write(line)
                    count += 1
                    if progress is not None:
                        progress(1)
    except OSError as error:
        raise UserError(
            f"cannot write {out} ({error.strerror or error}); choose another place"
        ) from error
    if empty:
        warnings.warn(f"no text in {name_rows(sorted(empty))}: left out", stacklevel=1)
    return count


def _image(row: Mapping[str, Any], column: str, number: int, *, folder: Path) -> Any:
    try:
        image = as_image(row.get(column), folder)
    except TypeError as problem:
        raise UserError(
            f"column {column!r} holds {problem} in row {number}, not an image; name another column"
        ) from problem
    if not image or no_file(image):
        missing = f"no file {image!r}" if image else "no image"
        raise Empty(f"row {number}: there is {missing} in column {column!r}; {FIX}")
    return image


def _without_pixels(row: dict[str, Any]) -> dict[str, Any]:
    """Replace an image file inside a row (Parquet) by its name."""
    return {k: v.get("path") if isinstance(v, dict) and "bytes" in v else v for k, v in row.items()}


def _words(row: Mapping[str, Any], column: str | None, number: int) -> list[str]:
    words = as_words(row.get(str(column)))
    if not words:
        raise Empty(f"row {number} has no words in column {column!r}; {FIX}")
    return words


def _cell(row: Mapping[str, Any], column: str | None, number: int) -> str:
    try:
        text = as_text(row.get(str(column)))
    except TypeError as problem:
        raise UserError(
            f"column {column!r} holds {problem} in row {number}, not a text; name another column"
        ) from problem
    if not text:
        raise Empty(f"row {number} has no text in column {column!r}; {FIX}")
    return text


def check_out(source: Path, out: Path) -> None:
    """Refuse a place where the answers cannot be written, before any work is done."""
    if out.suffix.lower() != ".jsonl":
        raise UserError(
            f"{out}: answers are written as JSON lines; use a name that ends with .jsonl"
        )
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"cannot write {out}: it is a directory, or its directory does not exist")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"{out} is the source file; choose another place")
