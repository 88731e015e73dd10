"""The heads that transformers puts on an encoder: how each is loaded and what it says."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from toprune.errors import UserError
from toprune.models.families import family_named, pools_all
from toprune.plan.plan import Restore
from toprune.tasks import TASKS, Task

HEADS: dict[str, Any] = {
    "sequence": AutoModelForSequenceClassification,
    "answer": AutoModelForQuestionAnswering,
    "tokens": AutoModelForTokenClassification,
    "encoder": AutoModel,
}


def loader(task: Task, config: Any) -> Any:
    """The class of transformers that loads such a model with the head of the task."""
    if not family_named(config).images:
        return HEADS[task.HEAD]
    if not task.READS_IMAGES:
        others = ", ".join(name for name, other in TASKS.items() if other.READS_IMAGES)
        raise UserError(f"the task {task.NAME} reads texts; tasks that read images: {others}")
    if task.overlap is not None:
        raise UserError("windows (--stride) are of texts; an image is read whole")
    return AutoModelForImageClassification


def ask(model: Any, task: Task, batch: Mapping[str, Tensor], **how: Any) -> tuple[Tensor, Any]:
    """(what it says to the task, its whole answer). Labels are not for the model, nor is the mask
    of images, which have no padding."""
    mask = batch["attention_mask"]
    kept = ("labels", "attention_mask") if "pixel_values" in batch else ("labels",)
    out = model(**{name: x for name, x in batch.items() if name not in kept}, **how)
    return outputs_of(task, out, mask), out


def outputs_of(task: Task, out: Any, mask: Tensor) -> Tensor:
    """(B, C), or (B, S, C) of a head that reads every token, from a model's answer."""
    parts = [getattr(out, name) for name in task.OUTPUTS]
    found = parts[0] if len(parts) == 1 else torch.stack(parts, -1)
    return task.pool(found, mask)


def reads_all(task: Task, config: Any) -> bool:
    """Does the head read every token? Some that say one thing of a text take the mean of all."""
    return task.reads_all or (not task.POOLS and pools_all(config))


def restore_of(task: Task, config: Any) -> Restore:
    """What a plan for the task does with dropped tokens: nobody asks for them, or the head does."""
    return task.restore if reads_all(task, config) else "none"
