"""Examples: texts (or pairs) with labels, from any source, with columns guessed when not named.

Labels are optional all the way: a model and raw texts are enough to prune. What is there must be
sound: an empty text found here is one clear line, found in the middle of a training it is an hour
lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.labels import class_ids, is_unlabelled, name_rows, numbers
from toprune.sources import SPLITS, Table, read

# Pairs before single texts: QNLI has `question` and `sentence`, and needs both.
PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
)
TEXTS = ("text", "sentence", "sentence1", "premise", "question", "review", "content", "query")
LABELS = ("label", "labels", "score", "target", "class", "gold_label")
USUAL = ("train", "validation", "test")


@dataclass(frozen=True)
class Columns:
    """Which columns to read. None is guessed; who names the text must name the pair too.

    Numbers ("3") name the columns, from zero, of a CSV or TSV file without a header.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None

    @property
    def are_numbers(self) -> bool:
        named = [name for name in (self.text, self.pair, self.label) if name]
        return bool(named) and all(name.isdecimal() for name in named)


@dataclass(frozen=True)
class Examples:
    """One set of examples. `labels` are class ids, or real numbers for regression."""

    texts: list[str]
    pairs: list[str] | None = None
    labels: list[int] | list[float] | None = None
    label_names: list[str] | None = None  # class names by id, when there are names

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Iterable[int]) -> "Examples":
        chosen = [int(i) for i in indices]
        pairs, labels = self.pairs, self.labels
        return Examples(
            texts=[self.texts[i] for i in chosen],
            pairs=None if pairs is None else [pairs[i] for i in chosen],
            labels=None if labels is None else [labels[i] for i in chosen],
            label_names=self.label_names,
        )


def load(
    source: Any,
    *,
    task: str,
    columns: Columns | None = None,
    split: str | None = None,
    label_names: Sequence[str] | None = None,
) -> dict[str, Examples]:
    """Read a source (see `sources.read`) into its train, validation and test sets.

    split: read only this one; it also names a source that has no splits ("train" when None).
    label_names: the model's class names by id (`tasks.classify.class_names`), so that labels which
    are written as names get the ids that the model means by them.
    """
    columns = columns or Columns()
    tables = choose_splits(read(source, header=not columns.are_numbers), split)
    columns = choose_columns(columns, present_in(tables))
    return from_tables(tables, columns, task=task, label_names=label_names)


def from_tables(
    tables: Mapping[str, Table],
    columns: Columns,
    *,
    task: str,
    label_names: Sequence[str] | None = None,
    blanks: bool = False,
) -> dict[str, Examples]:
    """The sets of a source by name, once it is settled which columns to read.

    blanks: one text of a pair may be empty.
    """
    blanks = blanks and columns.pair is not None
    texts = {name: _texts(table, str(columns.text), name, blanks) for name, table in tables.items()}
    pairs = {
        name: _texts(table, columns.pair, name, blanks) if columns.pair else None
        for name, table in tables.items()
    }
    labels, names = _labels(tables, columns.label, task, label_names)
    found = {name: Examples(texts[name], pairs[name], labels.get(name), names) for name in tables}
    for name, examples in found.items():
        _refuse_useless(examples, name)
    return found


def read_texts(
    source: Any, *, columns: Columns | None = None, split: str | None = None
) -> list[str] | list[tuple[str, str]]:
    """The texts or pairs alone, of the asked split or the one that is furthest from training."""
    columns = columns or Columns()
    tables = choose_splits(read(source, header=not columns.are_numbers), split)
    name = next(s for s in (split, "test", "validation", *tables) if s in tables)
    columns = choose_columns(columns, list(tables[name].columns))
    texts = _texts(tables[name], str(columns.text), name)
    if columns.pair is None:
        return texts
    return list(zip(texts, _texts(tables[name], columns.pair, name), strict=True))


