"""A directory takes the place of another in one step: whoever looks, or is killed, at any moment
finds the old one or the new one, whole."""

import ctypes
import os
import shutil
from pathlib import Path

HERE = -100  # AT_FDCWD of Linux: paths are as they are
EXCHANGE = 2  # RENAME_EXCHANGE


def put(made: Path, place: Path) -> None:
    """Move a directory to its place, beside which it was made; what was there is gone then."""
    if not place.exists():
        made.replace(place)
        return
    if exchange(made, place):
        shutil.rmtree(made)
        return
    old = made.with_name(f"{made.name}.old")  # two steps: for a moment nothing is in its place
    shutil.rmtree(old, ignore_errors=True)
    place.replace(old)
    made.replace(place)
    shutil.rmtree(old)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change their names at once; False where system or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or an old libc
        return False
    names = (os.fsencode(path) for path in (one, other))
    return rename(HERE, next(names), HERE, next(names), EXCHANGE) == 0


def remove(folder: Path) -> None:
    """Out of sight in one step; half of a work directory would be taken for the whole of one."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)  # of a process that was killed at this
    if folder.exists():
        folder.replace(gone)
        shutil.rmtree(gone)
