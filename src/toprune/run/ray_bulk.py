"""Bulk work by many machines: Ray Data hands windows of one file to Runners, one to a worker.

    file --read, one process--> windows --map_batches, N workers--> lines --this process--> out

Windows are those of `bulk.score_file`, so answers are the same. The file is read beside the process
that asked, and the answers are written there: other machines need the bundle alone. A worker that
dies is started again and does its window again. What the user must hear (`UserError`) travels as an
answer, to be told when its turn comes, as in one process.

This file imports Ray only when it is asked to score.
"""

import logging
import os
import pickle
import socket
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from toprune.errors import UserError
from toprune.io.progress import Advance
from toprune.io.ray import Cluster, cluster, cores, load_ray
from toprune.run.bulk import Rows, Window, answered_lines, check_out, write_lines
from toprune.run.manifest import Manifest, Precision
from toprune.run.runner import Runner

RETRIES = 3  # of one window, before its rows are to blame for the death of workers
AHEAD = 1 << 27  # bytes of windows and lines under way per worker: who is faster waits
PACKED = "packed"

# What is done to a window; pickled, it is one row of Ray's. (Of our rows, Arrow would mend types.)
Lines = tuple[list[str], list[int]]  # and the numbers of rows that were left out


def score_file(
    bundle: str | Path,
    source: str | Path,
    out: str | Path,
    where: Cluster,
    *,
    precision: Precision = "fp32",
    threads: int | None = None,
    runtime: Literal["onnx", "openvino"] = "onnx",
    max_length: int | None = None,
    text: str | None = None,
    pair: str | None = None,
    skip_bad_rows: bool = False,
    progress: Advance | None = None,
) -> int:
    """`bulk.score_file` with a Runner for each worker. threads: of each of them; None shares the
    cores among them."""
    load_ray("ray.data", debug=where.debug)
    bundle, source, out = Path(bundle).resolve(), Path(source).resolve(), Path(out)
    check_out(source, out)
    rows = Rows.of(source, Manifest.load(bundle), text, pair, skip_bad_rows)
    if where.address is None and not load_ray(debug=where.debug).is_initialized():
        share([cores()], where.workers, threads)  # before Ray is started in vain
    with cluster(where.address, debug=where.debug) as ray:
        nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        workers, threads = share(nodes, where.workers, threads)
        settings: dict[str, Any] = {
            "precision": precision,
            "threads": threads,
            "runtime": runtime,
            "max_length": max_length,
        }
        how = {"bundle": bundle, "present": rows.present, "settings": settings}
        with _own_settings(ray, where, workers):
            found = _dataset(ray, rows, how, workers, threads).iter_batches(
                batch_size=None, batch_format="pyarrow"
            )
            return write_lines(out, _each_once(_told(ray, found)), progress)


def share(nodes: Sequence[int], workers: int | None, threads: int | None) -> tuple[int, int]:
    """How many workers, with how many threads each, on machines with so many cores: no core is
    given twice, and no worker waits for a machine that is not there."""

    def room(threads: int) -> int:
        return sum(node // threads for node in nodes)

    workers = workers or room(threads or 1)
    threads = threads or next((t for t in range(max(nodes), 1, -1) if room(t) >= workers), 1)
    if not 0 < workers <= room(threads):
        raise UserError(
            f"{workers or 'any'} workers with {threads} threads each do not fit {sum(nodes)} cores "
            f"({len(nodes)} machines); ask for fewer --workers or --threads"
        )
    return workers, threads


def _dataset(ray: Any, rows: Rows, how: dict[str, Any], workers: int, threads: int) -> Any:
    here = ray.get_runtime_context().get_node_id()
    windows = ray.data.from_items([0]).map_batches(
        _read, fn_kwargs={"rows": rows}, num_cpus=0, label_selector={"ray.io/node-id": here}
    )
    with warnings.catch_warnings():  # of max_task_retries, which is to have another place
        warnings.simplefilter("ignore")
        return windows.map_batches(
            _Worker,
            fn_constructor_kwargs=how,
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=threads,
            max_task_retries=RETRIES,  # without it, for ever
        )


def _read(_: Any, rows: Rows) -> Iterator[Any]:
    """All windows with their numbers, then the end: None, or what is wrong with the file."""
    number, end = 0, None
    try:
        for window in rows.windows():
            yield _pack(number, window)
            number += 1
    except UserError as problem:
        end = problem
    yield _pack(number, end)


class _Worker:
    """One Runner, in a process of its own that Ray starts, and starts again when it has died."""

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


def _told(ray: Any, found: Iterator[Any]) -> Iterator[tuple[int, Any]]:
    """What comes back; of workers that cannot be kept alive, one line."""
    try:
        yield from map(_unpack, found)
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as problem:
        raise UserError(
            f"a worker died {RETRIES + 1} times over the same rows; is there memory enough? "
            "Try fewer --workers; why it died is in Ray's logs, and --debug shows them"
        ) from problem


def _each_once(found: Iterable[tuple[int, Lines | UserError | None]]) -> Iterator[Lines]:
    """That every row comes back once is what all this is for, so it is counted, not believed."""
    seen: set[int] = set()
    end: int | None = None
    for number, told in found:
        if isinstance(told, UserError):
            raise told
        if told is None:
            end = number
        elif number not in seen:
            seen.add(number)
            yield told
    if end != len(seen):
        raise RuntimeError(f"Ray gave back {len(seen)} windows of {end}")


@contextmanager
def _own_settings(ray: Any, where: Cluster, workers: int) -> Iterator[None]:
    """Ray Data's settings for this work, put back afterwards."""
    data = ray.data
    with warnings.catch_warnings():  # Ray's copy uses what Ray says not to use
        warnings.simplefilter("ignore")
        context = data.DataContext.get_current().copy()
    context.enable_progress_bars = where.debug
    context.print_on_execution_start = where.debug
    context.target_max_block_size = 1  # every window goes its own way
    context.execution_no_progress_timeout_s = -1  # a window of long texts takes its time
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


def _pack(number: int, what: Any) -> Any:
    import pyarrow

    return pyarrow.table({PACKED: [pickle.dumps((number, what))]})


def _unpack(table: Any) -> tuple[int, Any]:
    return pickle.loads(table.column(PACKED)[0].as_py())
