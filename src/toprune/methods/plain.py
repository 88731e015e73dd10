"""Methods that learn no schedule: what an honest comparison must beat."""

from dataclasses import dataclass
from typing import ClassVar

from toprune.plan import Score
from toprune.stages import Job, Outcome, Stage, calibrated


@dataclass(frozen=True)
class Calibrate:
    """A first taste, without training: the best schedule for the frozen dense model, found on a few
    hundred unlabelled texts."""

    first: int = 0  # first layer that may prune

    NAME: ClassVar[str] = "calibrate"
    SCORES: ClassVar[tuple[Score, ...]] = ("probe", "received")
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
