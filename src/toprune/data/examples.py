"""Examples of every task, from any source: the texts and labels of the chosen columns.

Labels are always optional: a model and raw texts are enough to prune. Labels that exist must be
sound: a bad row costs one clear line here, but an hour in the middle of a training.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from toprune.data.bad_rows import BadRows, Cells, name_rows, refuse_or_skip
from toprune.data.cells import as_flag, as_text, as_words, is_missing
from toprune.data.columns import Columns, choose_columns, label_columns, present_in
from toprune.data.files import choose_splits, read
from toprune.data.formats import Table
from toprune.data.images import as_image, no_file
from toprune.data.labels import (
    class_ids,
    flagged,
    is_unlabelled,
    label_lists,
    numbers,
    separator_of,
    spans,
    tag_lists,
    without_flags,
)
from toprune.data.reads import Reads
from toprune.errors import UserError


@dataclass(frozen=True)
class Examples:
    """One set of examples of a task.

    | label_type | labels: one entry for each text                                    |
    |------------|--------------------------------------------------------------------|
    | class      | class id                                                           |
    | number     | number                                                             |
    | classes    | sorted class ids, maybe none                                       |
    | tags       | tag ids, one for each word; texts are lists of words               |
    | answers    | list of (answer, first character in the context); empty: no answer |

    For an image model, texts are images: paths, bytes of files or Pillow images (`as_image`).
    """

    texts: list[Any]
    pairs: list[str] | None = None
    labels: list[Any] | None = None
    label_names: list[str] | None = None  # class names by id, when there are names
    articles: list[Any] | None = None  # which one each pair comes from, when known

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Iterable[int]) -> "Examples":
        """Return the examples at these indices, in this order."""
        chosen = [int(i) for i in indices]

        def at(column: list[Any] | None) -> list[Any] | None:
            return None if column is None else [column[i] for i in chosen]

        return Examples(
            texts=[self.texts[i] for i in chosen],
            pairs=at(self.pairs),
            labels=at(self.labels),
            label_names=self.label_names,
            articles=at(self.articles),
        )

    def inputs(self, reads: Reads) -> list[Any]:
        """Return what the model reads: texts, or pairs of them; where the task reads both texts of
        a pair alone, all first texts and then all second ones."""
        if self.pairs is None:
            return list(self.texts)
        if reads.alone:
            return [*self.texts, *self.pairs]
        return list(zip(self.texts, self.pairs, strict=True))


def load(
    source: Any,
    *,
    reads: Reads,
    columns: Columns | None = None,
    split: str | None = None,
    label_names: Sequence[str] | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Examples]:
    """Read a source into its train, validation and test sets.

    Args:
        source: see `files.read`.
        reads: what the task reads, for instance `Classify.READS`.
        columns: the columns to read, where they have other names than usual.
        split: read this set only; it also names a source that has no splits ("train" when None).
        label_names: the model's class names by id, so that labels which are written as names get
            the model's ids.
        skip_bad_rows: leave bad rows out with a warning instead of refusing them.
    """
    columns = columns or Columns()
    tables = choose_splits(read(source, header=not columns.are_numbers), split)
    columns = choose_columns(columns, present_in(tables), reads)
    return from_tables(
        tables, columns, reads=reads, label_names=label_names, skip_bad_rows=skip_bad_rows
    )


def from_tables(
    tables: Mapping[str, Table],
    columns: Columns,
    *,
    reads: Reads,
    label_names: Sequence[str] | None = None,
    blanks: bool = False,
    skip_bad_rows: bool = False,
) -> dict[str, Examples]:
    """Read the chosen columns of the tables of a source, by the names of its sets.

    Args:
        blanks: one text of a pair may be empty.
        skip_bad_rows: leave out rows without a text or a label, or with an impossible label, and
            warn about them; otherwise they are an error.
    """
    blanks = blanks and columns.pair is not None
    parts = {n: _read_part(table, columns, reads, n, blanks) for n, table in tables.items()}
    labels, names = _labels(parts, columns.label, reads, label_names)
    refuse_or_skip((part.bad for part in parts.values()), skip_bad_rows)
    sets: dict[str, Examples] = {}
    for name, part in parts.items():
        articles = _column(part.table, "article", "title") if reads.articles else None
        examples = Examples(part.texts, part.pairs, labels.get(name), names, articles)
        sets[name] = examples.take(part.good_rows)
        _refuse_useless(sets[name], name, reads)
    return sets


def read_texts(
    source: Any,
    *,
    reads: Reads,
    columns: Columns | None = None,
    split: str | None = None,
    skip_bad_rows: bool = False,
) -> list[Any]:
    """Read the inputs alone, of the requested split or the one that is furthest from training."""
    order = ("test", "validation") if split is None else (split,)
    examples = read_unlabelled(
        source, order, reads=reads, columns=columns, split=split, skip_bad_rows=skip_bad_rows
    )
    return examples.inputs(reads)


def read_unlabelled(
    source: Any,
    order: Sequence[str] = ("train",),
    *,
    reads: Reads,
    columns: Columns | None = None,
    split: str | None = None,
    skip_bad_rows: bool = False,
) -> Examples:
    """Read one set without its labels: the first in this order that there is, else any."""
    columns = columns or Columns()
    tables = choose_splits(read(source, header=not columns.are_numbers), split)
    name = next(s for s in (*order, *tables) if s in tables)
    columns = choose_columns(columns, list(tables[name].columns), reads)
    part = _read_part(tables[name], columns, reads, name)
    refuse_or_skip([part.bad], skip_bad_rows)
    return Examples(part.texts, part.pairs).take(part.good_rows)


# Texts


@dataclass(frozen=True)
class _Part:
    """One set while it is read: every row, and which of them are bad."""

    table: Table
    texts: list[Any]
    pairs: list[str] | None
    bad: BadRows

    @property
    def good_rows(self) -> list[int]:
        return [row for row in range(self.bad.count) if row not in self.bad.rows]


def _read_part(
    table: Table, columns: Columns, reads: Reads, name: str, blanks: bool = False
) -> _Part:
    read_cell, what = as_words if reads.words else as_text, "a text"
    if columns.images:
        read_cell, what = partial(as_image, folder=table.folder), "an image"
    texts = _read_column(table, str(columns.text), name, read_cell, what)
    pairs = _read_column(table, columns.pair, name, read_cell, what) if columns.pair else None
    bad = BadRows(name, len(texts))
    if columns.images:
        lost = {row: path for row, path in enumerate(texts) if path and no_file(path)}
        example = f" ({next(iter(lost.values()))})" if lost else ""
        bad.add(f"column {columns.text!r} names a file that does not exist", lost, example)
    if not blanks:
        for column, cells in ((columns.text, texts), (columns.pair, pairs or [])):
            bad.add(f"column {column!r} is empty", (r for r, cell in enumerate(cells) if not cell))
    return _Part(table, texts, pairs, bad)


def _read_column(
    table: Table, column: str, name: str, read_cell: Callable[[Any], Any], what: str
) -> list[Any]:
    if column not in table.columns:
        raise UserError(
            f"the {name} set has no column {column!r}; columns there: {', '.join(table.columns)}"
        )
    cells: list[Any] = []
    for row, cell in enumerate(table.columns[column]):
        try:
            cells.append(read_cell(cell))
        except TypeError as problem:
            raise UserError(
                f"column {column!r} of the {name} set holds {problem} in {name_rows([row])}, "
                f"not {what}; name another column"
            ) from problem
    return cells


def _column(table: Table, *names: str) -> list[Any] | None:
    """The first of these columns that exists and is not empty."""
    columns = (list(table.columns[name]) for name in names if name in table.columns)
    return next((cells for cells in columns if not all(map(is_missing, cells))), None)


# Labels


def _labels(
    parts: Mapping[str, _Part], label: str | None, reads: Reads, names: Sequence[str] | None
) -> tuple[dict[str, list[Any]], list[str] | None]:
    """A label for each row (None for a bad one) of the sets that have labels; the class names."""
    columns = label_columns(label, present_in({n: part.table for n, part in parts.items()}))
    parts = {n: p for n, p in parts.items() if label and set(columns) <= p.table.columns.keys()}
    if len(columns) > 1:
        lists = {
            name: flagged({c: list(part.table.columns[c]) for c in columns}, part.bad)
            for name, part in parts.items()
        }
        return _ids(parts, lists, reads, dict.fromkeys(parts, columns), names)
    cells = {n: dict(enumerate(part.table.columns[columns[0]])) for n, part in parts.items()}
    if reads.label_type == "answers":
        return _answers(parts, columns, cells), None
    cells = {name: rows for name, rows in cells.items() if not is_unlabelled(rows.values())}
    for name, rows in cells.items():  # rows that are bad already do not define classes
        cells[name] = {row: cell for row, cell in rows.items() if row not in parts[name].bad.rows}
    if reads.label_type == "number":
        return {n: _numbers(rows, parts[n], reads.least) for n, rows in cells.items()}, None
    if not cells:
        return {}, None
    classes = {
        n: p.table.classes[columns[0]] for n, p in parts.items() if columns[0] in p.table.classes
    }
    return _ids(parts, _lists(parts, cells, reads), reads, classes, names)


def _numbers(rows: Mapping[int, Any], part: _Part, least: float) -> list[float | None]:
    values = numbers({(row, 0): cell for row, cell in rows.items()}, part.bad, least=least)
    return [values.get((row, 0)) for row in range(part.bad.count)]


def _answers(
    parts: Mapping[str, _Part], columns: Sequence[str], cells: Mapping[str, Mapping[int, Any]]
) -> dict[str, list[Any]]:
    """Answers and their places; an empty list where a row has no answer."""
    answers: dict[str, list[Any]] = {}
    for name, rows in cells.items():
        part, column = parts[name], columns[0]
        starts = _column(part.table, f"{column}_start", "answer_start")
        impossible = [as_flag(c) for c in _column(part.table, "is_impossible") or [0] * len(rows)]
        if all(map(is_missing, rows.values())) and not any(impossible):
            continue  # not labelled
        possible = {r: c for r, c in rows.items() if not impossible[r] and r not in part.bad.rows}
        places = spans(possible, starts, part.pairs or [], part.bad)
        answers[name] = [places.get(row, []) for row in rows]
    return answers


def _lists(
    parts: Mapping[str, _Part], cells: Mapping[str, Mapping[int, Any]], reads: Reads
) -> dict[str, dict[int, list[Any]]]:
    """The labels of each row, as many as the task gives to one text."""
    if reads.label_type == "tags":
        return {n: tag_lists(rows, parts[n].texts, parts[n].bad) for n, rows in cells.items()}
    if reads.label_type == "classes":
        separator = separator_of(cell for rows in cells.values() for cell in rows.values())
        lists = [label_lists(rows, separator, parts[n].bad) for n, rows in cells.items()]
        return dict(zip(cells, without_flags(lists), strict=True))
    return {name: {row: [cell] for row, cell in rows.items()} for name, rows in cells.items()}


def _ids(
    parts: Mapping[str, _Part],
    lists: Mapping[str, Mapping[int, list[Any]]],
    reads: Reads,
    classes: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
) -> tuple[dict[str, list[Any]], list[str] | None]:
    """The class ids of lists of labels; the class names."""
    flat: dict[str, Cells] = {
        name: {
            (row, place): label
            for row, row_labels in rows.items()
            if row not in parts[name].bad.rows
            for place, label in enumerate(row_labels)
        }
        for name, rows in lists.items()
    }
    bad = {name: part.bad for name, part in parts.items()}
    ids, known = class_ids(flat, bad, classes=classes, names=names)
    labels: dict[str, list[Any]] = {}
    for name, rows in lists.items():
        labels[name] = [None] * bad[name].count
        for row in rows.keys() - bad[name].rows:
            row_ids = [ids[name][row, place] for place in range(len(rows[row]))]
            if reads.label_type == "classes":
                row_ids = sorted(set(row_ids))
            labels[name][row] = row_ids[0] if reads.label_type == "class" else row_ids
    return labels, known


def _refuse_useless(examples: Examples, name: str, reads: Reads) -> None:
    if not len(examples):
        raise UserError(f"the {name} set is empty; give at least two examples")
    if not examples.labels or reads.label_type == "answers":
        return
    seen = {tuple(label) if isinstance(label, list) else (label,) for label in examples.labels}
    if reads.label_type == "tags":
        seen = {(tag,) for tags in seen for tag in tags}
    if len(seen) == 1:
        names = examples.label_names
        label = ", ".join(names[int(i)] if names else str(i) for i in seen.pop()) or "none"
        raise UserError(
            f"every label of the {name} set is {label}: there is nothing to learn or to measure; "
            "give examples of two classes or more, or leave the label column out"
        )
