"""What a sweep found: one report over its tasks, as a table and as a chart.

Every weight of the ranking distillation is a method of its own, and none is chosen: all figures are
of the reported texts, which must not choose what is reported of them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from toprune.report.environment import environment
from toprune.report.svg import Line, Point, chart
from toprune.report.terminal import in_points, markdown, padded, reached, refusals

ABOUT = ("task", "metric", "examples", "max_length", "dense", "settings")  # of a comparison
MET = 1.01  # a budget is met within 1 %
NONE_CHOSEN = (
    "A weight of the ranking distillation (after @) is a row of its own, and none was chosen by "
    "these figures: choose by other texts."
)

Report = dict[str, Any]
Mean = dict[str, Any]


def sweep_report(compared: Mapping[str, Mapping[str, Any]]) -> Report:
    """From the comparisons' reports, by the names of the tasks."""
    means = [{"of": name} | mean for name, one in compared.items() for mean in one["means"]]
    return {
        "tasks": {name: {k: one[k] for k in ABOUT if k in one} for name, one in compared.items()},
        "means": [mean | {"undominated": _is_undominated(mean, means)} for mean in means],
        "refused": [f"{n}: {line}" for n, one in compared.items() for line in refusals(dict(one))],
        "environment": environment(),
    }


def _is_undominated(mean: Mean, means: Sequence[Mean]) -> bool:
    """Nothing else of this task removes as many FLOPs and loses less, or removes more and loses no
    more; as many is within what a budget is met by."""
    here, others = _spot(mean), (_spot(one) for one in means if one["of"] == mean["of"])
    return here is not None and not any(
        (fewer >= here[0] / MET and points > here[1])
        or (fewer > here[0] * MET and points >= here[1])
        for fewer, points in filter(None, others)
    )


def _spot(mean: Mean) -> tuple[float, float] | None:
    """(times fewer FLOPs, points); None of what could not be measured."""
    if "difference" not in mean or not math.isfinite(mean["difference"]["value"]):
        return None
    return mean["executed"]["unpadded"], 100 * mean["difference"]["value"]


# -- in words --------------------------------------------------------------------------------------


def swept(report: Report) -> Group:
    header, *rows = _rows(report)
    table = Table(box=SIMPLE_HEAD)
    for i, name in enumerate(header):
        table.add_column(name, no_wrap=i < 2, justify="left" if i < 2 else "right")
    for row in rows:
        table.add_row(*(one.replace(" (", "\n(") for one in row))
    return Group(*map(Text, _about(report)), table, *map(Text, report["refused"]))


def swept_markdown(report: Report) -> str:
    """The same for a page."""
    refused = "\n".join(f"- {line}" for line in report["refused"])
    table = markdown(_rows(report), names=2)
    return "\n\n".join(filter(None, [*_about(report), table, refused])) + "\n"


def _rows(report: Report) -> list[list[str]]:
    """The header, the dense models, then budget by budget the methods; tasks are columns."""
    means: Sequence[Mean] = report["means"]
    found = {(mean["budget"], mean["name"], mean["of"]): mean for mean in means}
    tasks = report["tasks"]
    budgets, names = (
        list(dict.fromkeys(mean[key] for mean in means)) for key in ("budget", "name")
    )
    return [
        [
            "budget",
            "method",
            *(f"{name} ({one.get('metric', '-')})" for name, one in tasks.items()),
        ],
        [
            "",
            "dense",
            *(in_points(one["dense"]) if "dense" in one else "-" for one in tasks.values()),
        ],
        *(
            [budget, name, *(reached(found.get((budget, name, task))) for task in tasks)]
            for budget in budgets
            for name in names
            if any((budget, name, task) in found for task in tasks)
        ),
    ]


def _about(report: Report) -> list[str]:
    """What the figures are; and never one reduction without the other."""
    done = [mean for mean in report["means"] if "pruned" in mean]
    if not done:
        return ["No method could be measured."]
    seeds = max(mean["seeds"] for mean in done)
    over = f", means over {seeds} seeds (also of the intervals' ends)" if seeds > 1 else ""
    against = "; ".join(
        f"{name} ({one['max_length']} tokens) {padded([m for m in done if m['of'] == name])}"
        for name, one in report["tasks"].items()
        if "max_length" in one
    )
    return [
        "Each task's metric in points, on examples that training never saw, and in parentheses the "
        f"difference to dense [with its 95 % interval]{over}.",
        "Budgets are of real FLOPs, against unpadded inputs. Against inputs padded to the maximum "
        f"they are about: {against}.",
        *([NONE_CHOSEN] if any("@" in mean["name"] for mean in done) else []),
    ]


# -- as a chart ------------------------------------------------------------------------------------


def pareto(report: Report) -> str | None:
    """What is lost against what is saved: of each task a line through what nothing else beats."""
    lines: list[Line] = []
    for task in report["tasks"]:
        points: dict[bool, list[Point]] = {True: [], False: []}
        for mean in report["means"]:
            spot = _spot(mean)
            if mean["of"] == task and spot is not None:
                name = mean["name"] if mean["undominated"] else ""
                points[mean["undominated"]].append(Point(*spot, name=name))
        if points[True]:
            lines.append(Line(task, points[True], points[False]))
    if not lines:
        return None
    return chart(
        lines,
        title="Joined, by these texts: what no other run beats in both",
        x="times fewer FLOPs, against unpadded inputs (real)",
        y="difference to dense (points)",
        start=1.0,
        level=("dense", 0.0),
    )
