"""The only file that knows Hugging Face architectures: where the parts of a layer are.

A family is data: the three projections, what follows attention, the feed-forward part. The layer
body itself is ours and the same for all (`attachment.py`), which is what lets a layer compute only
the rows somebody reads, weigh keys while learning, and take scores before dropout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from toprune.cost import Sizes
from toprune.errors import UserError

Layer = Any  # a Hugging Face layer module: its attributes are what a Family describes


@dataclass(frozen=True)
class Family:
    name: str
    layers: Callable[[Any], nn.ModuleList]  # of the base model
    projections: Callable[[Layer], tuple[nn.Module, nn.Module, nn.Module]]  # query, key, value
    dropout: Callable[[Layer], float]  # of attention probabilities
    after_attention: Callable[[Layer, Tensor, Tensor], Tensor]  # (context, residual) -> state
    feed_forward: Callable[[Layer, Tensor], Tensor]
    sizes: Callable[[Any], Sizes]


def _bert(name: str) -> Family:
    return Family(
        name=name,
        layers=lambda base: base.encoder.layer,
        projections=lambda x: (
            x.attention.self.query,
            x.attention.self.key,
            x.attention.self.value,
        ),
        dropout=lambda x: x.attention.self.dropout.p,
        after_attention=lambda x, context, residual: x.attention.output(context, residual),
        feed_forward=lambda x, state: x.output(x.intermediate(state), state),
        sizes=lambda c: Sizes(
            layers=c.num_hidden_layers,
            width=c.hidden_size,
            heads=c.num_attention_heads,
            inner=c.intermediate_size,
        ),
    )


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

# by config.model_type; MiniLM, BGE, E5 and most rerankers are of type "bert" or "xlm-roberta"
FAMILIES = {name: _bert(name) for name in ("bert", "roberta", "xlm-roberta", "electra")} | {
    "distilbert": _DISTILBERT
}


def family_of(model: Any) -> Family:
    """The family of a transformers model, or one line that lists those we know."""
    config = model.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UserError(
            f"architecture '{config.model_type}' is not known; supported: {', '.join(FAMILIES)}"
            " (to add one: src/toprune/families.py)"
        )
    if getattr(config, "is_decoder", False):
        raise UserError("this model is a decoder; toprune prunes encoders (is_decoder=False)")
    return family


def sizes_of(model: Any) -> Sizes:
    return family_of(model).sizes(model.config)


def max_positions(config: Any) -> int:
    """Tokens that fit the position table; RoBERTa's starts at padding_idx + 1."""
    offset = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0
    return config.max_position_embeddings - offset


def has_segments(config: Any) -> bool:
    """Does the model take `token_type_ids` that differ?"""
    return getattr(config, "type_vocab_size", 0) > 1
