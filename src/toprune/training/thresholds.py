"""Plans whose token counts adapt to the text, and how they meet a budget.

How many tokens stay above a threshold shows only when the model runs. One factor of all thresholds
is bisected until a sample of texts executes the FLOPs of the budget on average.
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

HALVINGS = 24  # at most: the odds that predictors give are close together
NEAR = 0.002  # relative distance above the budget that is good enough
LARGEST = 1e4  # factor of thresholds


def scaled(plan: Plan, factor: float) -> Plan:
    """The plan with every threshold multiplied by a factor."""
    return replace(
        plan,
        steps=tuple(
            step if step.threshold is None else replace(step, threshold=step.threshold * factor)
            for step in plan.steps
        ),
    )


def meet(model: Any, plan: Plan, batches: Sequence[dict[str, Tensor]], budget: Budget) -> Plan:
    """Move all thresholds together until the plan executes the budget on these batches."""
    sizes = sizes_of(model)
    numbered = [(None, batch) for batch in batches]
    longest = max(batch["attention_mask"].shape[1] for batch in batches)

    def reached(factor: float) -> float:
        counts = entering(model, scaled(plan, factor), numbered)
        advance()
        return measured_reduction(sizes, plan, counts, max_length=longest).unpadded

    low, high = -np.log(LARGEST), np.log(LARGEST)  # logs of the factor
    with bar("measuring thresholds", HALVINGS + 1) as advance:
        if reached(float(np.exp(high))) < budget.reduction:
            raise OutOfReach(
                f"budget {budget.asked} is out of reach of thresholds in these layers; ask for less"
            )
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            ratio = reached(float(np.exp(middle))) / budget.reduction
            if ratio < 1:
                low = middle
                continue
            high = middle
            if ratio < 1 + NEAR:
                break
    return scaled(plan, float(np.exp(high)))
