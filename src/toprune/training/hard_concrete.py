"""Hard-concrete L0 masks (Louizos et al. 2018), with the constants of ToP and CoFi.

A mask z in [0, 1] has one learned number, `loga`; it is exactly 0 or exactly 1 with positive
probability and differentiable in between.
"""

import math

import torch
from torch import Tensor

LOW, HIGH, BETA = -0.1, 1.1, 2 / 3
LIMIT = math.log(100)  # |loga| beyond which a mask would be stuck for good
_SHIFT = BETA * math.log(-LOW / HIGH)  # about -1.5986


def sample(loga: Tensor) -> Tensor:
    """One draw of every mask, with the gradient of the reparameterisation."""
    u = torch.rand_like(loga).clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((torch.logit(u) + loga) / BETA)
    return (s * (HIGH - LOW) + LOW).clamp(0, 1)


def p_open(loga: Tensor) -> Tensor:
    """P(z > 0)"""
    return torch.sigmoid(loga - _SHIFT)
