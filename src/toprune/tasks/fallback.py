"""The fallback: a text whose margin is small is answered by the dense model.

Here is the choice of the threshold, from what both models answer to texts that nothing was trained
on and that are not reported, and the file that stores it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.io.untrusted import inside, read_text
from toprune.plan.schema import Schema
from toprune.tasks.base import Outputs, Rows, Task
from toprune.tasks.intervals import exact_low, level_of, parse_share, share

PLACE = "fallback.json"
DENSE = "dense"  # the directory of the dense model, in the bundle
POINTS = 25  # of a curve in the report

_SCHEMA = Schema(
    name=PLACE,
    version=1,
    command="prune",
    fields={
        "schema": (int,),
        "threshold": (float, int),
        "requested": (float, int),
        "agreement": (float, int),
        "low": (float, int),
        "share": (float, int),
        "cost": (float, int),
        "texts": (int,),
    },
    advice="; prune the model again",
)


@dataclass(frozen=True)
class Fallback:
    """When the dense model answers, and what was seen on the texts that decided it.

    Shares are between 0 and 1. "Agreement" is the share of texts to which pruned or dense,
    whichever answers, gives the answer of dense.
    """

    threshold: float  # texts with a smaller margin go to the dense model
    requested: float  # agreement that the user asked for
    agreement: float
    low: float  # low end of its 95 % interval
    share: float  # of the texts that went to the dense model
    cost: float  # FLOPs of both models, as a share of those of the dense model alone
    texts: int
    schema: int = _SCHEMA.version

    def __post_init__(self) -> None:
        _SCHEMA.check_version(self.schema)
        require = _SCHEMA.require
        require(
            isfinite(self.threshold) and self.threshold >= 0,
            f"threshold must be 0 or more, not {self.threshold}",
        )
        for name in ("requested", "agreement", "low", "share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} must be 0 to 1, not {value}")
        require(0 < self.cost < 3, f"cost must be above 0 and below 3, not {self.cost}")
        require(self.texts >= 1, f"texts must be 1 or more, not {self.texts}")

    @property
    def is_met(self) -> bool:
        """Whether the agreement is shown to be what was requested."""
        return self.low >= self.requested

    @property
    def reduction(self) -> float:
        """Times fewer FLOPs than the dense model, both models counted."""
        return 1 / self.cost

    def below(self, task: Task, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """(count,) booleans: the texts that go to the dense model.

        Args:
            task: of the bundle.
            outputs: of the pruned model, one array for each row.
            rows: the rows that the outputs belong to.
            count: number of texts.
        """
        if not count:
            return np.zeros(0, bool)
        return task.answer_margins(outputs, rows, count) < self.threshold

    def describe(self) -> str:
        """One sentence for people: what was requested and what was reached."""
        seen = (
            f"{100 * self.agreement:.1f} % (lower bound {100 * self.low:.1f} %) on {self.texts:,} "
            f"texts, {100 * self.share:.1f} % of which the dense model answers"
        )
        asked = f"{100 * self.requested:g} % of the answers are to equal those of dense"
        return f"{asked}: reached {seen}" if self.is_met else f"{asked}: NOT reached, {seen}"

    def to_json(self) -> str:
        return json.dumps({"schema": self.schema} | asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Fallback":
        return cls(**_SCHEMA.parse(text))

    @classmethod
    def load(cls, bundle: Path) -> "Fallback | None":
        """The fallback of a bundle; None: it has none."""
        if not (bundle / PLACE).exists():
            return None
        return cls.from_json(read_text(inside(bundle, PLACE), _SCHEMA.again))


@dataclass(frozen=True)
class Candidate:
    """A plan for the pruned model, and its answers to N texts."""

    name: str
    cost: float  # its FLOPs, as a share of those of the dense model
    margins: np.ndarray  # (N,)
    same: np.ndarray  # (N,) booleans: the same answer as dense

    def __post_init__(self) -> None:
        if not len(self.margins):
            raise UserError("there are no texts to choose a fallback on; give more of them")

    def curve(self, weights: np.ndarray) -> "Curve":
        """What every threshold would give, from "no text falls back" to "all do".

        Args:
            weights: (N,) the share of each text in the FLOPs of the dense model.
        """
        count = len(self.margins)
        order = np.argsort(self.margins, kind="stable")
        ordered = self.margins[order]
        wrong = np.concatenate([[0], np.cumsum(~self.same[order])])  # among those that fall back
        costs = self.cost + np.concatenate([[0.0], np.cumsum(weights[order])])
        # Texts with equal margins fall back together or not at all.
        places = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > 0, [True]]))
        places = places[(places == 0) | np.isfinite(ordered[places - 1])]  # never below infinity
        thresholds = np.array([_between(ordered, place) for place in places])
        right = count - int((~self.same).sum()) + wrong[places]
        return Curve(thresholds, places, right, costs[places], count)


def _between(ordered: np.ndarray, place: int) -> float:
    """A threshold above the first `place` margins and not above the next one: half-way, because
    another runtime rounds a little differently."""
    if place == 0:
        return 0.0
    below = float(ordered[place - 1])
    least = float(np.nextafter(below, np.inf))
    is_last = place == len(ordered) or not np.isfinite(ordered[place])
    return least if is_last else max(least, (below + float(ordered[place])) / 2)


@dataclass(frozen=True)
class Curve:
    """(K,) each: thresholds, and for each of them what it gives on N texts."""

    thresholds: np.ndarray
    fallen: np.ndarray  # texts that fall back
    right: np.ndarray  # texts that get the answer of dense
    costs: np.ndarray  # FLOPs of both models, as a share of those of dense alone
    texts: int

    def points(self) -> list[list[float]]:
        """Some [cost, agreement] of the curve, for a chart."""
        shown = np.unique(np.linspace(0, len(self.costs) - 1, POINTS).round().astype(int))
        return [[float(self.costs[i]), float(self.right[i] / self.texts)] for i in shown]


def parse_fallback(requested: str | float) -> float:
    """The agreement that a user asks for, as a share: `99%` or 0.99."""
    return parse_share("--fallback", requested) / 100


def choose(
    candidates: Sequence[Candidate], weights: np.ndarray, requested: float, cost: float
) -> tuple[int, Fallback]:
    """Choose the plan and the threshold with the best agreement that a budget pays for.

    For a plan, the cost alone fixes the threshold: as many texts fall back as the budget allows.
    Agreements only choose between plans. The lower bound holds for all plans together, so that
    this choice does not spoil it (Bonferroni).

    Args:
        candidates: plans, and their answers to the same N texts.
        weights: (N,) FLOPs of each text in the dense model, in any unit.
        requested: the agreement that is asked for.
        cost: the budget: FLOPs of both models, as a share of those of dense alone.

    Returns:
        The number of the candidate, and the fallback. Where no candidate is within the cost, the
        cheapest one, without texts that fall back.
    """
    curves = [candidate.curve(weights / weights.sum()) for candidate in candidates]
    level = level_of(len(candidates))
    chosen: list[tuple[float, float, int, int]] = []  # agreement, minus cost, candidate, place
    for number, curve in enumerate(curves):
        within = np.flatnonzero(curve.costs <= cost * (1 + 1e-9))
        if len(within):
            at = int(within[-1])
            chosen.append((curve.right[at] / curve.texts, -curve.costs[at], number, at))
    if chosen:
        _, _, number, at = max(chosen)
    else:
        number, at = min(range(len(curves)), key=lambda i: candidates[i].cost), 0
    curve = curves[number]
    right = int(curve.right[at])
    return number, Fallback(
        threshold=float(curve.thresholds[at]),
        requested=requested,
        agreement=right / curve.texts,
        low=exact_low(right, curve.texts, level),
        share=float(curve.fallen[at] / curve.texts),
        cost=float(curve.costs[at]),
        texts=curve.texts,
    )


def answers_same(
    task: Task, one: Outputs, other: Outputs, rows: Rows, texts: Sequence[Any]
) -> np.ndarray:
    """(N,) booleans: whether two models give a text the same answer.

    Args:
        task: decides, for both.
        one, other: outputs of the models for the same rows.
        rows, texts: what they read.
    """
    a, b = (task.predictions(outputs, rows, texts, None) for outputs in (one, other))
    return np.array([x[task.ANSWER] == y[task.ANSWER] for x, y in zip(a, b, strict=True)], bool)


def fallback_report(
    fallback: Fallback, candidates: Sequence[Candidate], chosen: int, weights: np.ndarray
) -> dict[str, Any]:
    """The fallback as an entry of report.json, with the curves that it was chosen from."""
    return asdict(fallback) | {
        "met": fallback.is_met,
        "reduction": fallback.reduction,
        "pruned_reduction": 1 / candidates[chosen].cost,
        "chosen": chosen,
        "curves": [
            {
                "name": candidate.name,
                "cost": candidate.cost,
                "points": candidate.curve(weights / weights.sum()).points(),
            }
            for candidate in candidates
        ],
    }


def counted(fallen: int, texts: int) -> dict[str, Any]:
    """How many of some texts fell back, and their share with its interval, for reports."""
    return {"texts": texts, "fallen": fallen, "share": share(fallen, texts) if texts else None}
