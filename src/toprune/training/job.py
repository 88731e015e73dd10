"""A pruning job: what a run needs, what a method is, and what a method returns."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from toprune.data.examples import Examples
from toprune.data.recipes import Recipe
from toprune.errors import UserError
from toprune.models.families import family_of, sizes_of
from toprune.models.heads import restore_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Cost, Sizes, dense_cost, plan_cost
from toprune.plan.counts import counted
from toprune.plan.curve import Curve
from toprune.plan.dial import Dial
from toprune.plan.plan import Plan, Restore, Score, probe_of
from toprune.plan.schedule import geometric, repair
from toprune.tasks import Task
from toprune.tasks import settings_of as task_settings
from toprune.training.batches import Collate, in_batches
from toprune.training.ranking_losses import Ranking
from toprune.training.settings import Stage, Training, recorded
from toprune.training.target import Target

Judge = Callable[[Plan], float]  # how good the model is under a plan


class Method(Protocol):
    """How a plan is found. A method is a frozen dataclass in `methods/` that subclasses this one.
    Its fields (`settings.setting`) are the method's settings, and the first sentence of its
    docstring is what `toprune methods` prints."""

    NAME: ClassVar[str]
    SCORES: ClassVar[tuple[Score, ...]]  # scores that it can rank tokens by; the first is default
    STAGES: ClassVar[tuple[Stage, ...]]  # stages that train; a single one gets the epochs of both
    TIMED: ClassVar[bool] = True  # takes a budget in milliseconds, too
    COUNTS: ClassVar[bool] = True  # takes a budget that counts FLOPs as a paper does, too
    SLIMS: ClassVar[bool] = False  # makes layers fewer or narrower: the dense states do not fit
    SELECTS: ClassVar[bool] = False  # can it keep the best weights of a stage (`Job.judge`)?
    DIALS: ClassVar[bool] = False  # can it learn several budgets at once (`Job.budgets`)?

    @property
    def first_layer(self) -> int | None:
        """The first layer that may drop tokens, counted from zero: the setting `first` of a method
        that has one; None: no layer drops any."""
        return getattr(self, "first", None)

    def default_score(self, recipe: Recipe) -> Score:
        """The score to rank tokens by when the caller requests none."""
        return self.SCORES[0]

    def choose_score(self, requested: Score | None, recipe: Recipe) -> Score:
        """The score that ranks tokens: the requested one, or the default."""
        if requested is None:
            return self.default_score(recipe)
        if requested not in self.SCORES:
            raise UserError(
                f"the method {self.NAME} ranks tokens by {' or '.join(self.SCORES)}, "
                f"not {requested}"
            )
        return requested

    def check_budgets(self, budgets: Sequence[Budget]) -> None:
        """Refuse budgets that the method cannot learn."""
        budget = budgets[0]
        if len(budgets) > 1 and not self.DIALS:
            raise UserError(
                f"the method {self.NAME} learns one budget at a time; give one, or use --method top"
            )
        if budget.milliseconds is not None and not self.TIMED:
            raise UserError(
                f"--method {self.NAME} takes a budget in FLOPs like 3x, not {budget.asked}"
            )
        if budget.count != "executed" and not self.COUNTS:
            raise UserError(
                f"--method {self.NAME} meets budgets of executed FLOPs; leave --count out"
            )

    def cut(self, job: "Job", examples: Examples) -> int | None:
        """The number of tokens after which the student's texts end; None: they stay whole."""
        return None

    def search(self, job: "Job", *, resume: bool) -> "Method":
        """The same method with the settings that short trial runs choose (`auto_weight`)."""
        raise UserError(f"{self.NAME} distils no ranking, so there is no weight to search")

    def ranking_target(self, job: "Job") -> Target:
        """The ranking of the dense model that the score `received` is to learn."""
        return "last"

    def for_comparison(self) -> "Method":
        """This method as new comparisons run it: with its whole search, from a calibrated start."""
        return self

    def learn(self, job: "Job", *, resume: bool) -> "Outcome":
        """Find a plan that meets the budget; the model's weights may change with it."""
        ...


