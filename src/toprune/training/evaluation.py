"""Outputs of a torch model on a set of features, their distance, and tokens that enter layers."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.errors import UserError
from toprune.io.atomic import draft
from toprune.io.progress import bar
from toprune.models.heads import run_encoder, task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attached, detach
from toprune.tasks import Task
from toprune.training.batches import Collate, in_batches
from toprune.training.distributed import processes
from toprune.training.features import tokens_in


def collect_outputs(
    model: Any,
    task: Task,
    features: Sequence[dict[str, Any]],
    collate: Collate,
    label: str = "evaluating",
) -> list[np.ndarray]:
    """The outputs of every feature, in order: (C,), or (n, C) where the head answers by token. The
    model runs in eval mode, with whatever plan is attached."""
    out: list[np.ndarray] = [np.empty(0)] * len(features)
    training = model.training
    model.eval()
    with torch.inference_mode(), bar(label, len(features)) as advance:
        for rows, batch in in_batches(features, collate):
            outputs = task_outputs(model, task, batch)[0].numpy(force=True)
            for row, output in zip(rows, outputs, strict=True):
                if task.BY_TOKEN:
                    output = output[: tokens_in(features[row])].copy()
                out[row] = check_finite(output, f"row {row + 1}")
            advance(len(rows))
    model.train(training)
    return out


def check_finite(outputs: np.ndarray, where: str) -> np.ndarray:
    """Refuse outputs that are not numbers: they must not become an answer."""
    if not np.isfinite(outputs).all():
        raise UserError(
            f"the model's answer to {where} is not a number (NaN or infinite); check the weights"
        )
    return outputs


def entering(
    model: Any, plan: Plan, batches: Iterable[tuple[Any, dict[str, Tensor]]]
) -> np.ndarray:
    """(N, L): the tokens of each example that enter each layer under the plan, counted in a run
    over the batches. Afterwards the model has no plan attached."""
    training = model.training
    attach(model.eval(), plan)
    counts = []
    try:
        with torch.inference_mode():
            for _, batch in batches:
                run_encoder(model, batch)
                run = attached(model)
                assert run is not None
                counts.append(torch.stack([tokens.alive.sum(1) for tokens in run.entered], 1))
    finally:
        detach(model).train(training)
    return torch.cat(counts).numpy(force=True)


def batch_outputs(
    model: Any, task: Task, batches: Sequence[dict[str, Tensor]], plan: Plan | None = None
) -> list[Tensor]:
    """The outputs of every batch, with or without a plan; afterwards none is attached."""
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
    task: Task,
    outputs: Sequence[Tensor],
    dense: Sequence[Tensor],
    batches: Sequence[dict[str, Tensor]],
) -> float:
    """Distance of outputs to the dense model's: the distillation loss, summed over texts."""
    terms = [
        task.distill_loss(a, b, batch["attention_mask"].to(a.device)).item() * len(b)
        for a, b, batch in zip(outputs, dense, batches, strict=True)
    ]
    return sum(terms)


def save_outputs(path: Path, outputs: Sequence[np.ndarray]) -> None:
    """Write the outputs in one step; the arrays have one number of axes, whatever their lengths."""
    flat = np.concatenate([array.ravel() for array in outputs])
    with draft(path) as made:
        np.savez(made, flat=flat, shapes=np.array([array.shape for array in outputs]))


def load_outputs(path: Path) -> list[np.ndarray]:
    """Read what `save_outputs` wrote."""
    with np.load(path) as stored:
        flat, shapes = stored["flat"], stored["shapes"]
    ends = shapes.prod(1).cumsum()
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def stored_outputs(path: Path, compute: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    """The outputs in a file; if there is none, compute them, and write it for the next run."""
    if path.exists():
        return load_outputs(path)
    outputs = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    if processes().is_main_process:
        save_outputs(path, outputs)
    return outputs
