"""From the cells of a label column to class ids or numbers, the same for every set of a source."""

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from toprune.errors import UserError

Cells = Sequence[Any]  # one label column as it was read
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")  # CSV files hold 1 as "1", and as "1.0" when pandas wrote it


def name_rows(rows: Sequence[int]) -> str:
    """Name rows for people, who count from one: "rows 3, 8, 9 and 12 more"."""
    shown = ", ".join(str(row + 1) for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"


def fold(names: Sequence[str]) -> list[str]:
    """Names as they compare: ENTAILMENT is entailment."""
    return [name.strip().casefold() for name in names]


def is_unlabelled(cells: Cells) -> bool:
    """Test sets of benchmarks carry an empty label column, or -1 in every row."""
    return all(_is_missing(cell) or _whole(cell) == -1 for cell in cells)


def numbers(cells: Cells, split: str) -> list[float]:
    _refuse_missing(cells, split)
    values = [_number(cell) for cell in cells]
    bad = [row for row, value in enumerate(values) if value is None]
    _refuse(cells, bad, split, "not a number; mend it, or use the task classify")
    return [value for value in values if value is not None]


def class_ids(
    columns: Mapping[str, Cells],
    *,
    classes: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
) -> tuple[dict[str, list[int]], list[str] | None]:
    """Class ids of every set by the set's name, and the class names when there are any.

    classes: what a set's source calls its ids, where it does. names: the model's names by id; a
    label that is written as a name gets the model's id for it. Without either, names are sorted.
    """
    for split, cells in columns.items():
        _refuse_missing(cells, split)
    given = next(iter(classes.values()), None)
    if given and (names is None or set(fold(given)) == set(fold(names))):
        # By name, because the order may differ, as MNLI's does in half of the models on the hub.
        columns = {
            split: _spell(cells, classes.get(split), split) for split, cells in columns.items()
        }
        names = names or given
    everything = [cell for cells in columns.values() for cell in cells]
    are_strings = all(isinstance(cell, str) for cell in everything)
    are_names = are_strings and set(everything) <= set(names or ())
    if not are_names and all(_whole(cell) is not None for cell in everything):
        ids = {split: _count_from_zero(cells, split) for split, cells in columns.items()}
        return ids, list(names) if names else None
    if not are_names and (not are_strings or all(_number(cell) is not None for cell in everything)):
        odd = next(cell for cell in everything if _whole(cell) is None)
        raise UserError(
            f"the label {odd!r} is not a class; classes are whole numbers from 0 or names "
            "(real numbers are for the task regress)"
        )
    known = list(names or sorted(set(everything)))
    return {split: _look_up(cells, known, split) for split, cells in columns.items()}, known


def _spell(cells: Cells, names: Sequence[str] | None, split: str) -> Cells:
    """Ids as names; what is written in words stays as it is."""
    if names is None or any(_whole(cell) is None for cell in cells):
        return cells
    ids = _count_from_zero(cells, split)
    bad = [row for row, i in enumerate(ids) if i >= len(names)]
    known = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    _refuse(cells, bad, split, f"not a class; there are: {known}")
    return [names[i] for i in ids]


def _look_up(cells: Cells, names: Sequence[str], split: str) -> list[int]:
    ids = {name: i for i, name in enumerate(fold(names))}
    written = fold(cells)
    if len(ids) < len(names):  # some names differ in case only, so case matters
        ids, written = {name: i for i, name in enumerate(names)}, list(cells)
    bad = [row for row, cell in enumerate(written) if cell not in ids]
    _refuse(cells, bad, split, f"not a class of the model ({', '.join(names)}); rename it")
    return [ids[cell] for cell in written]


def _count_from_zero(cells: Cells, split: str) -> list[int]:
    ids = [_whole(cell) for cell in cells]
    bad = [row for row, value in enumerate(ids) if value is None or value < 0]
    _refuse(cells, bad, split, "not a class: they count from 0; renumber them or drop the rows")
    return [value for value in ids if value is not None]


def _refuse_missing(cells: Cells, split: str) -> None:
    bad = [row for row, cell in enumerate(cells) if _is_missing(cell)]
    if bad:
        raise UserError(
            f"the {split} set has no label in {name_rows(bad)}; add it or drop the rows"
        )


def _refuse(cells: Cells, bad: Sequence[int], split: str, why: str) -> None:
    if bad:
        where = f"{name_rows(bad)} of the {split} set"
        raise UserError(f"the label {cells[bad[0]]!r} in {where} is {why}")


def _is_missing(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in ("", "nan")
    return cell is None or (isinstance(cell, Real) and math.isnan(cell))


def _whole(cell: Any) -> int | None:
    if isinstance(cell, str):
        text = cell.strip()
        return int(text.partition(".")[0]) if WHOLE.fullmatch(text) else None
    number = float(cell) if isinstance(cell, Real) else math.nan
    return int(number) if number.is_integer() else None


def _number(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
