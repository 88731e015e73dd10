"""Slim models: layers with fewer heads and fewer columns than the config says, and narrower states.

No config of transformers can say that, so it gets an entry of ours, `toprune_shape`. A model with
one is built as the stock one, its modules are cut to the shape, and then its weights are loaded.
What is computed is the stock architecture's own code: heads are counted by the matrices.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from toprune.errors import UserError

if TYPE_CHECKING:
    from toprune.models.families import Base, Family, Layer

ENTRY = "toprune_shape"  # of the config
Linear = Any  # an nn.Linear, of which weight and bias are replaced


@dataclass(frozen=True)
class Parts:
    """Where a family has what can be cut, beside the projections of its attention."""

    mixed: "Callable[[Layer], Linear]"  # from the heads back to the states
    grown: "Callable[[Layer], Linear]"  # from the states to the inner columns
    fed: "Callable[[Layer], Linear]"  # and back
    norms: "Callable[[Layer], tuple[nn.LayerNorm, nn.LayerNorm]]"  # after attention, after the FFN
    tables: "Callable[[Base], Sequence[nn.Embedding]]"  # whose rows are added up
    entry: "Callable[[Base], nn.LayerNorm]"  # the norm of their sum
    reader: Callable[[Any], Linear | None]  # the head's first matrix; none of a bare encoder


@dataclass(frozen=True)
class Shape:
    """How many there are."""

    hidden: int  # numbers of a state
    heads: tuple[int, ...]  # of each layer
    inner: tuple[int, ...]  # columns of each layer's FFN

    def of_layers(self, kept: Sequence[int]) -> "Shape":
        heads, inner = ([sizes[i] for i in kept] for sizes in (self.heads, self.inner))
        return Shape(self.hidden, tuple(heads), tuple(inner))

    def write(self, config: Any) -> None:
        setattr(config, ENTRY, asdict(self) | {"heads": [*self.heads], "inner": [*self.inner]})


@dataclass(frozen=True)
class Kept:
    """Which ones stay, by their numbers."""

    layers: Sequence[int]
    hidden: Sequence[int]
    heads: Sequence[Sequence[int]]  # of each layer that stays
    inner: Sequence[Sequence[int]]


def shape_of(config: Any) -> Shape | None:
    """As the config says, if it does and if that can be: config files come from anywhere."""
    told = getattr(config, ENTRY, None)
    if told is None:
        return None
    most = {"heads": config.num_attention_heads, "inner": config.intermediate_size}
    if (
        not isinstance(told, dict)
        or told.keys() != {"hidden", *most}
        or not _counts([told["hidden"]], 1, config.hidden_size)
        or not all(_counts(told[n], config.num_hidden_layers, most[n]) for n in most)
    ):
        raise UserError(
            f"{ENTRY} in config.json must give hidden, and heads and inner of each of the "
            f"{config.num_hidden_layers} layers, from 1 to what the config says; get the model anew"
        )
    return Shape(told["hidden"], tuple(told["heads"]), tuple(told["inner"]))


def _counts(told: Any, many: int, most: int) -> bool:
    return (
        isinstance(told, list | tuple)
        and len(told) == many
        and all(type(n) is int and 1 <= n <= most for n in told)
    )


def parts_of(model: Any, family: "Family") -> Parts:
    """Or one line that says which models have them."""
    if family.parts is None or hasattr(model.base_model, "embeddings_project"):
        from toprune.models.families import FAMILIES

        known = ", ".join(name for name, other in FAMILIES.items() if other.parts is not None)
        raise UserError(
            f"weights of {family.name} models like this one cannot be cut out; those of {known} "
            "can (electra: where embeddings are as wide as states)"
        )
    return family.parts


def cut(model: Any, family: "Family", kept: Kept) -> None:
    """Take everything else out of the layers that are left, for good; the config says so."""
    parts, base, config = parts_of(model, family), model.base_model, model.config
    size = family.sizes(config).head_size
    hidden = torch.tensor(kept.hidden)
    for layer, heads, inner in zip(family.layers(base), kept.heads, kept.inner, strict=True):
        rows = (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()
        columns = torch.tensor(inner)
        for projection in family.projections(layer):
            _cut_linear(projection, rows, hidden)
        _cut_linear(parts.mixed(layer), hidden, rows)
        _cut_linear(parts.grown(layer), columns, hidden)
        _cut_linear(parts.fed(layer), hidden, columns)
        for norm in parts.norms(layer):
            _cut_norm(norm, hidden)
    for table in parts.tables(base):
        table.weight = _chosen(table.weight, hidden, 1)
        table.embedding_dim = len(hidden)
    _cut_norm(parts.entry(base), hidden)
    reader = parts.reader(model)
    if reader is not None:
        _cut_linear(reader, None, hidden)
    heads, inner = (tuple(map(len, chosen)) for chosen in (kept.heads, kept.inner))
    Shape(len(hidden), heads, inner).write(config)


def cut_to(model: Any, family: "Family", shape: Shape) -> None:
    """To so many of each, before weights are loaded."""
    heads, inner = ([range(n) for n in sizes] for sizes in (shape.heads, shape.inner))
    cut(model, family, Kept(range(len(heads)), range(shape.hidden), heads, inner))


def _cut_linear(linear: Linear, rows: Tensor | None, columns: Tensor) -> None:
    linear.weight = _chosen(linear.weight, columns, 1)
    linear.in_features = len(columns)
    if rows is None:
        return
    linear.weight = _chosen(linear.weight, rows, 0)
    linear.out_features = len(rows)
    if linear.bias is not None:
        linear.bias = _chosen(linear.bias, rows, 0)


def _cut_norm(norm: nn.LayerNorm, kept: Tensor) -> None:
    norm.weight, norm.bias = _chosen(norm.weight, kept, 0), _chosen(norm.bias, kept, 0)
    norm.normalized_shape = (len(kept),)


def _chosen(weight: Tensor, kept: Tensor, axis: int) -> nn.Parameter:
    chosen = weight.detach().index_select(axis, kept.to(weight.device))
    return nn.Parameter(chosen, weight.requires_grad)
