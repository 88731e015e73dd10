"""Plans whose token counts adapt to the text, held to a budget by measuring.

A threshold does not say how many tokens stay; running the model does. One factor for all thresholds
is bisected until the FLOPs that a sample of texts executes are the budget's, on average.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from toprune.errors import OutOfReach
from toprune.io.progress import bar
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget
from toprune.plan.cost import measured_reduction
from toprune.plan.plan import Plan
from toprune.training.evaluation import entering

HALVINGS = 24  # at most: odds of networks lie close together
NEAR = 0.002  # above the budget that is good enough
LARGEST = 1e4  # factor of thresholds


def scaled(plan: Plan, factor: float) -> Plan:
    return replace(
        plan,
        steps=tuple(
            step if step.threshold is None else replace(step, threshold=step.threshold * factor)
            for step in plan.steps
        ),
    )


def meet(model: Any, plan: Plan, batches: Sequence[dict[str, Tensor]], budget: Budget) -> Plan:
    """The plan with its thresholds moved together until it executes the budget on these batches."""
    sizes = sizes_of(model)
    numbered = [(None, batch) for batch in batches]
    longest = max(batch["attention_mask"].shape[1] for batch in batches)

    def reached(factor: float) -> float:
        counts = entering(model, scaled(plan, factor), numbered)
        advance()
        return measured_reduction(sizes, plan, counts, max_length=longest).unpadded

    low, high = -np.log(LARGEST), np.log(LARGEST)  # of the factor
    with bar("measuring thresholds", HALVINGS + 1) as advance:
        if reached(float(np.exp(high))) < budget.reduction:
            raise OutOfReach(
                f"budget {budget.asked} is out of reach of thresholds in these layers; ask for less"
            )
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            found = reached(float(np.exp(middle))) / budget.reduction
            if found < 1:
                low = middle
                continue
            high = middle
            if found < 1 + NEAR:
                break
    return scaled(plan, float(np.exp(high)))
