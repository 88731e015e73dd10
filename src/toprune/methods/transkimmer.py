"""Transkimmer (ACL'22): a small network in every layer decides which tokens stay.

Read beside the paper. The *predictor* of a layer reads a token's state: LN, Linear(d, d), LN, GELU,
then keep or drop. In training the choice is drawn (Gumbel-softmax, hard, with a straight-through
gradient), a token that has left stays away, and lambda * (mean share kept over layers) is added to
the loss; model and predictors are trained together from the start. At inference the likelier choice
counts, and the number of tokens adapts to the text.

Ours: the two outputs, of which only the difference matters, are one. Tokens leave after attention,
as in all methods here, so the first predictor has seen one attention, and none reads embeddings
alone. Dropped keys are removed from the softmax, not zeroed after it (the author calls that a bug).
Padding is not counted, and inference draws nothing. lambda follows the budget (`common.py`),
and one factor of the odds at which tokens stay is bisected until the texts execute the budget on
average. Predictors start nearer to their decision than the paper's, which has thousands of steps to
get there, and learn at a rate of their own. Their cost is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from toprune.methods.common import Predictors, plan_to_budget
from toprune.models.families import sizes_of
from toprune.plan.plan import Plan, Score
from toprune.pruning.policies import Drop, Policy, Protection
from toprune.pruning.predictor import add_predictors
from toprune.pruning.tokens import Tokens, gather_alive
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, setting
from toprune.training.stages import soft_stage

LAMBDA = 0.5  # at the start: as in its scripts
LARGEST = 5.0  # lambda: above this the weights would learn little else
SPAN = 30.0  # over the width: the wider a network, the further its output moves at the same rate
SMALL = 0.02  # spread of the last layer's weights at the start


@dataclass(frozen=True)
class Transkimmer(Method):
    """A small network in every layer that selects tokens (Transkimmer, ACL'22)."""

    first: int = setting(0, "First layer that may drop tokens, counted from zero.")
    open: float = setting(3.0, "Logit with which tokens stay at the start (the paper: 10).")
    temperature: float = setting(1.0, "Temperature of the Gumbel-softmax.", minimum=1e-6)

    NAME: ClassVar[str] = "transkimmer"
    SCORES: ClassVar[tuple[Score, ...]] = ("predicted",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    TIMED: ClassVar[bool] = False

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        sizes = sizes_of(job.model)
        torch.manual_seed(job.training.seed)
        layers = range(self.first, sizes.layers - 1)
        predictors = add_predictors(job.model, layers, sizes.width, normed=True)
        for predictor in predictors.children():
            start(predictor, self.open)
        if job.soft_epochs == 0:
            return Outcome(job, plan_to_budget(job, layers, sizes.width))

        def begin() -> "Skim":
            skimmers = Skimmers(LAMBDA, LARGEST, SPAN / sizes.width, job, predictors)
            return Skim(skimmers, job, self.temperature)

        def end(policy: "Skim") -> tuple[Plan, float]:
            expected = 1 / (1 - float(policy.selector.sparsity()))
            return plan_to_budget(job, layers, sizes.width), expected

        return soft_stage(job, begin, end, resume=resume)


def start(predictor: Any, open_: float) -> None:
    """Initialise the predictor so that nearly all tokens stay."""
    nn.init.normal_(predictor.keep.weight, std=SMALL)
    nn.init.constant_(predictor.keep.bias, open_)


class Skimmers(Predictors):
    kept: Sequence[Tensor] = ()  # share of tokens left after each layer in this pass

    def penalty(self) -> Tensor:
        """lambda * mean over layers of the share that is left; lambda takes a step, too."""
        return self.step_lambda() * torch.stack(list(self.kept)).mean()


def drawn(logits: Tensor, temperature: float) -> Tensor:
    """One or zero, with the gradient of the softer choice: Gumbel-softmax of two is a sigmoid with
    logistic noise."""
    u = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
    soft = ((logits + u.log() - (1 - u).log()) / temperature).sigmoid()
    hard = (soft > 0.5).to(soft)
    return hard + (soft - soft.detach())  # brackets: (1 + s) - s is not 1 in floats


class Skim(Policy):
    """The policy of the soft stage: every layer draws which tokens stay."""

    def __init__(self, selector: Skimmers, job: Job, temperature: float):
        self.selector, self.temperature = selector, temperature
        self.protection = Protection.of(job)

    def begin(self) -> None:
        self.selector.kept = []

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        selector = self.selector
        if layer not in selector.layers:
            return None
        weight = drawn(selector.network(layer)(state), self.temperature)  # (B, K)
        weight = weight.masked_fill(tokens.protected, 1.0)
        if tokens.weight is not None:
            weight = weight * tokens.weight
        share = (weight * tokens.alive).sum() / tokens.n.sum()
        selector.kept = [*selector.kept, share]
        selector.record(layer, share)
        alive = tokens.alive & (weight > 0)
        return Drop(*gather_alive(replace(tokens, weight=weight, alive=alive, full=False)))
