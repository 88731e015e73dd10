"""Checks of a gate: a measured figure with its interval, a limit, and what follows.

Two rules, because two questions differ:

- *All texts*: is the bundle shown to be good enough? The far end of the 95 % interval must keep the
  limit. If only the value keeps it, there are too few texts to tell, and the check says how many
  are needed.
- *Groups* (a class, a range of lengths, texts with filler): is there harm that the mean hides? A
  group has few texts, and there are many groups. The first rule would fail good bundles by chance,
  or require that every class has thousands of texts. So a group fails only if the near end of its
  interval is beyond the limit, which is wider than that of all texts. The intervals of all groups
  hold together with 95 %: with more groups, each of them is wider (Bonferroni).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from toprune.tasks.intervals import LEVEL, cautious, cautious_difference, units_needed
from toprune.tasks.side_by_side import SideBySide

Status = Literal["pass", "fail", "too few"]
Figure = Mapping[str, float]  # value, low, high

ALL = "all texts"
KINDS = {  # what is measured: its unit, and whether the limit is the most that is allowed
    "loss": ("points", True),
    "agreement": ("%", False),
    "keep": ("%", False),
    "time": ("ms", True),
}


@dataclass(frozen=True)
class Check:
    """One row of the result."""

    name: str  # a key of KINDS
    group: str  # ALL, or which texts
    file: str  # fp32 or int8
    limit: float
    value: float
    low: float
    high: float
    n: int  # texts, or whatever the task counts; rounds of a time
    status: Status
    needed: int | None = None  # with too few: about how many are needed

    @property
    def unit(self) -> str:
        return KINDS[self.name][0]

    @property
    def line(self) -> str:
        """The check as one sentence."""
        measured = f"{self.value:.2f} {self.unit} [{self.low:.2f}, {self.high:.2f}]"
        bound = f"{'at most' if KINDS[self.name][1] else 'at least'} {self.limit:g} {self.unit}"
        reason = {
            "pass": "",
            "fail": "",
            "too few": f": {self.n} are too few to tell, about {self.needed} are needed",
        }[self.status]
        return f"{self.file}, {self.group}: {self.name} {measured}, {bound}{reason}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"unit": self.unit, "line": self.line}


def check_all(name: str, file: str, limit: float, figure: Figure, n: int) -> Check:
    """The rule of all texts: the far end of the interval must keep the limit."""
    at_most = KINDS[name][1]
    sign = -1 if at_most else 1
    far = figure["high" if at_most else "low"]
    gap, reach = sign * (figure["value"] - limit), abs(figure["value"] - far)
    status: Status = "pass" if gap >= reach else "too few" if gap > 0 else "fail"
    needed: int | None = None
    if status == "too few":
        by_rounds = math.ceil(n * (reach / gap) ** 2)
        needed = by_rounds if name == "time" else units_needed(reach / 100, n, gap / 100)
    return Check(name, ALL, file, limit, *_ends(figure), n=n, status=status, needed=needed)


def check_group(name: str, group: str, file: str, limit: float, figure: Figure, n: int) -> Check:
    """The rule of groups: fails if the near end of the interval is beyond the limit."""
    at_most = KINDS[name][1]
    is_harmed = figure["low"] > limit if at_most else figure["high"] < limit
    status: Status = "fail" if is_harmed else "pass"
    return Check(name, group, file, limit, *_ends(figure), n=n, status=status)


def _ends(figure: Figure) -> tuple[float, float, float]:
    return figure["value"], figure["low"], figure["high"]


def loss(
    sides: SideBySide, metric: str, level: float = LEVEL
) -> tuple[dict[str, float], int, float]:
    """Points of a metric that the pruned model loses.

    Returns:
        The figure, how many units it is from, and the dense model's metric in points.
    """
    (dense_task, pruned_task), examples = sides.tasks, sides.examples
    dense = dense_task.statistics(sides.outputs[0], sides.rows, examples)
    pruned = pruned_task.statistics(sides.outputs[1], sides.rows, examples)

    def difference(picks: np.ndarray) -> float:
        return pruned_task.metrics(pruned[picks])[metric] - dense_task.metrics(dense[picks])[metric]

    figure = cautious(difference, len(dense), -1.0, level=level)
    return _as_loss(figure), len(dense), 100 * dense_task.metrics(dense)[metric]


def agreement(sides: SideBySide, level: float = LEVEL) -> tuple[dict[str, float], int]:
    """How far the models agree, in %, and how many units that is from."""
    task = sides.tasks[1]
    compared = task.compared(*sides.outputs, sides.rows, sides.examples)
    figure = cautious(lambda picks: task.agree(compared[picks]), len(compared), 0.0, level=level)
    return {key: 100 * value for key, value in figure.items()}, len(compared)


def keep(lost: Figure, dense: float) -> dict[str, float] | None:
    """The share of the dense metric that is kept, in %; None where there is nothing to keep.

    Args:
        lost: from `loss`.
        dense: the dense model's metric in points.
    """
    if dense <= 0:
        return None
    ends = {"value": "value", "low": "high", "high": "low"}
    return {key: 100 * (1 - lost[end] / dense) for key, end in ends.items()}


def class_losses(sides: SideBySide, level: float) -> Iterator[tuple[str, dict[str, float], int]]:
    """The name of each class, the points of its recall that are lost, and its size. The figures are
    from units that count as independent, also where these are the words of one text."""
    for row in sides.tasks[1].recalls(sides):
        if row["count"]:
            figure = cautious_difference(row["lost"], row["won"], row["count"], level=level)
            yield f"class {row['name']}", _as_loss(figure), row["count"]


def count_classes(sides: SideBySide) -> tuple[int, list[str]]:
    """How many classes have examples, and the names of the others."""
    rows = sides.tasks[1].recalls(sides)
    absent = [row["name"] for row in rows if not row["count"]]
    return len(rows) - len(absent), absent


def _as_loss(difference: Figure) -> dict[str, float]:
    """Points lost, from a difference of pruned minus dense."""
    ends = {"value": "value", "low": "high", "high": "low"}
    return {key: -100 * difference[end] + 0.0 for key, end in ends.items()}


def bands(tokens: np.ndarray, shares: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Ranges of lengths by name, with the numbers of their examples; none if all have one length.

    Args:
        tokens: (N,) of each example.
        shares: a range ends where this share of the examples has no more tokens.
    """
    edges = np.unique(np.quantile(tokens, shares, method="higher"))
    if len(edges) < 2:
        return {}
    which = np.searchsorted(edges, tokens)  # the first edge that is not below
    names = [f"up to {edges[0]:.0f} tokens"]
    starts = [(a + 1, b) for a, b in pairwise(edges)]
    names += [f"{b:.0f} tokens" if a == b else f"{a:.0f} to {b:.0f} tokens" for a, b in starts]
    return {name: np.flatnonzero(which == i) for i, name in enumerate(names)}
