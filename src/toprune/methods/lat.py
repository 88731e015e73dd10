"""LAT, the Length-Adaptive Transformer (ACL'21): LengthDrop and an evolutionary search.

Read beside the paper. *LengthDrop* trains one set of weights for all schedules: on every batch the
full model learns from its targets, then a few sub-models (random schedules, and the smallest one:
"sandwich") learn from the output of the full model. The *search* then looks, without training, for
the schedules that no other beats in both MACs and answers. So one training serves any budget: the
front is in the report (`front`), and the budget picks from it.

Ours: lengths are shares of the text's own length, not of the padded maximum; the full pass learns
from the dense model, as in all methods here; sub-models learn by KL(full || sub), where the
published code has it reversed, and by MSE in regression, where that code gives them no loss; the
smallest sub-model is at least as small as the budget needs. There is no LayerDrop, because to leave
out a layer is not token pruning. The search minimises the distance to the dense model's answers on
a few hundred training texts; it does not look at the score on a reported set.

The paper's 30 iterations (20 seeds, 30 mutations and 30 crossovers each) are some 1800 passes over
the development set. Here it is 60 passes over 256 texts, twice what `calibrate` takes.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.io.progress import Advance, bar
from toprune.models.heads import task_outputs
from toprune.plan.cost import expected_share
from toprune.plan.plan import Plan, Score, Step, notch, probe_of
from toprune.pruning.attach import attached
from toprune.pruning.policies import Follow
from toprune.tasks import Task
from toprune.training.evaluation import batch_outputs, distance
from toprune.training.job import Job, Method, Outcome
from toprune.training.learner import Learner
from toprune.training.settings import Stage, setting
from toprune.training.stages import CALIBRATION_TEXTS, once, probes_of, soft_stage

NEAREST = 8  # members of the front that are repaired to the budget and judged once more

Gene = tuple[float, ...]  # (P,): the share of all tokens that each layer from `first` on keeps


@dataclass(frozen=True)
class Lat(Method):
    """Weights that work with any schedule; evolution selects the schedule (LAT, ACL'21)."""

    first: int = setting(
        0, "First layer that may drop tokens, counted from zero; the probe ranks them there."
    )
    drop: float = setting(
        0.2, "Largest share that a layer drops in training; more where the budget needs it."
    )
    sandwich: int = setting(2, "Random sub-models per batch, beside the full and the smallest one.")
    population: int = setting(12, "Constant-rate schedules that the search starts from.", minimum=1)
    mutations: int = setting(12, "Mutated schedules per iteration of the search.")
    crossovers: int = setting(12, "Crossed schedules per iteration of the search.")
    mutation_rate: float = setting(0.5, "Probability that a mutation changes a layer.")
    iterations: int = setting(2, "Iterations of the search.")

    NAME: ClassVar[str] = "lat"
    SCORES: ClassVar[tuple[Score, ...]] = ("received", "probe")
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft",)

    def __post_init__(self) -> None:
        if not 0 < self.drop < 1:
            raise UserError(f"LAT's drop is a share between 0 and 1, not {self.drop}")
        if self.population < 1:
            raise UserError(f"LAT's search needs a population, not one of {self.population}")

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """LengthDrop, then the search; without epochs only the search, on the dense model."""
        schedules = Schedules(self, job)
        if job.soft_epochs == 0:
            outcome = Outcome(job, schedules.best()[0])
        else:
            outcome = soft_stage(
                job,
                lambda: Follow(schedules.blank),
                lambda _: schedules.best(),
                resume=resume,
                learner=partial(LengthDrop, submodels=schedules.submodels),
            )
        return replace(outcome, extra={"front": [vars(m) for m in schedules.front()]})

    def children(self, genes: Sequence[Gene], rng: np.random.Generator) -> list[Gene]:
        """The new genes of one iteration; each has parents of its own."""

        def parent() -> Gene:
            return genes[int(rng.integers(len(genes)))]

        mutants = [mutated(parent(), self.mutation_rate, rng) for _ in range(self.mutations)]
        return mutants + [crossed(parent(), parent()) for _ in range(self.crossovers)]


def constant(rate: float, count: int) -> Gene:
    """The same share of the survivors stays in every layer."""
    return tuple(rate**i for i in range(1, count + 1))


def drawn(drop: float, count: int) -> Gene:
    """r_i ~ U[(1 - p) r_{i-1}, r_{i-1}], from torch's generator, whose state is in checkpoints."""
    return tuple((1 - drop * torch.rand(count)).cumprod(0).tolist())


def mutated(gene: Gene, rate: float, rng: np.random.Generator) -> Gene:
    """Each entry is, with that probability, drawn again between its neighbours."""
    new = [1.0, *gene, 0.0]
    for i in range(1, len(new) - 1):
        if rng.random() < rate:
            new[i] = rng.uniform(new[i + 1], new[i - 1])
    return tuple(new[1:-1])


def crossed(one: Gene, other: Gene) -> Gene:
    """The mean of two schedules: crossover of the evolutionary search."""
    return tuple((a + b) / 2 for a, b in zip(one, other, strict=True))


def plan_of(blank: Plan, gene: Gene) -> Plan:
    """The plan whose last layers keep the shares of the gene."""
    first = blank.n_layers - 1 - len(gene)
    steps = tuple(Step(layer, notch(share)) for layer, share in enumerate(gene, first))
    return replace(blank, steps=steps)


class LengthDrop(Learner):
    """One pass with every token, which learns as usual, and one pass with dropped tokens for each
    sub-model, which learns from the first. The attached `policy` keeps every token."""

    def __init__(
        self,
        model: Any,
        task: Task,
        *,
        submodels: Callable[[], Sequence[Plan]],
        policy: Follow,
        **options: Any,
    ):
        super().__init__(model, task, **options)
        self.full, self.submodels = policy, submodels

    def forward(self, *args: Any, **batch: Any) -> dict[str, Tensor]:
        """The mean of all losses."""
        result = super().forward(*args, **batch)
        inputs = {name: x for name, x in batch.items() if not name.startswith("teacher_")}
        full, mask = result["logits"].detach(), batch["attention_mask"]
        losses, run = [result["loss"]], attached(self.model)
        assert run is not None
        try:
            for plan in self.submodels():
                run.policy = Follow(plan)
                logits, _ = task_outputs(self.model, self.task, inputs)  # (B, C) or (B, S, C)
                losses.append(self.task.distill_loss(logits, full, mask))
        finally:
            run.policy = self.full
        return result | {"loss": torch.stack(losses).mean()}


@dataclass(frozen=True)
class Member:
    """A schedule that the search has tried."""

    keep: Gene
    reduction: float  # of executed MACs on the user's lengths
    divergence: float  # from the dense model's answers (`evaluation.distance`)


def front_of(members: Iterable[Member]) -> list[Member]:
    """Members nearer to the dense model than all that are as cheap, from cheap to expensive."""
    front: list[Member] = []
    for member in sorted(members, key=lambda m: (-m.reduction, m.divergence)):
        if not front or member.divergence < front[-1].divergence:
            front.append(member)
    return front


class Schedules:
    """The schedules of a run: those for training, and the search for the best one. Made before
    training, because the search compares the trained model with the outputs of the dense one."""

    def __init__(self, settings: Lat, job: Job):
        self.settings, self.job = settings, job
        self.count = job.cost.layers - 1 - settings.first
        probe = probe_of(probes_of(job), job.score, [settings.first])
        self.blank = replace(job.blank(), probe=probe)
        self.batches = job.sample_batches(CALIBRATION_TEXTS)
        self.dense = batch_outputs(job.model, job.task, self.batches)
        self.drop = max(settings.drop, 1 - self.rate(1 / job.budget.reduction))

    def submodels(self) -> list[Plan]:
        """Plans for one batch: a few at random, and the smallest one."""
        genes = [drawn(self.drop, self.count) for _ in range(self.settings.sandwich)]
        genes.append(constant(1 - self.drop, self.count))
        return [plan_of(self.blank, gene) for gene in genes]

    def best(self) -> tuple[Plan, float]:
        """The best plan for the budget, and its reduction before the repair. The members nearest to
        the budget can be compared only when all of them cost the same."""
        target = self.job.budget.reduction
        near = sorted(self.front(), key=lambda m: abs(math.log(m.reduction / target)))[:NEAREST]
        best, plan, expected = math.inf, None, target
        with bar("choosing a schedule", len(near)) as advance:
            for member in near:
                repaired = self.job.repaired(plan_of(self.blank, member.keep))
                divergence = self.divergence(repaired, best)
                if plan is None or divergence < best:
                    best, plan, expected = divergence, repaired, member.reduction
                advance()
        assert plan is not None
        return plan, expected

    def front(self) -> list[Member]:
        """The front in `front.json`; where it does not exist, the first process searches."""
        path = self.job.work / "front.json"

        def search() -> None:
            lines = ",\n".join(json.dumps(vars(member)) for member in self.evolved())
            write_text(path, f"[\n{lines}\n]\n")

        once(path, search)
        members = json.loads(path.read_text())
        return [Member(**member | {"keep": tuple(member["keep"])}) for member in members]

    def evolved(self) -> list[Member]:
        settings, rng = self.settings, np.random.default_rng(self.job.training.seed)
        passes = settings.iterations * (settings.mutations + settings.crossovers)
        with bar("searching", settings.population + passes) as advance:
            tried: set[Gene] = set()
            front = self.grown([], self.seeds(), tried, advance)
            for _ in range(settings.iterations):
                children = settings.children([member.keep for member in front], rng)
                front = self.grown(front, children, tried, advance)
        return front

    def seeds(self) -> list[Gene]:
        """Constant rates, evenly spaced in MACs between all of them and the fewest possible."""
        shares = np.linspace(1, self.share(0), self.settings.population + 2)[1:-1]
        return [constant(self.rate(share), self.count) for share in shares.tolist()]

    def rate(self, share: float) -> float:
        """The constant rate that leaves this share of the dense model's MACs."""
        grid = np.linspace(0, 1, 201)
        return float(np.interp(share, [self.share(rate) for rate in grid], grid))

    def share(self, rate: float) -> float:
        ratios = [1.0] * self.settings.first + list(constant(rate, self.count))
        return expected_share(self.job.cost, ratios, self.job.budget_lengths, self.blank.restore)

    def grown(
        self, front: list[Member], genes: Iterable[Gene], tried: set[Gene], advance: Advance
    ) -> list[Member]:
        """The front together with those genes that belong to it."""
        for gene in genes:
            gene = tuple(float(notch(share)) for share in gene)
            if gene not in tried:
                tried.add(gene)
                plan = plan_of(self.blank, gene)
                macs = self.job.reduction(plan)
                rivals = [m.divergence for m in front if m.reduction >= macs]
                divergence = self.divergence(plan, min(rivals, default=math.inf))
                front = front_of([*front, Member(gene, macs, divergence)])
            advance()
        return front

    def divergence(self, plan: Plan, limit: float = math.inf) -> float:
        """Distance to the dense model's answers. No term is negative, so a sum that has reached the
        limit needs no further batches."""
        job, total = self.job, 0.0
        for batch, dense in zip(self.batches, self.dense, strict=True):
            outputs = batch_outputs(job.model, job.task, [batch], plan)
            total += distance(job.task, outputs, [dense], [batch])
            if total >= limit:
                break
        return total
