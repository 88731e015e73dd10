"""Metrics with intervals, and paired tests. numpy alone, for the runtime."""

from typing import Any

import numpy as np

from toprune.tasks import Task

DRAWS = 1000  # bootstrap resamples


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


def share(count: int, total: int) -> dict[str, float]:
    """A share with Wilson's 95 % interval; a bootstrap has none for events that never happened."""
    value, z2 = count / total, 1.959964**2
    middle = (value + z2 / (2 * total)) / (1 + z2 / total)
    reach = (z2 * (value * (1 - value) / total + z2 / (4 * total * total))) ** 0.5 / (
        1 + z2 / total
    )
    return {"value": value, "low": max(0.0, middle - reach), "high": min(1.0, middle + reach)}


def _resamples(n: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n, n) for _ in range(DRAWS)]


def _summary(value: float, draws: Any) -> dict[str, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"value": float(value), "low": float(low), "high": float(high)}
