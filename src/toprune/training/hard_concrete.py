"""Hard-concrete L0 masks (Louizos et al. 2018), with the constants of ToP and CoFi.

A mask z in [0, 1] has one learned number, `loga`; it is exactly 0 or exactly 1 with positive
probability and differentiable in between.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LOW, HIGH, BETA = -0.1, 1.1, 2 / 3
LIMIT = math.log(100)  # |loga| beyond which a mask would be stuck for good
SPAN = 9.0  # from a loga of an open mask to that of a closed one
FURTHEST = 60.0  # a shift beyond which every mask is closed, or open
_SHIFT = BETA * math.log(-LOW / HIGH)  # about -1.5986


def sample(loga: Tensor) -> Tensor:
    """One draw of every mask, with the gradient of the reparameterisation."""
    u = torch.rand_like(loga).clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((torch.logit(u) + loga) / BETA)
    return (s * (HIGH - LOW) + LOW).clamp(0, 1)


def p_open(loga: Tensor) -> Tensor:
    """P(z > 0)"""
    return torch.sigmoid(loga - _SHIFT)


def shift_to(
    target: float,
    masks: Sequence[Tensor],
    sparsity: Callable[[Sequence[Tensor], Tensor], Tensor],
) -> Tensor:
    """A constraint that holds at every step of training: one shift of all masks, by bisection.

    Returns the shift c that makes the expected `sparsity(masks, c)`, which grows with c, equal the
    target, with the gradient of the implicit function: dc = - (ds/dtheta) / (ds/dc) dtheta. No
    multipliers have to converge.
    """
    # On the CPU wherever the masks are: a GPU would wait for an answer at every halving.
    fixed = [mask.detach().cpu() for mask in masks]
    with torch.no_grad():
        low, high = (torch.tensor(edge, device="cpu") for edge in (-FURTHEST, FURTHEST))
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if sparsity(fixed, middle) < target else (low, middle)
    c = ((low + high) / 2).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(sparsity(fixed, c), c)
    device = masks[0].device
    c, slope = c.detach().to(device), slope.clamp_min(1e-4).to(device)
    gap = sparsity(masks, c) - target
    return c - (gap - gap.detach()) / slope
