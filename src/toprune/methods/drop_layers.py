"""Fewer layers in place of fewer tokens, as DistilBERT was made.

Every so-many-th layer of the dense model is kept, the first and the last among them, and the
shallower model learns from the dense one: its answers, and the first token's state after each layer
that was kept. DistilBERT's masked-language stage needs a corpus and is left out: this is its
distillation on the task.

What comes out is an ordinary dense model with a plan of no steps; any other method can prune its
tokens afterwards. Whole layers meet a budget only roughly: the report says what was met.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from toprune.errors import UserError
from toprune.models.families import sizes_of
from toprune.models.slim import keep_layers
from toprune.plan.cost import reduction
from toprune.plan.plan import Score
from toprune.training.features import Collate
from toprune.training.learner import train
from toprune.training.stages import Job, Outcome, Stage, learner_of, teacher_of


@dataclass(frozen=True)
class DropLayers:
    layers: int | None = None  # that stay; None: as the budget says

    NAME: ClassVar[str] = "drop_layers"
    SCORES: ClassVar[tuple[Score, ...]] = ("received",)  # of the plan, which has no use for it
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft",)

    @property
    def first(self) -> None:
        return None

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        words, job.before = teacher_of(job), sizes_of(job.model)
        count = self.layers or nearest(job)
        if not 1 <= count < job.before.layers:
            raise UserError(f"{count} of {job.before.layers} layers: keep one, and not all")
        kept = spread(count, job.before.layers)
        keep_layers(job.model, kept)
        log = []
        if job.training.soft_epochs > 0:
            states = words.states[:, kept] if len(words.states) else words.states
            log = train(
                learner_of(job),
                job.features,
                Collate(job.tokenizer, replace(words, states=np.asarray(states)).extras),
                job.training,
                epochs=job.training.soft_epochs,
                out=job.work / "soft",
                label="distilling",
                resume=resume,
            )
        return Outcome(job.blank(), None, log)


def spread(count: int, layers: int) -> Sequence[int]:
    """Evenly from the first to the last: of twelve, six are 0, 2, 4, 7, 9, 11."""
    return [0] if count == 1 else [round(i * (layers - 1) / (count - 1)) for i in range(count)]


def nearest(job: Job) -> int:
    """How many layers come nearest to the budget."""
    sizes, plan = sizes_of(job.model), job.blank()

    def off(count: int) -> float:
        shallow, steps = sizes.of_layers(spread(count, sizes.layers)), replace(plan, n_layers=count)
        met = reduction(shallow, steps, job.lengths, before=sizes).unpadded
        return abs(np.log(met / job.budget.reduction))

    return min(range(1, sizes.layers), key=off)
