"""From the cells of a label column to class ids, numbers, tags or spans, the same for every set.

What is wrong with a row is not raised here but noted (`BadRows`), so that one message names all
of it. Only a column that cannot hold the task's labels at all is refused at once.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toprune.data.bad_rows import BadRows, Cells, Place, name_rows
from toprune.data.cells import as_flag, as_list, as_number, as_text, as_whole, is_missing
from toprune.errors import UserError

Span = tuple[str, int]  # an answer, and its first character in the context
SEPARATORS = "|;,"  # between the classes of a text, in a text cell
NEAR = (0, -1, 1, -2, 2)  # SQuAD's own files are off by a character in some rows


def fold(names: Sequence[str]) -> list[str]:
    """Return names in the form in which they compare: ENTAILMENT is entailment."""
    return [name.strip().casefold() for name in names]


def is_unlabelled(cells: Iterable[Any]) -> bool:
    """Is a label column empty, or -1 in every row, as in the test sets of benchmarks?"""
    return all(is_missing(cell) or as_whole(cell) == -1 for cell in cells)


# Numbers


def numbers(cells: Cells, bad: BadRows, *, least: float = -math.inf) -> dict[Place, float]:
    """Return the labels as numbers; one that is no number, or below the least, is a bad row."""
    cells = _present(cells, bad)
    values = {place: as_number(cell) for place, cell in cells.items()}
    odd = [place for place, value in values.items() if value is None]
    bad.add_labels(cells, odd, "not a number (names are for the task classify)")
    real = {place: value for place, value in values.items() if value is not None}
    low = [place for place, value in real.items() if value < least]
    bad.add_labels(cells, low, f"below {least:g}")
    return real


# Classes


def class_ids(
    columns: Mapping[str, Cells],
    bad: Mapping[str, BadRows],
    *,
    classes: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
) -> tuple[dict[str, dict[Place, int]], list[str] | None]:
    """Return the class ids of every set by the set's name, and the class names if there are any.

    Args:
        columns: the labels of every set.
        bad: the bad rows of every set, which this function adds to.
        classes: the class names by id that a set's source defines, if it does.
        names: the model's class names by id; a label that is written as a name gets the model's
            id. Without `classes` and `names`, the names in the data are sorted.
    """
    columns = {split: _present(cells, bad[split]) for split, cells in columns.items()}
    source_names = next(iter(classes.values()), None)
    if source_names and names is not None and set(fold(source_names)) & set(fold(names)):
        odd = [name for name in source_names if fold([name])[0] not in fold(names)]
        if odd:
            raise UserError(
                f"the data's classes {', '.join(odd)} are none of the model's "
                f"({', '.join(names)}); rename them, or fine-tune a head for them first"
            )
    if source_names and (names is None or set(fold(source_names)) <= set(fold(names))):
        # By name, because the order may differ, as MNLI's does in half of the models on the hub.
        columns = {
            split: _spell(cells, classes.get(split), bad[split]) for split, cells in columns.items()
        }
        names = names or source_names
    labels = [cell for cells in columns.values() for cell in cells.values()]
    are_strings = all(isinstance(cell, str) for cell in labels)
    are_names = are_strings and set(labels) <= set(names or ())
    wholes = [as_whole(cell) is not None for cell in labels]
    if not are_names and (all(wholes) or not are_strings or _are_real(labels)):
        _refuse_real(labels)
        ids = {split: _count_from_zero(cells, bad[split]) for split, cells in columns.items()}
        return ids, list(names) if names else None
    known = list(names or sorted(set(labels)))
    return {split: _look_up(cells, known, bad[split]) for split, cells in columns.items()}, known


def _are_real(cells: Sequence[Any]) -> bool:
    return all(as_number(cell) is not None for cell in cells)


def _refuse_real(cells: Sequence[Any]) -> None:
    """A column with a real number in it, or without any class, is not a column of classes."""
    odd = [cell for cell in cells if as_whole(cell) is None]
    real = [cell for cell in odd if as_number(cell) is not None]
    if real or (odd and len(odd) == len(cells)):
        raise UserError(
            f"the label {(real or odd)[0]!r} is not a class; classes are whole numbers from 0 or "
            "names (real numbers are for the task regress)"
        )


def _spell(cells: Cells, names: Sequence[str] | None, bad: BadRows) -> Cells:
    """Replace ids by names; a column that holds names stays as it is."""
    texts = {cell for cell in cells.values() if isinstance(cell, str)}
    if names is None or not set(fold(names)).isdisjoint(fold(list(texts))):
        return cells
    ids = {place: as_whole(cell) for place, cell in cells.items()}
    odd = [place for place, i in ids.items() if i is None or not 0 <= i < len(names)]
    known = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    bad.add_labels(cells, odd, f"not a class; they count from 0: {known}")
    return {place: names[i] for place, i in ids.items() if i is not None and 0 <= i < len(names)}


def _look_up(cells: Cells, names: Sequence[str], bad: BadRows) -> dict[Place, int]:
    ids = {name: i for i, name in enumerate(fold(names))}
    written = dict(zip(cells, fold(list(cells.values())), strict=True))
    if len(ids) < len(names):  # some names differ in case only, so case matters
        ids, written = {name: i for i, name in enumerate(names)}, dict(cells)
    odd = [place for place, cell in written.items() if cell not in ids]
    bad.add_labels(cells, odd, f"not a class of the model ({', '.join(names)})")
    return {place: ids[cell] for place, cell in written.items() if cell in ids}


def _count_from_zero(cells: Cells, bad: BadRows) -> dict[Place, int]:
    ids = {place: as_whole(cell) for place, cell in cells.items()}
    odd = [place for place, value in ids.items() if value is None]
    bad.add_labels(cells, odd, "not a class, but the others are whole numbers")
    low = [place for place, value in ids.items() if value is not None and value < 0]
    bad.add_labels(cells, low, "not a class: they count from 0, so renumber them")
    return {place: value for place, value in ids.items() if value is not None and value >= 0}


def _present(cells: Cells, bad: BadRows) -> Cells:
    missing = [place for place, cell in cells.items() if is_missing(cell)]
    bad.add("no label", (row for row, _ in missing))
    return {place: cell for place, cell in cells.items() if not is_missing(cell)}


# Several classes of one text


def separator_of(cells: Iterable[Any]) -> str | None:
    """Return the separator between the classes in text cells: the first of | ; , that occurs."""
    used = {mark for cell in cells if isinstance(cell, str) for mark in SEPARATORS if mark in cell}
    return next((mark for mark in SEPARATORS if mark in used), None)


def label_lists(
    cells: Mapping[int, Any], separator: str | None, bad: BadRows
) -> dict[int, list[Any]]:
    """Return the classes of each row: a list, or a text with a separator; "" is no class."""
    lists: dict[int, list[Any]] = {}
    for row, cell in cells.items():
        entries = as_list(cell)
        if isinstance(cell, str):
            parts = cell.split(separator) if separator else [cell]
            entries = [part.strip() for part in parts if part.strip()]
        elif is_missing(cell):
            continue
        lists[row] = [cell] if entries is None else entries
    bad.add("no label", cells.keys() - lists.keys())
    return lists


def without_flags(lists: Iterable[dict[int, list[Any]]]) -> list[dict[int, list[Any]]]:
    """Replace rows like [0, 1, 0, 0], one place for each class, by the indices of the ones.

    Lists of ids stay as they are. Rows of flags differ from them in that all have the same length,
    of three or more, so that ids of 0 and 1 alone would have to repeat.
    """
    parts = list(lists)
    rows = [row for part in parts for row in part.values()]
    lengths = {len(row) for row in rows}
    flags = all(as_whole(entry) in (0, 1) for row in rows for entry in row)
    if len(lengths) != 1 or min(lengths) < 3 or not flags:
        return parts
    return [
        {row: [i for i, one in enumerate(ones) if as_whole(one)] for row, ones in part.items()}
        for part in parts
    ]


def flagged(columns: Mapping[str, Sequence[Any]], bad: BadRows) -> dict[int, list[int]]:
    """Return the indices of the columns that hold a 1 (or true), where each column is a class."""
    classes: dict[int, list[int]] = {row: [] for row in range(bad.count)}
    for number, (name, cells) in enumerate(columns.items()):
        flags = [as_flag(cell) for cell in cells]
        odd = [row for row, flag in enumerate(flags) if flag is None]
        bad.add(f"no 0 or 1 of {name!r}", odd)
        for row, flag in enumerate(flags):
            if flag:
                classes[row].append(number)
    return classes


# Tags


def tag_lists(
    cells: Mapping[int, Any], words: Sequence[Sequence[str]], bad: BadRows
) -> dict[int, list[Any]]:
    """Return the tags of each row, one for each word: a list, or a text with blanks between."""
    lists: dict[int, list[Any]] = {}
    unequal: list[int] = []
    for row, cell in cells.items():
        tags = cell.split() if isinstance(cell, str) else as_list(cell)
        lists[row] = [cell] if tags is None else tags
        if row not in bad.rows and len(lists[row]) != len(words[row]):
            unequal.append(row)
    if unequal:
        row = unequal[0]
        bad.add(f"{len(words[row])} words but {len(lists[row])} tags", unequal)
    return lists


# Answers


def spans(
    cells: Mapping[int, Any],
    starts: Sequence[Any] | None,
    contexts: Sequence[str],
    bad: BadRows,
) -> dict[int, list[Span]]:
    """Return the answers of each row and their places in its context; [] is no answer.

    Args:
        cells: the answers by row, in any form that `_answers` reads.
        starts: the first characters, where a column of its own holds them.
        contexts: the text that each row's answers must be in.
        bad: the bad rows, which this function adds to.
    """
    answers: dict[int, list[Span]] = {}
    lost: dict[int, str] = {}
    wrong: dict[int, str] = {}
    for row, cell in cells.items():
        answers[row] = []
        for text, start in _answers(cell, None if starts is None else starts[row], row, bad.split):
            place = _place(text, start, contexts[row])
            if place is not None:
                answers[row].append(place)
            elif is_missing(start):
                lost[row] = text
            else:
                wrong[row] = text
    for rows, reason in ((lost, "is not in its context"), (wrong, "does not begin at its start")):
        if rows:
            bad.add(f"the answer {next(iter(rows.values()))!r}", rows, f" {reason}")
    return answers


def _answers(cell: Any, start: Any, row: int, split: str) -> list[tuple[str, Any]]:
    """(text, start) of each answer: of `{"text": [...], "answer_start": [...]}`, of a list of
    `{"text": ..., "answer_start": ...}`, of a list of texts, or of one text."""
    try:
        if isinstance(cell, Mapping):
            texts, places = cell["text"], cell.get("answer_start")
            many = as_list(texts)
            texts = [texts] if many is None else many
            places = [places] * len(texts) if many is None else as_list(places)
            pairs = list(zip(texts, places or [None] * len(texts), strict=True))
        elif (many := as_list(cell)) is not None:
            pairs = [
                (e["text"], e.get("answer_start")) if isinstance(e, Mapping) else (e, None)
                for e in many
            ]
        else:
            pairs = [(cell, start)]
        return [(text, place) for text, place in ((as_text(t), p) for t, p in pairs) if text]
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(
            f"{name_rows([row])} of the {split} set has no answers that can be read; give a text, "
            'or {"text": [...], "answer_start": [...]} with a start for each text'
        ) from problem


def _place(text: str, start: Any, context: str) -> Span | None:
    if is_missing(start):
        return _search(text, context)
    first = as_whole(start)
    if first is None or first < 0:
        return None
    near = (first + step for step in NEAR if first + step >= 0)
    return next(((text, place) for place in near if context.startswith(text, place)), None)


def _search(text: str, context: str) -> Span | None:
    """Find a text as whole words first, then as a part of words: "in" is not in "within"."""
    text = text.strip()
    whole = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context)
    place = whole.start() if whole else context.find(text)
    return None if place < 0 else (text, place)
