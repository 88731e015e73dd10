"""The only file that knows Hugging Face architectures: where the parts of a layer are.

A family is data: the three projections, what follows attention, the feed-forward part, and for some
what positions do inside attention. The layer body itself is ours and the same for all
(`attachment.py`), which is what lets a layer compute only the rows somebody reads, weigh keys while
learning, and take scores before dropout. `docs/add-a-family.md` adds one from start to end.

Shapes: B batch, Q queries, K keys, H heads, d width of a head. `where` (B, K) is the original
position of every row: after a drop, neighbours in memory are not neighbours in the text.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toprune.errors import UserError
from toprune.models.slim import Parts, shape_of
from toprune.plan.cost import Sizes

Base = Any  # a Hugging Face base model
Layer = Any  # one of its layers: its attributes are what a Family describes
Projection = Any  # a module or a `Part` of one: callable, with `weight` and `bias`

FAR = -1e30  # what keeps a key out of a local window; finite, so that no row is without a number


@dataclass(frozen=True)
class Family:
    name: str
    layers: Callable[[Base], Sequence[Layer]]  # by depth; a shared one appears once for each
    projections: Callable[[Layer], tuple[Projection, Projection, Projection]]  # query, key, value
    dropout: Callable[[Layer], float]  # of attention probabilities
    after_attention: Callable[[Layer, Tensor, Tensor], Tensor]  # (context, residual) -> state
    feed_forward: Callable[[Layer, Tensor], Tensor]
    sizes: Callable[[Any], Sizes]
    before_attention: Callable[[Layer, Tensor], Tensor] = lambda _, x: x  # pre-norm
    at_the_end: Callable[[Base, Tensor], Tensor] = lambda _, x: x  # a norm after the last layer
    returns: Callable[[Tensor], Any] = lambda state: state  # what the stock loop expects of a layer
    # cos and sin, (B, K, d) each, of a layer's rotary positions: (base, layer, where)
    rotary: Callable[[Base, Layer, Tensor], tuple[Tensor, Tensor]] | None = None
    # added to the logits, (B, H or 1, Q, K): (tables, layer, scaled q, k, where of q, where of k)
    bias: Callable[[Any, Layer, Tensor, Tensor, Tensor, Tensor], Tensor | None] | None = None
    tables: Callable[[Base, Layer], Any] = lambda base, _: base  # for `bias`: what no input changes
    scale: Callable[[Layer, int], float] = lambda _, d: d**-0.5  # of logits
    convolution: "Convolution | None" = None  # beside the first layer
    positions: Callable[[Any], int] = lambda config: config.max_position_embeddings  # that fit
    images: bool = False  # pixel_values in place of input_ids
    parts: Parts | None = None  # of models whose weights can be cut out
    since: str = "0.1"


@dataclass(frozen=True)
class Convolution:
    """What reads neighbours in the text, and so must see all of it before any token leaves."""

    module: Callable[[Base], Any]  # None in a model that has none
    part: Callable[[Any, Tensor, Tensor], Tensor]  # (module, embeddings (B, S, D), alive (B, S))
    blend: Callable[[Any, Tensor, Tensor], Tensor]  # (module, states, their rows of the part)


@dataclass(frozen=True)
class Part:
    """Some rows of a fused projection, used like a projection of its own."""

    fused: Any
    first: int
    last: int

    @property
    def weight(self) -> Tensor:
        return self.fused.weight[self.first : self.last]

    @property
    def bias(self) -> Tensor | None:
        bias = self.fused.bias
        return None if bias is None else bias[self.first : self.last]

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


# -- BERT and those that are built like it -------------------------------------------------------


def _bert(name: str, **own: Any) -> Family:
    return Family(
        **{
            "name": name,
            "layers": lambda base: base.encoder.layer,
            "projections": lambda x: (
                x.attention.self.query,
                x.attention.self.key,
                x.attention.self.value,
            ),
            "dropout": lambda x: x.attention.self.dropout.p,
            "after_attention": lambda x, context, residual: x.attention.output(context, residual),
            "feed_forward": lambda x, state: x.output(x.intermediate(state), state),
            "sizes": _bert_sizes,
            **own,
        }
    )


def _bert_sizes(config: Any) -> Sizes:
    inside = getattr(config, "embedding_size", config.hidden_size)
    sizes = Sizes(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        entry=0 if inside == config.hidden_size else inside * config.hidden_size,
    )
    shape = shape_of(config)
    if shape is None:
        return sizes
    each = tuple(zip(shape.heads, shape.inner, strict=True))
    return replace(sizes, width=shape.hidden, head_width=sizes.head_size, slim=each)


def _bert_reader(model: Any) -> Any:
    pooler = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        return pooler.dense
    head = getattr(model, "classifier", getattr(model, "qa_outputs", None))
    return getattr(head, "dense", head)


_BERT_PARTS = Parts(
    mixed=lambda x: x.attention.output.dense,
    grown=lambda x: x.intermediate.dense,
    fed=lambda x: x.output.dense,
    norms=lambda x: (x.attention.output.LayerNorm, x.output.LayerNorm),
    tables=lambda base: (
        base.embeddings.word_embeddings,
        base.embeddings.position_embeddings,
        base.embeddings.token_type_embeddings,
    ),
    entry=lambda base: base.embeddings.LayerNorm,
    reader=_bert_reader,
)


def _after_padding(config: Any) -> int:
    """RoBERTa's position table starts behind the row of the padding token."""
    return config.max_position_embeddings - config.pad_token_id - 1


