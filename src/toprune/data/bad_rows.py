"""Bad rows: they are collected while a set is read, so that one message names all of them."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toprune.errors import UserError

# The labels of one set as they were read, by (row, place): a row may have many (tags), or none.
Place = tuple[int, int]
Cells = Mapping[Place, Any]


def name_rows(rows: Sequence[int]) -> str:
    """Name rows for people, who count from one: "rows 3, 8, 9 and 12 more"."""
    shown = ", ".join(str(row + 1) for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"


@dataclass
class BadRows:
    """The bad rows of one set, and what is wrong with them."""

    split: str
    count: int  # rows of the set, good ones and bad
    notes: list[str] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)

    def add(self, problem: str, rows: Iterable[int], reason: str = "") -> None:
        """Note a problem, the rows that have it, and the reason; do nothing if no row has it."""
        bad = sorted(set(rows))
        if bad:
            self.notes.append(f"{problem} in {name_rows(bad)} of the {self.split} set{reason}")
            self.rows.update(bad)

    def add_labels(self, cells: Cells, places: Sequence[Place], reason: str) -> None:
        """Note the labels at these places, the first of them by its value."""
        if places:
            self.add(f"the label {cells[places[0]]!r}", (row for row, _ in places), f" is {reason}")


def refuse_or_skip(sets: Iterable[BadRows], skip: bool) -> None:
    """Refuse the bad rows of all sets in one line, or warn that they are left out."""
    bad = [rows for rows in sets if rows.rows]
    if bad and not skip:
        count = sum(len(rows.rows) for rows in bad)
        notes = "; ".join(note for rows in bad for note in rows.notes)
        what, them = ("1 bad row", "it") if count == 1 else (f"{count} bad rows", "them")
        raise UserError(f"{what}: {notes}; correct {them}, or leave {them} out: --skip-bad-rows")
    for rows in bad:
        notes = "; ".join(rows.notes)
        if len(rows.rows) == rows.count:
            raise UserError(f"no row of the {rows.split} set is left: {notes}; check the columns")
        warnings.warn(
            f"{len(rows.rows)} of {rows.count} rows of the {rows.split} set are bad and left out: "
            f"{notes}",
            stacklevel=3,
        )
