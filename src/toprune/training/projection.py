"""A constraint that holds at every step of training: one shift of all masks, found by bisection."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FURTHEST = 60.0  # a shift beyond which every mask is closed, or open


def shift_to(
    target: float,
    masks: Sequence[Tensor],
    sparsity: Callable[[Sequence[Tensor], Tensor], Tensor],
) -> Tensor:
    """The shift c that makes the expected `sparsity` of (masks, c), which grows with c, equal the
    target, with the gradient of the implicit function: dc = - (ds/dtheta) / (ds/dc) dtheta. No
    multipliers to wait for."""
    fixed = [mask.detach() for mask in masks]
    with torch.no_grad():
        low, high = torch.tensor(-FURTHEST), torch.tensor(FURTHEST)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if sparsity(fixed, middle) < target else (low, middle)
    c = ((low + high) / 2).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(sparsity(fixed, c), c)
    off = sparsity(masks, c.detach()) - target
    return c.detach() - (off - off.detach()) / slope.clamp_min(1e-4)
