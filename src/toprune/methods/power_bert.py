"""PoWER-BERT (ICML'20): progressive word-vector elimination.

Read beside the paper. Tokens are ranked by the attention they receive; a layer's *soft-extract*
vector r_l in [0, 1], indexed by rank, multiplies the states after attention. The configuration
search trains r with the weights under task loss + lambda * sum_l l * ||r_l||_1; layer l then keeps
as many tokens as r_l has mass, never more than the layer before, and the model is trained again
with the other tokens really dropped.

Ours: ranks are bins of the text's own length, not of the padded maximum, so that short texts are
pruned too; the first token is never scaled; lambda follows the budget (`common.py`), and
`repair` meets the rest of the budget. In comparisons the search starts half-way to a calibrated
schedule (`start`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from toprune.methods.common import Coefficient
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Cost
from toprune.plan.plan import Plan, Restore, Score, Step, notch, probe_of
from toprune.pruning.policies import UNPROTECTED, Drop, Policy, Protection
from toprune.pruning.tokens import Tokens, by_probe, order, ranks
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, setting
from toprune.training.stages import calibrated, probes_of, soft_stage

DROPPED = 0.5  # r of ranks that a calibrated start drops: the search closes them step by step
LAMBDA = 1e-3  # at the start: in the middle of the paper's 1e-4 to 7e-3


@dataclass(frozen=True)
class PowerBert(Method):
    """How much each rank counts in a layer, learned with an L1 loss (PoWER-BERT, ICML'20)."""

    bins: int = setting(50, "Entries of a layer's soft-extract vector.", minimum=1)
    first: int = setting(0, "First layer that may drop tokens, counted from zero.")

    start: Literal["paper", "calibrated"] = setting(
        "paper",
        "Where the search starts: all ranks count (the paper), or less where a calibrated schedule "
        "would drop them.",
        later=True,
    )

    NAME: ClassVar[str] = "power_bert"
    SCORES: ClassVar[tuple[Score, ...]] = ("received", "probe")
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """The configuration search; without epochs, the best schedule for the dense model."""
        if job.soft_epochs == 0:
            return Outcome(job, calibrated(job))

        def begin() -> "Extract":
            selector = SoftExtract(self, job.cost, job.budget_lengths, job.budget, job.restore)
            if self.start == "calibrated":
                selector.start_at(calibrated(job, moves=0))
            return Extract(
                selector,
                job.score,
                probes=probes_of(job),
                protection=Protection.of(job),
            )

        def end(policy: "Extract") -> tuple[Plan, float]:
            with torch.no_grad():
                expected = 1 / (1 - float(policy.selector.sparsity()))
            return job.repaired(policy.selector.plan(job.blank(), probes_of(job))), expected

        return soft_stage(job, begin, end, resume=resume)

    def for_comparison(self) -> "PowerBert":
        return replace(self, start="calibrated")


class SoftExtract(Coefficient):
    """The vectors r while they are learned, and the coefficient that leads them to the budget."""

    SPAN: ClassVar[float] = 1.0  # from kept to gone

    def __init__(
        self,
        settings: PowerBert,
        cost: Cost,
        lengths: Lengths,
        budget: Budget,
        restore: Restore = "none",
    ):
        super().__init__(LAMBDA, cost, lengths, budget, restore)
        self.settings = settings
        self.r = nn.Parameter(torch.ones(cost.layers - 1 - settings.first, settings.bins))

    def start_at(self, plan: Plan) -> None:
        """Start with a lower r for the ranks that the plan drops in a layer."""
        n = round(self.lengths.mean)
        device = self.r.device
        kept = torch.tensor(plan.lengths(n)[self.settings.first + 1 :], device=device) / n  # (P,)
        bins = torch.arange(self.settings.bins, device=device)
        inside = (kept[:, None] * self.settings.bins - bins).clamp(0, 1)  # (P, bins)
        with torch.no_grad():
            self.r.copy_(DROPPED + (1 - DROPPED) * inside)
            self.sparsity_start = float(self.sparsity())

    def masks(self) -> list[nn.Parameter]:
        return [self.r]

    def clip(self) -> None:
        with torch.no_grad():
            self.r.clamp_(0, 1)

    def ratios(self) -> list[Tensor]:
        """The mass of each layer, never more than before."""
        mass = self.r.clamp(0, 1).mean(1).cummin(0).values  # (P,)
        one = mass.new_ones(())
        return [one] * self.settings.first + list(mass.unbind())

    def penalty(self) -> Tensor:
        """lambda * sum_l l * ||r_l||_1, layers counted from one; lambda takes a step, too."""
        number = (
            torch.arange(1, len(self.r) + 1, device=self.r.device) + self.settings.first
        )  # (P,)
        return self.step_lambda() * (number * self.r.abs().sum(1)).sum()

    def plan(self, blank: Plan, probes: Tensor | None) -> Plan:
        """Every layer keeps as many tokens as it has mass."""
        shares = [share.item() for share in self.ratios()][self.settings.first :]
        steps = tuple(Step(i + self.settings.first, notch(r)) for i, r in enumerate(shares))
        return replace(blank, steps=steps, probe=probe_of(probes, blank.score, [steps[0].layer]))


class Extract(Policy):
    """The policy of the search: every token stays, its state multiplied by r at its rank."""

    def __init__(
        self,
        selector: SoftExtract,
        score: Score,
        *,
        probes: Tensor | None = None,
        protection: Protection = UNPROTECTED,
    ):
        self.selector, self.score, self.probes = selector, score, probes
        self.protection = protection

    def begin(self) -> None:
        self.selector.clip()

    def scored(self, layer: int) -> bool:
        return self.score == "received" and self._searched(layer)

    def _searched(self, layer: int) -> bool:
        return self.selector.settings.first <= layer < self.selector.cost.layers - 1

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if not self._searched(layer):
            return None
        settings = self.selector.settings
        if tokens.rank is None:
            scores = received if self.probes is None else by_probe(state, self.probes[layer])
            assert scores is not None
            tokens = replace(tokens, rank=ranks(order(scores, tokens)))
        assert tokens.rank is not None
        bins = (tokens.rank * settings.bins // tokens.n[:, None]).clamp(max=settings.bins - 1)
        scale = self.selector.r[layer - settings.first][bins].masked_fill(tokens.protected, 1.0)
        if self.score == "received":
            tokens = replace(tokens, rank=None)  # ranked again in every layer
        return Drop(None, tokens, scale)