_DISTILBERT = Family(
    name="distilbert",
    layers=lambda base: base.transformer.layer,
    projections=lambda x: (x.attention.q_lin, x.attention.k_lin, x.attention.v_lin),
    dropout=lambda x: x.attention.dropout.p,
    after_attention=lambda x, context, residual: x.sa_layer_norm(
        x.attention.out_lin(context) + residual
    ),
    feed_forward=lambda x, state: x.output_layer_norm(x.ffn(state) + state),
    sizes=lambda c: Sizes(layers=c.n_layers, width=c.dim, heads=c.n_heads, inner=c.hidden_dim),
)


# -- ALBERT: the same layers at several depths ---------------------------------------------------


def _albert_layers(base: Base) -> list[Layer]:
    config, groups = base.config, base.encoder.albert_layer_groups
    each = config.num_hidden_layers / config.num_hidden_groups
    return [
        layer
        for depth in range(config.num_hidden_layers)
        for layer in groups[int(depth / each)].albert_layers
    ]


_ALBERT = _bert(
    "albert",
    layers=_albert_layers,
    projections=lambda x: (x.attention.query, x.attention.key, x.attention.value),
    dropout=lambda x: x.attention.attention_dropout.p,
    after_attention=lambda x, context, residual: x.attention.LayerNorm(
        residual + x.attention.output_dropout(x.attention.dense(context))
    ),
    feed_forward=lambda x, state: x.full_layer_layer_norm(x.ff_chunk(state) + state),
    sizes=lambda c: replace(_bert_sizes(c), layers=c.num_hidden_layers * c.inner_group_num),
)


# -- MPNet: a bias by relative position, the same in every layer ---------------------------------


def _mpnet_tables(base: Base, _: Layer) -> Tensor:
    """(H, 2 P - 1): the bias of every distance from 1 - P to P - 1."""
    most = base.config.max_position_embeddings
    apart = torch.arange(1 - most, most, device=base.device)
    buckets = base.encoder.relative_position_bucket(apart)
    return base.encoder.relative_attention_bias(buckets).T


