"""Average pooling at one middle layer, as for cross-encoders (2026): nobody is chosen, neighbours
become their mean.

At one layer the tokens but the first (and those that are protected, as a query is) are averaged in
runs of nearly equal length until as many rows are left as the budget allows; all layers above work
on these. Which layer: the one that leaves the frozen model nearest to its own answers, on a few
hundred unlabelled texts; the earlier it is, the less has to be pooled.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from toprune.errors import OutOfReach
from toprune.models.families import sizes_of
from toprune.plan.plan import Plan, Score
from toprune.training.calibrate import calibrate
from toprune.training.stages import CALIBRATION_TEXTS, Job, Outcome, Stage


@dataclass(frozen=True)
class Pool:
    first: int = 0  # first layer that may pool

    NAME: ClassVar[str] = "pool"
    SCORES: ClassVar[tuple[Score, ...]] = ("pooled",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        starts: list[Plan] = []
        for layer in range(self.first, sizes_of(job.model).layers - 1):
            with suppress(OutOfReach):  # from so late a layer
                starts.append(job.shaped(layer, layer))
        texts, seed = job.some(CALIBRATION_TEXTS), job.training.seed
        plan = calibrate(job.model, texts, job.task, starts, job.repaired, moves=0, seed=seed)
        return Outcome(plan, None, [])
