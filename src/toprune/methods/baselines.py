"""Methods that learn no schedule: what an honest comparison must beat."""

from dataclasses import dataclass
from typing import ClassVar

from toprune.errors import OutOfReach
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, reduction
from toprune.plan.plan import Plan, Score
from toprune.training.stages import Job, Outcome, Stage, calibrated


@dataclass(frozen=True)
class Calibrate:
    """A first taste, without training: the best schedule for the frozen dense model, found on a few
    hundred unlabelled texts."""

    first: int = 0  # first layer that may prune

    NAME: ClassVar[str] = "calibrate"
    SCORES: ClassVar[tuple[Score, ...]] = ("probe", "received", "probes")
    STAGES: ClassVar[tuple[Stage, ...]] = ()

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        return Outcome(calibrated(job), None, [])


@dataclass(frozen=True)
class Random:
    """Tokens leave by a fixed random order of their places; schedule and training are as good as
    those of the others. What a ranking is worth is the distance to this one."""

    first: int = 0  # first layer that may prune

    NAME: ClassVar[str] = "random"
    SCORES: ClassVar[tuple[Score, ...]] = ("random",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        return Outcome(calibrated(job), None, [])


@dataclass(frozen=True)
class Truncate:
    """No token leaves on the way: texts are cut, at the length that meets the budget, and the model
    is trained to answer from their beginnings as it did from the whole."""

    NAME: ClassVar[str] = "truncate"
    SCORES: ClassVar[tuple[Score, ...]] = ("received",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    @property
    def first(self) -> None:
        return None

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        return Outcome(job.blank(), None, [])


def cut_for(sizes: Sizes, dense: Plan, lengths: Lengths, budget: Budget) -> int:
    """The length whose executed reduction is nearest the budget."""

    def reached(most: int) -> float:
        return reduction(sizes, dense, lengths, cut=most).unpadded

    low, high = 4, max(5, lengths.max)  # a pair has three special tokens and a word
    if reached(low) < budget.reduction:
        raise OutOfReach(
            f"budget {budget.asked} is out of reach: nothing of the texts would be left"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reached(middle) >= budget.reduction else (low, middle)
    return min((low, high), key=lambda most: abs(reached(most) / budget.reduction - 1))
