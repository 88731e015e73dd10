"""The curve of a model on one machine: the milliseconds of its parts by the number of tokens.

It stands where MACs stand: a `Cost` that schedules, masks and budgets ask. Time has no sums over
texts of many lengths, as MACs have (it is not quadratic: kernels work in tiles, and a call has a
fixed cost), so a curve prices one example at a time: that of the length that the budget is for.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.io.untrusted import read_text
from toprune.plan.budget import Precision
from toprune.plan.cost import Number, Sizes, layer_macs
from toprune.plan.plan import Restore, Score
from toprune.plan.schema import Schema

Floats = NDArray[np.float64]

PARTS = ("entry", "attend", "feed", "head", "step")
LEAST = 1e-6  # milliseconds of a layer: below that the clock has seen nothing

_SCHEMA = Schema(
    name="curve",
    version=1,
    command="profile",
    fields={
        "schema": (int,),
        "counts": (list,),
        "milliseconds": (dict,),
        "shape": (dict,),
        "score": (str,),
        "restore": (str,),
        "threads": (int,),
        "precision": (str,),
        "environment": (dict,),
    },
)


@dataclass(frozen=True)
class Curve:
    """Milliseconds of the parts of a model at several token counts, and where they were measured.

    Between two counts the time is interpolated, beyond the last it grows on; no tokens take none.

    Args:
        counts: of tokens, rising from one.
        milliseconds: by part, at each count. `entry`: embeddings, the head of the task and what a
            call costs, by the tokens of the text; `attend` and `feed`: attention with its
            projections and the feed-forward part of a layer; `head`: the last layer; `step`: to
            rank and move tokens, once.
        shape: of the model: its family and the sizes that the time depends on.
        score: by which the measured steps rank.
        restore: what the head gets for dropped tokens.
        threads: of the session.
        precision: of the file.
        environment: machine and versions.
    """

    counts: tuple[int, ...]
    milliseconds: dict[str, tuple[float, ...]]
    shape: dict[str, Any]
    score: Score
    restore: Restore
    threads: int
    precision: Precision
    environment: dict[str, Any]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip((0, *self.counts), self.counts, strict=False))
        _SCHEMA.require(rising and len(self.counts) > 1, "counts must be two or more rising counts")
        _SCHEMA.require(
            tuple(self.milliseconds) == PARTS, f"milliseconds must have {', '.join(PARTS)}"
        )
        for name, values in self.milliseconds.items():
            _SCHEMA.require(
                len(values) == len(self.counts) and all(0 <= x < 1e9 for x in values),
                f"{name} must have one time for each count, 0 or more",
            )
        _SCHEMA.require(self.precision in get_args(Precision), "precision must be fp32 or int8")
        _SCHEMA.require(type(self.shape.get("layers")) is int, "its shape must count the layers")

    @property
    def layers(self) -> int:
        return self.shape["layers"]

    @cached_property
    def _lines(self) -> dict[str, "Line"]:
        return {name: Line.of(self.counts, values) for name, values in self.milliseconds.items()}

    # -- the cost, in milliseconds -------------------------------------------------------------

    def total(
        self,
        tokens: Sequence[Number],
        squares: Sequence[Number],
        *,
        examples: Number,
        restore: Restore,
    ) -> Number:
        """Sum the milliseconds of one example with `tokens[i]` tokens in layer i; numbers, arrays
        of counts or scalar tensors, whose gradients are the slopes of the curve. `squares` and
        `examples` are for MACs."""
        line = self._lines
        fed = tokens[:-1] if restore == "last" else tokens[1:]
        return (
            line["entry"](tokens[0])
            + sum(map(line["attend"], tokens[:-1]))
            + sum(map(line["feed"], fed))
            + line["head"](tokens[-1])
        )

    def ranking(
        self, score: Score, tokens: Sequence[Number], predictor: int | None = None
    ) -> Number:
        """Sum the milliseconds of steps that so many tokens reach."""
        return sum(map(self._lines["step"], tokens))

    # -- from measurements, to a file and back -------------------------------------------------

    @classmethod
    def of(
        cls,
        tokens: Sequence[int],
        measured: Mapping[str, Sequence[float]],
        sizes: Sizes,
        *,
        family: str,
        steps: int,
        restore: Restore,
        **fields: Any,
    ) -> "Curve":
        """Take measured times of whole files apart.

        Every layer but the last is whole, so one of them takes the difference between the dense
        file and a `shallow` one, which has only the last layer. Of the last layer a head that reads
        one token needs only keys and values: a part of a layer that we take from the MACs.

        Args:
            tokens: counts.
            measured: milliseconds at each count: of the files `dense`, `shallow`, `steps` (as
                dense, but tokens are ranked and moved at every step, and none leaves), and `feed`,
                the feed-forward parts of all layers alone.
            sizes: of the model.
            family: of the model.
            steps: number of steps in the file `steps`.
            restore: what the head gets for dropped tokens.
            fields: the others of a Curve.
        """
        dense, shallow, stepped, feeds = (
            np.array(measured[name]) for name in ("dense", "shallow", "steps", "feed")
        )
        layer = _rising((dense - shallow) / (sizes.layers - 1))
        feed = np.minimum(_rising(feeds / sizes.layers), layer)
        head = _rising(layer * _last_share(sizes, tokens) if restore == "none" else layer)
        parts = {
            "entry": _rising(shallow - head),
            "attend": _rising(layer - feed),
            "feed": feed,
            "head": head,
            "step": np.maximum.accumulate(np.maximum((stepped - dense) / steps, 0)),
        }
        milliseconds = {name: tuple(values.tolist()) for name, values in parts.items()}
        shape = shape_of(family, sizes)
        return cls(tuple(tokens), milliseconds, shape, restore=restore, **fields)

    def to_json(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclass_fields(self)}
        return json.loads(json.dumps({"schema": _SCHEMA.version} | fields))

    @classmethod
    def from_json(cls, text: str) -> "Curve":
        """Read a curve; a UserError names the first field that is wrong."""
        data = _SCHEMA.parse(text)
        del data["schema"]
        data["counts"] = _SCHEMA.numbers("counts", data["counts"], int)
        for name, values in data["milliseconds"].items():
            _SCHEMA.require(type(values) is list, f"{name} must be a list")
            data["milliseconds"][name] = _SCHEMA.numbers(name, values, int, float)
        return cls(**data)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Curve":
        return cls.from_json(read_text(path, _SCHEMA.again))

    def check(self, needed: Mapping[str, Any], longest: int) -> None:
        """Refuse a curve that was measured for something else.

        Args:
            needed: names for messages, and the values that the curve must have: `machine`,
                `threads`, `precision`, `model`, `score`, `restore`.
            longest: token count that the curve must reach.
        """
        own = {
            "machine": self.environment.get("machine"),
            "threads": self.threads,
            "precision": self.precision,
            "model": self.shape,
            "score": self.score,
            "restore": self.restore,
        }
        for name, value in needed.items():
            if own[name] != value:
                raise UserError(
                    f"the curve is of another {name} ({_short(own[name])}, not {_short(value)}); "
                    "measure it here with: toprune profile"
                )
        if self.counts[-1] < longest:
            raise UserError(
                f"the curve ends at {self.counts[-1]} tokens, the budget is for {longest}; "
                "profile the model on the same data, or with longer --lengths"
            )


@dataclass(frozen=True)
class Line:
    """A piecewise linear function through zero."""

    x: list[float]
    y: list[float]
    slope: list[float]

    @classmethod
    def of(cls, tokens: Sequence[int], values: Sequence[float]) -> "Line":
        x, y = [0.0, *map(float, tokens)], [0.0, *values]
        return cls(x, y, (np.diff(y) / np.diff(x)).tolist())

    def __call__(self, t: Number) -> Number:
        if isinstance(t, np.ndarray):
            at = np.clip(np.searchsorted(self.x, t, "right") - 1, 0, len(self.slope) - 1)
            x, y, slope = (np.array(values)[at] for values in (self.x, self.y, self.slope))
            return y + slope * (t - x)
        value = float(t.detach()) if hasattr(t, "detach") else t
        at = min(max(bisect_right(self.x, value) - 1, 0), len(self.slope) - 1)
        return self.y[at] + self.slope[at] * (t - self.x[at])


def shape_of(family: str, sizes: Sizes) -> dict[str, Any]:
    """The family and the sizes that the time of a model depends on, as plain JSON."""
    return json.loads(json.dumps({"family": family} | vars(sizes)))


def _rising(values: Floats) -> Floats:
    """Lift what noise has put below an earlier value: more tokens never take less time."""
    return np.maximum.accumulate(np.maximum(values, LEAST))


def _last_share(sizes: Sizes, tokens: Sequence[int]) -> Floats:
    """The share of a whole layer that keys and values take, with the attention of one query."""
    t, macs = np.array(tokens, float), layer_macs(sizes.by_layer[-1])
    whole = (macs.query + macs.key + macs.feed_forward) * t + macs.pair * t**2
    return (macs.key + macs.pair) * t / whole


def _short(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "{} with {} layers of width {}".format(*map(value.get, ("family", "layers", "width")))
