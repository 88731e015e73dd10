"""ToP (KDD'23): constraint-aware, ranking-distilled token pruning.

Read beside the paper. Every layer that may prune has a *gate* mask (does it prune?) and *rank*
masks over bins of relative rank (which ranks stay?). Both are hard-concrete and learned together
with the weights, under a constraint on executed FLOPs. Where the published code differs from the
paper, we follow what will be executed: ratios are cumulative shares of the original length, keys
are weighted inside the softmax, and the target is over the user's own lengths.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from toprune.data.recipes import Recipe
from toprune.errors import OutOfReach
from toprune.io.atomic import write_text
from toprune.io.progress import console
from toprune.models.families import family_of, sizes_of
from toprune.models.shape import shape_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Cost, expected_share
from toprune.plan.plan import ONCE, Plan, Restore, Score, Step, notch, probe_of
from toprune.pruning.policies import Protection
from toprune.pruning.tokens import Tokens, ranks
from toprune.training import hard_concrete
from toprune.training.batches import Collate, in_batches
from toprune.training.dial import with_dial
from toprune.training.evaluation import batch_outputs, distance
from toprune.training.job import Job, Method, Outcome
from toprune.training.ranking_losses import RANK_LOSSES, Ranking
from toprune.training.settings import Stage, setting
from toprune.training.soft_policy import Learn
from toprune.training.stages import CALIBRATION_TEXTS, calibrated, once, probes_of, run, soft_stage
from toprune.training.target import TARGETS, Target, target_distances

DENSE = 0.01  # sparsity at which a projected run starts; at zero the shift would be infinite
BESIDE = 0.1  # factor of the ranking distillation's weight in the hard stage
START = 4.6  # gates start closed at -START, ranks open at +START (P(z > 0) = .047 and .998)
NOT_LEARNED = (
    "top: this head reads every token, so no masks are learned; the plan is the best schedule for "
    "the dense model (--masks learn learns them)"
)
SHORT = 100  # tokens of a text on average; `joint` lost less at 28 to 53 tokens, not on IMDB
WEIGHTS = (1e-2, 1e-3, 1e-4)  # of the ranking distillation, among which the paper searches


@dataclass(frozen=True)
class Top(Method):
    """Gates and rank masks, learned under a constraint on FLOPs (ToP, KDD'23)."""

    bins: int = setting(50, "Rank masks of a layer.", minimum=1)
    first: int = setting(0, "First layer that may drop tokens, counted from zero.")
    gates: bool = setting(
        True, "Learn which layers drop tokens; false: every layer from `first` on does."
    )
    constraint: Literal["lagrangian", "projection"] = setting(
        "projection", "How masks are held to the budget: projection, or lagrangian (the paper)."
    )
    distill: Literal["lambda", "mse", "ce", "none"] = setting(
        "lambda", "Loss of the ranking distillation: lambda, mse, ce or none."
    )
    distill_weight: float = setting(
        1.0, "Weight of that loss at the start; it falls to zero over the warm-up."
    )
    top_k: int = setting(
        20, "Number of tokens that the ranking distillation calls relevant.", minimum=1
    )
    slope: float = setting(
        30.0, "How much lower the mask of the worst rank starts than that of the best rank."
    )
    target: Literal["last", "middle", "middles", "auto"] = setting(
        "last",
        "Layers of the dense model whose ranking `received` learns: last, middle, middles (their "
        "mean), or auto, the one by which the frozen model loses least.",
        later=True,
    )

    masks: Literal["auto", "learn"] = setting(
        "auto",
        "learn: gates and rank masks also where the head reads every token (answers, tags); auto: "
        "there, the best schedule for the dense model.",
        later=True,
    )

    NAME: ClassVar[str] = "top"
    SCORES: ClassVar[tuple[Score, ...]] = ("probes", "probe", "received")
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    DIALS: ClassVar[bool] = True
    SELECTS: ClassVar[bool] = True

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """Learn masks and weights for a budget; for a dial, add the plans of the other budgets."""
        if _joint_suits(job):
            console.print(
                f"top: texts of {job.lengths.mean:.0f} tokens have few to drop; --method joint "
                "removes weights, too, and mostly loses less"
            )
        outcome = self._learn(job, resume=resume)
        return with_dial(outcome) if job.budgets else outcome

    def _learn(self, job: Job, *, resume: bool) -> Outcome:
        """Learn masks and weights together; without epochs for that, take the best schedule for
        the dense model. The same schedule serves heads that read the state with which a token left:
        a soft weight does not change that state, and masks that cannot see it drift to late and
        deep cuts. Heads that answer by token get it, too, unless masks are asked for."""
        if self._is_calibrated(job):
            console.print(NOT_LEARNED)
            job = replace(job, training=job.training.for_stages(("hard",)))
            return Outcome(job, calibrated(job), ranking=self._hard_ranking())
        if job.soft_epochs == 0:
            return Outcome(job, calibrated(job))
        sizes = sizes_of(job.model)

        def begin() -> Learn:
            n, shape = round(job.lengths.mean), calibrated(job, moves=0)
            settings = self._ranked_at(shape) if job.score in ONCE else self
            start = [tokens / n for tokens in shape.lengths(n)[settings.first + 1 :]]
            third = max(settings.first + 1, sizes.layers // 3)
            return Learn(
                Selector(settings, job.cost, job.budget_lengths, job.budget, start, job.restore),
                job.score,
                probes=probes_of(job),
                protection=Protection.of(job),
                distilled=frozenset(range(settings.first, third)),
            )

        def end(policy: Learn) -> tuple[Plan, float]:
            with torch.no_grad():
                expected = 1 / (1 - float(policy.selector.sparsity()))
            return _repaired(job, policy.selector), expected

        return soft_stage(job, begin, end, resume=resume)

    def ranking_target(self, job: Job) -> Target:
        """The setting. `auto` drops tokens by each ranking, on some training texts."""
        if job.score != "received" or self._is_calibrated(job) or job.soft_epochs == 0:
            return "last"  # there it is not distilled
        if self.target != "auto":
            return self.target
        path = job.work / "target.json"

        def compute() -> None:
            batches, plan = job.sample_batches(CALIBRATION_TEXTS), job.geometric(self.first, None)
            distances = target_distances(job.model, job.task, batches, plan)
            write_text(path, json.dumps(distances))

        once(path, compute)
        distances = json.loads(path.read_text(encoding="utf-8"))
        return min(TARGETS, key=lambda target: distances[target])

    def _is_calibrated(self, job: Job) -> bool:
        """Whether the head reads every token and no masks are asked for."""
        return (job.restore == "last" or job.task.BY_TOKEN) and self.masks != "learn"

    def default_score(self, recipe: Recipe) -> Score:
        return recipe.score

    def search(self, job: Job, *, resume: bool) -> "Top":
        """The paper's search for the weight of the ranking distillation: three runs on 80 % of the
        training texts, judged on the rest by how close they come to the dense model's answers."""
        weights = {name: t.clone() for name, t in job.model.state_dict().items()}
        rows = np.random.default_rng(job.training.seed).permutation(len(job.features))
        cut = max(1, len(rows) // 5)
        held_out = [job.features[i] for i in rows[:cut]]
        rest = [job.features[i] | {"index": j} for j, i in enumerate(rows[cut:])]
        batches = [batch for _, batch in in_batches(held_out, Collate(job.tokenizer))]
        dense = batch_outputs(job.model, job.task, batches)
        results: list[tuple[float, float]] = []
        for weight in WEIGHTS:
            trial = replace(
                job,
                features=rest,
                method=replace(self, distill_weight=weight),
                work=job.work / f"weight-{weight:g}",
                shared=None,  # that folder is for all texts
                budgets=(),  # the weight is chosen at the tightest budget
            )
            plan = run(trial, resume=resume).plan
            outputs = batch_outputs(job.model, job.task, batches, plan)
            results.append((distance(job.task, outputs, dense, batches), weight))
            job.model.load_state_dict(weights)
        return replace(self, distill_weight=min(results)[1])

    def rank_loss(self, x: Tensor, t: Tensor, live: Tensor) -> Tensor:
        """The ranking distillation, see `ranking_losses`."""
        return RANK_LOSSES[self.distill](x, t, live, self.top_k)

    def _hard_ranking(self) -> Ranking | None:
        """The ranking distillation for a hard stage without a soft one before it. It stays to the
        end, so it must not outweigh what the kept tokens learn to answer."""
        if self.distill == "none":
            return None
        weight = BESIDE * self.distill_weight
        return lambda x, t, live: weight * self.rank_loss(x, t, live)

    def _ranked_at(self, shape: Plan) -> "Top":
        """Prune from the layer where the starting shape does. A score that ranks once ranks at the
        first open gate: a gate that opens earlier, for a token or two, would rank all others there
        too, with a worse probe."""
        return replace(self, first=max(self.first, shape.steps[0].layer))


def _joint_suits(job: Job) -> bool:
    """Whether this is a run of its own whose texts are so short that `joint` loses less."""
    plain = job.budget.milliseconds is None and not job.budgets and job.budget.count == "executed"
    alone = job.shared is None and shape_of(job.model.config) is None  # no race, no half of `joint`
    can = job.restore == "none" and not job.task.POOLS and family_of(job.model).parts is not None
    return plain and alone and can and job.budget.reduction >= 2 and job.lengths.mean < SHORT


def _repaired(job: Job, selector: "Selector") -> Plan:
    """The learned plan, repaired; with more gates open where its own layers come too late."""
    probes = probes_of(job)
    for more in range(len(selector.gate_loga)):
        with suppress(OutOfReach):
            return job.repaired(selector.plan(job.blank(), probes, more))
    return job.repaired(selector.plan(job.blank(), probes, len(selector.gate_loga)))


class Selector(nn.Module):
    """The masks while they are learned: `weights` for a layer, `penalty` for the trainer, `plan`
    at the end."""

    SPAN: ClassVar[float] = hard_concrete.SPAN

    def __init__(
        self,
        settings: Top,
        cost: Cost,
        lengths: Lengths,
        budget: Budget,
        start: Sequence[float] | None = None,
        restore: Restore = "none",
    ):
        """`start`: share of tokens after each layer from `first` on, as a starting shape; None: the
        budget's share in every layer."""
        super().__init__()
        self.settings, self.cost, self.lengths = settings, cost, lengths
        self.rank_loss = settings.rank_loss
        self.rank_weight = 0.0 if settings.distill == "none" else settings.distill_weight
        self.restore: Restore = restore
        layers = cost.layers - 1 - settings.first
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
        """Linear warm-up. With multipliers it starts from the sparsity of the first masks, not from
        zero: below it the first multiplier would move the wrong way."""
        risen = (self.sparsity_target - self.sparsity_start) * min(1.0, self.progress)
        return self.sparsity_start + risen

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
        shift = hard_concrete.shift_to(
            self.target(), masks, lambda m, c: self._sparsity(m[0] - c, m[1] + c)
        )
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

    def masks(self) -> list[nn.Parameter]:
        return [m for m in (self.rank_loga, self.gate_loga) if m.requires_grad]

    def multipliers(self) -> list[nn.Parameter]:
        return [self.lambdas] if self.lambdas.requires_grad else []

    def log_values(self) -> dict[str, Tensor]:
        """For the log: the multipliers, the probability that each layer prunes, and the expected
        share of tokens after it."""
        values = {f"lambda_{i + 1}": x for i, x in enumerate(self.lambdas)}
        with torch.no_grad():
            rank_loga, gate_loga = self.logits()
            kept = self.ratios(rank_loga, gate_loga)
            opens = hard_concrete.p_open(gate_loga)
        if self.settings.gates:
            values |= {f"gate_{self.settings.first + i}": p for i, p in enumerate(opens)}
        return values | {f"kept_{i}": share for i, share in enumerate(kept)}

    # -- the constraint ------------------------------------------------------------------------

    def ratios(self, rank_loga: Tensor, gate_loga: Tensor) -> list[Tensor]:
        """Expected share of tokens that enter layer i + 1, for i = 0 .. L - 2.

        A token of rank bin b is alive after layer i if no open gate up to i has dropped its bin.
        """
        closed = 1 - hard_concrete.p_open(rank_loga)  # (P, bins)
        if self.settings.gates:
            closed = closed * hard_concrete.p_open(gate_loga)[:, None]
        alive = (1 - closed).cumprod(0).mean(1)
        one = alive.new_ones(())
        return [one] * self.settings.first + list(alive.unbind())

    def _sparsity(self, rank_loga: Tensor, gate_loga: Tensor) -> Tensor:
        ratios = self.ratios(rank_loga, gate_loga)
        share = expected_share(self.cost, ratios, self.lengths, self.restore)
        return 1 - torch.as_tensor(share)

    def sparsity(self) -> Tensor:
        """Expected share of the dense cost (real FLOPs, or time) removed by the masks in force."""
        return self._sparsity(*self.logits())

    def penalty(self) -> Tensor:
        """Augmented Lagrangian; masks descend on it, the multipliers ascend (`maximize=True`)."""
        if self.settings.constraint == "projection":
            return self.rank_loga.new_zeros(())
        gap = self.sparsity() - self.target()
        return self.lambdas[0] * gap + self.lambdas[1] * gap.square()

    # -- the end -------------------------------------------------------------------------------

    def plan(self, blank: Plan, probes: Tensor | None, more: int = 0) -> Plan:
        """Gates are open from one half on; ratios are the expected shares of the open layers. They
        still need `schedule.repair` to meet the budget to the token. Where the open layers cannot
        reach it, `more` opens that many of the next likely gates."""
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
    """Rank masks (P, bins) that fall with the rank, shifted by the starting share of each layer. As
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
