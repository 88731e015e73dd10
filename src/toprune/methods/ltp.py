"""LTP (KDD'22): learned token pruning, by a threshold in every layer.

Read beside the paper. A token stays while the attention that it receives (mean over heads and
queries) is at least the layer's threshold, so easy and long texts lose more tokens than others. In
the soft stage a state is multiplied by sigmoid((score - theta_l) / tau), and lambda * sum_l
mean(mask) pushes the thresholds up; then they are frozen, and the weights are trained with the
other tokens really dropped.

Ours: scores are divided by the live queries, not by the padded length, so that thresholds mean the
same whatever the padding; the first token never leaves; lambda follows the budget
(`common.py`); and one factor of all thresholds is bisected until the texts execute the budget
on average. This is done after each stage, because scores move with the weights. In comparisons
thresholds start half-way to a calibrated schedule (`start`): on the paper's line the first layer
starts at zero, and some hundred steps do not change that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from toprune.methods.common import RECENT, Coefficient
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Cost
from toprune.plan.plan import Plan, Restore, Score, Step
from toprune.pruning.policies import UNPROTECTED, Drop, Policy, Protection
from toprune.pruning.tokens import Tokens
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, setting
from toprune.training.stages import CALIBRATION_TEXTS, calibrated, soft_stage
from toprune.training.thresholds import meet, on_the_way

LAMBDA = 0.1  # at the start: as in its README
LARGEST = 1.0  # lambda: above this the weights would learn little else
LEAST = 1e-5  # of a threshold


@dataclass(frozen=True)
class Ltp(Method):
    """A threshold of attention in every layer, below which tokens leave (LTP, KDD'22)."""

    # The paper's .01 is the mean score in a text of a hundred tokens.
    final: float | None = setting(
        None,
        "Where the line of starting thresholds, zero at layer 0, ends (default: one over the mean "
        "length).",
    )
    temperature: float = setting(
        0.1, "tau, in units of `final` (the paper: 1e-4 to 2e-3).", minimum=1e-6
    )
    first: int = setting(0, "First layer that may drop tokens, counted from zero.")

    start: Literal["paper", "calibrated"] = setting(
        "paper",
        "Where thresholds start: on the paper's line from zero, or below a calibrated schedule.",
        later=True,
    )

    NAME: ClassVar[str] = "ltp"
    SCORES: ClassVar[tuple[Score, ...]] = ("received",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    TIMED: ClassVar[bool] = False

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        batches = job.sample_batches(CALIBRATION_TEXTS)

        def begin() -> "SoftThreshold":
            selector = Thresholds(self, job.cost, job.lengths, job.budget, job.restore)
            if self.start == "calibrated":
                selector.start_at(*on_the_way(job.model, calibrated(job, moves=0), batches))
            return SoftThreshold(selector, Protection.of(job))

        def end(policy: "SoftThreshold") -> tuple[Plan, float]:
            learned = policy.selector.plan(job.blank())
            plan = meet(job.model, learned, batches, job.cost, job.budget)
            return plan, 1 / (1 - float(policy.selector.sparsity()))

        if job.soft_epochs == 0:
            return Outcome(job, end(begin())[0])
        return soft_stage(job, begin, end, resume=resume)

    def for_comparison(self) -> "Ltp":
        return replace(self, start="calibrated")


class Thresholds(Coefficient):
    """theta_l = final * l / L + delta_l, and the coefficient that leads them to the budget."""

    def __init__(
        self,
        settings: Ltp,
        cost: Cost,
        lengths: Lengths,
        budget: Budget,
        restore: Restore = "none",
    ):
        super().__init__(LAMBDA, cost, lengths, budget, restore, largest=LARGEST)
        self.settings = settings
        layers = torch.arange(settings.first, cost.layers - 1)
        self.final = 1 / lengths.mean if settings.final is None else settings.final
        self.base: Tensor
        self.register_buffer("base", self.final * layers / cost.layers)  # (P,)
        self.delta = nn.Parameter(torch.zeros(len(layers)))
        self.shares: Tensor
        self.register_buffer("shares", torch.ones(len(layers)))  # alive, moving average
        self.kept: list[Tensor] = []  # this pass: mean soft mask of each layer
        self.SPAN = self.final  # how far a threshold has to move

    def start_at(self, plan: Plan, shares: Sequence[float]) -> None:
        """Start with the thresholds of a plan.

        Args:
            shares: of the tokens that enter layers 1 to L - 1 with it.
        """
        self.base.zero_()
        for step in plan.steps:
            self.base[step.layer - self.settings.first] = step.threshold or 0.0
        self.shares.copy_(self.shares.new_tensor(shares[self.settings.first :]))
        self.sparsity_start = float(self.sparsity())

    def thresholds(self) -> Tensor:
        return (self.base + self.delta).clamp_min(LEAST)

    def masks(self) -> list[nn.Parameter]:
        return [self.delta]

    def ratios(self) -> list[Tensor]:
        """Shares of recent batches."""
        return [self.shares.new_ones(())] * self.settings.first + list(self.shares.unbind())

    def penalty(self) -> Tensor:
        """lambda * sum_l mean(mask_l); lambda takes a step, too."""
        return self.step_lambda() * torch.stack(self.kept).sum()

    def plan(self, blank: Plan) -> Plan:
        steps = (
            Step(i + self.settings.first, Fraction(1), float(theta))
            for i, theta in enumerate(self.thresholds().tolist())
        )
        return replace(blank, steps=tuple(steps))


class SoftThreshold(Policy):
    """The policy of the soft stage: every token stays, its state multiplied by its soft mask."""

    def __init__(self, selector: Thresholds, protection: Protection = UNPROTECTED):
        self.selector, self.protection = selector, protection

    def begin(self) -> None:
        self.selector.kept = []

    def scored(self, layer: int) -> bool:
        return self.selector.settings.first <= layer < self.selector.cost.layers - 1

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if not self.scored(layer):
            return None
        assert received is not None
        selector, at = self.selector, layer - self.selector.settings.first
        above = (received - selector.thresholds()[at]) / selector.final
        mask = (above / selector.settings.temperature).sigmoid().masked_fill(tokens.protected, 1.0)
        live = tokens.alive.to(mask)
        selector.kept.append((mask * live).sum() / live.sum())
        # the product of all masks so far
        passed = mask.detach() if tokens.total is None else tokens.total * mask.detach()
        with torch.no_grad():
            share = (passed * live).sum() / live.sum()
            selector.shares[at] += RECENT * (share - selector.shares[at])
        return Drop(None, replace(tokens, total=passed), mask)
