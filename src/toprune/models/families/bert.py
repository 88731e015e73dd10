"""BERT and the families that are built like it: RoBERTa, XLM-R, ELECTRA, CamemBERT, DistilBERT,
ALBERT (the same layers at several depths) and MPNet (a bias by relative position)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toprune.models.families.family import ADDED, Base, CuttableParts, Family, Layer, Note
from toprune.models.shape import shape_of
from toprune.plan.cost import Sizes


def bert_like(name: str, **overrides: Any) -> Family:
    """Make a family that keeps its parts where BERT does, except for the `overrides`."""
    bert = {
        "layers": lambda base: base.encoder.layer,
        "projections": lambda x: (
            x.attention.self.query,
            x.attention.self.key,
            x.attention.self.value,
        ),
        "dropout": lambda x: x.attention.self.dropout.p,
        "after_attention": lambda x, context, residual: x.attention.output(context, residual),
        "feed_forward": lambda x, state: x.output(x.intermediate(state), state),
        "sizes": bert_sizes,
    }
    return Family(name=name, **(bert | overrides))


def bert_sizes(config: Any) -> Sizes:
    """Read the numbers that decide the cost from a config with BERT's names."""
    embedding = getattr(config, "embedding_size", config.hidden_size)
    sizes = Sizes(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        entry=0 if embedding == config.hidden_size else embedding * config.hidden_size,
    )
    shape = shape_of(config)
    if shape is None:
        return sizes
    each = tuple(zip(shape.heads, shape.inner, strict=True))
    return replace(sizes, width=shape.hidden, head_width=sizes.head_size, slim=each)


def _head_input(model: Any) -> Any:
    pooler = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        return pooler.dense
    head = getattr(model, "classifier", getattr(model, "qa_outputs", None))
    return getattr(head, "dense", head)


_PARTS = CuttableParts(
    attention_output=lambda x: x.attention.output.dense,
    up=lambda x: x.intermediate.dense,
    down=lambda x: x.output.dense,
    norms=lambda x: (x.attention.output.LayerNorm, x.output.LayerNorm),
    embeddings=lambda base: (
        base.embeddings.word_embeddings,
        base.embeddings.position_embeddings,
        base.embeddings.token_type_embeddings,
    ),
    embedding_norm=lambda base: base.embeddings.LayerNorm,
    head_input=_head_input,
)


def _after_padding(config: Any) -> int:
    """RoBERTa's position table starts behind the row of the padding token."""
    return config.max_position_embeddings - config.pad_token_id - 1


BERT = bert_like(
    "bert",
    parts=_PARTS,
    note=Note(
        "BERT, MiniLM, BGE, E5, GTE v1, mxbai-embed, Arctic-embed, LaBSE, SciBERT, FinBERT, "
        "the MS MARCO MiniLM rerankers",
        ADDED,
    ),
)
ROBERTA = bert_like(
    "roberta",
    max_positions=_after_padding,
    parts=_PARTS,
    note=Note("RoBERTa, DistilRoBERTa, CodeBERT, Twitter-RoBERTa", ADDED),
)
XLM_ROBERTA = bert_like(
    "xlm-roberta",
    max_positions=_after_padding,
    parts=_PARTS,
    note=Note(
        "XLM-R, multilingual E5 base and large, BGE-M3, the BGE rerankers, Arctic-embed-l v2",
        ADDED,
    ),
)
ELECTRA = bert_like(
    "electra",
    parts=_PARTS,
    note=Note("ELECTRA, KoELECTRA, the MS MARCO ELECTRA reranker", ADDED),
)
CAMEMBERT = bert_like(
    "camembert",
    max_positions=_after_padding,
    parts=_PARTS,
    note=Note("CamemBERT and its sentence encoders", ADDED),
)
DISTILBERT = Family(
    name="distilbert",
    layers=lambda base: base.transformer.layer,
    projections=lambda x: (x.attention.q_lin, x.attention.k_lin, x.attention.v_lin),
    dropout=lambda x: x.attention.dropout.p,
    after_attention=lambda x, context, residual: x.sa_layer_norm(
        x.attention.out_lin(context) + residual
    ),
    feed_forward=lambda x, state: x.output_layer_norm(x.ffn(state) + state),
    sizes=lambda c: Sizes(layers=c.n_layers, width=c.dim, heads=c.n_heads, inner=c.hidden_dim),
    note=Note("DistilBERT, the MS MARCO DistilBERT encoders", ADDED),
)


def _albert_layers(base: Base) -> list[Layer]:
    config, groups = base.config, base.encoder.albert_layer_groups
    depths_per_group = config.num_hidden_layers / config.num_hidden_groups
    return [
        layer
        for depth in range(config.num_hidden_layers)
        for layer in groups[int(depth / depths_per_group)].albert_layers
    ]


ALBERT = bert_like(
    "albert",
    layers=_albert_layers,
    projections=lambda x: (x.attention.query, x.attention.key, x.attention.value),
    dropout=lambda x: x.attention.attention_dropout.p,
    after_attention=lambda x, context, residual: x.attention.LayerNorm(
        residual + x.attention.output_dropout(x.attention.dense(context))
    ),
    feed_forward=lambda x, state: x.full_layer_layer_norm(x.ff_chunk(state) + state),
    sizes=lambda c: replace(bert_sizes(c), layers=c.num_hidden_layers * c.inner_group_num),
    note=Note("ALBERT v1 and v2", f"{ADDED}; one layer at many depths, a step for each depth"),
)


def _mpnet_tables(base: Base, _: Layer) -> Tensor:
    """(H, 2 P - 1): the bias of every distance from 1 - P to P - 1."""
    size = base.config.max_position_embeddings
    distances = torch.arange(1 - size, size, device=base.device)
    buckets = base.encoder.relative_position_bucket(distances)
    return base.encoder.relative_attention_bias(buckets).T


def _mpnet_bias(
    table: Tensor, _: Layer, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> Tensor:
    distances = k_positions.unsqueeze(1) - q_positions.unsqueeze(2)  # (B, Q, K)
    return table[:, distances + table.shape[1] // 2].transpose(0, 1)


MPNET = bert_like(
    "mpnet",
    projections=lambda x: (x.attention.attn.q, x.attention.attn.k, x.attention.attn.v),
    dropout=lambda x: x.attention.attn.dropout.p,
    after_attention=lambda x, context, residual: x.attention.LayerNorm(
        x.attention.dropout(x.attention.attn.o(context)) + residual
    ),
    bias=_mpnet_bias,
    tables=_mpnet_tables,
    layer_output=lambda state: (state,),
    max_positions=lambda c: c.max_position_embeddings - 2,  # whatever its padding token is
    note=Note(
        "MPNet, all-mpnet-base-v2, multi-qa-mpnet, many SetFit models",
        f"{ADDED}; and a bias by the distance of the original indices",
    ),
)
