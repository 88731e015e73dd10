"""The dense model's outputs, computed once per example and used again in every epoch.

They are logits for the task loss and token scores for the ranking distillation. Arrays larger than
SPILL bytes are kept in a memory-mapped file.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.io.atomic import draft
from toprune.models.device import autocast, device_of
from toprune.models.families import sizes_of
from toprune.models.heads import reads_all, task_outputs
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Protection, Record
from toprune.pruning.tokens import by_probe
from toprune.tasks import Task
from toprune.training.batches import Collate, in_batches
from toprune.training.features import tokens_in
from toprune.training.target import Target, record_received, target_layers, target_scores

SPILL = 1 << 30


@dataclass(frozen=True)
class Teacher:
    """Arrays that a student learns from."""

    logits: np.ndarray  # (N, C), or (tokens of all examples, C) where the head answers by token
    scores: np.ndarray  # (tokens of all examples, P) log scores; P = 1 or one column per layer
    starts: np.ndarray  # (N + 1,) where each example's tokens begin
    by_token: np.ndarray  # () bool: is there a line of logits for every token?
    states: np.ndarray  # (N, L, D) float16: the first token after every layer; empty if the head
    # reads every token

    def extras(self, rows: Sequence[int], length: int) -> dict[str, Tensor]:
        """The outputs for a batch, padded to `length`."""
        indices = list(rows)
        logits = self._padded(self.logits, rows, length) if self.by_token else self.logits[indices]
        outputs = {
            "teacher_logits": torch.from_numpy(logits),
            "teacher_scores": torch.from_numpy(self._padded(self.scores, rows, length)),
        }
        if len(self.states):
            outputs["teacher_states"] = torch.from_numpy(self.states[indices].astype(np.float32))
        return outputs

    def _padded(self, lines: np.ndarray, rows: Sequence[int], length: int) -> np.ndarray:
        """(B, S, columns) from an array with a line for each token."""
        padded = np.zeros((len(rows), length, lines.shape[1]), np.float32)
        for b, row in enumerate(rows):
            part = lines[self.starts[row] : self.starts[row + 1]][:length]
            padded[b, : len(part)] = part
        return padded

    def save(self, folder: Path) -> None:
        """Write the folder in one step: other processes read it as soon as it exists."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with draft(folder) as made:
            made.mkdir(exist_ok=True)
            for name, array in vars(self).items():
                np.save(made / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> "Teacher":
        return cls(**{field.name: _read(folder / f"{field.name}.npy") for field in fields(cls)})


def _read(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r" if path.stat().st_size > SPILL else None)


def _record_probes(probes: Tensor, *, whole: bool) -> Record:
    """Keep every token and record how the probe of each layer scores it, (B, S) a layer."""
    return Record(
        range(len(probes)),
        lambda layer, state, _: by_probe(state, probes[layer]),
        protection=Protection(restore="last" if whole else "none"),
    )


def teach(
    model: Any,
    task: Task,
    features: Sequence[dict[str, Any]],
    collate: Collate,
    *,
    probes: Tensor | None,
    target: Target = "last",
    precision: str | None = None,
    progress: Any = None,
) -> Teacher:
    """Run the dense model over the training set once.

    The target of the ranking is the attention received in the last layer (ToP), or in the layers of
    another `target`; with probes it is the dense model's probe score in each layer, which keeps the
    ranking where it was fitted.

    Args:
        precision: of products, as in the training of the student (`Training.precision`).
        progress: is called with the number of rows after every batch.
    """
    lengths = np.array([tokens_in(feature) for feature in features])
    starts = np.concatenate([[0], lengths.cumsum()])
    sizes = sizes_of(model)
    layers = sizes.layers
    whole = reads_all(task, model.config)
    if probes is None:
        record, columns = record_received(target_layers(target, layers)), 1
    else:
        record, columns = _record_probes(probes, whole=whole), len(probes)
    scores = _allocate(starts[-1], columns)
    logits: np.ndarray | None = None  # its width is known after the first batch
    states = _allocate(0 if whole else len(features), layers, sizes.width, dtype=np.float16)
    training = model.training
    attach_policy(model.eval(), record)
    try:
        with torch.inference_mode(), autocast(device_of(model), precision):
            for rows, batch in in_batches(features, collate):
                outputs, out = task_outputs(model, task, batch, output_hidden_states=not whole)
                batch_logits = outputs.float().numpy(force=True)
                if logits is None:
                    lines = starts[-1] if task.BY_TOKEN else len(features)
                    logits = _allocate(lines, batch_logits.shape[-1])
                if not whole:
                    states[rows] = first_states(out.hidden_states).half().numpy(force=True)
                values = [target_scores(record.values)] if probes is None else record.values
                batch_scores = torch.stack(values, -1).float().numpy(force=True)  # (B, S, P)
                for b, row in enumerate(rows):
                    part = slice(starts[row], starts[row + 1])
                    scores[part] = batch_scores[b, : lengths[row]]
                    if task.BY_TOKEN:
                        logits[part] = batch_logits[b, : lengths[row]]
                    else:
                        logits[row] = batch_logits[b]
                if progress is not None:
                    progress(len(rows))
    finally:
        detach(model).train(training)
    assert logits is not None
    return Teacher(logits, scores, starts, np.array(task.BY_TOKEN), states)


def _allocate(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """An array of zeros; above SPILL bytes in an unnamed file that is deleted with the array."""
    if math.prod(shape) * np.dtype(dtype).itemsize <= SPILL:
        return np.zeros(shape, dtype)
    return np.memmap(TemporaryFile(prefix="toprune-"), dtype, "w+", shape=shape)


def first_states(hidden: Sequence[Tensor]) -> Tensor:
    """(B, L, D): the state of the first token, which no plan drops, after every layer."""
    return torch.stack([h[:, 0] for h in hidden[1:]], 1)
