"""The shape of a slim model: fewer heads and FFN columns in each layer, and narrower states.

No config of transformers can express that, so the config gets an entry of ours, `toprune_shape`.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toprune.errors import UserError

ENTRY = "toprune_shape"  # in the config


@dataclass(frozen=True)
class Shape:
    """How many numbers, heads and columns a slim model has."""

    hidden: int  # numbers of a state
    heads: tuple[int, ...]  # of each layer
    inner: tuple[int, ...]  # columns of each layer's FFN

    def of_layers(self, kept: Sequence[int]) -> "Shape":
        heads, inner = ([sizes[i] for i in kept] for sizes in (self.heads, self.inner))
        return Shape(self.hidden, tuple(heads), tuple(inner))

    def write(self, config: Any) -> None:
        setattr(config, ENTRY, asdict(self) | {"heads": [*self.heads], "inner": [*self.inner]})


def shape_of(config: Any) -> Shape | None:
    """Read the shape from a config; None where the model is not slim.

    The file may come from anywhere, so an impossible shape is refused.
    """
    entry = getattr(config, ENTRY, None)
    if entry is None:
        return None
    limits = {"heads": config.num_attention_heads, "inner": config.intermediate_size}
    if (
        not isinstance(entry, dict)
        or entry.keys() != {"hidden", *limits}
        or not _are_counts([entry["hidden"]], 1, config.hidden_size)
        or not all(
            _are_counts(entry[name], config.num_hidden_layers, limit)
            for name, limit in limits.items()
        )
    ):
        raise UserError(
            f"{ENTRY} in config.json must give hidden, and heads and inner for each of the "
            f"{config.num_hidden_layers} layers, from 1 to the config's own sizes; get a new copy "
            "of the model"
        )
    return Shape(entry["hidden"], tuple(entry["heads"]), tuple(entry["inner"]))


def without_shape(config: Any) -> Any:
    """The config of the model that a slim one was cut from, with the layers that are left."""
    whole = copy.deepcopy(config)
    if hasattr(whole, ENTRY):
        delattr(whole, ENTRY)
    return whole


def _are_counts(values: Any, length: int, limit: int) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) == length
        and all(type(n) is int and 1 <= n <= limit for n in values)
    )
