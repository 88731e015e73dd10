"""The dial: several budgets for one set of weights, and a plan for any budget between them.

The plans of a dial share everything but the shares that they keep. So one model file serves them
all: its default is plan.json, and dial.json has what the other plans need.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.io.untrusted import read_text
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes
from toprune.plan.plan import DENOMINATOR, Plan, Step
from toprune.plan.schedule import repair
from toprune.plan.schema import Schema
from toprune.plan.sizes import parse_sizes

FILE = "dial.json"
KEEP = "keep"  # input of the graph: (steps,) thousandths; its default is plan.json
MAX_BUDGETS = 32
SAME = 0.002  # budgets this close to each other are the same: plans are no more exact
MOST_SQUARES = 1 << 62  # of the tokens of all texts: beyond it the sums of a cost overflow

_SCHEMA = Schema(
    name="dial",
    version=1,
    command="prune",
    fields={
        "schema": (int,),
        "layers": (list,),
        "budgets": (list,),
        "sizes": (dict,),
        "lengths": (dict,),
    },
)
_require = _SCHEMA.require
_STOP_FIELDS = {"asked": (str,), "reduction": (float, int), "keep": (list,)}


@dataclass(frozen=True)
class Stop:
    """A budget of the dial, and the share that each step of its plan keeps."""

    budget: Budget
    keep: tuple[Fraction, ...]

    @classmethod
    def of(cls, budget: Budget, plan: Plan) -> "Stop":
        return cls(budget, tuple(step.keep for step in plan.steps))

    @property
    def numerators(self) -> list[int]:
        """The shares in thousandths, as dial.json and the graph have them."""
        return numerators(self.keep)


@dataclass(frozen=True)
class Dial:
    """Plans that differ only in the shares that they keep.

    Args:
        default: the plan of plan.json, which is that of one of the stops.
        stops: the budgets that were trained, from the largest plan to the smallest. A budget in
            milliseconds has the reduction of FLOPs that its plan has: that holds on any machine.
        sizes: of the model.
        lengths: of the texts that the budgets are for.
    """

    default: Plan
    stops: tuple[Stop, ...]
    sizes: Sizes
    lengths: Lengths

    def __post_init__(self) -> None:
        _require(2 <= len(self.stops) <= MAX_BUDGETS, f"it has 2 to {MAX_BUDGETS} budgets")
        _require(
            all(a.budget.reduction < b.budget.reduction for a, b in pairwise(self.stops)),
            "its budgets must be sorted and distinct",
        )
        _require(
            (self.sizes.layers, self.sizes.width) == (self.default.n_layers, self.default.width),
            "its sizes are those of another model than the plan's",
        )
        _require(self.lengths.moment(2) < MOST_SQUARES, "its texts are too many or too long")
        for stop in self.stops:
            _require(
                all(DENOMINATOR % share.denominator == 0 for share in stop.keep),
                f"the shares of {stop.budget.asked} must be thousandths",
            )
            self._with(stop.keep)  # the plan checks its steps
        _require(
            any(stop.keep == Stop.of(stop.budget, self.default).keep for stop in self.stops),
            "none of its budgets has the plan of plan.json",
        )

    @property
    def asked(self) -> list[str]:
        """The budgets as the user wrote them, from the largest plan to the smallest."""
        return [stop.budget.asked for stop in self.stops]

    @property
    def default_budget(self) -> Budget:
        """The budget of plan.json."""
        kept = tuple(step.keep for step in self.default.steps)
        return next(stop.budget for stop in self.stops if stop.keep == kept)

    def plans(self) -> dict[str, Plan]:
        """The trained plans by their budgets."""
        return {stop.budget.asked: self._with(stop.keep) for stop in self.stops}

    def plan(self, budget: str | Budget) -> Plan:
        """Make the plan for a budget of the dial, or for one between two of them.

        The logarithms of the shares are interpolated by the logarithm of the reduction; then
        `repair` moves them until the budget is met.

        Raises:
            UserError: the budget is outside the range that was trained.
        """
        wanted = Budget.parse(budget)
        _check_count(wanted)
        for stop in self.stops:
            if _same(wanted, stop.budget):
                return self._with(stop.keep)
        if wanted.milliseconds is not None:
            least, most = (self.stops[i].budget.reduction for i in (0, -1))
            raise UserError(
                f"budget {wanted.asked} was not trained, and a time holds for one machine; choose "
                f"one of {', '.join(self.asked)}, or a reduction from {least:.2f}x to {most:.2f}x"
            )
        between = (
            pair
            for pair in pairwise(self.stops)
            if pair[0].budget.reduction < wanted.reduction < pair[1].budget.reduction
        )
        pair = next(between, None)
        if pair is None:
            raise UserError(
                f"budget {wanted.asked} is outside the range that was trained, "
                f"{self.asked[0]} to {self.asked[-1]}; choose one within, or prune again"
            )
        low, high = (math.log(stop.budget.reduction) for stop in pair)
        share = (math.log(wanted.reduction) - low) / (high - low)
        ratios = (
            float(one) ** (1 - share) * float(other) ** share
            for one, other in zip(pair[0].keep, pair[1].keep, strict=True)
        )
        keep = tuple(Fraction(max(1, round(r * DENOMINATOR)), DENOMINATOR) for r in ratios)
        return repair(self.sizes, self._with(keep), self.lengths, wanted)

    def ladder(self, count: int) -> list[Plan]:
        """Plans at equal distances, from the largest to the smallest."""
        first, last = (math.log(self.stops[i].budget.reduction) for i in (0, -1))
        rungs = (first + (last - first) * i / (count - 1) for i in range(1, count - 1))
        inner = [self.plan(Budget(f"{x:.2f}x", x)) for x in map(math.exp, rungs)]
        return [self._with(self.stops[0].keep), *inner, self._with(self.stops[-1].keep)]

    def _with(self, keep: Sequence[Fraction]) -> Plan:
        _require(
            len(keep) == len(self.default.steps),
            f"a budget has {len(keep)} shares, the plan has {len(self.default.steps)} steps",
        )
        steps = zip(self.default.steps, keep, strict=True)
        return replace(self.default, steps=tuple(Step(step.layer, share) for step, share in steps))

    def to_json(self) -> str:
        """Write one line for each field."""
        stops = [
            {
                "asked": stop.budget.asked,
                "reduction": stop.budget.reduction,
                "keep": stop.numerators,
            }
            for stop in self.stops
        ]
        data = {
            "schema": _SCHEMA.version,
            "layers": [step.layer for step in self.default.steps],
            "budgets": stops,
            "sizes": vars(self.sizes),
            "lengths": self.lengths.to_json(),
        }
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, default: Plan) -> "Dial":
        """Read a dial; a UserError names the first field that is wrong.

        Args:
            text: the content of dial.json.
            default: the plan beside it.
        """
        data = _SCHEMA.parse(text)
        layers = _SCHEMA.numbers("layers", data["layers"], int)
        _require(
            layers == tuple(step.layer for step in default.steps) and not default.adaptive,
            "it belongs to another plan than plan.json",
            "; copy the bundle again",
        )
        _require(len(data["budgets"]) <= MAX_BUDGETS, f"it has 2 to {MAX_BUDGETS} budgets")
        stops = tuple(_stop(stop) for stop in data["budgets"])
        return cls(default, stops, parse_sizes(data["sizes"], _SCHEMA), _lengths(data["lengths"]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the dial to a file, whole or not at all."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str], default: Plan) -> "Dial":
        """Read the dial in a file; `default` is the plan of the same bundle."""
        try:
            text = read_text(path, _SCHEMA.again)
        except UserError as error:
            raise UserError(f"dial: {error}") from error
        return cls.from_json(text, default)


def parse_budgets(asked: "str | Budget | Sequence[str | Budget]") -> tuple[Budget, ...]:
    """Read one budget, or several for a dial.

    Args:
        asked: a budget; several with commas between them (`2x,3x,5x`); or a sequence of budgets.

    Returns:
        The budgets in the order of the request. The first is the default of the bundle.
    """
    if isinstance(asked, str):
        parts: Sequence[str | Budget] = [part.strip() for part in asked.split(",")]
    else:
        parts = [asked] if isinstance(asked, Budget) else list(asked)
    budgets = tuple(map(Budget.parse, parts))
    if not 1 <= len(budgets) <= MAX_BUDGETS:
        raise UserError(f"{len(budgets)} budgets; give one, or up to {MAX_BUDGETS} for a dial")
    first = budgets[0]
    if len(budgets) > 1:
        _check_count(first)
    for other in budgets[1:]:
        if (first.milliseconds is None) != (other.milliseconds is None):
            raise UserError(
                f"budgets {first.asked} and {other.asked} cannot be of one dial; give reductions "
                "like 2x,3x,5x, or times like 8ms,12ms"
            )
        if _timing(first) != _timing(other):
            raise UserError(
                f"budgets {first.asked} and {other.asked} cannot be of one dial: all its times are "
                "for one percentile, one number of threads and one precision"
            )
    for one, other in pairwise(sorted(budgets, key=tightness)):
        if _same(one, other):
            raise UserError(
                f"budgets {one.asked} and {other.asked} are the same; leave one of them out"
            )
    return budgets


def tightness(budget: Budget) -> float:
    """Sorts the budgets of a dial, from the largest plan to the smallest."""
    return budget.reduction if budget.milliseconds is None else 1 / budget.milliseconds


def _check_count(budget: Budget) -> None:
    if budget.count != "executed":
        raise UserError(
            f"budget {budget.asked}: a dial counts executed FLOPs; give one budget with "
            f"--count {budget.count}, or leave it out"
        )


def _timing(budget: Budget) -> tuple[Any, ...]:
    return budget.quantile, budget.threads, budget.precision, budget.count


def _same(one: Budget, other: Budget) -> bool:
    if one.milliseconds is None or other.milliseconds is None:
        return math.isclose(one.reduction, other.reduction, rel_tol=SAME)
    same = math.isclose(one.milliseconds, other.milliseconds, rel_tol=SAME)
    return same and one.quantile == other.quantile


def numerators(keep: Sequence[Fraction]) -> list[int]:
    """Shares in thousandths."""
    return [share.numerator * (DENOMINATOR // share.denominator) for share in keep]


def _stop(data: Any) -> Stop:
    _SCHEMA.check_fields(data, _STOP_FIELDS, "a budget")
    kept = _SCHEMA.numbers("keep", data["keep"], int)
    _require(
        all(1 <= number <= DENOMINATOR for number in kept),
        f"keep must hold thousandths, 1 to {DENOMINATOR}",
    )
    reduction = float(data["reduction"])
    _require(1 < reduction < math.inf, "a reduction must be above one")
    keep = tuple(Fraction(number, DENOMINATOR) for number in kept)
    return Stop(Budget(data["asked"], reduction), keep)


def _lengths(data: dict[str, Any]) -> Lengths:
    _SCHEMA.numbers("lengths", list(data.values()), int)
    try:
        return Lengths.from_json(data)
    except UserError as error:
        raise UserError(f"dial: {error}") from error
