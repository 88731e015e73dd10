"""Where examples come from: every source that a user may name becomes a `Table`, or one per split.

Cells stay as they are written ("007" is not 7, "null" is a word): what they mean is decided in
`data.py`. Only Parquet, `datasets` directories and hub names need `datasets`. Two formats are not
tables on disk and become one here: SQuAD's nested JSON, and CoNLL's line per word.
"""

import csv
import gzip
import io
import json
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from toprune.errors import UserError

SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "validation_matched": "validation",
    "dev_matched": "validation",
    "validation_mismatched": "validation_mismatched",
    "dev_mismatched": "validation_mismatched",
    "test": "test",
    "testing": "test",
    "test_matched": "test",
}
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
SQUAD_NAME = re.compile(r"(\w+)-(?!\d+-of-\d+).*\.json(\.gz)?")  # train-v1.1.json, but no shard
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


def read(source: Any, *, header: bool = True) -> Table | dict[str, Table]:
    """Open a source; a mapping of splits comes back with canonical names (`dev` -> `validation`).

    source: a file, a directory, a hub name (`owner/name` or `owner/name:config`), a `Dataset` or
    DataFrame, rows as dicts, or a mapping from split names to any of these.
    """
    if isinstance(source, Mapping):
        return _by_split({str(name): _single(part, header) for name, part in source.items()})
    if not isinstance(source, str | Path):
        return _single(source, header)
    path = Path(source)
    if path.is_dir():
        return _read_directory(path, header)
    if path.is_file():
        return _read_file(path, header)
    # A path with a data file's ending, or inside a directory that is here, is a typing error: say
    # so at once rather than after a round of network time-outs.
    is_file_name = _ending(path) in READERS or (path.parent.name and path.parent.is_dir())
    if isinstance(source, str) and HUB_NAME.fullmatch(source) and not is_file_name:
        return _load_dataset(*source.split(":"))
    raise UserError(
        f"no file or directory {str(source)!r}; check the path "
        "(a data set on the hub is named owner/name or owner/name:config)"
    )


def stream(path: Path, *, header: bool = True) -> Iterator[dict[str, Any]]:
    """The rows of one file, one at a time: the file may be larger than the memory."""
    ending = _ending(path)
    if ending not in STREAMS:
        raise UserError(
            f"{path}: rows cannot be read one by one from {ending or 'a file without an ending'}; "
            f"known: {' '.join(STREAMS)}, each also with .gz"
        )
    if not path.is_file():
        raise UserError(f"no file {str(path)!r}; check the path")
    with _opened(path) as file:
        yield from STREAMS[ending](file, header)


def read_tsv(path: Path, *, header: bool = True, broken: int = 0) -> Table:
    """One TSV file; so many lines may have the wrong number of cells and are left out."""
    with _opened(path) as file:
        return _read_delimited(file, header, **TSV, broken=broken)


def is_squad(content: Any) -> bool:
    """Whether parsed JSON is of SQuAD's form: articles of paragraphs of questions."""
    articles = content.get("data") if isinstance(content, Mapping) else None
    return isinstance(articles, list) and all(
        isinstance(article, Mapping) and isinstance(article.get("paragraphs"), list)
        for article in articles
    )


def read_json(path: Path) -> Any:
    """What a .json file holds; None where it is not one JSON value (but one per line)."""
    with _opened(path) as file:
        return _parse(file)[1]


def _single(source: Any, header: bool) -> Table:
    if isinstance(source, str | Path):
        found = read(source, header=header)
        if isinstance(found, Table):
            return found
        raise UserError(f"{source} holds several splits; name one file for each split")
    if hasattr(source, "column_names"):  # datasets.Dataset
        return _from_dataset(source)
    if hasattr(source, "notna"):  # pandas.DataFrame; None in place of its several kinds of nothing
        plain = source.astype(object).where(source.notna(), None)
        return Table({str(name): plain[name].tolist() for name in plain.columns})
    if isinstance(source, Iterable):
        try:
            return _from_rows(source)
        except ValueError as problem:
            raise UserError(f"cannot read the examples: {problem}") from problem
    raise UserError(f"cannot read examples from a {type(source).__name__}; give rows as dicts")


