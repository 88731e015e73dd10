"""Bulk work: a file of texts in, a file of answers out, in memory that does not grow with it."""

import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprune.columns import Columns, choose_columns
from toprune.data import as_words
from toprune.errors import UserError
from toprune.images import as_image, no_file
from toprune.labels import as_text, name_rows
from toprune.progress import Advance
from toprune.sources import stream

if TYPE_CHECKING:
    from toprune.run.runner import Runner
    from toprune.run.texts import Text

PEEK = 1000  # rows whose fields are looked at before the first is scored: JSON lines may differ
MEND = "mend it, or go on without such rows: --skip-bad-rows"


class Empty(UserError):
    """A row without a text: the others can do without it."""


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
    _check_out(source, out)
    columns = Columns(text, pair, images=runner.sheet.images)
    rows = stream(source, header=not columns.are_numbers)
    seen = list(islice(rows, PEEK))
    present = list(dict.fromkeys(name for row in seen for name in row))
    if seen:
        columns = choose_columns(columns, present, runner.task.NAME)
    if columns.pair is not None and runner.task.HEAD == "encoder":
        raise UserError(
            f"a vector is of one text, not of {columns.text!r} and {columns.pair!r}; "
            "name its column with --text"
        )
    empty: list[int] = []
    text_of = partial(_image, folder=source.parent) if columns.images else partial(_text, runner)
    answered = _answered(
        runner, chain(seen, rows), columns, present, empty if skip_bad_rows else None, text_of
    )
    count = 0
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            for row in answered:
                file.write(json.dumps(row, default=str) + "\n")  # str: Parquet has dates
                count += 1
                if progress is not None:
                    progress(1)
        draft.replace(out)
    except OSError as error:
        raise UserError(
            f"cannot write {out} ({error.strerror or error}); choose another place"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    if empty:
        warnings.warn(f"no text in {name_rows(empty)}: left out", stacklevel=1)
    return count


def _answered(
    runner: "Runner",
    rows: Iterable[dict[str, Any]],
    columns: Columns,
    present: Iterable[str],
    empty: list[int] | None,
    text_of: "Callable[[Mapping[str, Any], Columns, int], Text]",
) -> Iterator[dict[str, Any]]:
    """Rows with their answers. empty: where the numbers of rows without a text go, from 0; None:
    the first such row ends it."""
    waiting: deque[tuple[int, dict[str, Any]]] = deque()  # read, but not yet answered: one window

    def texts() -> "Iterator[Text]":
        for number, row in enumerate(rows, 1):
            try:
                text = text_of(row, columns, number)
            except Empty:
                if empty is None:
                    raise
                empty.append(number - 1)
                continue
            if columns.images:
                row = _without_pixels(row)
            waiting.append((number, row))
            yield text

    prefix: str | None = None
    for answer in runner.predictions(texts()):
        number, row = waiting.popleft()
        if prefix is None:
            prefix = "" if answer.keys().isdisjoint(present) else "predicted_"
        answer = {prefix + name: value for name, value in answer.items()}
        if not answer.keys().isdisjoint(row):
            taken = ", ".join(answer.keys() & row.keys())
            raise UserError(f"row {number} has a field {taken} of its own; rename it")
        yield row | answer


def _text(runner: "Runner", row: Mapping[str, Any], columns: Columns, number: int) -> "Text":
    if runner.task.HEAD == "tokens":
        return _words(row, columns.text, number)
    first = _cell(row, columns.text, number)
    return first if columns.pair is None else (first, _cell(row, columns.pair, number))


def _image(row: Mapping[str, Any], columns: Columns, number: int, *, folder: Path) -> Any:
    column = str(columns.text)
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


def _check_out(source: Path, out: Path) -> None:
    """Before any work is done."""
    if out.suffix.lower() != ".jsonl":
        raise UserError(f"{out}: answers are written as JSON lines; let the name end in .jsonl")
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"cannot write {out}: it is a directory, or its directory is not there")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"{out} is the source itself; choose another place")
