"""Sources of examples: everything that a user may name becomes a `Table`, or one per split.

A source is a file, a directory, a dataset on the hub, or an object. Only Parquet, `datasets`
directories and hub names need `datasets`.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from toprune.data.formats import (
    READERS,
    STREAMS,
    TSV,
    Table,
    from_dataset,
    from_rows,
    parse_json,
    read_delimited,
)
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
USUAL = ("train", "validation", "test")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
SQUAD_NAME = re.compile(r"(\w+)-(?!\d+-of-\d+).*\.json(\.gz)?")  # train-v1.1.json, but no shard


def read(source: Any, *, header: bool = True) -> Table | dict[str, Table]:
    """Open a source.

    Args:
        source: a file, a directory, a hub name (`owner/name` or `owner/name:config`), a `Dataset`
            or DataFrame, rows as dicts, or a mapping from split names to any of these.
        header: the first line of a CSV or TSV file names the columns; else numbers name them.

    Returns:
        A table, or the tables of several splits by their canonical names (`dev` -> `validation`).
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


def choose_splits(
    source: Table | Mapping[str, Table], split: str | None, usual: Sequence[str] = USUAL
) -> dict[str, Table]:
    """Choose the requested split of a source, or the usual ones.

    Args:
        source: what `read` returns; a single table is the requested split, or train.
        split: the requested split, by any of its names; None: the usual ones that exist.
        usual: the usual splits.
    """
    split = SPLITS.get(split, split) if split else None
    if isinstance(source, Table):
        return {split or "train": source}
    wanted = (split,) if split else usual
    chosen = {name: source[name] for name in wanted if name in source}
    if not chosen:
        raise UserError(f"no {' or '.join(wanted)} set; the source has: {', '.join(source)}")
    return chosen


def stream(path: Path, *, header: bool = True) -> Iterator[dict[str, Any]]:
    """Read the rows of one file, one at a time: the file may be larger than the memory."""
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
    """Read one TSV file; `broken` lines may have the wrong number of cells and are left out."""
    with _opened(path) as file:
        return read_delimited(file, header, **TSV, broken=broken)


def read_json(path: Path) -> Any:
    """Read a .json file; None where it is not one JSON value but one per line."""
    with _opened(path) as file:
        return parse_json(file)[1]


def _single(source: Any, header: bool) -> Table:
    if isinstance(source, str | Path):
        table = read(source, header=header)
        if isinstance(table, Table):
            return table
        raise UserError(f"{source} holds several splits; name one file for each split")
    if hasattr(source, "column_names"):  # datasets.Dataset
        return from_dataset(source)
    if hasattr(source, "notna"):  # pandas.DataFrame; None in place of its several kinds of nothing
        plain = source.astype(object).where(source.notna(), None)
        return Table({str(name): plain[name].tolist() for name in plain.columns})
    if isinstance(source, Iterable):
        try:
            return from_rows(source)
        except ValueError as problem:
            raise UserError(f"cannot read the examples: {problem}") from problem
    raise UserError(f"cannot read examples from a {type(source).__name__}; give rows as dicts")


def _by_split(tables: Mapping[str, Table]) -> dict[str, Table]:
    splits: dict[str, Table] = {}
    for name, table in tables.items():
        split = SPLITS.get(name.lower(), name)
        if split in splits:
            raise UserError(f"the source has two {split} sets ({', '.join(tables)}); keep one")
        splits[split] = table
    return splits


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
    """Open a file and unpack it; any error in its content becomes one line that names the file."""
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
    stem = squad[1] if squad else name.split(".")[0]
    return SPLITS.get(stem) if _ending(file) in READERS else None


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
        return _by_split({str(name): from_dataset(part) for name, part in loaded.items()})
    return from_dataset(loaded)


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__).rstrip(".")