@dataclass(frozen=True)
class Job:
    """Everything that a run needs. The model is trained in place; the job itself never changes."""

    model: Any
    tokenizer: Any
    task: Task
    features: Sequence[dict[str, Any]]  # of the training texts, as the dense model reads them
    lengths: Lengths  # of the texts that the budget is for
    budget: Budget  # of a dial: the tightest
    method: Method
    score: Score
    training: Training  # `resolved`
    work: Path
    protect: tuple[int, ...] = ()
    protect_until: int | None = None
    min_tokens: int = 2
    cut: int | None = None  # tokens after which texts end for the student
    short: Sequence[dict[str, Any]] | None = None  # features of the texts that are cut there
    before: Sizes | None = None  # of the dense model, where the method removes layers or weights
    target: Target = "last"  # what the score `received` is to rank like
    shared: Path | None = None  # directory with the dense model's outputs, shared between runs
    curve: Curve | None = None  # of the model here, for a budget in milliseconds
    budgets: tuple[Budget, ...] = ()  # of a dial, in the order of the request; empty: there is none
    judge: Judge | None = None  # what chooses the weights, for `best-dev`

    @property
    def teacher_folder(self) -> Path:
        """Where the dense model's outputs and probes are stored."""
        return self.shared or self.work

    @property
    def student_features(self) -> Sequence[dict[str, Any]]:
        """The training texts as the student reads them."""
        return self.features if self.short is None else self.short

    @property
    def soft_epochs(self) -> float:
        return self.training.stage_epochs[0]

    @property
    def hard_epochs(self) -> float:
        return self.training.stage_epochs[1]

    @property
    def cost(self) -> Cost:
        """What the budget limits: the model's MACs, or its milliseconds here."""
        return self.curve or counted(sizes_of(self.model), self.budget.count)

    @property
    def budget_lengths(self) -> Lengths:
        """The lengths that the budget is for: those of all texts; for a time, a single one."""
        return self.lengths if self.curve is None else self.lengths.at(self.budget.quantile)

    @property
    def restore(self) -> Restore:
        return restore_of(self.task, self.model.config)

    @property
    def asked(self) -> str:
        """The budget as the user wrote it, or all budgets of a dial."""
        return ",".join(budget.asked for budget in self.budgets or (self.budget,))

    def blank(self) -> Plan:
        """A plan without steps for this job."""
        return replace(
            dense_plan(self.model, self.restore),
            score=self.score,
            protect=self.protect,
            protect_until=self.protect_until,
            min_tokens=self.min_tokens,
        )

    def sample_batches(self, count: int, collate: Collate | None = None) -> list[dict[str, Tensor]]:
        """Batches of a seeded sample of the training texts, without labels."""
        rng = np.random.default_rng(self.training.seed)
        rows = rng.permutation(len(self.features))[:count]
        sample = [self.features[i] for i in rows]
        batches = in_batches(sample, collate or Collate(self.tokenizer))
        return [{k: v for k, v in batch.items() if k != "labels"} for _, batch in batches]

    def geometric(self, first: int, last: int | None, probes: Tensor | None = None) -> Plan:
        """The geometric schedule from layer `first` to `last` that meets the budget."""
        end = sizes_of(self.model).layers - 2 if last is None else last
        return geometric(
            sizes_of(self.model),
            self.budget_lengths,
            self.budget,
            cost=self.cost,
            family=family_of(self.model).name,
            first=first,
            last=end,
            score=self.score,
            probe=probe_of(probes, self.score, range(first, end + 1)),
            min_tokens=self.min_tokens,
            protect=self.protect,
            protect_until=self.protect_until,
            restore=self.restore,
        )

    def reduction(self, plan: Plan) -> float:
        """How many times cheaper than the dense model a plan is, in what the budget limits."""
        dense = dense_cost(self.cost, self.budget_lengths, plan.restore)
        return dense / plan_cost(self.cost, plan, self.budget_lengths)

    def repaired(self, plan: Plan) -> Plan:
        """The plan with its ratios moved until it meets the budget."""
        return repair(self.cost, plan, self.budget_lengths, self.budget)


@dataclass(frozen=True)
class Outcome:
    """What a method has learned."""

    job: Job  # as the method leaves it: the hard stage and the report go on with this one
    plan: Plan  # meets the budget
    expected: float | None = None  # reduction expected before repair; None: no masks were learned
    log: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])  # further keys of the report
    ranking: Ranking | None = None  # distilled in the hard stage, where answers are tokens
    trained: bool = False  # the method has run the hard stage itself
    dial: Dial | None = None  # the plans of all budgets, where there are several


def dense_plan(model: Any, restore: Restore = "none") -> Plan:
    """The plan of the dense model: every token stays. With it attached, the model computes no more
    than its head reads, in our own attention: the same outputs and gradients, but faster."""
    sizes = sizes_of(model)
    return Plan(
        family=family_of(model).name,
        n_layers=sizes.layers,
        width=sizes.width,
        score="received",
        steps=(),
        restore=restore,
    )


def _counting(budget: Budget) -> dict[str, Any]:
    """What a budget counts, beside its text; nothing for executed FLOPs."""
    if budget.count != "executed":
        return {"count": budget.count}
    if budget.milliseconds is None:
        return {}
    return {"threads": budget.threads, "precision": budget.precision}


def settings_of(job: Job) -> dict[str, Any]:
    """What must not change between a run and its resumption."""
    return json.loads(
        json.dumps(
            {
                "task": job.task.NAME,
                "task_settings": task_settings(job.task),
                "budget": job.asked,
                **_counting(job.budget),
                "method": job.method.NAME,
                "method_settings": recorded(job.method),
                "score": job.score,
                "training": job.training.settings(),
                "examples": len(job.features),
                "lengths": job.lengths.to_json(),
                "protect": job.protect,
                "protect_until": job.protect_until,
                "min_tokens": job.min_tokens,
            }
        )
    )
