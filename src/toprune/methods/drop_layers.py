"""Fewer layers instead of fewer tokens, as in DistilBERT.

Evenly spaced layers of the dense model are kept, with the first and the last among them, and the
shallower model learns from the dense one: its answers, and the first token's state after each kept
layer. DistilBERT's masked-language stage needs a corpus and is left out: this is its distillation
on the task.

The result is an ordinary dense model and a plan without steps; any other method can prune its
tokens afterwards. Whole layers meet a budget only roughly: the report has the executed one.
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
from toprune.training.batches import Collate
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, setting
from toprune.training.stages import learner_of, teacher_of
from toprune.training.trainer import train


@dataclass(frozen=True)
class DropLayers(Method):
    """Fewer layers in place of fewer tokens, learned by distillation (as DistilBERT)."""

    layers: int | None = setting(
        None, "Number of layers that stay (default: from the budget).", minimum=1
    )

    NAME: ClassVar[str] = "drop_layers"
    SCORES: ClassVar[tuple[Score, ...]] = ("received",)  # of the plan, which does not use it
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft",)
    TIMED: ClassVar[bool] = False
    COUNTS: ClassVar[bool] = False

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        teacher, dense = teacher_of(job), sizes_of(job.model)
        count = self.layers or nearest(job)
        if not 1 <= count < dense.layers:
            raise UserError(f"{count} of {dense.layers} layers: keep at least one, but not all")
        kept = spread(count, dense.layers)
        keep_layers(job.model, kept)
        log = []
        if job.soft_epochs > 0:
            states = teacher.states[:, kept] if len(teacher.states) else teacher.states
            log = train(
                learner_of(job),
                job.features,
                Collate(job.tokenizer, replace(teacher, states=np.asarray(states)).extras),
                job.training,
                epochs=job.soft_epochs,
                out=job.work / "soft",
                label="distilling",
                resume=resume,
            )
        return Outcome(replace(job, before=dense), job.blank(), log=log)


def spread(count: int, layers: int) -> Sequence[int]:
    """Evenly spaced layers from the first to the last: six of twelve are 0, 2, 4, 7, 9, 11."""
    return [0] if count == 1 else [round(i * (layers - 1) / (count - 1)) for i in range(count)]


def nearest(job: Job) -> int:
    """The number of layers that comes nearest to the budget."""
    sizes, plan = sizes_of(job.model), job.blank()

    def gap(count: int) -> float:
        shallow, steps = sizes.of_layers(spread(count, sizes.layers)), replace(plan, n_layers=count)
        reached = reduction(shallow, steps, job.lengths, before=sizes).unpadded
        return abs(np.log(reached / job.budget.reduction))

    return min(range(1, sizes.layers), key=gap)
