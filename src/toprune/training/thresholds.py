"""Plans whose token counts adapt to the text, and how they meet a budget.

How many tokens stay above a threshold shows only when the model runs. One factor of all thresholds
is bisected until a sample of texts executes the FLOPs of the budget on average.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.errors import OutOfReach
from toprune.io.progress import bar
from toprune.models.heads import run_encoder
from toprune.plan.budget import Budget
from toprune.plan.cost import Cost, measured_ratio
from toprune.plan.plan import Plan, Step
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Drop, Follow
from toprune.pruning.predictor import predictors_of
from toprune.pruning.tokens import Tokens
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


def meet(
    model: Any, plan: Plan, batches: Sequence[dict[str, Tensor]], cost: Cost, budget: Budget
) -> Plan:
    """Move all thresholds together until the plan meets the budget of a cost on these batches."""
    numbered = [(None, batch) for batch in batches]

    def reached(factor: float) -> float:
        counts = entering(model, scaled(plan, factor), numbered)
        advance()
        return measured_ratio(cost, plan, counts)

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


def thresholds_of(model: Any, plan: Plan, batches: Sequence[dict[str, Tensor]]) -> dict[int, float]:
    """Thresholds, by layer, that keep as many tokens of all texts together as the steps of a plan
    do: where a method that learns thresholds may start."""
    record = _RecordScores(plan, predictors=predictors_of(model))
    training = model.training
    attach_policy(model.eval(), record)
    try:
        with torch.inference_mode():
            for batch in batches:
                run_encoder(model, batch)
    finally:
        detach(model).train(training)
    return {layer: record.threshold(layer) for layer in record.scored_tokens}


def on_the_way(
    model: Any, plan: Plan, batches: Sequence[dict[str, Tensor]]
) -> tuple[Plan, list[float]]:
    """A start for methods that learn thresholds: with those of a schedule that drops half as many
    tokens, so that the search leads to the schedule step by step. Also returns the share of tokens
    that enters layers 1 to L - 1."""
    halves = tuple(Step(step.layer, (1 + step.keep) / 2) for step in plan.steps)
    found = thresholds_of(model, replace(plan, steps=halves), batches)
    shares = [1.0] * (plan.n_layers - 1)
    for step in halves:  # ratios fall from step to step
        shares[step.layer :] = [float(step.keep)] * len(shares[step.layer :])
    steps = tuple(Step(layer, Fraction(1), value) for layer, value in found.items())
    return replace(plan, steps=steps), shares


class _RecordScores(Follow):
    """Execute a plan of ratios, and record how the tokens that may leave scored at each step."""

    def __init__(self, plan: Plan, **options: Any):
        super().__init__(plan, **options)
        self.scored_tokens: dict[int, list[Tensor]] = {step.layer: [] for step in plan.steps}
        self.kept = dict.fromkeys(self.scored_tokens, 0)

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        scores = super().scores(layer, state, received, tokens)
        self.scored_tokens[layer].append(scores[tokens.alive & ~tokens.protected])
        return scores

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        drop = super().decide(layer, state, received, tokens)
        if layer in self.kept and drop is not None:
            self.kept[layer] += int((drop.tokens.alive & ~drop.tokens.protected).sum())
        return drop

    def threshold(self, layer: int) -> float:
        """The lowest of the best scores, as many as tokens were kept."""
        scores = torch.cat(self.scored_tokens[layer]).sort(descending=True).values
        return float(scores[max(0, min(self.kept[layer], len(scores)) - 1)])
