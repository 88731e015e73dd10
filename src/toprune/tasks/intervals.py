"""What answers are worth: metrics with intervals, paired tests. numpy alone, for the runtime."""

from typing import Any

import numpy as np

from toprune.tasks import Task

DRAWS = 1000  # bootstrap resamples


def with_intervals(
    task: Task, statistics: np.ndarray, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Every metric of the task with a 95 % bootstrap interval over its statistics (units, k)."""
    value = task.metrics(statistics)
    draws = [task.metrics(statistics[i]) for i in _resamples(len(statistics), seed)]
    return {name: _summary(value[name], [d[name] for d in draws]) for name in value}


def paired(
    task: Task, dense: np.ndarray, pruned: np.ndarray, tuned: Task | None = None, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Pruned minus dense on the same units: difference, interval, two-sided bootstrap p. `tuned`:
    the task with the pruned model's own settings, where they differ."""
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


def share(yes: int, of: int) -> dict[str, float]:
    """A share with Wilson's 95 % interval, which a bootstrap cannot give of what never happened."""
    value, z2 = yes / of, 1.959964**2
    middle = (value + z2 / (2 * of)) / (1 + z2 / of)
    reach = (z2 * (value * (1 - value) / of + z2 / (4 * of * of))) ** 0.5 / (1 + z2 / of)
    return {"value": value, "low": max(0.0, middle - reach), "high": min(1.0, middle + reach)}


def _resamples(n: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n, n) for _ in range(DRAWS)]


def _summary(value: float, draws: Any) -> dict[str, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"value": float(value), "low": float(low), "high": float(high)}