def _mpnet_bias(
    table: Tensor, _: Layer, q: Tensor, k: Tensor, where_q: Tensor, where_k: Tensor
) -> Tensor:
    apart = where_k.unsqueeze(1) - where_q.unsqueeze(2)  # (B, Q, K)
    return table[:, apart + table.shape[1] // 2].transpose(0, 1)


_MPNET = _bert(
    "mpnet",
    projections=lambda x: (x.attention.attn.q, x.attention.attn.k, x.attention.attn.v),
    dropout=lambda x: x.attention.attn.dropout.p,
    after_attention=lambda x, context, residual: x.attention.LayerNorm(
        x.attention.dropout(x.attention.attn.o(context)) + residual
    ),
    bias=_mpnet_bias,
    tables=_mpnet_tables,
    returns=lambda state: (state,),
    positions=lambda c: c.max_position_embeddings - 2,  # whatever its padding token is
)


# -- DeBERTa v2 and v3: content meets relative positions, both ways ------------------------------


def _deberta_tables(base: Base, layer: Layer) -> tuple[Tensor | None, Tensor | None]:
    """Keys and queries (H, d, P) of the P relative positions, those with the scale of the logits;
    None of a kind that the model does without."""
    own = layer.attention.self
    if not own.relative_attention:
        return None, None
    table = own.pos_dropout(base.encoder.get_rel_embedding()[: 2 * own.pos_ebd_size])  # (P, D)

    def by_head(projection: Any) -> Tensor:
        return projection(table).unflatten(-1, (own.num_attention_heads, -1)).permute(1, 2, 0)

    keys = queries = None
    if "c2p" in own.pos_att_type:
        keys = by_head(own.key_proj if own.share_att_key else own.pos_key_proj)
    if "p2c" in own.pos_att_type:
        queries = by_head(own.query_proj if own.share_att_key else own.pos_query_proj)
        queries = queries * _deberta_scale(layer, own.attention_head_size)
    return keys, queries


def _deberta_bias(
    tables: tuple[Tensor | None, Tensor | None],
    layer: Layer,
    q: Tensor,
    k: Tensor,
    where_q: Tensor,
    where_k: Tensor,
) -> Tensor | None:
    keys, queries = tables
    if keys is None and queries is None:
        return None
    own = layer.attention.self
    span, heads = own.pos_ebd_size, own.num_attention_heads
    apart = where_q.unsqueeze(2) - where_k.unsqueeze(1)  # (B, Q, K)
    if own.position_buckets > 0:
        apart = _log_buckets(apart, own.position_buckets, own.max_relative_positions)
    at = (apart + span).clamp(0, 2 * span - 1).unsqueeze(1)  # (B, 1, Q, K)
    found = None
    if keys is not None:  # content to position
        found = (q @ keys).gather(-1, at.expand(-1, heads, -1, -1))
    if queries is not None:  # position to content: (B, H, K, P), then by (Q, K)
        other = (
            (k @ queries)
            .gather(-1, at.transpose(-1, -2).expand(-1, heads, -1, -1))
            .transpose(-1, -2)
        )
        found = other if found is None else found + other
    return found


def _log_buckets(apart: Tensor, size: int, most: int) -> Tensor:
    """Distances as they are up to half the buckets, logarithmic beyond."""
    middle = size // 2
    near = (apart < middle) & (apart > -middle)
    distance = torch.where(near, middle - 1, apart.abs())
    ratio = torch.log(distance / middle) / math.log((most - 1) / middle)
    far = torch.ceil(ratio * (middle - 1)) + middle
    return torch.where(distance <= middle, apart, (far * apart.sign()).long())


def _deberta_scale(layer: Layer, d: int) -> float:
    kinds = sum(kind in layer.attention.self.pos_att_type for kind in ("c2p", "p2c"))
    return (d * (1 + kinds)) ** -0.5


def _deberta_sizes(config: Any) -> Sizes:
    sizes = _bert_sizes(config)
    kernel, groups = getattr(config, "conv_kernel_size", 0), getattr(config, "conv_groups", 1)
    entry = sizes.entry + kernel * config.hidden_size**2 // groups
    if not config.relative_attention:
        return replace(sizes, entry=entry)
    most = config.max_relative_positions
    most = config.max_position_embeddings if most < 1 else most
    buckets = getattr(config, "position_buckets", -1)
    places, kinds = 2 * (buckets if buckets > 0 else most), config.pos_att_type or ()
    return replace(
        sizes,
        relative=places if "c2p" in kinds else 0,
        relative_keys=places if "p2c" in kinds else 0,
        entry=entry,
    )


def _deberta_convolved(conv: Any, states: Tensor, alive: Tensor) -> Tensor:
    """(B, S, D) from the embeddings; padding is zero there already."""
    out = conv.conv(states.transpose(1, 2)).transpose(1, 2)
    out = out * alive.unsqueeze(-1).to(out.dtype)
    return _activation(conv.conv_act)(conv.dropout(out))


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    return ACT2FN[name]


_DEBERTA = _bert(
    "deberta-v2",
    projections=lambda x: (
        x.attention.self.query_proj,
        x.attention.self.key_proj,
        x.attention.self.value_proj,
    ),
    sizes=_deberta_sizes,
    bias=_deberta_bias,
    tables=_deberta_tables,
    scale=_deberta_scale,
    returns=lambda state: (state, None),
    convolution=Convolution(
        module=lambda base: base.encoder.conv,
        part=_deberta_convolved,
        blend=lambda conv, states, part: conv.LayerNorm(states + part),
    ),
)


# -- Rotary positions: ModernBERT, EuroBERT, GTE, Nomic-BERT, Jina v3 ----------------------------


def _rotary(base: Base, _: Layer, where: Tensor) -> tuple[Tensor, Tensor]:
    return base.rotary_emb(_like(base), where)


def _like(base: Base) -> Tensor:
    """A tensor of the model's type and place, which is all that a rotary table asks of states."""
    return next(base.parameters())


def _modernbert_bias(
    _: Any, layer: Layer, q: Tensor, k: Tensor, where_q: Tensor, where_k: Tensor
) -> Tensor | None:
    """Local layers see a window of the *text*, however few tokens of it are left."""
    if layer.attention_type != "sliding_attention":
        return None
    apart = (where_q.unsqueeze(2) - where_k.unsqueeze(1)).abs()
    near = apart <= layer.config.sliding_window
    return torch.where(near, 0.0, FAR).to(q.dtype).unsqueeze(1)


def _thirds(fused: Any) -> tuple[Part, Part, Part]:
    d = fused.weight.shape[0] // 3
    return Part(fused, 0, d), Part(fused, d, 2 * d), Part(fused, 2 * d, 3 * d)


_MODERNBERT = Family(
    name="modernbert",
    layers=lambda base: base.layers,
    projections=lambda x: _thirds(x.attn.Wqkv),
    dropout=lambda x: x.attn.attention_dropout,
    before_attention=lambda x, states: x.attn_norm(states),
    after_attention=lambda x, context, residual: residual + x.attn.out_drop(x.attn.Wo(context)),
    feed_forward=lambda x, state: state + x.mlp(x.mlp_norm(state)),
    at_the_end=lambda base, states: base.final_norm(states),
    rotary=lambda base, x, where: base.rotary_emb(_like(base), where, x.attention_type),
    bias=_modernbert_bias,
    sizes=lambda c: replace(_bert_sizes(c), gated=True),
)


def _projected(x: Layer) -> tuple[Projection, Projection, Projection]:
    return x.self_attn.q_proj, x.self_attn.k_proj, x.self_attn.v_proj


def _eurobert_sizes(config: Any) -> Sizes:
    return replace(
        _bert_sizes(config),
        head_width=getattr(config, "head_dim", None),
        key_heads=config.num_key_value_heads,
        gated=True,
    )


_EUROBERT = Family(
    name="eurobert",
    layers=lambda base: base.layers,
    projections=_projected,
    dropout=lambda x: x.self_attn.attention_dropout,
    before_attention=lambda x, states: x.input_layernorm(states),
    after_attention=lambda x, context, residual: residual + x.self_attn.o_proj(context),
    feed_forward=lambda x, state: state + x.mlp(x.post_attention_layernorm(state)),
    at_the_end=lambda base, states: base.norm(states),
    rotary=_rotary,
    sizes=_eurobert_sizes,
)


def _gte(name: str, *, gated: bool) -> Family:
    return Family(
        name=name,
        layers=lambda base: base.layers,
        projections=_projected,
        dropout=lambda x: x.self_attn.attention_dropout,
        after_attention=lambda x, context, residual: x.post_attention_layernorm(
            residual + x.post_attention_dropout(x.self_attn.o_proj(context))
        ),
        feed_forward=lambda x, state: x.post_mlp_layernorm(
            state + x.post_mlp_dropout(x.mlp(state))
        ),
        rotary=_rotary,
        sizes=lambda c: replace(
            _bert_sizes(c), head_width=getattr(c, "head_dim", None), gated=gated
        ),
    )


# -- ViT: patches are tokens ---------------------------------------------------------------------


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def patches(config: Any, height: int, width: int) -> int:
    high, wide = _pair(config.patch_size)
    return (height // high) * (width // wide)


def image_shape(config: Any) -> tuple[int, int, int]:
    """(channels, height, width)"""
    return (config.num_channels, *_pair(config.image_size))


def _vit_sizes(config: Any) -> Sizes:
    high, wide = _pair(config.patch_size)
    read = config.num_channels * high * wide * config.hidden_size  # by a convolution
    return replace(_bert_sizes(config), entry=read, free=1)


_VIT = Family(
    name="vit",
    layers=lambda base: base.layers,
    projections=lambda x: (x.attention.q_proj, x.attention.k_proj, x.attention.v_proj),
    dropout=lambda x: x.attention.attention_dropout,
    before_attention=lambda x, states: x.layernorm_before(states),
    after_attention=lambda x, context, residual: residual + x.dropout(x.attention.o_proj(context)),
    feed_forward=lambda x, state: state + x.dropout(x.mlp(x.layernorm_after(state))),
    at_the_end=lambda base, states: base.layernorm(states),
    sizes=_vit_sizes,
    positions=lambda c: patches(c, *_pair(c.image_size)) + 1,
    images=True,
)


# by config.model_type; MiniLM, BGE, E5 and most rerankers are of type "bert" or "xlm-roberta"
FAMILIES = {
    family.name: family
    for family in (
        _bert("bert", parts=_BERT_PARTS),
        _bert("roberta", positions=_after_padding, parts=_BERT_PARTS),
        _bert("xlm-roberta", positions=_after_padding, parts=_BERT_PARTS),
        _bert("electra", parts=_BERT_PARTS),
        _DISTILBERT,
        _bert("camembert", positions=_after_padding, parts=_BERT_PARTS),
        _ALBERT,
        _MPNET,
        _DEBERTA,
        _MODERNBERT,
        _EUROBERT,
        _gte("gte", gated=True),
        _gte("nomic_bert", gated=True),
        _gte("jina_embeddings_v3", gated=False),
        _VIT,
    )
}


def family_of(model: Any) -> Family:
    """The family of a transformers model, or one line that lists those we know."""
    family = family_named(model.config)
    if getattr(model.config, "is_decoder", False):
        raise UserError("this model is a decoder; toprune prunes encoders (is_decoder=False)")
    return family


def family_named(config: Any) -> Family:
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UserError(
            f"architecture '{config.model_type}' is not known; supported: {', '.join(FAMILIES)} "
            "(docs/add-a-family.md says how to add one)"
        )
    return family


def keep_layers(model: Any, kept: Sequence[int]) -> None:
    """Take the other layers out of the model, for good: an ordinary, shallower one is left."""
    family, config = family_of(model), model.config
    layers = list(family.layers(model.base_model))
    if len({id(layer) for layer in layers}) < len(layers):
        raise UserError(f"{family.name} computes one layer many times; there is none to take out")
    holders = (m for m in model.base_model.modules() if isinstance(m, torch.nn.ModuleList))
    holder = next(m for m in holders if len(m) == len(layers) and m[0] is layers[0])
    for i in reversed(range(len(layers))):
        if i not in kept:
            del holder[i]
    shape = shape_of(config)
    config.num_hidden_layers = len(kept)
    if shape is not None:
        shape.of_layers(kept).write(config)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [config.layer_types[i] for i in kept]


def sizes_of(model: Any) -> Sizes:
    return family_of(model).sizes(model.config)


def max_positions(config: Any) -> int:
    """Tokens that fit the position table."""
    return family_named(config).positions(config)


def has_segments(config: Any) -> bool:
    """Does the model take `token_type_ids` that differ?"""
    return getattr(config, "type_vocab_size", 0) > 1


def pools_all(config: Any) -> bool:
    """Does the head for a whole text read every token, in place of the first one?"""
    return getattr(config, "classifier_pooling", None) in ("mean", "late")


def reads_every_token(model: Any) -> bool:
    """Of a model with a head. A bare encoder: what is done with its rows is the caller's affair."""
    kind = type(model).__name__
    if kind.endswith("ForSequenceClassification"):
        return pools_all(model.config)
    return kind.endswith(("ForQuestionAnswering", "ForTokenClassification"))


# -- What people should know of each; `support.py` says for which tasks ---------------------------


@dataclass(frozen=True)
class Note:
    models: str  # of this family, though many of their names do not say so
    positions: str  # where they are, and so what they do after a drop


_ADDED = "added to the embeddings, before any token leaves"
_TURNED = "rotary: queries and keys turn by the original index, also after a drop"

NOTES = {
    "bert": Note(
        "BERT, MiniLM, BGE, E5, GTE v1, mxbai-embed, Arctic-embed, LaBSE, SciBERT, FinBERT, "
        "the MS MARCO MiniLM rerankers",
        _ADDED,
    ),
    "roberta": Note("RoBERTa, DistilRoBERTa, CodeBERT, Twitter-RoBERTa", _ADDED),
    "xlm-roberta": Note(
        "XLM-R, multilingual E5 base and large, BGE-M3, the BGE rerankers, Arctic-embed-l v2",
        _ADDED,
    ),
    "electra": Note("ELECTRA, KoELECTRA, the MS MARCO ELECTRA reranker", _ADDED),
    "distilbert": Note("DistilBERT, the MS MARCO DistilBERT encoders", _ADDED),
    "camembert": Note("CamemBERT and its sentence encoders", _ADDED),
    "albert": Note(
        "ALBERT v1 and v2", f"{_ADDED}; one layer at many depths, a step for each depth"
    ),
    "mpnet": Note(
        "MPNet, all-mpnet-base-v2, multi-qa-mpnet, many SetFit models",
        f"{_ADDED}; and a bias by the distance of the original indices",
    ),
    "deberta-v2": Note(
        "DeBERTa v2 and v3, mDeBERTa v3, mxbai-rerank v1, most zero-shot NLI models",
        "disentangled: content meets the distance of the original indices; the convolution of the "
        "large models reads all tokens, whoever leaves in its layer",
    ),
    "modernbert": Note(
        "ModernBERT, GTE-ModernBERT, modernbert-embed, mmBERT, Ettin encoders, Granite-embedding "
        "English R2",
        f"{_TURNED}; local layers see a window of the text, not of what is left",
    ),
    "eurobert": Note("EuroBERT 210m to 2.1B", _TURNED),
    "gte": Note(
        "GTE multilingual in its copy of type `gte`; type `new` is code from the hub", _TURNED
    ),
    "nomic_bert": Note("nomic-embed-text v1 and v1.5", _TURNED),
    "jina_embeddings_v3": Note("jina-embeddings-v3-hf, without its adapters", _TURNED),
    "vit": Note("ViT, DINO v1; images: every patch is a token", _ADDED),
}
