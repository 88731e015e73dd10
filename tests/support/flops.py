"""The multiplications that torch counts in a model."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from support.strategies import pad, random_text
from toprune.models.families import sizes_of


def _mv_flops(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def _folded(model: Any) -> int:
    """MACs with which DeBERTa projects its table of relative positions, in every layer and batch: a
    constant, which the exported file contains."""
    sizes = sizes_of(model)
    return sizes.layers * (sizes.relative + sizes.relative_keys) * sizes.width**2


def count_macs(run: Callable[[], Any]) -> int:
    """Count the MACs of a call. Fused attention on a CPU goes uncounted, so use the plain one; a
    matrix times a vector (the probe) is unknown to torch's table."""
    known = {torch.ops.aten.mv: _mv_flops}
    counter = FlopCounterMode(display=False, custom_mapping=known)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        run()
    flops = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2


def counted_macs(model: Any, n: int, copies: int = 1) -> int:
    """Count the MACs of the base model without its pooler, for `copies` texts of n tokens."""
    base = model.base_model
    macs = count_macs(lambda: base(**pad([random_text(n, n)] * copies))) - _folded(model)
    if getattr(base, "pooler", None) is not None:
        macs -= copies * model.config.hidden_size**2
    return macs
