"""Processes that die by SIGKILL at a chosen moment: at their n-th touch of the file system, which
is where harm can be done, or after some time, in the midst of anything."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

# Raised by Python before it does so; what native code writes lies between two of them.
TOUCHES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.chmod")


def die(job: Callable[[], Any], place: Path, *, at: int | None = None, after: float = 0) -> bool:
    """Do the job in a child that dies at its n-th touch of `place`, counted from 0, or after some
    seconds; returns whether it died, and fails where the job itself did."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if at is not None:
                _mine(place, at)
            job()
            code = 0
        finally:
            os._exit(code)  # no clean-up of pytest's
    if at is None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)  # a child that has ended waits for us until it is read
    _, status = os.waitpid(child, 0)
    died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert died or os.waitstatus_to_exitcode(status) == 0, "the job failed by itself"
    return died


def kill_often(
    job: Callable[[], Any], place: Path, look: Callable[[], Any], moments: Iterable[dict[str, Any]]
) -> int:
    """Do the job, dying at one moment after the other (`die`); `look` at what is left each time.
    Returns the number of deaths; the job has ended when a moment came too late, or else is done in
    peace."""
    deaths = 0
    for moment in moments:
        died = die(job, place, **moment)
        look()
        if not died:
            return deaths
        deaths += 1
    job()
    look()
    return deaths


def touches(job: Callable[[], Any], place: Path) -> int:
    """How often the job touches the place."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        count = _mine(place, None)
        try:
            job()
            os.write(writer, str(next(count)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        count = pipe.read()
    os.waitpid(child, 0)
    assert count, "the job failed by itself"
    return int(count)


def _mine(place: Path, at: int | None) -> Iterator[int]:
    """Lay the mine; yields how often the place was touched so far. Hooks cannot be taken away:
    only for a process of its own."""
    root, seen = os.fspath(place), [0]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in TOUCHES or not isinstance(args[0], str | os.PathLike):
            return
        if not os.fspath(args[0]).startswith(root):
            return
        if seen[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[0] += 1

    sys.addaudithook(hook)
    return iter(lambda: seen[0], None)


def content(folder: Path) -> dict[str, str]:
    """What every file of a directory holds; drafts and the like, which nobody reads, apart."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part[0] == "." for part in path.relative_to(folder).parts)
    }
