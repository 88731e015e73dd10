"""Metrics with intervals, and paired tests. numpy alone, for the runtime."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.tasks import Task

DRAWS = 1000  # bootstrap resamples
COUNTED = 20_000  # draws of shares from counts, which cost next to nothing
LEVEL = 0.95


def with_intervals(
    task: Task, statistics: np.ndarray, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Every metric of the task with a 95 % bootstrap interval.

    Args:
        task: computes the metrics.
        statistics: (units, k), from `Task.statistics`.
        seed: for the resamples.

    Returns:
        `value`, `low` and `high` by metric.
    """
    values = task.metrics(statistics)
    draws = [task.metrics(statistics[i]) for i in _resamples(len(statistics), seed)]
    return {name: _summary(values[name], [d[name] for d in draws]) for name in values}


def paired(
    task: Task, dense: np.ndarray, pruned: np.ndarray, tuned: Task | None = None, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Every metric of the pruned model minus that of the dense model, on the same units.

    Args:
        task: computes the metrics.
        dense, pruned: (units, k), from `Task.statistics`.
        tuned: the task with the pruned model's settings, if they differ.
        seed: for the resamples.

    Returns:
        `value`, `low`, `high` and the two-sided bootstrap `p` by metric.
    """
    tuned = tuned or task
    a, b = task.metrics(dense), tuned.metrics(pruned)
    draws = [
        (task.metrics(dense[i]), tuned.metrics(pruned[i])) for i in _resamples(len(dense), seed)
    ]
    out: dict[str, dict[str, float]] = {}
    for name in a:
        spread = np.array([y[name] - x[name] for x, y in draws])
        tail = min((spread <= 0).mean(), (spread >= 0).mean())
        out[name] = _summary(b[name] - a[name], spread) | {"p": float(min(1.0, 2 * tail))}
    return out


def cautious(
    measure: Callable[[np.ndarray], float],
    units: int,
    least: float,
    *,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, float]:
    """A bootstrap interval that also allows for what no unit has shown, for decisions.

    A bootstrap draws from what was seen. If no unit differs, its interval has no width, for three
    units as for three thousand. So here the low end is drawn with one more unit that is as bad as
    can be, the high end with one that is as good as can be, and this unit has the weight that it
    would have in a Bayesian bootstrap. For a share, this is close to the exact interval of Clopper
    and Pearson.

    Args:
        measure: from the numbers of drawn units to what is measured, at most 1 for a unit.
        units: how many units there are.
        least: what is measured for a unit that is as bad as can be: 0 of a share, -1 of a
            difference.
        level: of the interval.
        seed: for the draws.

    Returns:
        `value`, `low` and `high`.
    """
    draws = np.array([measure(picks) for picks in _resamples(units, seed)])
    return _cautious(measure(np.arange(units)), draws, units, least, level, seed)


def cautious_difference(
    lost: int, won: int, units: int, *, level: float = LEVEL, seed: int = 0
) -> dict[str, float]:
    """The same for a difference of shares on the same units: `won` minus `lost`, of `units`."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_gamma((lost, won, units - lost - won), (COUNTED, 3))  # a Dirichlet's
    draws = (weights[:, 1] - weights[:, 0]) / weights.sum(1)
    return _cautious((won - lost) / units, draws, units, -1.0, level, seed + 1)


def units_needed(reach: float, units: int, gap: float) -> int:
    """How many units like these an interval needs to reach no further than `gap`.

    Args:
        reach: from the value to the end of the interval that `cautious` gives for `units` units.
        units: how many these are.
        gap: from the value to the limit.

    Returns:
        The number, rounded up to two digits. The part of the reach that comes from differences
        among units shrinks with the root of their number, the part that allows for what no unit has
        shown shrinks with the number itself; their squares add up.
    """
    unseen = -math.log((1 - LEVEL) / 2)
    seen = units * max(0.0, reach**2 - (unseen / units) ** 2)
    needed = (seen + math.sqrt(seen**2 + 4 * (gap * unseen) ** 2)) / (2 * gap**2)
    step = int(10 ** max(0, math.floor(math.log10(needed)) - 1))
    return math.ceil(needed / step) * step


def share(count: int, total: int) -> dict[str, float]:
    """A share with Wilson's 95 % interval; a bootstrap has none for events that never happened."""
    value, z2 = count / total, 1.959964**2
    middle = (value + z2 / (2 * total)) / (1 + z2 / total)
    reach = (z2 * (value * (1 - value) / total + z2 / (4 * total * total))) ** 0.5 / (
        1 + z2 / total
    )
    return {"value": value, "low": max(0.0, middle - reach), "high": min(1.0, middle + reach)}


def exact_low(count: int, total: int, level: float = LEVEL) -> float:
    """The low end of the exact interval of Clopper and Pearson for a share: the true share is below
    it with a chance of at most (1 - level) / 2, for any number of units."""
    if count == 0:
        return 0.0
    k = np.arange(count, total + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])  # their logs
    ways = factorials[total] - factorials[k] - factorials[total - k]
    low, high, tail = 0.0, 1.0, (1 - level) / 2
    for _ in range(60):
        share = (low + high) / 2
        # the chance of `count` or more
        chance = np.exp(ways + k * math.log(share) + (total - k) * math.log1p(-share)).sum()
        low, high = (share, high) if chance < tail else (low, share)
    return low


def level_of(intervals: int) -> float:
    """The level of each of so many intervals, for which all of them hold together."""
    return 1 - (1 - LEVEL) / max(intervals, 1)


def parse_share(option: str, value: str | float) -> float:
    """A share in % from `98%` or 0.98, below 100 %: an interval never excludes less than all."""
    try:
        share = float(value.removesuffix("%")) if isinstance(value, str) else 100 * value
    except ValueError:
        share = 0.0
    if (isinstance(value, str) and not value.endswith("%")) or not 0 < share < 100:
        raise UserError(f"{option} {value} is not a share below 100 %; give one like 98%")
    return share


def _cautious(
    value: float, draws: np.ndarray, units: int, least: float, level: float, seed: int
) -> dict[str, float]:
    unseen = np.random.default_rng(seed).beta(1, units, len(draws))  # weight of the further unit
    tail = (1 - level) / 2
    low = np.quantile((1 - unseen) * draws + unseen * least, tail)
    high = np.quantile((1 - unseen) * draws + unseen, 1 - tail)
    return {"value": float(value), "low": float(low), "high": float(high)}


def _resamples(n: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS):
        yield rng.integers(0, n, n)


def _summary(value: float, draws: Any) -> dict[str, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"value": float(value), "low": float(low), "high": float(high)}
