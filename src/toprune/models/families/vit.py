"""ViT: the patches of an image are its tokens."""

from dataclasses import replace
from typing import Any

from toprune.models.families.bert import bert_sizes
from toprune.models.families.family import ADDED, Family, Note
from toprune.plan.cost import Sizes


def patches(config: Any, height: int, width: int) -> int:
    """Count the patches of an image of this size."""
    patch_height, patch_width = _pair(config.patch_size)
    return (height // patch_height) * (width // patch_width)


def image_shape(config: Any) -> tuple[int, int, int]:
    """(channels, height, width)"""
    return (config.num_channels, *_pair(config.image_size))


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _sizes(config: Any) -> Sizes:
    height, width = _pair(config.patch_size)
    convolution = config.num_channels * height * width * config.hidden_size  # reads the patches
    return replace(bert_sizes(config), entry=convolution, free=1)


VIT = Family(
    name="vit",
    layers=lambda base: base.layers,
    projections=lambda x: (x.attention.q_proj, x.attention.k_proj, x.attention.v_proj),
    dropout=lambda x: x.attention.attention_dropout,
    before_attention=lambda x, states: x.layernorm_before(states),
    after_attention=lambda x, context, residual: residual + x.dropout(x.attention.o_proj(context)),
    feed_forward=lambda x, state: state + x.dropout(x.mlp(x.layernorm_after(state))),
    final_norm=lambda base, states: base.layernorm(states),
    sizes=_sizes,
    max_positions=lambda c: patches(c, *_pair(c.image_size)) + 1,
    images=True,
    note=Note("ViT, DINO v1; images: every patch is a token", ADDED),
)
