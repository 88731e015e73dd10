"""File formats: the bytes of one file become a `Table`, or rows one at a time.

Cells stay as they are written ("007" is not 7, "null" is a word); `labels` decides what they mean.
Two formats are not tables on disk and become one here: SQuAD's nested JSON, and CoNLL's line per
word. Only Parquet needs `datasets` or pyarrow.
"""

import csv
import gzip
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from toprune.errors import UserError

BUFFER = 1 << 20  # bytes of a Parquet column that are read at a time
PARQUET_ROWS = 1000
DOCUMENT = "-DOCSTART-"  # CoNLL's line between documents


@dataclass(frozen=True)
class Table:
    """Columns by name, possibly lazy, and the class names of those columns that carry them (lists
    of classes, too)."""

    columns: Mapping[str, Iterable[Any]]
    classes: Mapping[str, list[str]] = field(default_factory=dict)
    folder: Path | None = None  # where relative paths in cells begin


def from_rows(rows: Iterable[Any]) -> Table:
    """Make a table of rows that are mappings; a ValueError names the first that is not."""
    rows = list(_named(rows))
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({str(name): [row.get(name) for row in rows] for name in names})


def from_dataset(dataset: Any) -> Table:
    """Make a table of a `datasets.Dataset`."""
    plain = dataset.with_format(None)
    for name, feature in plain.features.items():
        if type(feature).__name__ == "Image":  # as files: pixels would not fit the memory
            plain = plain.cast_column(name, replace(feature, decode=False))
    inner = {name: getattr(f, "feature", f) for name, f in plain.features.items()}  # of lists
    classes = {name: f.names for name, f in inner.items() if hasattr(f, "int2str")}
    return Table({name: plain[name] for name in plain.column_names}, classes)


def _named(rows: Iterable[Any]) -> Iterator[Any]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number} is a {type(row).__name__}, not named columns")
        yield row


# CSV and TSV


def read_delimited(file: BinaryIO, header: bool, **style: Any) -> Table:
    """Read a CSV or TSV file. style: see `CSV`, `TSV`; broken: how many lines may have the wrong
    number of cells, and are left out."""
    names, rows = _delimited(file, header, **style)
    rows = list(rows)
    return Table({name: [row[i] for row in rows] for i, name in enumerate(names)})


def _stream_delimited(file: BinaryIO, header: bool, **style: Any) -> Iterator[dict[str, Any]]:
    names, rows = _delimited(file, header, **style)
    for row in rows:
        yield dict(zip(names, row, strict=True))


def _delimited(
    file: BinaryIO, header: bool, delimiter: str, quoted: bool, broken: int = 0
) -> tuple[list[str], Iterator[list[str]]]:
    """The names of the columns, and the rows: one cell for each name."""
    csv.field_size_limit(sys.maxsize)  # the default, 128 kB, is less than some newsgroup posts
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    rows = (row for row in reader if row)
    first = next(rows, None)
    if first is None:
        raise ValueError("it is empty")
    names = first if header else [str(i) for i in range(len(first))]
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")

    def whole() -> Iterator[list[str]]:
        left = broken
        for row in rows if header else chain([first], rows):
            if len(row) == len(names):
                yield row
            elif left:
                left -= 1
            else:
                line = reader.line_num
                raise ValueError(f"line {line} has {len(row)} fields, the first {len(names)}")

    return names, whole()


# JSON


def parse_json(file: BinaryIO) -> tuple[str, Any]:
    """Return the text of a .json file and its value; None where it is not one JSON value but one
    per line."""
    text = file.read().decode("utf-8-sig")
    try:
        return text, json.loads(text)
    except json.JSONDecodeError:
        if text.lstrip().startswith("["):
            raise
        return text, None


def is_squad(content: Any) -> bool:
    """Is parsed JSON in SQuAD's form: articles of paragraphs of questions?"""
    articles = content.get("data") if isinstance(content, Mapping) else None
    return isinstance(articles, list) and all(
        isinstance(article, Mapping) and isinstance(article.get("paragraphs"), list)
        for article in articles
    )


def _read_json(file: BinaryIO, header: bool) -> Table:
    text, content = parse_json(file)
    if content is None:  # one record per line is common under this ending too
        return from_rows(_json_lines(io.StringIO(text)))
    if is_squad(content):
        return from_rows(_questions(content["data"]))
    return from_rows(content if isinstance(content, list) else [content])


