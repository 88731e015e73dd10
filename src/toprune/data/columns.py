"""Which columns of a table are read: those that the caller names, or those with usual names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from toprune.data.formats import Table
from toprune.data.reads import Reads, of_images
from toprune.errors import UserError


@dataclass(frozen=True)
class Columns:
    """The columns to read; None stands for a guess. A caller who names the text must name the pair
    too, unless the task requires a pair: then it is guessed.

    Numbers ("3") name the columns, from zero, of a CSV or TSV file without a header. Several label
    columns ("a,b,c") are one class each, 0 or 1, of the task multilabel.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    images: bool = False  # the text is an image: a path, a file in a cell, or pixels

    @property
    def are_numbers(self) -> bool:
        named = [name for name in (self.text, self.pair, self.label) if name]
        return bool(named) and all(part.isdecimal() for n in named for part in n.split(","))


def present_in(tables: Mapping[str, Table]) -> list[str]:
    """Return the names of the columns of all sets."""
    present = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    if not present:
        raise UserError("the source is empty; give at least two examples")
    return present


def choose_columns(columns: Columns, present: Sequence[str], reads: Reads) -> Columns:
    """Complete the named columns with guesses, and check that all of them exist.

    Args:
        columns: the columns that the caller names; None stands for a guess.
        present: the names of the table's columns.
        reads: what the task reads.
    """
    reads = of_images(reads) if columns.images else reads
    by_name = {name.strip().lower(): name for name in reversed(present)}
    text, pair, label = columns.text, columns.pair, columns.label
    if text is None and pair is None:
        text, pair = next(
            ((by_name[a], by_name[b]) for a, b in reads.pairs if a in by_name and b in by_name),
            (None, None),
        )
    text = text or _guess(reads.texts, by_name, taken=(pair, label))
    text_role, pair_role = reads.pair_roles or (reads.text_role, None)
    if pair_role:
        pair = pair or _guess([b for _, b in reads.pairs], by_name, taken=(text, label))
    label = label or _guess(reads.labels, by_name, taken=(text, pair))
    listed = ", ".join(present)
    missing = text_role if text is None else pair_role if pair is None else None
    if missing:
        raise UserError(
            f"which column is the {missing}? Name it: {reads.description}; columns here: {listed}"
        )
    if pair and not reads.pairs:
        raise UserError(f"{reads.description}; leave --pair out")
    if reads.alone and pair is None:
        if columns.label:
            raise UserError(f"{reads.description}; name the second text, too")
        label = None
    labels = label_columns(label, present) if reads.label_type == "classes" else [label]
    for wanted in filter(None, (text, pair, *labels)):
        if wanted not in present:
            raise UserError(f"no column {wanted!r}; columns here: {listed}")
    return replace(columns, text=text, pair=pair, label=label)


def _guess(
    usual: Sequence[str], by_name: Mapping[str, str], taken: tuple[str | None, ...]
) -> str | None:
    return next((by_name[u] for u in usual if u in by_name and by_name[u] not in taken), None)


def label_columns(label: str | None, present: Iterable[str]) -> list[str]:
    """Return the label column, or the columns that a name like "a,b,c" stands for."""
    if label is None or label in present:
        return [label] if label else []
    return [part.strip() for part in label.split(",")]
