"""What a family is: where Hugging Face's code keeps the parts of one encoder layer.

A family is data: the three projections, what follows attention, the feed-forward part and, for some
families, what positions do inside attention. The layer body itself is ours and the same for all
families (`pruning/execution.py`). That body can compute only the rows that are read, weigh keys
while learning, and score tokens before dropout. `docs/add-a-family.md` adds a family step by step.

Shapes: B batch, Q queries, K keys, H heads, d width of a head. `positions` (B, K) are the original
positions of the rows: after a drop, neighbours in memory are not neighbours in the text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from toprune.plan.cost import Sizes

Base = Any  # a Hugging Face base model
Layer = Any  # one of its layers: its attributes are what a Family describes
Linear = Any  # an nn.Linear, whose weight and bias can be replaced
Projection = Any  # a module or a `Part` of one: callable, with `weight` and `bias`


@dataclass(frozen=True)
class Note:
    """What people should know about a family; see `docs/families.md`."""

    models: str  # well-known models of this family, many of which have other names
    positions: str  # where positions enter, and so what happens to them after a drop


ADDED = "added to the embeddings, before any token leaves"
ROTARY = "rotary: queries and keys turn by the original index, also after a drop"


@dataclass(frozen=True)
class Convolution:
    """A module that reads neighbours in the text, and so must see all tokens before any leaves."""

    module: Callable[[Base], Any]  # None in a model that has none
    part: Callable[[Any, Tensor, Tensor], Tensor]  # (module, embeddings (B, S, D), alive (B, S))
    blend: Callable[[Any, Tensor, Tensor], Tensor]  # (module, states, their rows of the part)


@dataclass(frozen=True)
class CuttableParts:
    """Where a family keeps what `slim.py` can cut, beside the projections of its attention."""

    attention_output: Callable[[Layer], Linear]  # from the heads back to the states
    up: Callable[[Layer], Linear]  # from the states to the inner columns of the FFN
    down: Callable[[Layer], Linear]  # and back
    norms: Callable[[Layer], tuple[nn.LayerNorm, nn.LayerNorm]]  # after attention, after the FFN
    embeddings: Callable[[Base], Sequence[nn.Embedding]]  # tables whose rows are added up
    embedding_norm: Callable[[Base], nn.LayerNorm]
    head_input: Callable[[Any], Linear | None]  # the head's first matrix; None of a bare encoder


@dataclass(frozen=True)
class Family:
    """An architecture of transformers, named by the `model_type` of its config."""

    name: str
    layers: Callable[[Base], Sequence[Layer]]  # by depth; a shared layer appears at each depth
    projections: Callable[[Layer], tuple[Projection, Projection, Projection]]  # query, key, value
    dropout: Callable[[Layer], float]  # of attention probabilities
    after_attention: Callable[[Layer, Tensor, Tensor], Tensor]  # (context, residual) -> state
    feed_forward: Callable[[Layer, Tensor], Tensor]
    sizes: Callable[[Any], Sizes]
    note: Note
    before_attention: Callable[[Layer, Tensor], Tensor] = lambda _, x: x  # pre-norm
    final_norm: Callable[[Base, Tensor], Tensor] = lambda _, x: x  # after the last layer
    layer_output: Callable[[Tensor], Any] = lambda state: state  # as the stock loop expects it
    # cos and sin, (B, K, d) each, of a layer's rotary positions: (base, layer, positions)
    rotary: Callable[[Base, Layer, Tensor], tuple[Tensor, Tensor]] | None = None
    # added to the logits, (B, H or 1, Q, K):
    # (tables, layer, scaled q, k, positions of q, positions of k)
    bias: Callable[[Any, Layer, Tensor, Tensor, Tensor, Tensor], Tensor | None] | None = None
    tables: Callable[[Base, Layer], Any] = lambda base, _: base  # what `bias` reads of the weights
    scale: Callable[[Layer, int], float] = lambda _, d: d**-0.5  # of logits
    convolution: Convolution | None = None  # beside the first layer
    max_positions: Callable[[Any], int] = lambda config: config.max_position_embeddings
    images: bool = False  # the model reads pixel_values in place of input_ids
    parts: CuttableParts | None = None  # only of models whose weights can be cut
    since: str = "0.1"


@dataclass(frozen=True)
class Part:
    """Some rows of a fused projection, used like a separate projection."""

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