def _questions(articles: list[Any]) -> Iterator[dict[str, Any]]:
    """The rows of a SQuAD file. An article is known by its title, or else by its number."""
    for number, article in enumerate(articles):
        name = article.get("title") or number
        for paragraph in _named(article["paragraphs"]):
            for question in _named(paragraph.get("qas") or ()):
                yield {
                    "id": question.get("id"),
                    "article": name,
                    "question": question.get("question"),
                    "context": paragraph.get("context"),
                    "answers": question.get("answers"),
                    "is_impossible": question.get("is_impossible", False),
                }


def _read_jsonl(file: BinaryIO, header: bool) -> Table:
    return from_rows(_json_lines(io.TextIOWrapper(file, encoding="utf-8-sig")))


def _stream_jsonl(file: BinaryIO, header: bool) -> Iterator[dict[str, Any]]:
    return _named(_json_lines(io.TextIOWrapper(file, encoding="utf-8-sig")))


def _json_lines(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield json.loads(line)
        except json.JSONDecodeError as problem:
            raise ValueError(f"line {number}: {problem.msg}") from problem


# CoNLL


def _read_conll(file: BinaryIO, header: bool) -> Table:
    """A word per line, first column, with its tag, last column; a blank line ends a sentence."""
    sentences: list[list[list[str]]] = [[]]
    has_tag: set[bool] = set()
    for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8-sig"), 1):
        line = line.rstrip("\n")
        cells = line.split("\t") if "\t" in line else line.split(" ")
        cells = [cell.strip() for cell in cells if cell.strip()]
        if not cells or cells[0] == DOCUMENT:
            sentences.append([])
            continue
        has_tag.add(len(cells) > 1)
        if len(has_tag) > 1:
            raise ValueError(f"line {number}: some lines have a word and a tag, some one of them")
        sentences[-1].append(cells)
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise ValueError("it is empty")
    columns = {"tokens": [[cells[0] for cells in sentence] for sentence in sentences]}
    if has_tag == {True}:
        columns["tags"] = [[cells[-1] for cells in sentence] for sentence in sentences]
    return Table(columns)


# Parquet


def _read_parquet(file: BinaryIO, header: bool) -> Table:
    import datasets
    import pyarrow.parquet

    # As a Dataset, because Parquet files from the hub keep their class names in the schema.
    return from_dataset(datasets.Dataset(pyarrow.parquet.read_table(file)))


def _stream_parquet(file: BinaryIO, header: bool) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as problem:
        raise UserError(
            "reading Parquet needs pyarrow; pip install pyarrow, or write the rows as .jsonl"
        ) from problem
    with _seekable(file) as plain:
        # Else a row group, which may be the whole file, would be read at once.
        parts = pyarrow.parquet.ParquetFile(plain, buffer_size=BUFFER, pre_buffer=False)
        for batch in parts.iter_batches(batch_size=PARQUET_ROWS):
            yield from batch.to_pylist()


@contextmanager
def _seekable(file: BinaryIO) -> Iterator[BinaryIO]:
    """Parquet is read back and forth; a packed file would be unpacked again every time."""
    if not isinstance(file, gzip.GzipFile):
        yield file
        return
    with TemporaryFile() as plain:
        shutil.copyfileobj(file, plain)
        yield cast(BinaryIO, plain)


CSV: dict[str, Any] = {"delimiter": ",", "quoted": True}
# TSV has no quoting: a quotation mark in GLUE's files is just a character.
TSV: dict[str, Any] = {"delimiter": "\t", "quoted": False}
READERS: dict[str, Callable[[BinaryIO, bool], Table]] = {
    ".csv": partial(read_delimited, **CSV),
    ".tsv": partial(read_delimited, **TSV),
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".conll": _read_conll,
    ".bio": _read_conll,
}
STREAMS: dict[str, Callable[[BinaryIO, bool], Iterator[dict[str, Any]]]] = {
    ".csv": partial(_stream_delimited, **CSV),
    ".tsv": partial(_stream_delimited, **TSV),
    ".jsonl": _stream_jsonl,
    ".parquet": _stream_parquet,
}
