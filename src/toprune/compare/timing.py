"""Timing that survives a moody machine: contenders take turns, ratios carry their doubt.

A machine gets faster and slower while it is watched (clock speed, neighbours, heat). So nobody is
timed alone: every round runs each contender once, in an order drawn anew, and what is reported is a
ratio whose interval comes from resampling whole rounds.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]  # (rounds,)

LEAST = 5  # rounds, however little time there is: a median of fewer says nothing
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
    """Seconds of every contender in every round; the first `warmup` rounds are not counted.

    `seconds` is how long all of it may take, warm-up included: when that is over no new round
    starts, unless fewer than LEAST are done.
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
    return {name: np.array(found) for name, found in times.items()}


def ratio(base: Seconds, other: Seconds, *, draws: int = 1000, seed: int = 0) -> dict[str, float]:
    """How many times faster `other` is than `base`: ratio of medians with a 95 % interval.

    Rounds are resampled, not times: what befell both contenders of a round stays together.
    """
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(base), (draws, len(base)))  # (draws, rounds)
    spread = np.median(base[picks], axis=1) / np.median(other[picks], axis=1)
    low, high = np.quantile(spread, [0.025, 0.975])
    value = np.median(base) / np.median(other)
    return {"value": float(value), "low": float(low), "high": float(high)}


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """This thread, and those that it starts meanwhile, on so many cores; elsewhere nothing.

    Without it the system moves a lone thread from core to core, with cold caches each time. Threads
    that exist already are not moved: open sessions inside.
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
    """One CPU of every core first: two hyper-threads of one core are not two cores."""
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
