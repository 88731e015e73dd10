"""Where packed rows are: the live tokens of all examples lie one after the other, without padding.

Tensors only, so that a traced graph computes every size from its inputs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NO_TOKEN = -1e30  # the logit of a place without a token: its probability is exactly 0


@dataclass(frozen=True)
class Layout:
    """Where the packed rows of every example are: k[b] neighbours each, the best or first ones."""

    k: Tensor  # (B,) rows of each example
    first: Tensor  # (B,) its first packed row
    alive: Tensor  # (B, K) places that hold a row
    at: Tensor  # (B, K) the packed row of each place; without one, row 0
    live: Tensor  # (N,) the place, counted over (B * K), of each packed row
    bias: Tensor  # (B, 1, 1, K) what attention adds to the logits of a key

    @classmethod
    def of(cls, k: Tensor) -> "Layout":
        place = up_to(k.max())  # (K,)
        column = k.unsqueeze(1)
        alive = place < column
        first = k.cumsum(0) - k
        at = torch.where(alive, first.unsqueeze(1) + place, 0)
        live = alive.view(-1).nonzero().view(-1)
        bias = torch.where(alive, 0.0, NO_TOKEN).unsqueeze(1).unsqueeze(1)
        return cls(k, first, alive, at, live, bias)

    @property
    def size(self) -> Tensor:
        """K, as a tensor, so that the graph computes it."""
        return self.k.max()


def up_to(size: Any) -> Tensor:
    """0 to size - 1; `size` is a tensor, so that the graph computes it."""
    return torch.arange(size)
