"""The heads that transformers puts on an encoder: how each is loaded and what it says."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from toprune.families import pools_all
from toprune.plan import Restore
from toprune.pooling import pool
from toprune.tasks import Task

HEADS: dict[str, Any] = {
    "sequence": AutoModelForSequenceClassification,
    "answer": AutoModelForQuestionAnswering,
    "tokens": AutoModelForTokenClassification,
    "encoder": AutoModel,
}


def outputs_of(task: Task, out: Any, mask: Tensor) -> Tensor:
    """(B, C), or (B, S, C) of a head that reads every token, from a model's answer."""
    parts = [getattr(out, name) for name in task.OUTPUTS]
    found = parts[0] if len(parts) == 1 else torch.stack(parts, -1)
    settings: Any = task
    return pool(found, mask, settings.pooling) if task.HEAD == "encoder" else found


def reads_all(task: Task, config: Any) -> bool:
    """Does the head read every token? Some that say one thing of a text take the mean of all."""
    return task.whole or (task.HEAD == "sequence" and pools_all(config))


def restore_of(task: Task, config: Any) -> Restore:
    """What a plan for the task does with dropped tokens: nobody asks for them, or the head does."""
    return getattr(task, "restore", "last") if reads_all(task, config) else "none"


def by_token(task: Task) -> bool:
    """Are outputs (B, S, C), one for each token? Pooled vectors are not, whatever they read."""
    return task.whole and task.HEAD != "encoder"
