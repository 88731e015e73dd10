"""ToP (KDD'23): constraint-aware, ranking-distilled token pruning.

Read beside the paper. Every layer that may prune has a *gate* mask (does it prune?) and *rank*
masks over bins of relative rank (which ranks stay?); both are hard-concrete, learned together with
the weights under a constraint on executed FLOPs. Where the published code and the paper part ways,
we follow what will be executed: ratios are cumulative shares of the original length, keys are
weighed inside the softmax, the target is over the user's own lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from toprune.errors import OutOfReach
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, expected_share
from toprune.plan.plan import ONCE, Plan, Restore, Score, Step, notch, probe_of
from toprune.pruning.policies import Protection
from toprune.pruning.tokens import Tokens, ranks
from toprune.training import hard_concrete
from toprune.training.projection import shift_to
from toprune.training.ranking_losses import RANK_LOSSES, Ranking
from toprune.training.soft_policy import Learn
from toprune.training.stages import (
    Job,
    Outcome,
    Stage,
    calibrated,
    probes_of,
    shared_out,
    soft_stage,
)

DENSE = 0.01  # sparsity at which a projected run sets out; at zero the shift would be infinite
BESIDE = 0.1  # of the ranking distillation's weight, where it goes on with the weights' training
START = 4.6  # gates start closed at -START, ranks open at +START (P(z > 0) = .047 and .998)


@dataclass(frozen=True)
class Top:
    """Settings of the method; the training's own are in `fit.Training`."""

    bins: int = 50  # rank masks of a layer
    first: int = 0  # first layer that may prune, counted from zero
    gates: bool = True  # False: every layer from `first` on prunes (the paper's ablation)
    constraint: Literal["lagrangian", "projection"] = "projection"
    distill: Literal["lambda", "mse", "ce", "none"] = "lambda"
    distill_weight: float = 1.0  # at the start; falls linearly to zero over the warm-up
    top_k: int = 20  # tokens that the ranking distillation calls relevant
    slope: float = 30.0  # how much lower the worst rank starts than the best: what goes first

    NAME: ClassVar[str] = "top"
    SCORES: ClassVar[tuple[Score, ...]] = ("probe", "received", "probes")
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """Masks and weights together; where no epochs are for that, the best schedule for the
        dense model. So too for heads that read the state with which a token left: a soft weight
        says nothing of that state, and masks that cannot see it drift to late and deep cuts.
        Answers by token that come back as zeros are treated alike; masks for them are untried."""
        if job.restore == "last" or job.task.BY_TOKEN:
            job.training = shared_out(job.training, ("hard",))
            return Outcome(calibrated(job), None, [], ranking=self._ranking())
        if job.training.soft_epochs == 0:
            return Outcome(calibrated(job), None, [])
        sizes = sizes_of(job.model)

        def begin() -> Learn:
            n, shape = round(job.lengths.mean), calibrated(job, moves=0)
            settings = self._ranked_at(shape) if job.score in ONCE else self
            start = [tokens / n for tokens in shape.lengths(n)[settings.first + 1 :]]
            third = max(settings.first + 1, sizes.layers // 3)
            return Learn(
                Selector(settings, sizes, job.lengths, job.budget, start, job.restore),
                job.score,
                probes=probes_of(job),
                protection=Protection.of(job),
                distilled=frozenset(range(settings.first, third)),
            )

        def end(policy: Learn) -> tuple[Plan, float]:
            with torch.no_grad():
                expected = 1 / (1 - float(policy.selector.sparsity()))
            return _in_reach(job, policy.selector), expected

        return soft_stage(job, begin, end, resume=resume)

    def _ranking(self) -> Ranking | None:
        """The ranking distillation, for a hard stage that no soft one went before. It stays to the
        end, so it must not outweigh what the tokens that are kept are to say."""
        if self.distill == "none":
            return None
        loss, weight = RANK_LOSSES[self.distill], BESIDE * self.distill_weight
        return lambda x, t, live: weight * loss(x, t, live, self.top_k)

    def _ranked_at(self, shape: Plan) -> "Top":
        """Prune from where the starting shape does. A score that ranks once ranks at the first
        open gate: one that opens earlier, for a token or two, would rank all others there too,
        with a worse probe."""
        return replace(self, first=max(self.first, shape.steps[0].layer))


def _in_reach(job: Job, selector: "Selector") -> Plan:
    """The learned plan, repaired; with more gates open where its own layers come too late."""
    probes = probes_of(job)
    for more in range(len(selector.gate_loga)):
        try:
            return job.repaired(selector.plan(job.blank(), probes, more))
        except OutOfReach:
            continue
    return job.repaired(selector.plan(job.blank(), probes, len(selector.gate_loga)))


class Selector(nn.Module):
    """The masks while they are learned: `weights` for a layer, `penalty` for the trainer, `plan`
    at the end."""

    def __init__(
        self,
        settings: Top,
        sizes: Sizes,
        lengths: Lengths,
        budget: Budget,
        start: Sequence[float] | None = None,
        restore: Restore = "none",
    ):
        """`start`: share of tokens after each layer from `first` on, the shape to set out from;
        None: the budget's own share in every layer."""
        super().__init__()
        self.settings, self.sizes, self.lengths = settings, sizes, lengths
        self.restore: Restore = restore
        layers = sizes.layers - 1 - settings.first
        self.rank_loga = nn.Parameter(_slopes(settings, start or [1 / budget.reduction] * layers))
        self.gate_loga = nn.Parameter(torch.full((layers,), -START), settings.gates)  # (P,)
        self.lambdas = nn.Parameter(torch.zeros(2), settings.constraint == "lagrangian")
        self.sparsity_start = DENSE  # the projection shifts the masks open to begin with
        if settings.constraint == "lagrangian":
            with torch.no_grad():
                self.sparsity_start = float(self._sparsity(self.rank_loga, self.gate_loga))
        self.sparsity_target = budget.sparsity
        self.progress = 1.0  # share of the warm-up that is over; the trainer moves it
        self._z: tuple[Tensor, Tensor] | None = None  # this step's masks: ranks, gates

    # -- this step's masks -------------------------------------------------------------------

    def target(self) -> float:
        """Linear warm-up. With multipliers from the sparsity that the masks start with, not from
        zero: below it the first multiplier would move the wrong way."""
        grown = (self.sparsity_target - self.sparsity_start) * min(1.0, self.progress)
        return self.sparsity_start + grown

    def sample(self) -> None:
        """Draw all masks once for a forward pass; the batch shares them."""
        rank_loga, gate_loga = self.logits()
        rank = hard_concrete.sample(rank_loga)
        if not self.settings.gates:
            self._z = rank, torch.ones_like(gate_loga)
            return
        gate = hard_concrete.sample(gate_loga)
        # Straight-through. Brackets: (1 + z) - z is not 1 in floats, and a weight of 6e-8 is not 0.
        self._z = rank, (gate > 0).to(gate) + (gate - gate.detach())

    def logits(self) -> tuple[Tensor, Tensor]:
        """The log-alphas in force: as learned, or shifted until the target is met exactly."""
        if self.settings.constraint == "lagrangian":
            with torch.no_grad():
                self.rank_loga.clamp_(-hard_concrete.LIMIT, hard_concrete.LIMIT)
                self.gate_loga.clamp_(-hard_concrete.LIMIT, hard_concrete.LIMIT)
            return self.rank_loga, self.gate_loga
        masks = (self.rank_loga, self.gate_loga)
        shift = shift_to(self.target(), masks, lambda m, c: self._sparsity(m[0] - c, m[1] + c))
        return self.rank_loga - shift, self.gate_loga + shift

    def opens(self, layer: int) -> bool:
        """Does this layer prune in the current draw?"""
        at = layer - self.settings.first
        assert self._z is not None
        return 0 <= at < len(self._z[1]) and bool(self._z[1][at] > 0)

    def weights(self, layer: int, scores: Tensor, tokens: Tokens, hidden: Tensor) -> Tensor:
        """Soft keep weight (B, K) of every row by its rank, relative to the original length."""
        assert self._z is not None
        assert tokens.rank is not None
        at = layer - self.settings.first
        bins = (tokens.rank * self.settings.bins // tokens.n[:, None]).clamp(
            max=self.settings.bins - 1
        )
        keep = self._z[0][at][bins]
        weight = 1 - (1 - keep) * self._z[1][at]
        return weight.masked_fill(tokens.protected, 1.0)

    SPAN: ClassVar[float] = 9.0  # from an open mask to a closed one

    @property
    def rank_weight(self) -> float:
        """Of the ranking distillation, to begin with."""
        return 0.0 if self.settings.distill == "none" else self.settings.distill_weight

    def masks(self) -> list[nn.Parameter]:
        return [m for m in (self.rank_loga, self.gate_loga) if m.requires_grad]

    def multipliers(self) -> list[nn.Parameter]:
        return [self.lambdas] if self.lambdas.requires_grad else []

    def told(self) -> dict[str, Tensor]:
        """For the log: the multipliers; of each layer the chance that it prunes, and the share of
        tokens that is expected after it."""
        told = {f"lambda_{i + 1}": x for i, x in enumerate(self.lambdas)}
        with torch.no_grad():
            rank_loga, gate_loga = self.logits()
            kept = self.ratios(rank_loga, gate_loga)
            opens = hard_concrete.p_open(gate_loga)
        if self.settings.gates:
            told |= {f"gate_{self.settings.first + i}": p for i, p in enumerate(opens)}
        return told | {f"kept_{i}": share for i, share in enumerate(kept)}

    # -- the constraint ------------------------------------------------------------------------

    def ratios(self, rank_loga: Tensor, gate_loga: Tensor) -> list[Tensor]:
        """Expected share of tokens that enter layer i + 1, for i = 0 .. L - 2.

        A token of rank bin b is alive after layer i if no open gate up to i has dropped its bin.
        """
        closed = 1 - hard_concrete.p_open(rank_loga)  # (P, bins)
        if self.settings.gates:
            closed = closed * hard_concrete.p_open(gate_loga)[:, None]
        alive = (1 - closed).cumprod(0).mean(1)
        one = torch.ones((), dtype=alive.dtype)
        return [one] * self.settings.first + list(alive.unbind())

    def _sparsity(self, rank_loga: Tensor, gate_loga: Tensor) -> Tensor:
        ratios = self.ratios(rank_loga, gate_loga)
        share = expected_share(self.sizes, ratios, self.lengths, self.restore)
        return 1 - torch.as_tensor(share)

    def sparsity(self) -> Tensor:
        """Expected share of real FLOPs removed by the masks in force."""
        return self._sparsity(*self.logits())

    def penalty(self) -> Tensor:
        """Augmented Lagrangian; masks descend on it, the multipliers ascend (`maximize=True`)."""
        if self.settings.constraint == "projection":
            return self.rank_loga.new_zeros(())
        off = self.sparsity() - self.target()
        return self.lambdas[0] * off + self.lambdas[1] * off.square()

    # -- the end -------------------------------------------------------------------------------

    def plan(self, blank: Plan, probes: Tensor | None, more: int = 0) -> Plan:
        """Gates at one half, expected shares of the open layers; `blank` says for which model.
        The ratios still need `schedule.repair` to meet the budget to the token; where the layers
        that are open cannot reach it, `more` opens so many of the next likely gates."""
        with torch.no_grad():
            rank_loga, gate_loga = self.logits()
            open_ = torch.ones_like(gate_loga, dtype=torch.bool)
            if self.settings.gates:
                p = hard_concrete.p_open(gate_loga)
                count = max(1, int((p >= 0.5).sum())) + more
                open_ = ranks(p.argsort(descending=True)[None])[0] < count
            closed = (1 - hard_concrete.p_open(rank_loga)) * open_[:, None]
            alive = (1 - closed).cumprod(0).mean(1)
        steps = tuple(
            Step(i + self.settings.first, notch(r))
            for i, r in enumerate(alive.tolist())
            if open_[i]
        )
        probe = probe_of(probes, blank.score, [step.layer for step in steps])
        return replace(blank, steps=steps, probe=probe)


def _slopes(settings: Top, start: Sequence[float]) -> Tensor:
    """Rank masks (P, bins) that fall with the rank, each layer's shifted by its starting share: as
    the constraint pushes all of them down, every layer keeps the ranks before an edge, and the
    edges pass through the shape `start`. Equal masks would first drop ranks at random.

    Multipliers need masks that all start open: there only a hint of the slope remains.
    """
    edge = torch.tensor(start)[:, None]  # (P, 1)
    rank = (torch.arange(settings.bins) + 0.5) / settings.bins
    loga = START - settings.slope * (rank - edge)
    if settings.constraint == "lagrangian":
        return START - 2 * (loga.max() - loga) / (loga.max() - loga.min()).clamp_min(1e-6)
    return loga
