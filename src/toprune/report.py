"""What a run asked for, expected, executed and cost, as plain JSON: the proof beside the model."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toprune.budget import Lengths
from toprune.cost import measured_reduction, reduction
from toprune.data import Examples
from toprune.intervals import paired, with_intervals
from toprune.plan import Plan
from toprune.tasks import Task, settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toprune.run.texts import Row
    from toprune.stages import Job, Outcome


def environment() -> dict[str, Any]:
    """Where numbers were made: machine, versions, commit."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in ("toprune", "torch", "transformers", "accelerate", "numpy", "onnxruntime"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"machine": _cpu(), "versions": versions, "commit": _commit()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


def _commit() -> str | None:
    """The commit of the source tree that toprune runs from, '+' when it was changed since."""
    here = Path(__file__).parent
    try:
        told = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None


def evaluation_report(
    task: Task, outputs: "Sequence[np.ndarray]", rows: "Sequence[Row]", examples: Examples
) -> dict[str, Any]:
    """Metrics with intervals where there are labels."""
    report = _about(task, examples)
    if examples.labels is not None:
        report["metrics"] = with_intervals(task, task.judge(outputs, rows, examples))
    return report


def _about(task: Task, examples: Examples) -> dict[str, Any]:
    return {
        "task": task.NAME,
        "task_settings": settings_of(task),
        "examples": len(examples),
    }


def kept_per_layer(plan: Plan, lengths: Lengths, counts: np.ndarray | None = None) -> list[int]:
    """Tokens that enter each layer, of a text of mean length; or as counted, in the mean."""
    if counts is not None:
        return [round(mean) for mean in counts.mean(0).tolist()]
    held = sum(held * many for _, held, many in lengths.rows) / lengths.total
    return plan.lengths(round(lengths.mean), round(held))


def prune_report(
    job: "Job",
    tasks: tuple[Task, Task],
    outcome: "Outcome",
    held_out: Examples,
    rows: "Sequence[Row]",
    said: "tuple[Sequence[np.ndarray], Sequence[np.ndarray]]",
    max_length: int,
    counts: np.ndarray | None = None,
) -> dict[str, Any]:
    """Asked, expected, executed; dense and pruned side by side on what training never saw: what
    each said, and the task with the settings that suit it. `counts` (N, L) of an adaptive plan:
    what was executed of these texts."""
    from toprune.families import sizes_of
    from toprune.stages import settings_of as run_settings

    sizes = sizes_of(job.model)
    if counts is not None:
        done = measured_reduction(sizes, outcome.plan.restore, counts, max_length=max_length)
    else:
        done = reduction(
            sizes,
            outcome.plan,
            job.lengths,
            max_length=max_length,
            cut=job.cut,
            before=job.before,
        )
    read = job.lengths if job.cut is None else job.lengths.cut(job.cut)
    task, tuned = tasks
    report: dict[str, Any] = _about(tuned, held_out) | {
        "max_length": job.cut or max_length,
        "budget": {
            "asked": job.budget.asked,
            "expected": outcome.expected,
            "executed": vars(done),
        },
        "agreement": tuned.agreement(*said, rows, held_out),
        "kept_per_layer": kept_per_layer(outcome.plan, read, counts),
        "lengths": job.lengths.to_json(),
        "log": outcome.log,
        "provenance": {"method": job.method.NAME, "settings": run_settings(job)} | environment(),
    }
    report |= outcome.found
    if held_out.labels is not None:
        before, after = (task.judge(part, rows, held_out) for part in said)
        report["dense"] = with_intervals(task, before)
        report["pruned"] = with_intervals(tuned, after)
        report["difference"] = paired(task, before, after, tuned)
    return report
