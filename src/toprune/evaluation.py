"""Logits of a torch model over a set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from toprune.batching import in_batches
from toprune.encode import Collate
from toprune.progress import bar


def logits_of(
    model: Any, features: Sequence[dict[str, Any]], collate: Collate, label: str = "evaluating"
) -> np.ndarray:
    """(N, C) in the order of the features; as attached, in eval mode."""
    out: np.ndarray | None = None
    training = model.training
    model.eval()
    with torch.inference_mode(), bar(label, len(features)) as advance:
        for rows, batch in in_batches(features, collate):
            batch.pop("labels", None)
            logits = model(**batch).logits.numpy(force=True)
            if out is None:
                out = np.zeros((len(features), logits.shape[1]), np.float32)
            out[rows] = logits
            advance(len(rows))
    model.train(training)
    assert out is not None
    return out
