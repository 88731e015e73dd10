"""What one cell of a table holds: a text, words, a list, a number, true or false, or nothing."""

import math
import re
from numbers import Real
from typing import Any

import numpy as np

WHOLE = re.compile(r"[+-]?\d+(\.0*)?")  # CSV files hold 1 as "1", and as "1.0" when pandas wrote it
FLAGS = {"true": True, "false": False}


def as_text(cell: Any) -> str:
    """Return the text in a cell: "" for blanks and NaN, and numbers as they are written.

    Other types raise a TypeError.
    """
    if isinstance(cell, str):
        return cell if cell.strip() else ""
    if isinstance(cell, Real):
        return str(cell) if cell == cell else ""
    if cell is None:
        return ""
    raise TypeError(f"a {type(cell).__name__}")


def as_list(cell: Any) -> list[Any] | None:
    """Return the entries of a cell that holds several; Parquet files that pandas read hold
    arrays."""
    return list(cell) if isinstance(cell, list | tuple | np.ndarray) else None


def as_words(cell: Any) -> list[str]:
    """Return the words of a list, or between the blanks of a text; none where all are blank."""
    listed = as_list(cell)
    words = as_text(cell).split() if listed is None else [as_text(word) for word in listed]
    return words if any(words) else []


def as_whole(cell: Any) -> int | None:
    """Return the whole number in a cell, if it holds one."""
    if isinstance(cell, str):
        text = cell.strip()
        return int(text.partition(".")[0]) if WHOLE.fullmatch(text) else None
    number = float(cell) if isinstance(cell, Real) else math.nan
    return int(number) if number.is_integer() else None


def as_number(cell: Any) -> float | None:
    """Return the finite number in a cell, if it holds one."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def as_flag(cell: Any) -> bool | None:
    """Return the 0 or 1, true or false in a cell, if it holds one."""
    if isinstance(cell, str) and cell.strip().lower() in FLAGS:
        return FLAGS[cell.strip().lower()]
    number = as_whole(cell)
    return bool(number) if number in (0, 1) else None


def is_missing(cell: Any) -> bool:
    """Is there nothing in a cell: None, NaN, blanks or the word nan?"""
    if isinstance(cell, str):
        return cell.strip().lower() in ("", "nan")
    return cell is None or (isinstance(cell, Real) and math.isnan(cell))
