"""A schedule for the frozen model, without training: try shapes on a few texts, keep the best.

The best one has the smallest distance between pruned and dense outputs (the task's distillation
loss), so no labels are needed. First come the geometric shapes, then random moves of the best one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from toprune.io.progress import bar
from toprune.plan.plan import Plan, Step, notch
from toprune.tasks import Task
from toprune.training.evaluation import batch_outputs, distance

MOVES = 24  # random moves after the starting shapes, when no training follows
SPREAD = 0.35  # standard deviation of a move, in logs of the ratios


def calibrate(
    model: Any,
    batches: Sequence[dict[str, Tensor]],
    task: Task,
    starts: Sequence[Plan],
    repaired: Callable[[Plan], Plan],
    *,
    moves: int,
    seed: int,
) -> Plan:
    """Find the plan with the smallest distance to the dense model.

    Args:
        starts: plans that meet the budget.
        repaired: moves the ratios of a plan until it meets the budget.
        moves: number of random moves of the best plan.
    """
    rng = np.random.default_rng(seed)
    with bar("calibrating", len(starts) + moves) as advance:
        dense = batch_outputs(model, task, batches)

        def loss(plan: Plan) -> float:
            value = distance(task, batch_outputs(model, task, batches, plan), dense, batches)
            advance()
            return value

        losses = [loss(plan) for plan in starts]
        best, plan = min(losses), starts[losses.index(min(losses))]
        for _ in range(moves):
            moved = repaired(_move(plan, rng))
            if (value := loss(moved)) < best:
                best, plan = value, moved
    return plan


def _move(plan: Plan, rng: np.random.Generator) -> Plan:
    """Multiply the ratios by random factors, and make them non-increasing again."""
    ratios = np.array([float(step.keep) for step in plan.steps])
    ratios = np.minimum.accumulate(ratios * np.exp(rng.normal(0, SPREAD, len(ratios))))
    steps = tuple(
        Step(step.layer, notch(ratio)) for step, ratio in zip(plan.steps, ratios, strict=True)
    )
    return replace(plan, steps=steps)
