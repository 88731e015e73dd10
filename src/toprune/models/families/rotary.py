"""Families with rotary positions: ModernBERT, EuroBERT, GTE, Nomic-BERT and Jina v3."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toprune.models.families.bert import bert_sizes
from toprune.models.families.family import ROTARY, Base, Family, Layer, Note, Part, Projection
from toprune.plan.cost import Sizes

OUTSIDE = -1e30  # logit of a key outside a local window; finite, so that no row becomes NaN


def _rotary(base: Base, _: Layer, positions: Tensor) -> tuple[Tensor, Tensor]:
    return base.rotary_emb(_any_weight(base), positions)


def _any_weight(base: Base) -> Tensor:
    """A tensor of the model's type and device: a rotary table reads nothing else of its input."""
    return next(base.parameters())


def _window_bias(
    _: Any, layer: Layer, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> Tensor | None:
    """Local layers see a window of the *text*, however few tokens of it are left."""
    if layer.attention_type != "sliding_attention":
        return None
    distances = (q_positions.unsqueeze(2) - k_positions.unsqueeze(1)).abs()
    near = distances <= layer.config.sliding_window
    return torch.where(near, 0.0, OUTSIDE).to(q.dtype).unsqueeze(1)


def _thirds(fused: Any) -> tuple[Part, Part, Part]:
    d = fused.weight.shape[0] // 3
    return Part(fused, 0, d), Part(fused, d, 2 * d), Part(fused, 2 * d, 3 * d)


MODERNBERT = Family(
    name="modernbert",
    layers=lambda base: base.layers,
    projections=lambda x: _thirds(x.attn.Wqkv),
    dropout=lambda x: x.attn.attention_dropout,
    before_attention=lambda x, states: x.attn_norm(states),
    after_attention=lambda x, context, residual: residual + x.attn.out_drop(x.attn.Wo(context)),
    feed_forward=lambda x, state: state + x.mlp(x.mlp_norm(state)),
    final_norm=lambda base, states: base.final_norm(states),
    rotary=lambda base, x, positions: base.rotary_emb(
        _any_weight(base), positions, x.attention_type
    ),
    bias=_window_bias,
    sizes=lambda c: replace(bert_sizes(c), gated=True),
    note=Note(
        "ModernBERT, GTE-ModernBERT, modernbert-embed, mmBERT, Ettin encoders, Granite-embedding "
        "English R2",
        f"{ROTARY}; local layers see a window of the text, not of what is left",
    ),
)


def _self_attention(x: Layer) -> tuple[Projection, Projection, Projection]:
    return x.self_attn.q_proj, x.self_attn.k_proj, x.self_attn.v_proj


def _eurobert_sizes(config: Any) -> Sizes:
    return replace(
        bert_sizes(config),
        head_width=getattr(config, "head_dim", None),
        key_heads=config.num_key_value_heads,
        gated=True,
    )


EUROBERT = Family(
    name="eurobert",
    layers=lambda base: base.layers,
    projections=_self_attention,
    dropout=lambda x: x.self_attn.attention_dropout,
    before_attention=lambda x, states: x.input_layernorm(states),
    after_attention=lambda x, context, residual: residual + x.self_attn.o_proj(context),
    feed_forward=lambda x, state: state + x.mlp(x.post_attention_layernorm(state)),
    final_norm=lambda base, states: base.norm(states),
    rotary=_rotary,
    sizes=_eurobert_sizes,
    note=Note("EuroBERT 210m to 2.1B", ROTARY),
)


def _gte_like(name: str, note: Note, *, gated: bool) -> Family:
    return Family(
        name=name,
        layers=lambda base: base.layers,
        projections=_self_attention,
        dropout=lambda x: x.self_attn.attention_dropout,
        after_attention=lambda x, context, residual: x.post_attention_layernorm(
            residual + x.post_attention_dropout(x.self_attn.o_proj(context))
        ),
        feed_forward=lambda x, state: x.post_mlp_layernorm(
            state + x.post_mlp_dropout(x.mlp(state))
        ),
        rotary=_rotary,
        sizes=lambda c: replace(
            bert_sizes(c), head_width=getattr(c, "head_dim", None), gated=gated
        ),
        note=note,
    )


GTE = _gte_like(
    "gte",
    Note("GTE multilingual in its copy of type `gte`; type `new` is code from the hub", ROTARY),
    gated=True,
)
NOMIC_BERT = _gte_like("nomic_bert", Note("nomic-embed-text v1 and v1.5", ROTARY), gated=True)
JINA_V3 = _gte_like(
    "jina_embeddings_v3", Note("jina-embeddings-v3-hf, without its adapters", ROTARY), gated=False
)
