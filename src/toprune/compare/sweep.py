"""Sweep tasks x budgets x methods x seeds x weights of the ranking distillation: one comparison for
each task, all of them done together, and one table and one chart over all.

Every weight of the ranking distillation counts as a method, and the sweep chooses none of them: all
figures are of the reported texts, and these must not choose what is reported about them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from toprune.compare.comparison import Comparison, Say, finish
from toprune.compare.executors import Executor, in_turn
from toprune.compare.runs import Run, Subject, has_weight, parse_method, plan_runs
from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.io.devices import Device
from toprune.plan.counts import MEANINGS
from toprune.report.counts import count_of, medians
from toprune.report.environment import environment
from toprune.report.svg import Line, Point, chart
from toprune.report.terminal import in_points, markdown, reached, refusals
from toprune.training.distributed import processes, use_device

SUMMARY = ("task", "metric", "examples", "max_length", "dense", "settings")  # keys of compare.json
MET = 1.01  # a budget is met within 1 %
NONE_CHOSEN = (
    "A weight of the ranking distillation (after @) is a row of its own, and none was chosen by "
    "these figures: choose by other texts."
)

Report = dict[str, Any]
Mean = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """Every method at every budget with every seed, on every task."""

    tasks: Mapping[str, Subject]  # by the names of their directories
    methods: Sequence[str]
    budgets: Sequence[str]
    seeds: Sequence[int] = (0,)
    weights: Sequence[float] = ()  # of the ranking distillation, for methods that have one

    def runs(self) -> list[Run]:
        """List the runs of each task. A method with a ranking distillation runs at each weight."""
        names: list[str] = []
        for name in self.methods:
            method, _, weight = parse_method(name)
            is_varied = has_weight(method) and weight is None and self.weights
            names += [f"{name}@{weight!r}" for weight in self.weights] if is_varied else [name]
        return plan_runs(names, self.budgets, self.seeds)


def sweep(
    grid: Grid,
    *,
    out: str | Path,
    engine: Executor = in_turn,
    device: Device = "auto",
    say: Say = lambda line: None,
) -> Report:
    """Do all runs of a grid. Call it again to resume it, or with a grid that has grown.

    Args:
        out: directory. It gets a directory for each task, which `compare` can continue, and over
            all of them sweep.json, sweep.md and sweep.svg.
        engine: does the runs: `in_turn`, or what `on_ray` returns.
        device: of the runs, as in `prune`.
        say: gets a line about the progress.

    Returns:
        The content of sweep.json.
    """
    if not grid.tasks:
        raise UserError("a sweep needs at least one task")
    use_device(device)  # refuses one that is not here
    directory, runs = Path(out), grid.runs()
    try:
        comparisons = {
            name: Comparison(directory / name, replace(subject, device=device), runs, f"{name}, ")
            for name, subject in grid.tasks.items()
        }
        finish(list(comparisons.values()), engine, say)
    except UserError:
        if processes().is_main_process:
            with suppress(OSError):  # it is not empty, or it was never created
                directory.rmdir()
        raise
    report = sweep_report({name: one.report() for name, one in comparisons.items()})
    if processes().is_main_process:
        write_text(directory / "sweep.json", json.dumps(report, indent=1) + "\n")
        write_text(directory / "sweep.md", sweep_markdown(report))
        if svg := pareto(report):
            write_text(directory / "sweep.svg", svg)
    return report


def sweep_report(compared: Mapping[str, Mapping[str, Any]]) -> Report:
    """Build the content of sweep.json from the reports of the comparisons, by task."""
    means = [{"of": name} | mean for name, one in compared.items() for mean in one["means"]]
    return {
        "tasks": {name: {k: one[k] for k in SUMMARY if k in one} for name, one in compared.items()},
        "means": [mean | {"undominated": _is_undominated(mean, means)} for mean in means],
        "refused": [f"{n}: {line}" for n, one in compared.items() for line in refusals(dict(one))],
        "environment": environment(),
    }


def _is_undominated(mean: Mean, means: Sequence[Mean]) -> bool:
    """Whether no other mean of this task removes as many FLOPs and loses less, or removes more and
    loses no more. "As many" has the tolerance with which a budget is met."""
    here, others = _position(mean), (_position(one) for one in means if one["of"] == mean["of"])
    return here is not None and not any(
        (fewer >= here[0] / MET and points > here[1])
        or (fewer > here[0] * MET and points >= here[1])
        for fewer, points in filter(None, others)
    )


def _position(mean: Mean) -> tuple[float, float] | None:
    """(times fewer FLOPs, points) in the chart; None for what could not be measured."""
    if "difference" not in mean or not math.isfinite(mean["difference"]["value"]):
        return None
    return mean["executed"]["unpadded"], 100 * mean["difference"]["value"]


# -- the table -------------------------------------------------------------------------------------


def sweep_table(report: Report) -> Group:
    """The table for a terminal."""
    header, *rows = _rows(report)
    table = Table(box=SIMPLE_HEAD)
    for i, name in enumerate(header):
        table.add_column(name, no_wrap=i < 2, justify="left" if i < 2 else "right")
    for row in rows:
        table.add_row(*(cell.replace(" (", "\n(") for cell in row))
    return Group(*map(Text, _notes(report)), table, *map(Text, report["refused"]))


def sweep_markdown(report: Report) -> str:
    """The same table for sweep.md."""
    refused = "\n".join(f"- {line}" for line in report["refused"])
    table = markdown(_rows(report), names=2)
    return "\n\n".join(filter(None, [*_notes(report), table, refused])) + "\n"


def _rows(report: Report) -> list[list[str]]:
    """The header, the dense models, then the methods budget by budget; tasks are columns."""
    means: Sequence[Mean] = report["means"]
    cells = {(mean["budget"], mean["name"], mean["of"]): mean for mean in means}
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
            [budget, name, *(reached(cells.get((budget, name, task))) for task in tasks)]
            for budget in budgets
            for name in names
            if any((budget, name, task) in cells for task in tasks)
        ),
    ]


def _notes(report: Report) -> list[str]:
    """What the figures mean; both reductions are always named."""
    done = [mean for mean in report["means"] if "pruned" in mean]
    if not done:
        return ["No method could be measured."]
    seeds = max(mean["seeds"] for mean in done)
    over = f", means over {seeds} seeds (also of the intervals' ends)" if seeds > 1 else ""
    count = count_of(done[0])
    key, other = "padded", "Against inputs padded to the maximum"
    if count != "executed":
        key, other = "unpadded", "Executed, against unpadded inputs (real),"
    against = "; ".join(
        f"{name} ({one['max_length']} tokens) {medians([m for m in done if m['of'] == name], key)}"
        for name, one in report["tasks"].items()
        if "max_length" in one
    )
    return [
        "Each task's metric in points, on examples that training never saw, and in parentheses the "
        f"difference to dense [with its 95 % interval]{over}.",
        f"Budgets are of {MEANINGS[count]}. {other} they are about: {against}.",
        *([NONE_CHOSEN] if any("@" in mean["name"] for mean in done) else []),
    ]


# -- the chart -------------------------------------------------------------------------------------


def pareto(report: Report) -> str | None:
    """Draw loss against saving: for each task, a line through the runs that no other run beats."""
    lines: list[Line] = []
    for task in report["tasks"]:
        points: dict[bool, list[Point]] = {True: [], False: []}
        for mean in report["means"]:
            position = _position(mean)
            if mean["of"] == task and position is not None:
                name = mean["name"] if mean["undominated"] else ""
                points[mean["undominated"]].append(Point(*position, name=name))
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
