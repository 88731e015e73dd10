"""Pooling: from the states of a text's tokens to one vector.

The torch model while pruning and the ONNX runtime pool with the same function, so the vectors that
were measured are the vectors that run.
"""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", np.ndarray, "Tensor")


def pool(states: Array, mask: Array, pooling: str) -> Array:
    """Pool token states to one vector per text.

    Args:
        states: (B, S, D); for "cls" the first row alone, (B, 1, D), is enough.
        mask: (B, S), not 0 for live tokens.
        pooling: "mean" over the live tokens, or "cls", the state of the first token.

    Returns:
        (B, D), not normalised.
    """
    if pooling == "cls":
        return states[:, 0]
    live = (mask != 0)[..., None]  # (B, S, 1)
    total: Any = (states * live).sum(1)
    total /= live.sum(1)  # in place: numpy would answer float32 / int64 with float64
    return total
