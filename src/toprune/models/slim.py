"""Cut layers, heads, FFN columns and state columns out of a model, for good.

A slim model is built as the stock one, its modules are cut to the `Shape` in its config, and then
its weights are loaded. What runs is the stock architecture's code: it counts heads by the matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from toprune.errors import UserError
from toprune.models.families import FAMILIES, Family, family_of
from toprune.models.families.family import CuttableParts, Linear
from toprune.models.shape import Shape, shape_of


@dataclass(frozen=True)
class Kept:
    """Which layers, numbers, heads and columns stay, by their index."""

    layers: Sequence[int]
    hidden: Sequence[int]
    heads: Sequence[Sequence[int]]  # of each layer that stays
    inner: Sequence[Sequence[int]]


def keep_layers(model: Any, kept: Sequence[int]) -> None:
    """Take the other layers out of the model: an ordinary, shallower one is left.

    Args:
        model: a transformers model, changed in place with its config.
        kept: indices of the layers that stay, in order.
    """
    family, config = family_of(model), model.config
    layers = list(family.layers(model.base_model))
    if len({id(layer) for layer in layers}) < len(layers):
        raise UserError(f"{family.name} computes one layer many times; there is none to take out")
    holders = (m for m in model.base_model.modules() if isinstance(m, nn.ModuleList))
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


def parts_of(model: Any, family: Family) -> CuttableParts:
    """Return where the parts that can be cut are; refuse models that have no such parts."""
    if family.parts is None or hasattr(model.base_model, "embeddings_project"):
        known = ", ".join(name for name, other in FAMILIES.items() if other.parts is not None)
        raise UserError(
            f"weights of {family.name} models like this one cannot be cut out; those of {known} "
            "can (electra: where embeddings are as wide as states)"
        )
    return family.parts


def cut(model: Any, family: Family, kept: Kept) -> None:
    """Take everything else out of the layers that are left, and write the shape to the config."""
    parts, base, config = parts_of(model, family), model.base_model, model.config
    size = family.sizes(config).head_size
    hidden = torch.tensor(kept.hidden)
    for layer, heads, inner in zip(family.layers(base), kept.heads, kept.inner, strict=True):
        rows = (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()
        columns = torch.tensor(inner)
        for projection in family.projections(layer):
            _cut_linear(projection, rows, hidden)
        _cut_linear(parts.attention_output(layer), hidden, rows)
        _cut_linear(parts.up(layer), columns, hidden)
        _cut_linear(parts.down(layer), hidden, columns)
        for norm in parts.norms(layer):
            _cut_norm(norm, hidden)
    for table in parts.embeddings(base):
        table.weight = _select(table.weight, hidden, 1)
        table.embedding_dim = len(hidden)
    _cut_norm(parts.embedding_norm(base), hidden)
    head_input = parts.head_input(model)
    if head_input is not None:
        _cut_linear(head_input, None, hidden)
    heads, inner = (tuple(map(len, indices)) for indices in (kept.heads, kept.inner))
    Shape(len(hidden), heads, inner).write(config)


def cut_to(model: Any, family: Family, shape: Shape) -> None:
    """Cut a model that has no weights yet to a shape."""
    heads, inner = ([range(n) for n in sizes] for sizes in (shape.heads, shape.inner))
    cut(model, family, Kept(range(len(heads)), range(shape.hidden), heads, inner))


def _cut_linear(linear: Linear, rows: Tensor | None, columns: Tensor) -> None:
    linear.weight = _select(linear.weight, columns, 1)
    linear.in_features = len(columns)
    if rows is None:
        return
    linear.weight = _select(linear.weight, rows, 0)
    linear.out_features = len(rows)
    if linear.bias is not None:
        linear.bias = _select(linear.bias, rows, 0)


def _cut_norm(norm: nn.LayerNorm, kept: Tensor) -> None:
    norm.weight, norm.bias = _select(norm.weight, kept, 0), _select(norm.bias, kept, 0)
    norm.normalized_shape = (len(kept),)


def _select(weight: Tensor, kept: Tensor, axis: int) -> nn.Parameter:
    selected = weight.detach().index_select(axis, kept.to(weight.device))
    return nn.Parameter(selected, weight.requires_grad)
