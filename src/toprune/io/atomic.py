"""Files and directories that are whole or not there, whoever else writes the same at that time."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; in the end it takes that name.

    It has machine and process in it: several that compute the same for one another, on a disk that
    they share, never write into one draft. The last file wins; of directories, which may be in use
    by then, the first.
    """
    own = path.with_name(f".{platform.node()}-{os.getpid()}.{path.name}")
    try:
        yield own
        try:
            own.replace(path)
        except OSError:
            if not (own.is_dir() and path.is_dir()):
                raise
    finally:
        if own.is_dir():
            shutil.rmtree(own)
        own.unlink(missing_ok=True)
