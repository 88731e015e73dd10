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
from toprune.run.runner import some

if TYPE_CHECKING:
    from toprune.run.manifest import Manifest
    from toprune.run.runner import Runner

PEEK = 1000  # rows whose fields are looked at before the first is scored: JSON lines may differ
MEND = "mend it, or go on without such rows: --skip-bad-rows"


class Empty(UserError):
    """A row without a text: the others can do without it."""


@dataclass(frozen=True)
class Window:
    """Rows that are read ahead and answered together: their numbers from 1, their fields and their
    texts. Which rows share a window is the file's business alone, so that an answer is the same
    wherever it is made."""

    first: int  # texts in the windows before
    rows: list[tuple[int, dict[str, Any]]]
    texts: list[Any]
    empty: list[int]  # rows without a text, from 0: left out


@dataclass(frozen=True)
class Rows:
    """A file, and what is read in its rows. Small: it can be sent to where the file is read."""

    source: Path
    columns: Columns
    present: tuple[str, ...]  # fields of the first rows
    head: str
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
        """Looks at the first rows: bad columns are told before any work is done."""
        task = manifest.build_task()
        columns = Columns(text, pair, images=manifest.images)
        seen = list(islice(stream(source, header=not columns.are_numbers), PEEK))
        present = tuple(dict.fromkeys(name for row in seen for name in row))
        if seen:
            columns = choose_columns(columns, present, task.READS)
        head = task.HEAD
        if columns.pair is not None and head == "encoder":
            raise UserError(
                f"a vector is of one text, not of {columns.text!r} and {columns.pair!r}; "
                "name its column with --text"
            )
        return cls(source, columns, present, head, skip_bad_rows)

    def windows(self) -> Iterator[Window]:
        """All rows, one window in memory at a time."""
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

        first, left = 0, texts()
        while (given := some(left)) or empty:
            yield Window(first, waiting.copy(), given, empty.copy())
            first += len(given)
            waiting.clear()
            empty.clear()

    def _text(self, row: Mapping[str, Any], number: int) -> Any:
        text, pair = self.columns.text, self.columns.pair
        if self.columns.images:
            return _image(row, str(text), number, folder=self.source.parent)
        if self.head == "tokens":
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
    """Answer every row of a JSONL, CSV, TSV or Parquet file (also .gz); returns their number.

    `out` is JSONL: the row's own fields and the answer (see `Runner.predict`), one row for each
    row that has a text, in order; a row without one is refused, or left out with a warning. Where
    the data have fields of those names (their own labels), nothing is lost: the answer is
    `predicted_label` and `predicted_score`. Columns are guessed as everywhere
    (`columns.choose_columns`). `out` appears when it is whole.
    """
    source, out = Path(source), Path(out)
    check_out(source, out)
    rows = Rows.of(source, runner.manifest, text, pair, skip_bad_rows)
    answered = (
        (answered_lines(runner, window, rows.present), window.empty) for window in rows.windows()
    )
    return write_lines(out, answered, progress)


def answered_lines(runner: "Runner", window: Window, present: Sequence[str]) -> Iterator[str]:
    """Each row of a window with its answer, as a line of JSON."""
    prefix: str | None = None
    answers = runner.predictions(window.texts, first=window.first)
    for (number, row), answer in zip(window.rows, answers, strict=True):
        if prefix is None:
            prefix = "" if answer.keys().isdisjoint(present) else "predicted_"
        answer = {prefix + name: value for name, value in answer.items()}
        if not answer.keys().isdisjoint(row):
            taken = ", ".join(answer.keys() & row.keys())
            raise UserError(f"row {number} has a field {taken} of its own; rename it")
        yield json.dumps(row | answer, default=str) + "\n"  # str: Parquet has dates


def write_lines(
    out: Path, answered: Iterable[tuple[Iterable[str], Sequence[int]]], progress: Advance | None
) -> int:
    """Lines, and the numbers of rows that were left out, of each window; `out` appears when it is
    whole. Returns the number of lines."""
    count = 0
    empty: list[int] = []
    try:
        with draft(out) as made, made.open("w", encoding="utf-8", newline="\n") as file:
            for lines, left_out in answered:
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
        found = as_image(row.get(column), folder)
    except TypeError as problem:
        raise UserError(
            f"column {column!r} holds {problem} in row {number}, not an image; name another column"
        ) from problem
    if not found or no_file(found):
        what = f"no file {found!r}" if found else "no image"
        raise Empty(f"row {number}: there is {what} in column {column!r}; {MEND}")
    return found


def _without_pixels(row: dict[str, Any]) -> dict[str, Any]:
    """An image file that lies in its row (Parquet) goes by its name from here on."""
    return {k: v.get("path") if isinstance(v, dict) and "bytes" in v else v for k, v in row.items()}


def _words(row: Mapping[str, Any], column: str | None, number: int) -> list[str]:
    words = as_words(row.get(str(column)))
    if not words:
        raise Empty(f"row {number} has no words in column {column!r}; {MEND}")
    return words


def _cell(row: Mapping[str, Any], column: str | None, number: int) -> str:
    try:
        found = as_text(row.get(str(column)))
    except TypeError as problem:
        raise UserError(
            f"column {column!r} holds {problem} in row {number}, not a text; name another column"
        ) from problem
    if not found:
        raise Empty(f"row {number} has no text in column {column!r}; {MEND}")
    return found


def check_out(source: Path, out: Path) -> None:
    """Before any work is done."""
    if out.suffix.lower() != ".jsonl":
        raise UserError(f"{out}: answers are written as JSON lines; let the name end in .jsonl")
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"cannot write {out}: it is a directory, or its directory is not there")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"{out} is the source itself; choose another place")
