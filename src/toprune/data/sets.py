"""The sets of examples that commands work on, from any source, with or without a preset.

A preset is read from a folder of its official TSV files, from the hub, or from anything else that
`examples.load` reads.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toprune.data.columns import Columns, choose_columns, present_in
from toprune.data.examples import Examples, from_tables, load, read_texts, read_unlabelled
from toprune.data.files import SPLITS, choose_splits, read, read_tsv
from toprune.data.formats import Table
from toprune.data.labels import fold
from toprune.data.reads import Reads
from toprune.data.recipes import Preset
from toprune.errors import UserError


@dataclass(frozen=True)
class Data:
    """Where the examples are, and how long they may get."""

    source: Any  # None: the hub's copy of a preset
    columns: Columns = field(default_factory=Columns)
    max_length: int | None = None  # None: the preset's, else what the model can take
    skip_bad_rows: bool = False  # leave bad rows out with a warning instead of refusing the data
    # Further sources of texts for `prune` to learn from. Their labels are not read.
    unlabelled: tuple[Any, ...] = ()
    lengths_of: Any = None  # texts of the lengths that a budget is for; None: the training texts


def load_sets(
    source: Any,
    *,
    reads: Reads,
    preset: Preset | None = None,
    columns: Columns | None = None,
    split: str | None = None,
    label_names: Sequence[str] | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Examples]:
    """Load the sets of a source by name.

    Args:
        source: see `files.read`; None stands for a preset's copy on the hub.
        reads: what the task reads.
        preset: the dataset that the source is a copy of, if it is a well-known one.
        columns: the columns to read, where they have other names than usual.
        split: load this set only.
        label_names: the model's class names by id.
        skip_bad_rows: leave bad rows out with a warning instead of refusing them.
    """
    options: Any = {
        "reads": reads,
        "columns": columns,
        "split": split,
        "label_names": label_names,
        "skip_bad_rows": skip_bad_rows,
    }
    if preset is not None:
        return load_preset(preset, source, **options)
    if source is None:
        raise UserError("no data; name them with --data (the tasks of GLUE have a copy on the hub)")
    return load(source, **options)


def load_furthest(source: Any, *, preset: Preset | None = None, **options: Any) -> Examples:
    """Load one set: the split that `options` name, or the one that is furthest from training.

    options: see `load_sets`.
    """
    return _furthest(load_sets(source, preset=preset, **options), preset)


def load_labelled(source: Any, *, reads: Reads, **options: Any) -> Examples:
    """Load the set to evaluate on, as `load_furthest` does; refuse one without labels."""
    examples = load_furthest(source, reads=reads, **options)
    if examples.labels is None and reads.alone:
        raise UserError(
            "a model without a head makes vectors, which are evaluated on pairs of texts (--pair) "
            "and their similarity (--label); for other tasks run 'toprune finetune' on it first"
        )
    if examples.labels is None:
        raise UserError("evaluation needs labels; name their column with --label")
    return examples


def load_texts(
    source: Any, *, reads: Reads, preset: Preset | None = None, **options: Any
) -> list[Any]:
    """Load the texts, pairs or lists of words alone, of the set that evaluation would load."""
    if preset is None:
        return read_texts(source, reads=reads, **options)
    return _furthest(load_preset(preset, source, reads=reads, **options), preset).inputs(reads)


def with_unlabelled(
    train: Examples,
    held_out: Examples,
    sources: Sequence[Any],
    *,
    reads: Reads,
    columns: Columns | None = None,
    skip_bad_rows: bool = False,
) -> Examples:
    """Add the texts of further sources to a training set, which loses its labels by that.

    Args:
        train: the training set.
        held_out: the examples that are reported; a text of these is refused, or left out with a
            warning (`skip_bad_rows`).
        sources: see `files.read`; their labels are not read. Texts of `train` are left out.
        reads, columns, skip_bad_rows: see `load_sets`.
    """
    inputs = {_key(text): text for text in train.inputs(reads)}
    reported = {_key(text) for text in held_out.inputs(reads)}
    for source in sources:
        examples = read_matching(
            source,
            train,
            "the unlabelled data",
            reads=reads,
            columns=columns,
            skip_bad_rows=skip_bad_rows,
        )
        more = {_key(text): text for text in examples.inputs(reads)}
        if common := reported & more.keys():
            what = f"{len(common)} unlabelled text(s) are held out to be reported"
            if not skip_bad_rows:
                raise UserError(f"{what}; remove them, or leave them out with --skip-bad-rows")
            warnings.warn(f"{what} and left out", stacklevel=2)
        inputs |= {key: text for key, text in more.items() if key not in reported}
    texts = list(inputs.values())
    if train.pairs is None or reads.alone:
        return Examples(texts)
    return Examples([first for first, _ in texts], [second for _, second in texts])


def read_matching(
    source: Any,
    train: Examples,
    what: str,
    *,
    reads: Reads,
    columns: Columns | None = None,
    skip_bad_rows: bool = False,
) -> Examples:
    """Read further texts without their labels; refuse single texts beside pairs.

    Args:
        source: see `files.read`.
        train: the training set.
        what: the source in the words of an error.
        reads, columns, skip_bad_rows: see `load_sets`.
    """
    columns = replace(columns or Columns(), label=None)  # it may be in the training set alone
    examples = read_unlabelled(source, reads=reads, columns=columns, skip_bad_rows=skip_bad_rows)
    if (examples.pairs is None) != (train.pairs is None) and not reads.alone:
        kinds = ("single texts", "pairs")
        mine, theirs = (kinds[e.pairs is not None] for e in (train, examples))
        raise UserError(f"the data have {mine}, but {what} have {theirs}")
    return examples


def served_texts(data: Data, train: Examples, reads: Reads) -> Examples:
    """Texts of the lengths that a budget is for: those of `Data.lengths_of`, or the training set.
    Further unlabelled texts do not count, because they may be of other lengths."""
    if data.lengths_of is None:
        return train
    return read_matching(
        data.lengths_of,
        train,
        "the texts of --lengths-of",
        reads=reads,
        columns=data.columns,
        skip_bad_rows=data.skip_bad_rows,
    )


def apart_from(examples: Examples, others: Examples, reads: Reads) -> Examples:
    """The examples whose texts are not among those of the others."""
    keys = {_key(text) for text in others.inputs(reads)}
    texts = enumerate(examples.inputs(reads))
    return examples.take([i for i, text in texts if _key(text) not in keys])


def _key(text: Any) -> Any:
    """What tells two inputs apart: a list of words cannot be the key of a dict."""
    return tuple(text) if isinstance(text, list) else text


def held_out_order(preset: Preset | None) -> tuple[str, str]:
    """Return the names of held-out sets, the one to report first. That is test; of a preset it is
    validation, as in all papers: few copies have the labels of the test sets."""
    return ("test", "validation") if preset is None else ("validation", "test")


def _furthest(sets: Mapping[str, Examples], preset: Preset | None) -> Examples:
    order = (*held_out_order(preset), "train")
    return sets[next((name for name in order if name in sets), next(iter(sets)))]


def load_preset(
    preset: Preset,
    source: Any = None,
    *,
    reads: Reads,
    columns: Columns | None = None,
    split: str | None = None,
    label_names: Sequence[str] | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Examples]:
    """Load the labelled sets of a preset: train, validation, other validation sets, and test where
    it has labels.

    source: a folder with the official TSV files, the folder above it, or one of the files; anything
    else that `examples.load` reads; None: the hub's copy. The others: see `load_sets`.
    """
    files = _official_files(preset, source)
    try:
        if files:
            tables, columns = _read_official(preset, files, columns or Columns(), split)
        else:
            tables, columns = _read_other(preset, source, columns or Columns(), split, reads)
    except UserError as problem:
        if files or not isinstance(source, str | Path) or not Path(source).is_dir():
            raise
        raise UserError(
            f"{source} has none of {preset.title}'s files ({', '.join(preset.files.values())}), "
            f"and read as other data: {problem}"
        ) from problem
    if preset.classes and columns.label:
        tables = {name: _with_classes(t, columns.label, preset) for name, t in tables.items()}
    same = label_names and set(fold(label_names)) == set(fold(preset.classes))
    sets = from_tables(
        tables,
        columns,
        reads=reads,
        label_names=label_names if same else preset.classes,
        blanks=True,  # QQP has such pairs
        skip_bad_rows=skip_bad_rows,
    )
    labelled = {n: e for n, e in sets.items() if n != "test" or e.labels is not None}
    if not labelled:
        raise UserError(f"the test set of {preset.title} has no labels; choose another split")
    return labelled


def _official_files(preset: Preset, source: Any) -> dict[str, Path]:
    """The official files by split, if the source is one of them or their folder."""
    if not isinstance(source, str | Path):
        return {}
    path = Path(source)
    if path.is_file():
        return {split: path for split, name in preset.files.items() if name == path.name}
    folder = path / preset.title if (path / preset.title).is_dir() else path
    files = {split: folder / name for split, name in preset.files.items()}
    return {split: file for split, file in files.items() if file.is_file()}


def _read_official(
    preset: Preset, files: Mapping[str, Path], named: Columns, split: str | None
) -> tuple[dict[str, Table], Columns]:
    columns = _merged(named, preset.columns)
    tables: dict[str, Table] = {}
    for name in _splits(preset, files, split):
        file = files[name]
        table = read_tsv(file, header=not columns.are_numbers, broken=preset.broken)
        label = columns.label if name != "test" else None  # most official test files have none
        for column in filter(None, (columns.text, columns.pair, label)):
            if column not in table.columns:
                raise UserError(
                    f"{file} is not a file of {preset.title}: it has no column {column!r}, but "
                    f"{', '.join(table.columns)}; give the folder with {preset.title}'s files, or "
                    "name the columns"
                )
        tables[name] = table
    return tables, columns


def _splits(preset: Preset, files: Mapping[str, Path], split: str | None) -> list[str]:
    if split is None:
        return list(files)
    name = SPLITS.get(split, split)
    if name not in files:
        raise UserError(
            f"there is no {name} set with labels in these files of {preset.title}, only: "
            f"{', '.join(files)}"
        )
    return [name]


def _read_other(
    preset: Preset, source: Any, named: Columns, split: str | None, reads: Reads
) -> tuple[dict[str, Table], Columns]:
    """Read the hub's columns where they exist, else guess them, as for any data."""
    loaded = read(preset.hub if source is None else source, header=not named.are_numbers)
    tables = choose_splits(loaded, split, usual=tuple(dict.fromkeys([*preset.files, "test"])))
    present = present_in(tables)
    hub = preset.hub_columns
    if named.text is None and named.pair is None and {hub.text, hub.pair} <= {*present, None}:
        named = replace(named, text=hub.text, pair=hub.pair)
    is_named = named.text is not None
    columns = choose_columns(named, present, reads)
    if not is_named and (columns.pair is None) != (hub.pair is None):
        wanted, options = (
            ("single texts", "--text") if hub.pair is None else ("pairs", "--text, --pair")
        )
        raise UserError(
            f"{preset.title} is about {wanted}; name the columns with {options} "
            f"(columns here: {', '.join(present)})"
        )
    return tables, columns


def _merged(named: Columns, usual: Columns) -> Columns:
    """A caller who names the text must name the pair, too."""
    if named.text is None and named.pair is None:
        return replace(usual, label=named.label or usual.label)
    return replace(named, label=named.label or usual.label)


def _with_classes(table: Table, label: str, preset: Preset) -> Table:
    return table if label in table.classes else Table(table.columns, {label: list(preset.classes)})
