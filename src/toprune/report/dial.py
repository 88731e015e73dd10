"""The budgets of a dial in a report: what each of them executes, and what it loses."""

from typing import Any

from toprune.plan.dial import numerators
from toprune.report.build import Execution
from toprune.tasks.intervals import paired, with_intervals
from toprune.tasks.side_by_side import SideBySide


def dial_row(asked: str, sides: SideBySide, execution: Execution) -> dict[str, Any]:
    """One budget of a dial.

    Args:
        asked: the budget as the user wrote it.
        sides: what the dense model and the model at this budget answer.
        execution: what runs at this budget.

    Returns:
        `asked`, `executed`, `agreement`, `keep` (of each step, in thousandths), `kept_per_layer`;
        with labels also `pruned` and `difference`.
    """
    dense_task, pruned_task = sides.tasks
    row: dict[str, Any] = {
        "asked": asked,
        "executed": vars(execution.reduction()),
        "agreement": pruned_task.agreement(*sides.outputs, sides.rows, sides.examples),
        "keep": numerators([step.keep for step in execution.plan.steps]),
        "kept_per_layer": execution.kept_per_layer(),
    }
    if sides.examples.labels is not None:
        before, after = (
            dense_task.statistics(outputs, sides.rows, sides.examples) for outputs in sides.outputs
        )
        row["pruned"] = with_intervals(pruned_task, after)
        row["difference"] = paired(dense_task, before, after, pruned_task)
    return row
