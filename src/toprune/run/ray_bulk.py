"""Bulk work on many machines: Ray Data gives windows of one file to workers with a Runner each.

    file --read, one process--> windows --map_batches, N workers--> lines --this process--> out

The windows are those of `bulk.score_file`, so the answers are the same. The file is read and the
answers are written on the machine of the calling process: the others need only the bundle. A worker
that dies is started again and repeats its window. A `UserError` travels as an answer and is raised
in its turn, as in one process.

This module imports Ray only when `score_file` is called.
"""

import logging
import os
import pickle
import socket
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from toprune.errors import UserError
from toprune.io.progress import Advance
from toprune.io.ray import Cluster, cluster, cores, load_ray
from toprune.plan.budget import Budget
from toprune.run.bulk import Rows, Window, answered_lines, check_out, write_lines
from toprune.run.engines import Runtime
from toprune.run.manifest import Manifest, Precision
from toprune.run.runner import Runner

RETRIES = 3  # attempts at one window after the first; then its rows are the likely cause
AHEAD = 1 << 27  # bytes of windows and lines in flight per worker: a faster stage waits
PACKED = "packed"

# An answered window: its lines, and the numbers of the rows that were left out. Pickled, it is one
# row of Ray's; Arrow would change the types of our own rows.
Lines = tuple[list[str], list[int]]


def score_file(
    bundle: str | Path,
    source: str | Path,
    out: str | Path,
    where: Cluster,
    *,
    precision: Precision = "fp32",
    threads: int | None = None,
    runtime: Runtime = "onnx",
    max_length: int | None = None,
    budget: str | Budget | None = None,
    text: str | None = None,
    pair: str | None = None,
    skip_bad_rows: bool = False,
    progress: Advance | None = None,
) -> int:
    """Answer every row of a file with many workers: `bulk.score_file` with a Runner for each.

    Args:
        bundle: the bundle's directory, which every machine sees under the same path.
        source: the file to read.
        out: a new JSONL file.
        where: the Ray cluster, or how to start one.
        threads: threads of each worker; None: the workers share the cores.
        budget: of a bundle with a dial; None: its default.

    Returns:
        The number of rows that were answered.
    """
    load_ray("ray.data", debug=where.debug)
    bundle, source, out = Path(bundle).resolve(), Path(source).resolve(), Path(out)
    check_out(source, out)
    rows = Rows.of(source, Manifest.load(bundle), text, pair, skip_bad_rows)
    if where.address is None and not load_ray(debug=where.debug).is_initialized():
        share([cores()], where.workers, threads)  # refuse bad numbers before Ray starts
    with cluster(where.address, debug=where.debug) as ray:
        nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        workers, threads = share(nodes, where.workers, threads)
        settings: dict[str, Any] = {
            "precision": precision,
            "threads": threads,
            "runtime": runtime,
            "max_length": max_length,
            "budget": budget,
        }
        runner = {"bundle": bundle, "present": rows.present, "settings": settings}
        with _data_settings(ray, where, workers):
            results = _dataset(ray, rows, runner, workers, threads).iter_batches(
                batch_size=None, batch_format="pyarrow"
            )
            return write_lines(out, _each_once(_unpacked(ray, results)), progress)