def split_validation(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Set a share of the examples aside, seeded; classes keep their shares to within one example.

    Every class stays in train, even one of a single example: a class that only validation knows
    would not fit the head that train asks for.
    """
    if not 0 < share <= 0.5:
        raise UserError(f"a validation share of {share} is not in (0, 0.5]; 0.1 is usual")
    order = np.random.default_rng(seed).permutation(len(examples))
    labels = examples.labels
    if labels and isinstance(labels[0], int):
        ids = np.asarray(labels)
        order = order[np.argsort(ids[order], kind="stable")]
        order = order[np.bincount(ids)[ids[order]] > 1]
    if len(order) < 2:
        raise UserError("too few examples to set some aside; give a validation set")
    # Every (1 / share)-th along the classes laid end to end.
    count = min(max(1, round(share * len(examples))), len(order) // 2)
    chosen = order[(np.arange(count) * 2 + 1) * len(order) // (2 * count)]
    rest = np.setdiff1d(np.arange(len(examples)), chosen)
    return examples.take(rest), examples.take(np.sort(chosen))


def choose_splits(
    found: Table | Mapping[str, Table], split: str | None, usual: Sequence[str] = USUAL
) -> dict[str, Table]:
    """The asked split of a source, or the usual ones."""
    split = SPLITS.get(split, split) if split else None
    if isinstance(found, Table):
        return {split or "train": found}
    wanted = (split,) if split else usual
    chosen = {name: found[name] for name in wanted if name in found}
    if not chosen:
        raise UserError(f"no {' or '.join(wanted)} set; the source has: {', '.join(found)}")
    return chosen


def present_in(tables: Mapping[str, Table]) -> list[str]:
    """The columns of all sets."""
    present = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    if not present:
        raise UserError("the source is empty; give at least two examples")
    return present


def choose_columns(columns: Columns, present: Sequence[str]) -> Columns:
    """Fill in the guesses from the names that are present, and check the names that are given."""
    by_word = {name.strip().lower(): name for name in reversed(present)}
    text, pair, label = columns.text, columns.pair, columns.label
    if text is None and pair is None:
        text, pair = next(
            ((by_word[a], by_word[b]) for a, b in PAIRS if a in by_word and b in by_word),
            (None, None),
        )
    text = text or _guess(TEXTS, by_word, taken=(pair, label))
    label = label or _guess(LABELS, by_word, taken=(text, pair))
    listed = ", ".join(present)
    if text is None:
        raise UserError(f"which column is the text? Name it; columns here: {listed}")
    for wanted in filter(None, (text, pair, label)):
        if wanted not in present:
            raise UserError(f"no column {wanted!r}; columns here: {listed}")
    return Columns(text, pair, label)


def _guess(
    words: Sequence[str], by_word: Mapping[str, str], taken: tuple[str | None, ...]
) -> str | None:
    return next((by_word[w] for w in words if w in by_word and by_word[w] not in taken), None)


def as_text(cell: Any) -> str:
    """The text in a cell, or "": blanks and NaN are none, but a number is a text too."""
    if isinstance(cell, str):
        return cell if cell.strip() else ""
    if isinstance(cell, Real):
        return str(cell) if cell == cell else ""
    if cell is None:
        return ""
    raise TypeError(f"a {type(cell).__name__}")


def _texts(table: Table, column: str, name: str, blanks: bool = False) -> list[str]:
    if column not in table.columns:
        raise UserError(
            f"the {name} set has no column {column!r}; columns there: {', '.join(table.columns)}"
        )
    texts: list[str] = []
    bad: list[int] = []
    for row, cell in enumerate(table.columns[column]):
        try:
            texts.append(as_text(cell))
        except TypeError as problem:
            raise UserError(
                f"column {column!r} of the {name} set holds {problem} in {name_rows([row])}, "
                "not a text; name another column"
            ) from problem
        if not texts[-1]:
            bad.append(row)
    if bad and not blanks:
        raise UserError(
            f"column {column!r} of the {name} set is empty in {name_rows(bad)}; drop the rows"
        )
    return texts


def _labels(
    tables: Mapping[str, Table], column: str | None, task: str, label_names: Sequence[str] | None
) -> tuple[Mapping[str, list[int] | list[float]], list[str] | None]:
    if column is None:
        return {}, None
    cells = {name: list(t.columns[column]) for name, t in tables.items() if column in t.columns}
    cells = {name: labels for name, labels in cells.items() if not is_unlabelled(labels)}
    if task == "regress":
        return {name: numbers(labels, name) for name, labels in cells.items()}, None
    if not cells:
        return {}, None
    classes = {name: t.classes[column] for name, t in tables.items() if column in t.classes}
    return class_ids(cells, classes=classes, names=label_names)


def _refuse_useless(examples: Examples, name: str) -> None:
    if not len(examples):
        raise UserError(f"the {name} set is empty; give at least two examples")
    if examples.labels and len(set(examples.labels)) == 1:
        label = examples.labels[0]
        if examples.label_names:
            label = examples.label_names[int(label)]
        raise UserError(
            f"every label of the {name} set is {label}: there is nothing to learn or to measure; "
            "give examples of two classes or more, or leave the label column out"
        )
