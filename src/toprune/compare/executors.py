"""Who does the cells of a comparison: this process, one after the other, or a Ray cluster."""

import os
import platform
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import torch

from toprune.compare.runs import Cell, Row
from toprune.io.ray import cluster

RETRIES = 3  # times that a cell goes on, from its last checkpoint, after its process was killed

Work = Callable[[Cell], Row]
Executor = Callable[[Work, Sequence[Cell]], Generator[Row]]  # rows in the order of the cells


def in_turn(work: Work, cells: Sequence[Cell]) -> Generator[Row]:
    """Each when its row is asked for."""
    yield from map(work, cells)


def on_ray(
    address: str | None = None, workers: int | None = None, *, debug: bool = False
) -> Executor:
    """As many at once as the cluster has cores; as Ray that is started here has `workers`.

    What began first may end last. Rows come in the order of the cells all the same: so files are
    the same at the end, whoever did the work, and never hold more than the same files made in turn.
    """

    def engine(work: Work, cells: Sequence[Cell]) -> Generator[Row]:
        if not cells:
            return
        with cluster(address, workers, debug=debug) as ray:
            lost = ray.exceptions
            task = ray.remote(num_cpus=1, max_retries=RETRIES)(_elsewhere)
            waiting = [task.remote(Path.cwd(), work, cell) for cell in cells]
            for cell, one in zip(cells, waiting, strict=True):
                try:
                    yield ray.get(one)
                except (lost.WorkerCrashedError, lost.OutOfMemoryError, lost.NodeDiedError):
                    line = "its process was killed again and again; is there memory enough?"
                    yield cell.run.row() | {"error": line}

    return engine


def _elsewhere(home: Path, work: Work, cell: Cell) -> Row:
    """In a process of Ray's: on the one core that it got, from where the command was given."""
    torch.set_num_threads(1)
    try:
        os.chdir(home)
    except OSError:
        line = f"{home} is not on {platform.node()}: give paths that all machines see"
        return cell.run.row() | {"error": line}
    return work(cell)
