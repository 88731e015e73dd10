"""Average pooling at one middle layer, as for cross-encoders (2026): nobody is chosen, neighbours
become their mean.

At one layer the tokens but the first (and those that are protected, as a query is) are averaged in
runs of nearly equal length until as many rows are left as the budget allows; all layers above work
on these. Which layer: the one that leaves the frozen model nearest to its own answers, on a few
hundred unlabelled texts; the earlier it is, the less has to be pooled.
"""

from dataclasses import dataclass
from typing import ClassVar

from toprune.calibrate import calibrate
from toprune.errors import UserError
from toprune.families import family_of, sizes_of
from toprune.plan import Plan, Score
from toprune.schedule import geometric
from toprune.stages import CALIBRATION_TEXTS, Job, Outcome, Stage


@dataclass(frozen=True)
class Pool:
    first: int = 0  # first layer that may pool

    NAME: ClassVar[str] = "pool"
    SCORES: ClassVar[tuple[Score, ...]] = ("pooled",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        starts, texts = self._starts(job), job.some(CALIBRATION_TEXTS)
        seed = job.training.seed
        plan = calibrate(job.model, texts, job.task, starts, job.repaired, moves=0, seed=seed)
        return Outcome(plan, None, [])

    def _starts(self, job: Job) -> list[Plan]:
        """One step, at every layer from which the budget can be reached."""
        sizes, found = sizes_of(job.model), list[Plan]()
        for layer in range(self.first, sizes.layers - 1):
            try:
                plan = geometric(
                    sizes,
                    job.lengths,
                    job.budget,
                    family=family_of(job.model).name,
                    first=layer,
                    last=layer,
                    score=job.score,
                    min_tokens=job.min_tokens,
                    protect=job.protect,
                    protect_until=job.protect_until,
                    restore=job.restore,
                )
            except UserError:  # out of reach so late
                break
            found.append(plan)
        return found
