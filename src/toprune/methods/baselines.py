"""Methods that learn no schedule: baselines for an honest comparison."""

from dataclasses import dataclass
from typing import ClassVar

from toprune.data.examples import Examples
from toprune.errors import OutOfReach, UserError
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, reduction
from toprune.plan.plan import Plan, Score
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, setting
from toprune.training.stages import calibrated


@dataclass(frozen=True)
class Calibrate(Method):
    """A quick try without training: the best schedule for the frozen dense model, found on a few
    hundred unlabelled texts."""

    first: int = setting(0, "First layer that may drop tokens, counted from zero.")

    NAME: ClassVar[str] = "calibrate"
    SCORES: ClassVar[tuple[Score, ...]] = ("probe", "received", "probes")
    STAGES: ClassVar[tuple[Stage, ...]] = ()

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        return Outcome(job, calibrated(job))


@dataclass(frozen=True)
class Random(Method):
    """Tokens leave in a fixed random order of their places. Schedule and training are as good as
    those of the other methods, so the distance to this baseline is what a ranking is worth."""

    first: int = setting(0, "First layer that may drop tokens, counted from zero.")

    NAME: ClassVar[str] = "random"
    SCORES: ClassVar[tuple[Score, ...]] = ("random",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        return Outcome(job, calibrated(job))


@dataclass(frozen=True)
class Truncate(Method):
    """Texts are cut at the length that meets the budget. No token leaves inside the model, which
    learns to answer from the beginnings of texts as it did from the whole texts."""

    NAME: ClassVar[str] = "truncate"
    SCORES: ClassVar[tuple[Score, ...]] = ("received",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)
    TIMED: ClassVar[bool] = False
    COUNTS: ClassVar[bool] = False

    def cut(self, job: Job, examples: Examples) -> int:
        if job.task.reads_all or len(job.features) != len(examples):
            raise UserError(
                "truncation leaves tokens without an answer; it is for one answer a text"
            )
        return cut_for(sizes_of(job.model), job.blank(), job.lengths, job.budget)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        return Outcome(job, job.blank())


def cut_for(sizes: Sizes, dense: Plan, lengths: Lengths, budget: Budget) -> int:
    """The length whose executed reduction is nearest to the budget."""

    def reached(length: int) -> float:
        return reduction(sizes, dense, lengths, cut=length).unpadded

    low, high = 4, max(5, lengths.max)  # a pair has three special tokens and a word
    if reached(low) < budget.reduction:
        raise OutOfReach(
            f"budget {budget.asked} is out of reach: nothing of the texts would be left"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reached(middle) >= budget.reduction else (low, middle)
    return min((low, high), key=lambda length: abs(reached(length) / budget.reduction - 1))
