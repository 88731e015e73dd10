"""Progress bars: what runs, how far it is, how long it will take.

They go to stderr, so that `--json` output stays clean, and need a terminal.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")


class Advance(Protocol):
    """Moves a bar by `count` things."""

    def __call__(self, count: int = 1) -> None: ...


def new_progress() -> Progress:
    """A progress display with the columns that all our bars have."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


@contextmanager
def bar(label: str, total: int | None) -> Iterator[Advance]:
    """Show a bar and yield the function that moves it.

    Args:
        label: what runs.
        total: number of things; None for a stream without a known end.
    """
    with new_progress() as progress:
        task = progress.add_task(label, total=total, note="")

        def advance(count: int = 1) -> None:
            progress.advance(task, count)

        yield advance
