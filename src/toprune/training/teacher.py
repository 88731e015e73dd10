"""What the dense model says, computed once per example and reused every epoch.

Logits for the task loss, token scores for the ranking distillation. Held in memory, or in a file
that is mapped when it would be larger than SPILL bytes or when a directory asks for it (resume).
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
from toprune.models.families import sizes_of
from toprune.models.heads import reads_all, task_outputs
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Protection, Record
from toprune.pruning.tokens import by_probe
from toprune.tasks import Task
from toprune.training.batches import Collate, in_batches
from toprune.training.features import tokens_in

SPILL = 1 << 30


@dataclass(frozen=True)
class Teacher:
    logits: np.ndarray  # (N, C), or (tokens of all examples, C) of a head that answers by token
    scores: np.ndarray  # (tokens of all examples, P) log scores; P = 1 or one column per layer
    starts: np.ndarray  # (N + 1,) where each example's tokens begin
    by_token: np.ndarray  # () bool: is there a line of logits for every token?
    states: np.ndarray  # (N, L, D) float16: the first token after every layer; none where whole

    def extras(self, rows: Sequence[int], length: int) -> dict[str, Tensor]:
        """The teacher's words on a batch, padded to `length`."""
        chosen = list(rows)
        logits = self._padded(self.logits, rows, length) if self.by_token else self.logits[chosen]
        words = {
            "teacher_logits": torch.from_numpy(logits),
            "teacher_scores": torch.from_numpy(self._padded(self.scores, rows, length)),
        }
        if len(self.states):
            words["teacher_states"] = torch.from_numpy(self.states[chosen].astype(np.float32))
        return words

    def _padded(self, lines: np.ndarray, rows: Sequence[int], length: int) -> np.ndarray:
        """(B, S, columns) of an array with a line for each token."""
        padded = np.zeros((len(rows), length, lines.shape[1]), np.float32)
        for b, row in enumerate(rows):
            own = lines[self.starts[row] : self.starts[row + 1]][:length]
            padded[b, : len(own)] = own
        return padded

    def save(self, folder: Path) -> None:
        """Whole or not at all: other processes read what is there."""
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


def record_scores(probes: Tensor | None, last: int, *, whole: bool) -> Record:
    """Keep every token and record how each was scored, (B, S) a layer: by the probes, or by the
    attention received in the last layer."""
    if probes is None:  # the attention received in the last layer needs all of its rows
        return Record([last], _log_received, scored=True, protection=Protection(restore="last"))
    return Record(
        range(last),
        lambda layer, state, _: by_probe(state, probes[layer]),
        protection=Protection(restore="last" if whole else "none"),
    )


def _log_received(_: int, __: Tensor, received: Tensor | None) -> Tensor:
    assert received is not None
    return received.clamp_min(1e-9).log()


def teach(
    model: Any,
    task: Task,
    features: Sequence[dict[str, Any]],
    collate: Collate,
    *,
    probes: Tensor | None,
    bf16: bool = False,
    progress: Any = None,
) -> Teacher:
    """Run the dense model over the training set once; the words may be as large as the disk.
    `bf16`: with products in bfloat16, as the student that will hear them is trained.

    Target of the ranking: the attention received in the last layer (ToP), or with probes what the
    dense model's own probe says at each layer, which keeps the ranking where it was fitted.
    """
    lengths = np.array([tokens_in(feature) for feature in features])
    starts = np.concatenate([[0], lengths.cumsum()])
    sizes = sizes_of(model)
    layers = sizes.layers
    whole = reads_all(task, model.config)
    record = record_scores(probes, layers - 1, whole=whole)
    columns = 1 if probes is None else len(probes)
    scores = _room(starts[-1], columns)
    logits: np.ndarray | None = None  # its width is known when the head has spoken
    stated = 0 if whole else len(features)
    states = _room(stated, layers, sizes.width, dtype=np.float16)
    training = model.training
    attach_policy(model.eval(), record)
    try:
        with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16, bf16):
            for rows, batch in in_batches(features, collate):
                told, out = task_outputs(model, task, batch, output_hidden_states=not whole)
                said = told.float().numpy(force=True)
                if logits is None:
                    logits = _room(starts[-1] if task.BY_TOKEN else len(features), said.shape[-1])
                if not whole:
                    states[rows] = first_states(out.hidden_states).half().numpy(force=True)
                given = torch.stack(record.values, -1).float().numpy(force=True)  # (B, S, P)
                for b, row in enumerate(rows):
                    own = slice(starts[row], starts[row + 1])
                    scores[own] = given[b, : lengths[row]]
                    if task.BY_TOKEN:
                        logits[own] = said[b, : lengths[row]]
                    else:
                        logits[row] = said[b]
                if progress is not None:
                    progress(len(rows))
    finally:
        detach(model).train(training)
    assert logits is not None
    return Teacher(logits, scores, starts, np.array(task.BY_TOKEN), states)


def _room(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """An array to fill; above SPILL bytes it lies in a file without a name, gone with the array."""
    if math.prod(shape) * np.dtype(dtype).itemsize <= SPILL:
        return np.zeros(shape, dtype)
    return np.memmap(TemporaryFile(prefix="toprune-"), dtype, "w+", shape=shape)


def first_states(hidden: Sequence[Tensor]) -> Tensor:
    """(B, L, D): the one token that no plan drops, after every layer."""
    return torch.stack([h[:, 0] for h in hidden[1:]], 1)
