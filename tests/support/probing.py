"""The hidden states that probes read."""

import copy
from typing import Any

import torch
from torch import Tensor

from support.strategies import LAYERS
from toprune.pruning.attach import attach_policy
from toprune.pruning.policies import Record


def states(model: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """(B, S, D) after attention, of every layer but the last."""
    record = Record(range(LAYERS - 1))
    twin = attach_policy(copy.deepcopy(model), record)
    with torch.no_grad():
        twin(**batch)
    return record.values
