"""Bulk work: a file of texts in, a file of answers out, in memory that does not grow with it."""

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprune.data import Columns, as_text, choose_columns
from toprune.errors import UserError
from toprune.progress import Advance
from toprune.sources import stream

if TYPE_CHECKING:
    from toprune.run.runner import Runner
    from toprune.run.texts import Text

PEEK = 1000  # rows whose fields are looked at before the first is scored: JSON lines may differ


def score_file(
    runner: "Runner",
    source: str | Path,
    out: str | Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    progress: Advance | None = None,
) -> int:
    """Answer every row of a JSONL, CSV, TSV or Parquet file (also .gz); returns their number.

    `out` is JSONL: the row's own fields and the answer (see `Runner.predict`), one row for each
    row, in order. Where the data have fields of those names (their own labels), nothing is
    lost: the answer is `predicted_label` and `predicted_score`. Columns are guessed as everywhere
    (`data.choose_columns`). `out` appears when it is whole.
    """
    source, out = Path(source), Path(out)
    _check_out(source, out)
    columns = Columns(text, pair)
    rows = stream(source, header=not columns.are_numbers)
    seen = list(islice(rows, PEEK))
    present = list(dict.fromkeys(name for row in seen for name in row))
    if seen:
        columns = choose_columns(columns, present, runner.task.NAME)
    answered = _answered(runner, chain(seen, rows), columns, present)
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
    return count


def _answered(
    runner: "Runner", rows: Iterable[dict[str, Any]], columns: Columns, present: Iterable[str]
) -> Iterator[dict[str, Any]]:
    waiting: deque[tuple[int, dict[str, Any]]] = deque()  # read, but not yet answered: one window

    def texts() -> "Iterator[Text]":
        for number, row in enumerate(rows, 1):
            waiting.append((number, row))
            if runner.task.HEAD == "tokens":
                yield _words(row, columns.text, number)
                continue
            first = _cell(row, columns.text, number)
            yield first if columns.pair is None else (first, _cell(row, columns.pair, number))

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


def _words(row: Mapping[str, Any], column: str | None, number: int) -> list[str]:
    """A list of words, or a text with spaces between them."""
    found = row.get(str(column))
    words = found.split() if isinstance(found, str) else found
    if not isinstance(words, list) or not words:
        raise UserError(f"row {number} has no words in column {column!r}; drop the row")
    return [str(word) for word in words]


def _cell(row: Mapping[str, Any], column: str | None, number: int) -> str:
    try:
        found = as_text(row.get(str(column)))
    except TypeError as problem:
        raise UserError(
            f"column {column!r} holds {problem} in row {number}, not a text; name another column"
        ) from problem
    if not found:
        raise UserError(f"row {number} has no text in column {column!r}; drop the row")
    return found


def _check_out(source: Path, out: Path) -> None:
    """Before any work is done."""
    if out.suffix.lower() != ".jsonl":
        raise UserError(f"{out}: answers are written as JSON lines; let the name end in .jsonl")
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"cannot write {out}: it is a directory, or its directory is not there")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"{out} is the source itself; choose another place")
