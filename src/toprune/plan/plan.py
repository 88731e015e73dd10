"""The plan: which layers drop tokens and how many stay. Everything else reads this one artefact."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, get_args

from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.io.untrusted import read_text
from toprune.plan.schema import Schema

Score = Literal["received", "probe", "probes", "accumulated", "random", "predicted", "pooled"]
# "pooled" ranks nothing: neighbours are averaged until few enough rows are left.
# What heads that read every token get for a dropped one.
Restore = Literal["none", "last", "zero"]

ONCE: tuple[Score, ...] = ("probe", "random")  # ranked once, at the first step
PROBED: tuple[Score, ...] = ("probe", "probes")  # ranked by one vector, or by one for every step
ATTENDED: tuple[Score, ...] = ("received", "accumulated")  # ranked by attention probabilities

DENOMINATOR = 1000  # of ratios that we write: finer than one token of a text of 512
MAX_DENOMINATOR = 10_000  # of ratios that we read: n * numerator stays small in every runtime
MAX_LAYERS, MAX_WIDTH = 512, 1 << 20  # a model with more is a mistake or an attack
MAX_ID = 1 << 31  # of a token; also the largest count of tokens
MAX_WEIGHT = 1e30  # of a probe: its product with a state still fits into 32 bits

_STEP_FIELDS: dict[str, tuple[type, ...]] = {
    "layer": (int,),
    "keep": (str,),
    "threshold": (float, NoneType),
}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "probe": (list, NoneType),
    "predictor": (int, NoneType),
    "returns": (bool,),
    "protect": (list,),
    "protect_until": (int, NoneType),
    "min_tokens": (int,),
    "restore": (str,),
    "provenance": (dict,),
}
_SCHEMA = Schema(
    name="plan",
    version=1,
    command="prune",
    fields={
        "schema": (int,),
        "family": (str,),
        "n_layers": (int,),
        "width": (int,),
        "score": (str,),
        "steps": (list,),
        **_OPTIONAL,
    },
    optional=frozenset({*_OPTIONAL, "threshold"}),
)
_require = _SCHEMA.require


@dataclass(frozen=True)
class Step:
    """From `layer` on, a share `keep` of the ORIGINAL length stays alive.

    The step acts after the layer's attention (with restore `last`, after its FFN). `keep` is a
    fraction, not a float, so that `ceil(keep * n)` is the same integer in Python, torch and ONNX.

    Args:
        layer: index of the layer, counted from zero; the last layer can have no step.
        keep: share of the original tokens that stay, above 0 and at most 1.
        threshold: drop those of them that score less, too; how many stay depends on the text then.
    """

    layer: int
    keep: Fraction
    threshold: float | None = None

    def __post_init__(self) -> None:
        keep = self.keep
        _require(
            self.threshold is None or abs(self.threshold) <= MAX_WEIGHT,
            f"a threshold must be a finite number, not {self.threshold}",
        )
        _require(
            isinstance(keep, Fraction),  # pyright: ignore[reportUnnecessaryIsInstance]
            f"keep must be a Fraction like Fraction(37, 50), not {keep!r}",
        )
        _require(0 < keep <= 1, f"keep must be above 0 and at most 1, not {keep}")
        _require(
            keep.denominator <= MAX_DENOMINATOR,
            f"keep {keep} has a denominator above {MAX_DENOMINATOR}; round it",
        )


@dataclass(frozen=True)
class Plan:
    """What a method produces, and what the cost model, the model, the exporter and the report read.

    Ratios are cumulative and relative to the original length: what the budget expects is what runs.
    The first token always stays.

    Args:
        family: the model type in the model's config.json, such as "bert".
        n_layers: number of layers of the model.
        width: hidden size of the model.
        score: how tokens are ranked.
        steps: where tokens are dropped, in the order of the layers; keep ratios never grow.
        probe: (D,) the vector whose product with a token's state is its score; for the score
            "probes" (steps * D,), one vector for each step.
        predictor: inner width of the networks that score tokens, one network for each step.
        returns: whether each step of such networks chooses among all tokens of the text, so that
            one that has left may come back, with the state that it left with.
        protect: ids of tokens that always stay.
        protect_until: id of a token. Everything up to its first occurrence stays: for the separator
            this is the whole first text of a pair. A text without this token stays whole.
        min_tokens: number of tokens that stay at least, if the text has as many.
        restore: "none" for heads that read the first token. Heads that read every token get a
            dropped token's "last" state, or "zero".
        provenance: how the plan was made, in plain JSON.
        schema: version of the file format.
    """

    family: str
    n_layers: int
    width: int
    score: Score
    steps: tuple[Step, ...]
    probe: tuple[float, ...] | None = None
    predictor: int | None = None
    returns: bool = False
    protect: tuple[int, ...] = ()
    protect_until: int | None = None
    min_tokens: int = 2
    restore: Restore = "none"
    provenance: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    schema: int = _SCHEMA.version

    def __post_init__(self) -> None:
        _SCHEMA.check_version(self.schema)
        _require(self.family != "", "family must not be empty")
        _check_count(self.n_layers, "n_layers", MAX_LAYERS)
        _check_count(self.width, "width", MAX_WIDTH)
        _check_count(self.min_tokens, "min_tokens", MAX_ID)
        _require(
            self.score in get_args(Score),
            f"score {self.score!r} must be one of {', '.join(get_args(Score))}",
        )
        _require(
            self.restore in get_args(Restore),
            f"restore {self.restore!r} must be none, last or zero",
        )
        _require(
            all(0 <= i <= MAX_ID for i in self.protect), "protect must list token ids, 0 or above"
        )
        until = self.protect_until
        _require(
            until is None or 0 <= until <= MAX_ID, f"protect_until must be a token id, not {until}"
        )
        self._check_steps()
        self._check_probe()
        try:  # a private copy in plain JSON: nobody else can change it, and saving cannot fail
            provenance = json.loads(json.dumps(self.provenance, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"plan: provenance must be plain JSON ({error})") from error
        object.__setattr__(self, "provenance", provenance)

    def _check_steps(self) -> None:
        layers = [step.layer for step in self.steps]
        _require(
            all(0 <= layer <= self.n_layers - 2 for layer in layers),
            f"steps belong in layers 0 to {self.n_layers - 2}, not {layers}; in the last layer "
            "only the rows that the head reads are computed anyway",
        )
        _require(all(a < b for a, b in pairwise(layers)), f"step layers must increase: {layers}")
        keeps = [step.keep for step in self.steps]
        _require(
            all(a >= b for a, b in pairwise(keeps)),
            f"keep ratios must not grow over the layers: {', '.join(map(str, keeps))}",
        )
        _require(
            self.score in ("received", "predicted") or not self.adaptive,
            "only the scores received and predicted can have thresholds; "
            f"the score is {self.score}",
        )
        odds = [step.threshold for step in self.steps if self.score == "predicted"]
        _require(
            all(value is None or value > 0 for value in odds),
            "thresholds of the score predicted are odds; they must be positive",
        )
        _require(
            not self.returns or (self.score == "predicted" and self.restore == "none"),
            "tokens can return only with the score predicted, for heads that read the first token",
        )
        if self.predictor is None:
            _require(
                self.score != "predicted" or not self.steps,
                "score predicted needs the width of its predictors; train them first",
            )
            return
        _require(
            self.score == "predicted",
            f"predictor is set but the score is {self.score!r}; remove one of them",
        )
        _check_count(self.predictor, "predictor", MAX_WIDTH)

    def _check_probe(self) -> None:
        if self.probe is None:
            _require(
                self.score not in PROBED or not self.steps,
                f"score {self.score} needs a probe; fit one first",
            )
            return
        _require(
            self.score in PROBED,
            f"probe is set but the score is {self.score!r}; remove one of them",
        )
        vectors = len(self.steps) if self.score == "probes" else 1
        _require(
            len(self.probe) == vectors * self.width,
            f"the probe has {len(self.probe)} numbers, the model is {self.width} wide"
            + ("" if vectors == 1 else f" and has {vectors} steps")
            + "; fit it again",
        )
        _require(
            all(abs(w) <= MAX_WEIGHT for w in self.probe), "the probe is not finite; fit it again"
        )
        # numpy's numbers cannot be written as JSON
        object.__setattr__(self, "probe", tuple(map(float, self.probe)))

    @property
    def probes(self) -> dict[int, tuple[float, ...]]:
        """The vector (D,) that ranks, by layer: at the first step, or at every step."""
        numbers = self.probe or ()
        starts = range(0, len(numbers), self.width)
        layers = (step.layer for step in self.steps)
        return {i: numbers[at : at + self.width] for i, at in zip(layers, starts, strict=False)}

    @property
    def adaptive(self) -> bool:
        """Whether the number of tokens depends on more than the length of a text."""
        return any(step.threshold is not None for step in self.steps)

    def keep(self, step: Step, n: int, held: int = 0) -> int:
        """Count the tokens that are alive after a step, by integer arithmetic only.

        Args:
            step: a step of this plan.
            n: tokens that the example came with.
            held: how many of them are protected, see `held_tokens`.

        Returns:
            The number of tokens; with a threshold, the largest possible one.
        """
        share = -(-n * step.keep.numerator // step.keep.denominator)  # ceil
        return min(n, max(share, self.min_tokens, held))

    def lengths(self, n: int, held: int = 0) -> list[int]:
        """Count the tokens that enter each layer.

        Args:
            n: tokens that the example came with.
            held: how many of them are protected, see `held_tokens`.

        Returns:
            One number for each layer 0..L-1; entry i+1 is what the step at layer i leaves.
        """
        entering = [n] * self.n_layers
        for step in self.steps:
            kept = self.keep(step, n, held)
            entering[step.layer + 1 :] = [kept] * (self.n_layers - step.layer - 1)
        return entering

    def check_model(self, family: str, n_layers: int, width: int) -> None:
        """Raise a UserError for a model that this plan was not made for."""
        ours, theirs = (self.family, self.n_layers, self.width), (family, n_layers, width)
        if ours != theirs:
            raise UserError(
                "plan is for another model: it needs {} with {} layers of width {}, ".format(*ours)
                + "this is {} with {} layers of width {}; ".format(*theirs)
                + "load the model it was made for, or prune this one"
            )

    def to_json(self) -> str:
        """Write one line for each field: a probe of hundreds of numbers hides no other field."""
        steps = [
            {"layer": step.layer, "keep": str(step.keep)}
            | ({} if step.threshold is None else {"threshold": step.threshold})
            for step in self.steps
        ]
        fields = {"schema": self.schema} | vars(self) | {"steps": steps}
        for name in ("predictor", "returns"):  # few plans have them; older versions read the others
            if not fields[name]:
                del fields[name]
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan; a UserError names the first field that is wrong."""
        data = _SCHEMA.parse(text)
        for step in data["steps"]:
            _SCHEMA.check_fields(step, _STEP_FIELDS, "a step")
        data["steps"] = tuple(
            Step(s["layer"], _ratio(s["keep"]), s.get("threshold")) for s in data["steps"]
        )
        data["protect"] = _SCHEMA.numbers("protect", data.get("protect", []), int)
        if data.get("probe") is not None:
            probe = _SCHEMA.numbers("probe", data["probe"], int, float)
            data["probe"] = tuple(float(str(w)) for w in probe)  # str: 10**400 becomes inf, refused
        return cls(**data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, whole or not at all."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read the plan in a file; a UserError names the first field that is wrong."""
        try:
            text = read_text(path, _SCHEMA.again)
        except UserError as error:
            raise UserError(f"plan: {error}") from error
        return cls.from_json(text)

    def summary(self) -> str:
        """Describe the plan for people: layers count from one here."""
        lines = [
            f"plan for {self.family}, {self.n_layers} layers of width {self.width}: "
            f"score {self.score}, restore {self.restore}, "
            f"at least {self.min_tokens} tokens, {len(self.protect)} protected ids"
        ]
        if self.protect_until is not None:
            lines.append(f"  the first text stays: all up to the first token {self.protect_until}")
        if self.returns:
            lines.append("  tokens that have left may return in a later layer")
        for step in self.steps:
            share = f"{float(step.keep):.1%}"
            line = f"  layer {step.layer + 1:2d} keeps {share:>6} of the original tokens"
            if step.threshold is not None:
                line += f" at most, those that score {step.threshold:.5f} or more"
            lines.append(line)
        return "\n".join(lines if self.steps else [*lines, "  every token stays in every layer"])


def notch(ratio: float) -> Fraction:
    """Round a ratio to the nearest share that we write, neither 0 nor 1."""
    return Fraction(min(DENOMINATOR - 1, max(1, round(ratio * DENOMINATOR))), DENOMINATOR)


def probe_of(probes: Any, score: Score, layers: Sequence[int]) -> tuple[float, ...] | None:
    """Select the numbers that go into `Plan.probe`.

    Args:
        probes: (L - 1, D) one fitted vector for each layer, or None if the score needs none.
        score: how tokens are ranked.
        layers: the layers that have steps.
    """
    if probes is None:
        return None
    ranked = layers if score == "probes" else layers[:1]
    return tuple(number for layer in ranked for number in probes[layer].tolist())


def held_tokens(
    ids: Sequence[int], protect: tuple[int, ...] = (), protect_until: int | None = None
) -> int:
    """Count the tokens of an example that always stay. Its cost depends on this and its length."""
    until = (i for i, token in enumerate(ids) if token == protect_until)
    first = 1 if protect_until is None else next(until, len(ids) - 1) + 1
    return first + sum(token in protect for token in ids[first:])


def _check_count(count: int, name: str, most: int) -> None:
    _require(1 <= count <= most, f"{name} must be at least 1 and at most {most}, not {count}")


def _ratio(text: str) -> Fraction:
    """Read `37/50`. Stricter than Fraction(text), which would also take `1e999999999`."""
    match = re.fullmatch(r"([0-9]{1,9})(?:/([1-9][0-9]{0,8}))?", text)
    if match is None:
        raise UserError(f'plan: keep must be a fraction like "37/50", not {text!r}')
    return Fraction(int(match[1]), int(match[2] or 1))
