"""What a run asked for, expected, executed and cost, as plain JSON: the proof beside the model."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toprune.data.examples import Examples
from toprune.plan.budget import Lengths
from toprune.plan.cost import measured_reduction, reduction
from toprune.plan.plan import Plan
from toprune.report.both import Both
from toprune.report.changes import changes
from toprune.tasks import Task, settings_of
from toprune.tasks.classify import class_names
from toprune.tasks.intervals import paired, with_intervals

POINTS = 60  # of the masks' way through training
PRODUCTS = ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2")  # widest first
SHARES = (0.1, 0.5, 0.9, 1.0)  # of the texts that are no longer than those whose tokens are told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toprune.tasks.tokenize import Row
    from toprune.training.stages import Job, Outcome


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
        return cpu_of(Path("/proc/cpuinfo").read_text()) or platform.processor()
    except OSError:
        return platform.processor()


def cpu_of(cpuinfo: str) -> str:
    """Name, cores, and the widest products that it has: processors of one name differ by them."""
    told = [line.partition(":") for line in cpuinfo.splitlines()]
    names = [value.strip() for key, _, value in told if key.strip() == "model name"]
    flags = next((value.split() for key, _, value in told if key.strip() == "flags"), [])
    widest = [name for name in PRODUCTS if name in flags][:1]
    return ", ".join([names[0], f"{len(names)} cores", *widest]) if names else ""


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


def _names(config: Any, examples: Examples) -> list[str] | None:
    """Of all classes, by id: the model's, or the data's, which may not know all of them."""
    names = class_names(config) or examples.label_names
    return names and [*names, *map(str, range(len(names), config.num_labels))]


def kept_per_layer(plan: Plan, lengths: Lengths, counts: np.ndarray | None = None) -> list[int]:
    """Tokens that enter each layer, of a text of mean length; or as counted, in the mean."""
    if counts is not None:
        return [round(mean) for mean in counts.mean(0).tolist()]
    held = sum(held * many for _, held, many in lengths.rows) / lengths.total
    return plan.lengths(round(lengths.mean), round(held))


def kept_by_length(
    plan: Plan, lengths: Lengths, counts: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """The same for texts of several lengths: a `share` of all texts has at most so many `tokens`,
    of which `kept` enter each layer. Counted, in the mean of a tenth of the texts around it."""
    rows: list[dict[str, Any]] = []
    for share in SHARES:
        if counts is None:
            n = lengths.quantile(share)
            own = [(held, many) for length, held, many in lengths.rows if length == n]
            held = sum(held * many for held, many in own) / sum(many for _, many in own)
            kept = plan.lengths(n, round(held))
        else:
            ordered = counts[np.argsort(counts[:, 0], kind="stable")]
            start, end = (round(at * len(ordered)) for at in (share - 0.05, share + 0.05))
            kept = [round(mean) for mean in ordered[start : max(end, start + 1)].mean(0).tolist()]
        rows.append({"share": share, "tokens": kept[0], "kept": kept})
    return rows


def thinned(log: "Sequence[dict[str, float]]") -> list[dict[str, float]]:
    """The log with the masks of some steps alone, the last among them: a line for every ten steps
    is little, but not with two numbers for every layer."""
    masked = [i for i, line in enumerate(log) if any(map(_of_layer, line))]
    if len(masked) <= POINTS:
        return list(log)
    chosen = {masked[round(i)] for i in np.linspace(0, len(masked) - 1, POINTS)}
    return [
        line if i in chosen else {k: x for k, x in line.items() if not _of_layer(k)}
        for i, line in enumerate(log)
    ]


def _of_layer(key: str) -> bool:
    return key.startswith(("gate_", "kept_"))


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
    what was executed of these texts.

    | key | what |
    |---|---|
    | task, task_settings, examples, max_length | what was asked of how many texts, cut where |
    | budget | `asked`; `expected` of the masks; `executed` unpadded, padded, and by the paper |
    | dense, pruned, difference | metrics with intervals, where there are labels |
    | agreement | how much both say the same (`Task.agreement`) |
    | kept_per_layer, kept_by_length | tokens that enter each layer: mean; of several lengths |
    | lengths | histogram of the training texts, which the budget is for |
    | classes, changed | who pays: see `changes.changes`. These are users' words, cut short |
    | log | of the training; for some steps `gate_i`, the chance that layer i drops tokens, and
      `kept_i`, the share of tokens expected after it; layers count from zero |
    | provenance | method, settings, machine, versions, commit |

    `prune` adds `inputs`, the names of model, data, columns and protected words; `toprune bench`
    adds `latency`, `toprune export --data` adds `onnx`.
    """
    from toprune.models.families import sizes_of
    from toprune.training.stages import settings_of as run_settings

    sizes = sizes_of(job.model)
    if counts is not None:
        done = measured_reduction(sizes, outcome.plan, counts, max_length=max_length)
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
        "kept_by_length": kept_by_length(outcome.plan, read, counts),
        "lengths": job.lengths.to_json(),
        "log": thinned(outcome.log),
        "provenance": {"method": job.method.NAME, "settings": run_settings(job)} | environment(),
    }
    report |= outcome.found
    report |= changes(Both(tasks, said, rows, held_out, _names(job.model.config, held_out)))
    if held_out.labels is not None:
        before, after = (task.judge(part, rows, held_out) for part in said)
        report["dense"] = with_intervals(task, before)
        report["pruned"] = with_intervals(tuned, after)
        report["difference"] = paired(task, before, after, tuned)
    return report
