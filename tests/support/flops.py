"""The multiplications that torch counts in a model."""

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from support.strategies import pad, random_text
from toprune.models.families import sizes_of


def _mv_flops(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def _folded(model: Any) -> int:
    """DeBERTa projects its table of relative positions in every layer, once a batch: a constant,
    which the exported file holds ready."""
    sizes = sizes_of(model)
    return 2 * sizes.layers * (sizes.relative + sizes.relative_keys) * sizes.width**2


def counted_macs(model: Any, n: int, copies: int = 1) -> int:
    """Of the base model without its pooler. Fused attention on a CPU goes uncounted, so ask for the
    plain one; a matrix times a vector (the probe) is unknown to torch's table."""
    base = model.base_model
    known = {torch.ops.aten.mv: _mv_flops}
    counter = FlopCounterMode(display=False, custom_mapping=known)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        base(**pad([random_text(n, n)] * copies))
    flops = counter.get_total_flops() - _folded(model)
    if getattr(base, "pooler", None) is not None:
        flops -= 2 * copies * model.config.hidden_size**2
    assert flops % 2 == 0
    return flops // 2
