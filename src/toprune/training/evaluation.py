"""What a torch model says over a set."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.errors import UserError
from toprune.io.atomic import draft
from toprune.io.progress import bar
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attached, detach
from toprune.tasks import Task
from toprune.training.batches import Collate, in_batches
from toprune.training.features import tokens_in


def collect_outputs(
    model: Any,
    task: Task,
    features: Sequence[dict[str, Any]],
    collate: Collate,
    label: str = "evaluating",
) -> list[np.ndarray]:
    """The outputs of every feature, in order: (C,), or (n, C) of a head that answers by token; as
    attached, in eval mode."""
    out: list[np.ndarray] = [np.empty(0)] * len(features)
    training = model.training
    model.eval()
    with torch.inference_mode(), bar(label, len(features)) as advance:
        for rows, batch in in_batches(features, collate):
            found = task_outputs(model, task, batch)[0].numpy(force=True)
            for row, one in zip(rows, found, strict=True):
                length = tokens_in(features[row])
                own = one[:length].copy() if task.BY_TOKEN else one
                out[row] = finite(own, f"row {row + 1}")
            advance(len(rows))
    model.train(training)
    return out


def finite(said: np.ndarray, to: str) -> np.ndarray:
    """What a model says, if these are numbers: nothing else may become an answer."""
    if not np.isfinite(said).all():
        raise UserError(
            f"the model's answer to {to} is not a number (NaN or infinite); check the weights"
        )
    return said


def entering(
    model: Any, plan: Plan, batches: Iterable[tuple[Any, dict[str, Tensor]]]
) -> np.ndarray:
    """(N, L): tokens that enter each layer of each example under the plan, counted as it runs, in
    the order of the batches; leaves the model without a plan."""
    training = model.training
    attach(model.eval(), plan)
    found = []
    try:
        with torch.inference_mode():
            for _, batch in batches:
                model.base_model(**{k: v for k, v in batch.items() if k != "labels"})
                run = attached(model)
                assert run is not None
                found.append(torch.stack([tokens.alive.sum(1) for tokens in run.entered], 1))
    finally:
        detach(model).train(training)
    return torch.cat(found).numpy(force=True)


def batch_outputs(
    model: Any, task: Task, batches: Sequence[dict[str, Tensor]], plan: Plan | None = None
) -> list[Tensor]:
    """The outputs, batch by batch, under a plan or none; leaves the model without one."""
    detach(model)
    if plan is not None:
        attach(model, plan)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            return [task_outputs(model, task, batch)[0] for batch in batches]
    finally:
        detach(model).train(training)


def distance(
    task: Task, one: Sequence[Tensor], dense: Sequence[Tensor], batches: Sequence[dict[str, Tensor]]
) -> float:
    """How far outputs are from the dense model's: the distillation loss, summed over texts."""
    terms = [
        task.distill_loss(a, b, batch["attention_mask"]).item() * len(b)
        for a, b, batch in zip(one, dense, batches, strict=True)
    ]
    return sum(terms)


def save_outputs(path: Path, outputs: Sequence[np.ndarray]) -> None:
    """Whole or not at all; arrays of one number of axes, whatever their lengths."""
    flat = np.concatenate([one.ravel() for one in outputs])
    with draft(path) as made:
        np.savez(made, flat=flat, shapes=np.array([one.shape for one in outputs]))


def load_outputs(path: Path) -> list[np.ndarray]:
    with np.load(path) as found:
        flat, shapes = found["flat"], found["shapes"]
    ends = shapes.prod(1).cumsum()
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
