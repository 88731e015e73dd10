"""The plan: which layers drop tokens and how many stay. The one artefact everything else reads."""

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
from toprune.io.untrusted import parse_json, read_text

Score = Literal["received", "probe", "probes", "accumulated", "random", "predicted", "pooled"]
# The last is none: neighbours are averaged until as many rows are left, and nobody is chosen.
Restore = Literal["none", "last", "zero"]  # of dropped tokens, for heads that read every one

ONCE: tuple[Score, ...] = ("probe", "random")  # ranked at the first step, for good
PROBED: tuple[Score, ...] = ("probe", "probes")  # by vectors: one, or one for every step
ATTENDED: tuple[Score, ...] = ("received", "accumulated")  # ranked by attention probabilities

SCHEMA = 1
ANEW = "copy it again or prune anew"
DENOMINATOR = 1000  # of ratios we write: finer than one token of a text of 512
MAX_DENOMINATOR = 10_000  # of ratios we read: n * numerator stays small in every runtime
MAX_LAYERS, MAX_WIDTH = 512, 1 << 20  # of models: a number above is a mistake or an attack
MAX_ID = 1 << 31  # of a token, and of a count of them
MAX_WEIGHT = 1e30  # of a probe: a state times it is still a number in 32 bits


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"plan: {message}")


