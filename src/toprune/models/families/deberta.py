"""DeBERTa v2 and v3: content attends to relative positions, and positions to content."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toprune.models.families.bert import bert_like, bert_sizes
from toprune.models.families.family import Base, Convolution, Layer, Note
from toprune.plan.cost import Sizes


def _tables(base: Base, layer: Layer) -> tuple[Tensor | None, Tensor | None]:
    """Keys and queries (H, d, P) of the P relative positions; the queries include the scale of the
    logits. None where the model's config switches that direction off."""
    attention = layer.attention.self
    if not attention.relative_attention:
        return None, None
    embedding = base.encoder.get_rel_embedding()[: 2 * attention.pos_ebd_size]
    table = attention.pos_dropout(embedding)  # (P, D)

    def by_head(projection: Any) -> Tensor:
        return projection(table).unflatten(-1, (attention.num_attention_heads, -1)).permute(1, 2, 0)

    keys = queries = None
    if "c2p" in attention.pos_att_type:
        keys = by_head(attention.key_proj if attention.share_att_key else attention.pos_key_proj)
    if "p2c" in attention.pos_att_type:
        shared = attention.share_att_key
        queries = by_head(attention.query_proj if shared else attention.pos_query_proj)
        queries = queries * _scale(layer, attention.attention_head_size)
    return keys, queries


def _bias(
    tables: tuple[Tensor | None, Tensor | None],
    layer: Layer,
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
) -> Tensor | None:
    keys, queries = tables
    if keys is None and queries is None:
        return None
    attention = layer.attention.self
    span, heads = attention.pos_ebd_size, attention.num_attention_heads
    distances = q_positions.unsqueeze(2) - k_positions.unsqueeze(1)  # (B, Q, K)
    if attention.position_buckets > 0:
        distances = _log_buckets(
            distances, attention.position_buckets, attention.max_relative_positions
        )
    at = (distances + span).clamp(0, 2 * span - 1).unsqueeze(1)  # (B, 1, Q, K)
    bias = None
    if keys is not None:  # content to position
        bias = (q @ keys).gather(-1, at.expand(-1, heads, -1, -1))
    if queries is not None:  # position to content: (B, H, K, P), then by (Q, K)
        to_content = (
            (k @ queries)
            .gather(-1, at.transpose(-1, -2).expand(-1, heads, -1, -1))
            .transpose(-1, -2)
        )
        bias = to_content if bias is None else bias + to_content
    return bias


def _log_buckets(distances: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Distances as they are up to half the buckets, logarithmic beyond."""
    middle = buckets // 2
    near = (distances < middle) & (distances > -middle)
    size = torch.where(near, middle - 1, distances.abs())
    ratio = torch.log(size / middle) / math.log((max_distance - 1) / middle)
    far = torch.ceil(ratio * (middle - 1)) + middle
    return torch.where(size <= middle, distances, (far * distances.sign()).long())


def _scale(layer: Layer, d: int) -> float:
    directions = sum(name in layer.attention.self.pos_att_type for name in ("c2p", "p2c"))
    return (d * (1 + directions)) ** -0.5


def _sizes(config: Any) -> Sizes:
    sizes = bert_sizes(config)
    kernel, groups = getattr(config, "conv_kernel_size", 0), getattr(config, "conv_groups", 1)
    entry = sizes.entry + kernel * config.hidden_size**2 // groups
    if not config.relative_attention:
        return replace(sizes, entry=entry)
    farthest = config.max_relative_positions
    farthest = config.max_position_embeddings if farthest < 1 else farthest
    buckets = getattr(config, "position_buckets", -1)
    rows, directions = 2 * (buckets if buckets > 0 else farthest), config.pos_att_type or ()
    return replace(
        sizes,
        relative=rows if "c2p" in directions else 0,
        relative_keys=rows if "p2c" in directions else 0,
        entry=entry,
    )


def _convolved(conv: Any, states: Tensor, alive: Tensor) -> Tensor:
    """(B, S, D) from the embeddings, in which padding is zero already."""
    out = conv.conv(states.transpose(1, 2)).transpose(1, 2)
    out = out * alive.unsqueeze(-1).to(out.dtype)
    return _activation(conv.conv_act)(conv.dropout(out))


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    return ACT2FN[name]


DEBERTA = bert_like(
    "deberta-v2",
    projections=lambda x: (
        x.attention.self.query_proj,
        x.attention.self.key_proj,
        x.attention.self.value_proj,
    ),
    sizes=_sizes,
    bias=_bias,
    tables=_tables,
    scale=_scale,
    layer_output=lambda state: (state, None),
    convolution=Convolution(
        module=lambda base: base.encoder.conv,
        part=_convolved,
        blend=lambda conv, states, part: conv.LayerNorm(states + part),
    ),
    note=Note(
        "DeBERTa v2 and v3, mDeBERTa v3, mxbai-rerank v1, most zero-shot NLI models",
        "disentangled: content meets the distance of the original indices; the convolution of the "
        "large models reads all tokens, also those that leave in its layer",
    ),
)
