"""Timing on machines whose speed varies: contenders take turns, and ratios have intervals.

The speed of a machine changes during a measurement (clock speed, other processes, heat). So no
contender is timed alone: every round runs each of them once, in a new random order, and the result
is a ratio whose interval comes from resampling whole rounds.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from toprune.errors import UserError

Result = TypeVar("Result")
Seconds = NDArray[np.float64]  # (rounds,)

LEAST = 5  # rounds even if time is up: a median of fewer means nothing
CALLS = 5  # of the sentinel: the quickest counts
DRIFT = 0.05  # change of the sentinel's time that a measurement may have
TRIES = 5  # measurements, until one has a steady sentinel
CPUS = Path("/sys/devices/system/cpu")


def interleave(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 2,
    seed: int = 0,
    seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Seconds]:
    """Run all contenders in turn, round by round.

    Args:
        runs: the contenders.
        rounds: that count.
        warmup: rounds before them, which do not count.
        seed: of the order in each round.
        seconds: limit for all rounds, with the warm-up. No round starts after it, unless fewer than
            LEAST are done.
        clock: returns the time in seconds.

    Returns:
        The seconds of every contender in every round.
    """
    rng = np.random.default_rng(seed)
    names = list(runs)
    times: dict[str, list[float]] = {name: [] for name in names}
    begin = clock()
    for i in range(warmup + rounds):
        late = seconds is not None and clock() - begin >= seconds
        if late and i - warmup >= LEAST:
            break
        for j in rng.permutation(len(names)):
            start = clock()
            runs[names[j]]()
            elapsed = clock() - start
            if i >= warmup:
                times[names[j]].append(elapsed)
    return {name: np.array(seconds) for name, seconds in times.items()}


def quickest(
    run: Callable[[], object], calls: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of the quickest of several calls."""
    times: list[float] = []
    for _ in range(calls):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def steady(
    measure: Callable[[], Result],
    sentinel: Callable[[], object],
    *,
    clock: Callable[[], float] = time.perf_counter,
    insist: bool = True,
) -> Result:
    """Measure something between two runs of a sentinel, a fixed small workload. If its time has
    changed, so has the machine's speed: the measurement is dropped and repeated.

    Args:
        measure: returns what was measured.
        sentinel: the fixed workload.
        clock: returns the time in seconds.
        insist: raise a UserError if no try was steady; else return the last one.
    """
    changes: list[float] = []
    while True:
        before = quickest(sentinel, CALLS, clock)
        result = measure()
        changes.append(abs(quickest(sentinel, CALLS, clock) / before - 1))
        if changes[-1] <= DRIFT or (len(changes) == TRIES and not insist):
            return result
        if len(changes) == TRIES:
            raise UserError(
                "this machine is too noisy for a budget in ms: in each of "
                f"{TRIES} measurements the time of a fixed workload changed by {min(changes):.0%} "
                "or more; stop other programs, or give a FLOPs reduction like 3x"
            )


def ratio(base: Seconds, other: Seconds, *, draws: int = 1000, seed: int = 0) -> dict[str, float]:
    """How many times faster `other` is than `base`: the ratio of medians with a 95 % interval.

    Rounds are resampled, not times, so that what slowed both contenders of a round stays paired.
    """
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(base), (draws, len(base)))  # (draws, rounds)
    spread = np.median(base[picks], axis=1) / np.median(other[picks], axis=1)
    low, high = np.quantile(spread, [0.025, 0.975])
    value = np.median(base) / np.median(other)
    return {"value": float(value), "low": float(low), "high": float(high)}


def middle(seconds: Seconds, *, draws: int = 1000, seed: int = 0) -> dict[str, float]:
    """The median over rounds with a 95 % interval, in seconds."""
    picks = np.random.default_rng(seed).integers(0, len(seconds), (draws, len(seconds)))
    low, high = np.quantile(np.median(seconds[picks], axis=1), [0.025, 0.975])
    return {"value": float(np.median(seconds)), "low": float(low), "high": float(high)}


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Run this thread and those that it starts on so many cores; does nothing outside Linux.

    Otherwise the system moves a thread from core to core, with cold caches each time. Threads that
    already exist are not moved, so open sessions inside.
    """
    if not hasattr(os, "sched_setaffinity"):  # not Linux
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _spread(sorted(before))[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _spread(cpus: list[int]) -> list[int]:
    """Order CPUs so that one of every core comes first: two hyper-threads are not two cores."""
    seen: dict[str, int] = {}
    turns: list[tuple[int, int]] = []
    for cpu in cpus:
        try:
            core = (CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:  # unknown: a core by itself
            core = f"cpu{cpu}"
        turns.append((seen.get(core, 0), cpu))
        seen[core] = seen.get(core, 0) + 1
    return [cpu for _, cpu in sorted(turns)]
