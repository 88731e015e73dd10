"""PoWER-BERT (ICML'20): progressive word-vector elimination.

Read beside the paper. Tokens are ranked by the attention they receive; a layer's *soft-extract*
vector r_l in [0, 1], indexed by rank, multiplies the states after attention. The configuration
search trains r with the weights under task loss + lambda * sum_l l * ||r_l||_1; layer l then keeps
as many tokens as r_l has mass, never more than the one before, and the model is trained again with
the others truly gone.

Ours: ranks are bins of the text's own length, not of the padded maximum, so that short texts are
pruned too; the first token is never scaled. lambda, which the paper sets by hand for each task,
follows the budget: it grows while the expected FLOPs are above a linearly falling target and
shrinks below it. What is then left to the budget is `repair`'s.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from toprune.attachment import Drop
from toprune.budget import Budget, Lengths
from toprune.cost import Sizes, expected_share
from toprune.families import sizes_of
from toprune.plan import Plan, Restore, Score, Step, notch, probe_of
from toprune.stages import Job, Outcome, Stage, calibrated, probes_of, soft_stage
from toprune.tokens import Tokens, order, ranks

LAMBDA = 1e-3  # at the start: in the middle of the paper's 1e-4 to 7e-3
GAIN = 1.0  # change of log lambda in a step, for every 1.0 that the sparsity is off its target


@dataclass(frozen=True)
class PowerBert:
    bins: int = 50  # entries of a layer's soft-extract vector
    first: int = 0  # first layer that may prune

    NAME: ClassVar[str] = "power_bert"
    SCORES: ClassVar[tuple[Score, ...]] = ("received", "probe")
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """The configuration search; without epochs for it, the best schedule for the dense
        model."""
        if job.training.soft_epochs == 0:
            return Outcome(calibrated(job), None, [])

        def begin() -> "Extract":
            selector = SoftExtract(self, sizes_of(job.model), job.lengths, job.budget, job.restore)
            return Extract(
                selector,
                job.score,
                probes=probes_of(job),
                protect=job.protect,
                protect_until=job.protect_until,
                restore=job.restore,
            )

        def end(policy: "Extract") -> tuple[Plan, float]:
            with torch.no_grad():
                expected = 1 / (1 - float(policy.selector.sparsity()))
            return job.repaired(policy.selector.plan(job.blank(), probes_of(job))), expected

        return soft_stage(job, begin, end, resume=resume)


class SoftExtract(nn.Module):
    """The vectors r while they are learned, and the coefficient that holds them to the budget."""

    SPAN: ClassVar[float] = 1.0  # from kept to gone
    rank_weight: ClassVar[float] = 0.0  # nobody distils a ranking here

    def __init__(
        self,
        settings: PowerBert,
        sizes: Sizes,
        lengths: Lengths,
        budget: Budget,
        restore: Restore = "none",
    ):
        super().__init__()
        self.settings, self.sizes, self.lengths = settings, sizes, lengths
        self.restore: Restore = restore
        self.r = nn.Parameter(torch.ones(sizes.layers - 1 - settings.first, settings.bins))
        self.log_lambda: Tensor
        self.register_buffer("log_lambda", torch.tensor(LAMBDA).log())
        self.sparsity_target = budget.sparsity
        self.progress = 1.0  # share of the warm-up that is over; the trainer moves it

    def masks(self) -> list[nn.Parameter]:
        return [self.r]

    def multipliers(self) -> list[nn.Parameter]:
        return []

    def told(self) -> dict[str, Tensor]:
        """For the log."""
        return {"lambda": self.log_lambda.exp()}

    def target(self) -> float:
        return self.sparsity_target * min(1.0, self.progress)

    def clip(self) -> None:
        with torch.no_grad():
            self.r.clamp_(0, 1)

    def shares(self) -> list[Tensor]:
        """Of all tokens, the share that each layer's mass keeps, never more than before."""
        mass = self.r.clamp(0, 1).mean(1).cummin(0).values  # (P,)
        one = torch.ones((), dtype=mass.dtype)
        return [one] * self.settings.first + list(mass.unbind())

    def sparsity(self) -> Tensor:
        """Expected share of real FLOPs removed."""
        share = expected_share(self.sizes, self.shares(), self.lengths, self.restore)
        return 1 - torch.as_tensor(share)

    def penalty(self) -> Tensor:
        """lambda * sum_l l * ||r_l||_1, layers counted from one; lambda moves on the way."""
        with torch.no_grad():
            self.log_lambda += GAIN * (self.target() - self.sparsity())
        number = torch.arange(1, len(self.r) + 1) + self.settings.first  # (P,)
        return self.log_lambda.exp() * (number * self.r.abs().sum(1)).sum()

    def plan(self, blank: Plan, probes: Tensor | None) -> Plan:
        """Retention: as many tokens as there is mass."""
        shares = [share.item() for share in self.shares()][self.settings.first :]
        steps = tuple(Step(i + self.settings.first, notch(r)) for i, r in enumerate(shares))
        return replace(blank, steps=steps, probe=probe_of(probes, steps[0].layer))


class Extract:
    """The policy of the search: every token stays, its state multiplied by r at its rank."""

    def __init__(
        self,
        selector: SoftExtract,
        score: Score,
        *,
        probes: Tensor | None = None,
        protect: tuple[int, ...] = (),
        protect_until: int | None = None,
        restore: Restore = "none",
    ):
        self.selector, self.score, self.probes = selector, score, probes
        self.protect, self.protect_until = protect, protect_until
        self.restore: Restore = restore

    def begin(self) -> None:
        self.selector.clip()

    def scored(self, layer: int) -> bool:
        return self.score == "received" and self._searched(layer)

    def _searched(self, layer: int) -> bool:
        return self.selector.settings.first <= layer < self.selector.sizes.layers - 1

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if not self._searched(layer):
            return None
        settings = self.selector.settings
        if tokens.rank is None:
            scores = received if self.probes is None else state @ self.probes[layer].to(state)
            assert scores is not None
            tokens = replace(tokens, rank=ranks(order(scores, tokens)))
        assert tokens.rank is not None
        bins = (tokens.rank * settings.bins // tokens.n[:, None]).clamp(max=settings.bins - 1)
        scale = self.selector.r[layer - settings.first][bins].masked_fill(tokens.protected, 1.0)
        if self.score == "received":
            tokens = replace(tokens, rank=None)  # ranked anew in every layer
        return Drop(None, tokens, scale)
