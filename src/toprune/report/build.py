"""The report of a run as plain JSON: what was requested, expected, executed and lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toprune.data.examples import Examples
from toprune.plan.budget import Lengths
from toprune.plan.cost import Reduction, Sizes, measured_reduction, reduction
from toprune.plan.plan import Plan
from toprune.report.differences import differences
from toprune.report.environment import environment
from toprune.tasks import Task, settings_of
from toprune.tasks.intervals import paired, with_intervals
from toprune.tasks.side_by_side import SideBySide

if TYPE_CHECKING:
    from toprune.tasks.tokenize import Row

POINTS = 60  # lines of the training log that keep their masks
SHARES = (0.1, 0.5, 0.9, 1.0)  # quantiles of the text length in `kept_by_length`


@dataclass(frozen=True)
class Execution:
    """A plan and what it runs on."""

    plan: Plan
    sizes: Sizes  # of the model that runs it
    lengths: Lengths  # of the texts, before `cut`
    max_length: int
    cut: int | None = None  # the pruned model reads no more tokens of a text than this
    before: Sizes | None = None  # of the dense model, if it has other sizes
    counts: np.ndarray | None = None  # (N, L) measured tokens of an adaptive plan

    def reduction(self) -> Reduction:
        """How many times fewer FLOPs the plan takes."""
        if self.counts is not None:
            return measured_reduction(
                self.sizes, self.plan, self.counts, max_length=self.max_length
            )
        return reduction(
            self.sizes,
            self.plan,
            self.lengths,
            max_length=self.max_length,
            cut=self.cut,
            before=self.before,
        )

    def kept_per_layer(self) -> list[int]:
        """Tokens that enter each layer: for a text of mean length, or the mean of `counts`."""
        if self.counts is not None:
            return [round(mean) for mean in self.counts.mean(0).tolist()]
        lengths = self._read()
        held = sum(held * count for _, held, count in lengths.rows) / lengths.total
        return self.plan.lengths(round(lengths.mean), round(held))

    def kept_by_length(self) -> list[dict[str, Any]]:
        """The same for texts of several lengths.

        Returns:
            Rows: a `share` of all texts has at most `tokens` tokens, of which `kept` enter each
            layer. From `counts` it is the mean over the tenth of the texts around that length.
        """
        rows: list[dict[str, Any]] = []
        for share in SHARES:
            if self.counts is None:
                lengths = self._read()
                n = lengths.quantile(share)
                same = [(held, count) for length, held, count in lengths.rows if length == n]
                held = sum(held * count for held, count in same) / sum(count for _, count in same)
                kept = self.plan.lengths(n, round(held))
            else:
                ordered = self.counts[np.argsort(self.counts[:, 0], kind="stable")]
                start, end = (round(at * len(ordered)) for at in (share - 0.05, share + 0.05))
                start = min(start, len(ordered) - 1)  # there may be few texts
                means = ordered[start : max(end, start + 1)].mean(0)
                kept = [round(mean) for mean in means.tolist()]
            rows.append({"share": share, "tokens": kept[0], "kept": kept})
        return rows

    def _read(self) -> Lengths:
        return self.lengths if self.cut is None else self.lengths.cut(self.cut)


def evaluation_report(
    task: Task, outputs: Sequence[np.ndarray], rows: "Sequence[Row]", examples: Examples
) -> dict[str, Any]:
    """The task and, where there are labels, its metrics with intervals.

    Args:
        outputs: one per row, as the head gives them.
        rows: what the model read: texts, pairs, or windows of them.
    """
    report = _about(task, examples)
    if examples.labels is not None:
        report["metrics"] = with_intervals(task, task.statistics(outputs, rows, examples))
    return report


def prune_report(
    sides: SideBySide,
    execution: Execution,
    *,
    asked: str,
    settings: Mapping[str, Any],
    expected: float | None,
    log: Sequence[dict[str, float]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """What was requested, expected and executed; dense and pruned side by side on held-out data.

    Args:
        sides: what both models answer.
        execution: what runs, and on which texts.
        asked: the budget as the user wrote it; of a dial, the budget of its default plan.
        settings: of the run.
        expected: the reduction that the learned masks expected; None if none were learned.
        log: of the training.
        extra: further keys that the method adds.

    | key | content |
    |---|---|
    | task, task_settings, examples, max_length | the task, how many held-out texts, where cut |
    | budget | `asked`, and how it was counted; `expected` by the masks; `executed`, counted in
      every way of a `Reduction` |
    | dense, pruned, difference | metrics with intervals, where there are labels |
    | agreement | how often both models give the same answer (`Task.agreement`) |
    | time | of a budget in milliseconds: asked, dense, predicted, measured, the curve |
    | kept_per_layer, kept_by_length | tokens that enter each layer: mean; for several lengths |
    | lengths | histogram of the training texts, which the budget is for |
    | classes, changed | see `differences`; holds shortened texts of the user |
    | log | of the training; for some steps `gate_i`, the chance that layer i drops tokens, and
      `kept_i`, the share of tokens expected after it; layers count from zero |
    | provenance | method, settings, machine, versions, commit |

    `prune` adds `inputs`, the names of model, data, columns and protected words, and for several
    budgets `dial` (`report.dial`); `toprune bench` adds `latency`, `toprune export --data` `onnx`.
    """
    dense_task, pruned_task = sides.tasks
    examples = sides.examples
    provenance = {"method": settings["method"], "settings": dict(settings)} | environment()
    report: dict[str, Any] = _about(pruned_task, examples) | {
        "max_length": execution.cut or execution.max_length,
        "budget": {
            "asked": asked,
            "count": settings.get("count", "executed"),
            "expected": expected,
            "executed": vars(execution.reduction()),
        },
        "agreement": pruned_task.agreement(*sides.outputs, sides.rows, examples),
        "kept_per_layer": execution.kept_per_layer(),
        "kept_by_length": execution.kept_by_length(),
        "lengths": execution.lengths.to_json(),
        "log": thin_masks(log),
        "provenance": provenance,
    }
    report |= extra
    report |= differences(sides)
    if examples.labels is not None:
        before, after = (dense_task.statistics(x, sides.rows, examples) for x in sides.outputs)
        report["dense"] = with_intervals(dense_task, before)
        report["pruned"] = with_intervals(pruned_task, after)
        report["difference"] = paired(dense_task, before, after, pruned_task)
    return report


def _about(task: Task, examples: Examples) -> dict[str, Any]:
    return {
        "task": task.NAME,
        "task_settings": settings_of(task),
        "examples": len(examples),
    }


def thin_masks(log: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The log with masks at `POINTS` steps only, the first and the last among them.

    A line for every ten steps is little, but not with two numbers for every layer.
    """
    masked = [i for i, line in enumerate(log) if any(map(_is_mask, line))]
    if len(masked) <= POINTS:
        return list(log)
    chosen = {masked[round(i)] for i in np.linspace(0, len(masked) - 1, POINTS)}
    return [
        line if i in chosen else {k: x for k, x in line.items() if not _is_mask(k)}
        for i, line in enumerate(log)
    ]


def _is_mask(key: str) -> bool:
    return key.startswith(("gate_", "kept_"))