@dataclass(frozen=True)
class Step:
    """From `layer` on, a share `keep` of the ORIGINAL length stays alive.

    It acts after the layer's attention (with restore `last`, after its FFN). A fraction, not a
    float, so that `ceil(keep * n)` is the same integer in Python, torch and ONNX.
    """

    layer: int
    keep: Fraction
    # Of these only tokens that score as much: how many stay then depends on the text.
    threshold: float | None = None

    def __post_init__(self) -> None:
        keep = self.keep
        _require(
            self.threshold is None or abs(self.threshold) <= MAX_WEIGHT,
            f"a threshold of {self.threshold} is no number",
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
    """What a method produces and all that cost, model, exporter and report consume.

    Ratios are cumulative and relative to the original length: what the budget expects is what runs.
    The first token always stays, and so do the token ids in `protect`. With `protect_until` so does
    all that comes before the first token of this id, and that token: given the separator, the whole
    first text of a pair (a query, a question). A text without such a token stays whole.
    """

    family: str
    n_layers: int
    width: int
    score: Score
    steps: tuple[Step, ...]
    # (D,): score = state at the first step @ probe; of score probes (steps * D,), each at its own
    probe: tuple[float, ...] | None = None
    predictor: int | None = None  # inner width of the networks that score, one at every step
    protect: tuple[int, ...] = ()
    protect_until: int | None = None
    min_tokens: int = 2
    restore: Restore = "none"
    provenance: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        _check_schema(self.schema)
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
            "a threshold is of attention received, or of a predictor's odds; "
            f"score {self.score} has none",
        )
        odds = [step.threshold for step in self.steps if self.score == "predicted"]
        _require(
            all(value is None or value > 0 for value in odds),
            "odds are positive; so must be their thresholds",
        )
        asked = self.predictor is not None
        _require(
            asked or self.score != "predicted" or not self.steps,
            "score predicted needs the width of its predictors; train some first",
        )
        _require(
            self.score == "predicted" or not asked,
            f"predictors are given but the score is {self.score!r}; drop one",
        )
        if self.predictor is not None:
            _check_count(self.predictor, "the width of predictors", MAX_WIDTH)

    def _check_probe(self) -> None:
        if self.probe is None:
            _require(
                self.score not in PROBED or not self.steps,
                f"score {self.score} needs a probe; fit one first",
            )
            return
        _require(
            self.score in PROBED, f"a probe is given but the score is {self.score!r}; drop one"
        )
        many = len(self.steps) if self.score == "probes" else 1
        _require(
            len(self.probe) == many * self.width,
            f"the probe has {len(self.probe)} numbers, the model is {self.width} wide"
            + ("" if many == 1 else f" and has {many} steps")
            + "; fit it anew",
        )
        _require(
            all(abs(w) <= MAX_WEIGHT for w in self.probe), "the probe is not finite; fit it anew"
        )
        object.__setattr__(self, "probe", tuple(map(float, self.probe)))  # numpy's are not JSON

    @property
    def probes(self) -> dict[int, tuple[float, ...]]:
        """By layer, the vector (D,) that ranks there: at the first step, or at every one."""
        found = self.probe or ()
        starts = range(0, len(found), self.width)
        layers = (step.layer for step in self.steps)
        return {i: found[at : at + self.width] for i, at in zip(layers, starts, strict=False)}

    @property
    def adaptive(self) -> bool:
        """Does the number of tokens depend on more than the length of a text?"""
        return any(step.threshold is not None for step in self.steps)

    def keep(self, step: Step, n: int, held: int = 0) -> int:
        """Tokens alive after `step` in an example that came with n, `held` of them protected (see
        `held_tokens`): integer arithmetic only. With a threshold, the most that can be."""
        share = -(-n * step.keep.numerator // step.keep.denominator)  # ceil
        return min(n, max(share, self.min_tokens, held))

    def lengths(self, n: int, held: int = 0) -> list[int]:
        """Tokens that enter each layer 0..L-1; entry i+1 is what the step at layer i leaves."""
        entering = [n] * self.n_layers
        for step in self.steps:
            kept = self.keep(step, n, held)
            entering[step.layer + 1 :] = [kept] * (self.n_layers - step.layer - 1)
        return entering

    def check_model(self, family: str, n_layers: int, width: int) -> None:
        """Refuse a model that this plan was not made for."""
        ours, theirs = (self.family, self.n_layers, self.width), (family, n_layers, width)
        if ours != theirs:
            raise UserError(
                "plan is for another model: it wants {} with {} layers of width {}, ".format(*ours)
                + "this is {} with {} layers of width {}; ".format(*theirs)
                + "load the model it was made for, or prune this one"
            )

    def to_json(self) -> str:
        """One line per field: readable beside a probe of hundreds of numbers, and diffs well."""
        steps = [
            {"layer": step.layer, "keep": str(step.keep)}
            | ({} if step.threshold is None else {"threshold": step.threshold})
            for step in self.steps
        ]
        fields = {"schema": self.schema} | vars(self) | {"steps": steps}
        if self.predictor is None:  # of few plans: the others stay as older readers know them
            del fields["predictor"]
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        data = parse_json(text, "plan", ANEW)
        _require(type(data) is dict, "must be a JSON object")
        _check_schema(data.get("schema"))  # first: another schema may have any other fields
        _check_fields(data, _FIELDS, "the plan")
        for step in data["steps"]:
            _check_fields(step, _STEP_FIELDS, "a step")
        data["steps"] = tuple(
            Step(s["layer"], _ratio(s["keep"]), s.get("threshold")) for s in data["steps"]
        )
        data["protect"] = _numbers(data.get("protect", []), "protect", (int,))
        if data.get("probe") is not None:
            probe = _numbers(data["probe"], "probe", (int, float))
            data["probe"] = tuple(float(str(w)) for w in probe)  # str: 10**400 becomes inf, refused
        return cls(**data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        try:
            text = read_text(path, ANEW)
        except UserError as error:
            raise UserError(f"plan: {error}") from error
        return cls.from_json(text)

    def summary(self) -> str:
        """Text for people: layers count from one."""
        lines = [
            f"plan for {self.family}, {self.n_layers} layers of width {self.width}: "
            f"score {self.score}, restore {self.restore}, "
            f"at least {self.min_tokens} tokens, {len(self.protect)} protected ids"
        ]
        if self.protect_until is not None:
            lines.append(f"  the first text stays: all up to the first token {self.protect_until}")
        for step in self.steps:
            share = f"{float(step.keep):.1%}"
            line = f"  layer {step.layer + 1:2d} keeps {share:>6} of the original tokens"
            if step.threshold is not None:
                line += f" at most, those that score {step.threshold:.5f} or more"
            lines.append(line)
        return "\n".join(lines if self.steps else [*lines, "  every token stays in every layer"])


def notch(ratio: float) -> Fraction:
    """The nearest share that we write, neither all nor none."""
    return Fraction(min(DENOMINATOR - 1, max(1, round(ratio * DENOMINATOR))), DENOMINATOR)


def probe_of(probes: Any, score: Score, layers: Sequence[int]) -> tuple[float, ...] | None:
    """The numbers that a plan with steps at `layers` ranks by; probes (L - 1, D) or None"""
    if probes is None:
        return None
    ranked = layers if score == "probes" else layers[:1]
    return tuple(number for layer in ranked for number in probes[layer].tolist())


def held_tokens(
    ids: Sequence[int], protect: tuple[int, ...] = (), protect_until: int | None = None
) -> int:
    """How many tokens of an example always stay: what its cost depends on beside its length."""
    until = (i for i, token in enumerate(ids) if token == protect_until)
    first = 1 if protect_until is None else next(until, len(ids) - 1) + 1
    return first + sum(token in protect for token in ids[first:])


_FIELDS: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "family": (str,),
    "n_layers": (int,),
    "width": (int,),
    "score": (str,),
    "steps": (list,),
    "probe": (list, NoneType),
    "predictor": (int, NoneType),
    "protect": (list,),
    "protect_until": (int, NoneType),
    "min_tokens": (int,),
    "restore": (str,),
    "provenance": (dict,),
}
_OPTIONAL = {
    "probe",
    "predictor",
    "protect",
    "protect_until",
    "min_tokens",
    "restore",
    "provenance",
    "threshold",
}
_STEP_FIELDS: dict[str, tuple[type, ...]] = {
    "layer": (int,),
    "keep": (str,),
    "threshold": (float, NoneType),
}


def _check_count(count: int, name: str, most: int) -> None:
    _require(1 <= count <= most, f"{name} must be at least 1 and at most {most}, not {count}")


def _check_schema(schema: Any) -> None:
    known = f"this toprune reads {SCHEMA}; upgrade toprune or prune anew"
    _require(schema == SCHEMA, f"schema {schema!r} is not known, {known}")


def _check_fields(data: Any, fields: dict[str, tuple[type, ...]], where: str) -> None:
    """Every field known, present and of its JSON type. Exact types: `true` is no number."""
    _require(type(data) is dict, f"{where} must be a JSON object")
    unknown = sorted(data.keys() - fields.keys())
    _require(not unknown, f"{where} has unknown fields {unknown}; remove them")
    missing = sorted(fields.keys() - _OPTIONAL - data.keys())
    _require(not missing, f"{where} lacks the fields {missing}; add them")
    for key, value in data.items():
        wanted = " or ".join(kind.__name__ for kind in fields[key])
        _require(type(value) in fields[key], f"{key} must be {wanted}, not {value!r}")


def _ratio(text: str) -> Fraction:
    """Read `37/50`. Stricter than Fraction(text), which would also take `1e999999999`."""
    match = re.fullmatch(r"([0-9]{1,9})(?:/([1-9][0-9]{0,8}))?", text)
    if match is None:
        raise UserError(f'plan: keep must be a fraction like "37/50", not {text!r}')
    return Fraction(int(match[1]), int(match[2] or 1))


def _numbers(values: list[Any], key: str, types: tuple[type, ...]) -> tuple[Any, ...]:
    _require(all(type(v) in types for v in values), f"{key} must hold numbers only")
    return tuple(values)
