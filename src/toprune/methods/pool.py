"""Average pooling at one middle layer, as for cross-encoders (2026): no token is chosen, neighbours
are replaced by their mean.

At one layer all tokens but the first one and the protected ones (a query, for example) are averaged
in runs of nearly equal length, until as many rows are left as the budget allows; all layers above
work on these rows. The layer is the one that leaves the frozen model nearest to its own answers on
a few hundred unlabelled texts. The earlier it is, the less has to be pooled.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from toprune.errors import OutOfReach
from toprune.models.families import sizes_of
from toprune.plan.plan import Plan, Score
from toprune.training.calibrate import calibrate
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, setting
from toprune.training.stages import CALIBRATION_TEXTS


@dataclass(frozen=True)
class Pool(Method):
    """The mean of neighbours at one layer; no token is chosen (for cross-encoders, 2026)."""

    first: int = setting(0, "First layer that may pool tokens, counted from zero.")

    NAME: ClassVar[str] = "pool"
    SCORES: ClassVar[tuple[Score, ...]] = ("pooled",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        starts: list[Plan] = []
        for layer in range(self.first, sizes_of(job.model).layers - 1):
            with suppress(OutOfReach):  # from so late a layer
                starts.append(job.geometric(layer, layer))
        batches, seed = job.sample_batches(CALIBRATION_TEXTS), job.training.seed
        plan = calibrate(job.model, batches, job.task, starts, job.repaired, moves=0, seed=seed)
        return Outcome(job, plan)