def _by_split(tables: Mapping[str, Table]) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for name, table in tables.items():
        split = SPLITS.get(name.lower(), name)
        if split in found:
            raise UserError(f"the source has two {split} sets ({', '.join(tables)}); keep one")
        found[split] = table
    return found


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _read_file(path: Path, header: bool) -> Table:
    ending = _ending(path)
    if ending not in READERS:
        raise UserError(
            f"{path}: unknown ending {ending!r}; known: {' '.join(READERS)}, each also with .gz"
        )
    with _opened(path) as file:
        return replace(READERS[ending](file, header), folder=path.parent)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked; whatever is wrong with them is one line that names it."""
    is_packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except UserError:
        raise
    except (ValueError, OSError, EOFError, csv.Error, zlib.error) as problem:
        raise UserError(
            f"{path} is not a good {_ending(path)} file ({_first_line(problem)}); "
            "check its content and its ending"
        ) from problem


def _read_directory(path: Path, header: bool) -> Table | dict[str, Table]:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        import datasets

        return _from_datasets(datasets.load_from_disk(str(path)))
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        split = _split_of(file)
        if split in files:
            raise UserError(
                f"{path} has two {split} sets: {files[split].name}, {file.name}; keep one"
            )
        if split:
            files[split] = file
    if files:
        return {split: _read_file(file, header) for split, file in files.items()}
    return _load_dataset(str(path))  # e.g. data/train-00000-of-00002.parquet


def _split_of(file: Path) -> str | None:
    """Which set a file of a directory is, by its name: dev.csv, train-v1.1.json."""
    name = file.name.lower()
    squad = SQUAD_NAME.fullmatch(name)
    word = squad[1] if squad else name.split(".")[0]
    return SPLITS.get(word) if _ending(file) in READERS else None


def _load_dataset(name: str, config: str | None = None) -> Table | dict[str, Table]:
    import datasets

    try:
        return _from_datasets(datasets.load_dataset(name, config))
    except Exception as problem:  # datasets raises whatever its file systems raise
        raise UserError(
            f"cannot load the data set {name!r}: {_first_line(problem)}; give a file "
            f"({' '.join(READERS)}), a directory with train and test files, or owner/name:config"
        ) from problem


def _from_datasets(loaded: Any) -> Table | dict[str, Table]:
    if isinstance(loaded, Mapping):
        return _by_split({str(name): _from_dataset(part) for name, part in loaded.items()})
    return _from_dataset(loaded)


def _from_dataset(dataset: Any) -> Table:
    plain = dataset.with_format(None)
    for name, feature in plain.features.items():
        if type(feature).__name__ == "Image":  # as files: pixels would not fit the memory
            plain = plain.cast_column(name, replace(feature, decode=False))
    inner = {name: getattr(f, "feature", f) for name, f in plain.features.items()}  # of lists
    classes = {name: f.names for name, f in inner.items() if hasattr(f, "int2str")}
    return Table({name: plain[name] for name in plain.column_names}, classes)


def _from_rows(rows: Iterable[Any]) -> Table:
    rows = list(_named(rows))
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({str(name): [row.get(name) for row in rows] for name in names})


def _named(rows: Iterable[Any]) -> Iterator[Any]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number} is a {type(row).__name__}, not named columns")
        yield row


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


def _read_delimited(file: BinaryIO, header: bool, **style: Any) -> Table:
    names, rows = _delimited(file, header, **style)
    rows = list(rows)
    return Table({name: [row[i] for row in rows] for i, name in enumerate(names)})


def _stream_delimited(file: BinaryIO, header: bool, **style: Any) -> Iterator[dict[str, Any]]:
    names, rows = _delimited(file, header, **style)
    for row in rows:
        yield dict(zip(names, row, strict=True))


def _read_json(file: BinaryIO, header: bool) -> Table:
    text, content = _parse(file)
    if content is None:  # one record per line is common under this ending too
        return _from_rows(_json_lines(io.StringIO(text)))
    if is_squad(content):
        return _from_rows(_questions(content["data"]))
    return _from_rows(content if isinstance(content, list) else [content])


def _parse(file: BinaryIO) -> tuple[str, Any]:
    text = file.read().decode("utf-8-sig")
    try:
        return text, json.loads(text)
    except json.JSONDecodeError:
        if text.lstrip().startswith("["):
            raise
        return text, None


def _questions(articles: list[Any]) -> Iterator[dict[str, Any]]:
    """The rows of a SQuAD file. An article is known by its title, or else by its number."""
    for number, article in enumerate(articles):
        name = article.get("title") or number
        for paragraph in _named(article["paragraphs"]):
            for asked in _named(paragraph.get("qas") or ()):
                yield {
                    "id": asked.get("id"),
                    "article": name,
                    "question": asked.get("question"),
                    "context": paragraph.get("context"),
                    "answers": asked.get("answers"),
                    "is_impossible": asked.get("is_impossible", False),
                }


def _read_conll(file: BinaryIO, header: bool) -> Table:
    """A word per line, first column, with its tag, last column; a blank line ends a sentence."""
    sentences: list[list[list[str]]] = [[]]
    widths: set[bool] = set()
    for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8-sig"), 1):
        line = line.rstrip("\n")
        cells = line.split("\t") if "\t" in line else line.split(" ")
        cells = [cell.strip() for cell in cells if cell.strip()]
        if not cells or cells[0] == DOCUMENT:
            sentences.append([])
            continue
        widths.add(len(cells) > 1)
        if len(widths) > 1:
            raise ValueError(f"line {number}: some lines have a word and a tag, some one of them")
        sentences[-1].append(cells)
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise ValueError("it is empty")
    columns = {"tokens": [[cells[0] for cells in sentence] for sentence in sentences]}
    if widths == {True}:
        columns["tags"] = [[cells[-1] for cells in sentence] for sentence in sentences]
    return Table(columns)


def _read_jsonl(file: BinaryIO, header: bool) -> Table:
    return _from_rows(_json_lines(io.TextIOWrapper(file, encoding="utf-8-sig")))


def _stream_jsonl(file: BinaryIO, header: bool) -> Iterator[dict[str, Any]]:
    return _named(_json_lines(io.TextIOWrapper(file, encoding="utf-8-sig")))


def _json_lines(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield json.loads(line)
        except json.JSONDecodeError as problem:
            raise ValueError(f"line {number}: {problem.msg}") from problem


def _read_parquet(file: BinaryIO, header: bool) -> Table:
    import datasets
    import pyarrow.parquet

    # As a Dataset, because Parquet files from the hub keep their class names in the schema.
    return _from_dataset(datasets.Dataset(pyarrow.parquet.read_table(file)))


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
    """Parquet is read back and forth; what is packed would be unpacked anew every time."""
    if not isinstance(file, gzip.GzipFile):
        yield file
        return
    with TemporaryFile() as plain:
        shutil.copyfileobj(file, plain)
        yield cast(BinaryIO, plain)


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__).rstrip(".")


CSV: dict[str, Any] = {"delimiter": ",", "quoted": True}
# TSV has no quoting: a quotation mark in GLUE's files is just a character.
TSV: dict[str, Any] = {"delimiter": "\t", "quoted": False}
READERS: dict[str, Callable[[BinaryIO, bool], Table]] = {
    ".csv": partial(_read_delimited, **CSV),
    ".tsv": partial(_read_delimited, **TSV),
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
