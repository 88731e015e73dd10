"""The heads that transformers puts on an encoder: the class that loads each, and its outputs."""

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
from toprune.models.device import to_device
from toprune.models.families import family_named, pools_all
from toprune.plan.plan import Restore
from toprune.tasks import TASKS, Task

HEADS: dict[str, Any] = {
    "sequence": AutoModelForSequenceClassification,
    "answer": AutoModelForQuestionAnswering,
    "tokens": AutoModelForTokenClassification,
    "encoder": AutoModel,
}


def auto_class(task: Task, config: Any) -> Any:
    """Return the class of transformers that loads such a model with the head of the task."""
    if not family_named(config).images:
        return HEADS[task.HEAD]
    if not task.READS_IMAGES:
        others = ", ".join(name for name, other in TASKS.items() if other.READS_IMAGES)
        raise UserError(f"the task {task.NAME} reads texts; tasks that read images: {others}")
    if task.overlap is not None:
        raise UserError("windows (--stride) are for texts; an image has no windows")
    return AutoModelForImageClassification


def task_outputs(
    model: Any, task: Task, batch: Mapping[str, Tensor], **options: Any
) -> tuple[Tensor, Any]:
    """Run a model on a batch, on the device of the model.

    Args:
        model: with the head of the task.
        task: decides which outputs are read, and how they are pooled.
        batch: inputs of the model, on any device. It may hold `labels`, which the model does not
            get. The same is true of the mask of images, which have no padding.
        options: further arguments of the model's forward, such as `output_hidden_states`.

    Returns:
        The outputs (B, C), or (B, S, C) of a head that reads every token; and all that the model
        returned.
    """
    batch = to_device(batch, model)
    mask = batch["attention_mask"]
    unused = ("labels", "attention_mask") if "pixel_values" in batch else ("labels",)
    out = model(**{name: x for name, x in batch.items() if name not in unused}, **options)
    return outputs_of(task, out, mask), out


def run_encoder(model: Any, batch: Mapping[str, Tensor]) -> None:
    """Run a model without its head, on its device, for what an attached policy sees."""
    inputs = {name: x for name, x in batch.items() if name != "labels"}
    model.base_model(**to_device(inputs, model))


def outputs_of(task: Task, out: Any, mask: Tensor) -> Tensor:
    """Read the outputs of the task, (B, C) or (B, S, C), from what a model returned."""
    parts = [getattr(out, name) for name in task.OUTPUTS]
    outputs = parts[0] if len(parts) == 1 else torch.stack(parts, -1)
    return task.pool(outputs, mask)


def reads_all(task: Task, config: Any) -> bool:
    """Does the head read every token? Some heads for a whole text take the mean of all tokens."""
    return task.reads_all or (not task.POOLS and pools_all(config))


def restore_of(task: Task, config: Any) -> Restore:
    """Return what a plan for the task puts in the place of dropped tokens that the head reads."""
    return task.restore if reads_all(task, config) else "none"
