"""Write files and directories in one step: another process, or one that starts after a kill, finds
the old one or the new one, whole."""

import ctypes
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AT_FDCWD = -100  # Linux: relative paths start at the current directory
RENAME_EXCHANGE = 2


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` to write to; in the end the draft takes the name `path`.

    The draft's name contains machine and process: processes that compute the same result on a
    shared disk never write into one draft. The last file wins. The first directory wins, because
    someone may use it by then.
    """
    temporary = path.with_name(f".{platform.node()}-{os.getpid()}.{path.name}")
    try:
        yield temporary
        try:
            temporary.replace(path)
        except OSError:
            if not (temporary.is_dir() and path.is_dir()):
                raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with draft(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def replace_directory(new: Path, place: Path) -> None:
    """Move the directory `new` to `place`, on the same disk; what was there is deleted."""
    if not place.exists():
        new.replace(place)
        return
    if exchange(new, place):
        shutil.rmtree(new)
        return
    old = new.with_name(f"{new.name}.old")  # two steps: for a moment nothing is in its place
    shutil.rmtree(old, ignore_errors=True)
    place.replace(old)
    new.replace(place)
    shutil.rmtree(old)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two paths in one step.

    Returns:
        False where the system or the file system cannot do it.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or an old libc
        return False
    names = os.fsencode(first), os.fsencode(second)
    return rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0


def remove_directory(folder: Path) -> None:
    """Remove a directory, if it exists. It loses its name first: nobody may take one half of a work
    directory for the whole of it."""
    removed = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(removed, ignore_errors=True)  # left by a process that was killed here
    if folder.exists():
        folder.replace(removed)
        shutil.rmtree(removed)
