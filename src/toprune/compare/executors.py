"""Executors do the runs of a comparison: one by one in this process, or on a Ray cluster."""

import os
import platform
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import torch

from toprune.compare.runs import Row, WorkItem
from toprune.io.ray import cluster

RETRIES = 3  # times that a run resumes from its last checkpoint after its process was killed

Work = Callable[[WorkItem], Row]
Executor = Callable[[Work, Sequence[WorkItem]], Generator[Row]]  # rows in the order of the items


def in_turn(work: Work, items: Sequence[WorkItem]) -> Generator[Row]:
    """Do each run when its row is requested."""
    yield from map(work, items)


def on_ray(
    address: str | None = None, workers: int | None = None, *, debug: bool = False
) -> Executor:
    """Return an executor that does as many runs at once as the cluster has cores.

    Rows come in the order of the items, whichever run ends first. So the files are the same as
    those of `in_turn`, at the end and after a stop.

    Args:
        address: of a running cluster; None starts Ray on this machine.
        workers: cores of a Ray that is started here; None for all.
        debug: show what Ray writes.
    """

    def executor(work: Work, items: Sequence[WorkItem]) -> Generator[Row]:
        if not items:
            return
        with cluster(address, workers, debug=debug) as ray:
            lost = ray.exceptions
            gpus = float(any(item.subject.device == "cuda" for item in items))  # one for each run
            remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_on_worker)
            futures = [remote.remote(Path.cwd(), work, item) for item in items]
            for item, future in zip(items, futures, strict=True):
                try:
                    yield ray.get(future)
                except (lost.WorkerCrashedError, lost.OutOfMemoryError, lost.NodeDiedError):
                    line = "its process was killed several times; check that memory is sufficient"
                    yield item.run.row() | {"error": line}

    return executor


def _on_worker(home: Path, work: Work, item: WorkItem) -> Row:
    """Do a run in a Ray process: with one thread, in the working directory of the command."""
    torch.set_num_threads(1)
    try:
        os.chdir(home)
    except OSError:
        line = f"{home} is not on {platform.node()}: give paths that all machines see"
        return item.run.row() | {"error": line}
    return work(item)