def share(nodes: Sequence[int], workers: int | None, threads: int | None) -> tuple[int, int]:
    """Share cores among workers: no core is used twice and every worker has a place.

    Args:
        nodes: cores of each machine.
        workers: requested number of workers; None: as many as fit.
        threads: requested threads of each worker; None: as many as fit.

    Returns:
        The number of workers and the threads of each.
    """

    def room(threads: int) -> int:
        return sum(node // threads for node in nodes)

    workers = workers or room(threads or 1)
    threads = threads or next((t for t in range(max(nodes), 1, -1) if room(t) >= workers), 1)
    if not 0 < workers <= room(threads):
        raise UserError(
            f"{workers or 'any'} workers with {threads} threads each do not fit {sum(nodes)} cores "
            f"({len(nodes)} machines); use fewer --workers or --threads"
        )
    return workers, threads


def _dataset(ray: Any, rows: Rows, runner: dict[str, Any], workers: int, threads: int) -> Any:
    here = ray.get_runtime_context().get_node_id()
    windows = ray.data.from_items([0]).map_batches(
        _read, fn_kwargs={"rows": rows}, num_cpus=0, label_selector={"ray.io/node-id": here}
    )
    with warnings.catch_warnings():  # Ray wants max_task_retries elsewhere
        warnings.simplefilter("ignore")
        return windows.map_batches(
            _Worker,
            fn_constructor_kwargs=runner,
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=threads,
            max_task_retries=RETRIES,  # without it, Ray retries for ever
        )


def _read(_: Any, rows: Rows) -> Iterator[Any]:
    """Read all windows with their numbers, then the end: None, or the error in the file."""
    number, end = 0, None
    try:
        for window in rows.windows():
            yield _pack(number, window)
            number += 1
    except UserError as problem:
        end = problem
    yield _pack(number, end)


class _Worker:
    """One Runner in a process that Ray starts, and starts again if it dies."""

    def __init__(self, bundle: Path, present: Sequence[str], settings: dict[str, Any]):
        os.environ["RAYON_NUM_THREADS"] = str(settings["threads"])  # the tokenizer's
        self._present = present
        self._runner: Runner | UserError
        try:
            self._runner = _open(bundle, settings)
        except UserError as problem:
            self._runner = problem

    def __call__(self, table: Any) -> Any:
        number, window = _unpack(table)
        return _pack(number, self._answer(window) if isinstance(window, Window) else window)

    def _answer(self, window: Window) -> Lines | UserError:
        if isinstance(self._runner, UserError):
            return self._runner
        try:
            return [*answered_lines(self._runner, window, self._present)], window.empty
        except UserError as problem:
            return problem


def _open(bundle: Path, settings: dict[str, Any]) -> Runner:
    if not bundle.is_dir():
        raise UserError(
            f"there is no {bundle} on {socket.gethostname()}; put the bundle where every machine "
            "of the cluster sees it under the same path"
        )
    return Runner(bundle, **settings)


def _unpacked(ray: Any, results: Iterator[Any]) -> Iterator[tuple[int, Any]]:
    """The results with their numbers; one clear line if workers keep dying."""
    try:
        yield from map(_unpack, results)
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as problem:
        raise UserError(
            f"a worker died {RETRIES + 1} times over the same rows; is there enough memory? "
            "Try fewer --workers; Ray's logs have the reason, and --debug shows them"
        ) from problem


def _each_once(results: Iterable[tuple[int, Lines | UserError | None]]) -> Iterator[Lines]:
    """Check that every window comes back, and use it only once."""
    seen: set[int] = set()
    end: int | None = None
    for number, result in results:
        if isinstance(result, UserError):
            raise result
        if result is None:
            end = number
        elif number not in seen:
            seen.add(number)
            yield result
    if end != len(seen):
        raise RuntimeError(f"Ray gave back {len(seen)} windows of {end}")


@contextmanager
def _data_settings(ray: Any, where: Cluster, workers: int) -> Iterator[None]:
    """Change Ray Data's settings for this work and restore them afterwards."""
    data = ray.data
    with warnings.catch_warnings():  # Ray's copy() uses deprecated parts of Ray
        warnings.simplefilter("ignore")
        context = data.DataContext.get_current().copy()
    context.enable_progress_bars = where.debug
    context.print_on_execution_start = where.debug
    context.target_max_block_size = 1  # one window per block
    context.execution_no_progress_timeout_s = -1  # a window of long texts may take long
    context.execution_options.preserve_order = where.ordered
    context.execution_options.resource_limits = data.ExecutionResources.for_limits(
        object_store_memory=AHEAD * workers
    )
    log = logging.getLogger("ray.data")
    level = log.level
    scope: AbstractContextManager[None] = data.DataContext.current(context)
    with scope:
        if not where.debug:
            log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)


def _pack(number: int, content: Any) -> Any:
    import pyarrow

    return pyarrow.table({PACKED: [pickle.dumps((number, content))]})


def _unpack(table: Any) -> tuple[int, Any]:
    return pickle.loads(table.column(PACKED)[0].as_py())
