"""What the rows of a comparison say together, in the mean over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toprune.data.presets import preset_of
from toprune.report.environment import environment
from toprune.tasks import TASKS

RACE = ("pruned fp32", "dense fp32")  # whose times count as faster

Row = dict[str, Any]
Rows = Mapping[tuple[str, str, int], Row]  # by name, budget, seed


def comparison_report(settings: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """The rows, and what they say by the metric that the task is judged by."""
    done = [row for row in rows.values() if "error" not in row]
    about: dict[str, Any] = {"task": settings["task"]}
    if done:
        about["examples"] = done[0]["examples"]
        about["max_length"] = max(row["max_length"] for row in done)  # some methods cut texts
        about["metric"] = _metric(done[0])
        dense = {row["seed"]: _figures(row, about["metric"])["dense"] for row in done}
        about["dense"] = _mean(list(dense.values()))
    cells: dict[tuple[str, str], list[Row]] = {}
    for name, budget, seed in rows:
        cells.setdefault((name, budget), []).append(rows[name, budget, seed])
    return about | {
        "settings": settings,
        "environment": environment(),
        "means": [
            {"name": name, "budget": budget} | _means(own, about.get("metric", ""))
            for (name, budget), own in cells.items()
        ],
        "rows": list(rows.values()),
    }


def _metric(row: Row) -> str:
    """What the task is judged by; without labels, how much a model says what the dense one says."""
    preset = preset_of(row)
    if "difference" not in row:
        return "agreement"
    return preset.metrics[0] if preset else TASKS[row["task"]].METRICS[0]


def _means(rows: Sequence[Row], metric: str) -> dict[str, Any]:
    """Of one method at one budget, over the seeds with which it could be pruned."""
    done = [row for row in rows if "error" not in row]
    if not done:
        return {}
    figures = [_figures(row, metric) for row in done]
    times = [faster for row in done if (faster := _faster(row)) is not None]
    return {
        "seeds": len(done),
        **{part: _mean([own[part] for own in figures]) for part in figures[0]},
        "executed": _mean([row["executed"] for row in done]),
        "faster": float(np.mean(times)) if times else None,
    }


def _figures(row: Row, metric: str) -> dict[str, dict[str, float]]:
    if "difference" in row:
        return {part: row[part][metric] for part in ("dense", "pruned", "difference")}
    said = float(row["agreement"])
    values = {"dense": 1.0, "pruned": said, "difference": said - 1}
    return {part: {"value": value} for part, value in values.items()}


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Number by number; of intervals that is their ends."""
    names = [name for name in figures[0] if name != "p"]
    return {name: float(np.mean([figure[name] for figure in figures])) for name in names}


def _faster(row: Row) -> float | None:
    ratios = row["latency"]["rows"][0]["ratios"] if "latency" in row else []
    return next((one["value"] for one in ratios if (one["who"], one["over"]) == RACE), None)
