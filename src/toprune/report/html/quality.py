"""Metrics with their intervals, dense against pruned, in points (times 100)."""

from math import isfinite
from typing import Any

from toprune.report.differences import selected
from toprune.report.html.charts import Group, Mark, ranges
from toprune.report.html.parts import (
    block,
    figure,
    figures,
    interval,
    legend,
    number,
    paragraph,
    table,
    user_text,
)
from toprune.tasks import TASKS

Report = dict[str, Any]


def verdict(report: Report) -> str:
    """Is it worse than dense? One sentence, by the main metric of the task."""
    name, difference = next(iter(report["difference"].items()))
    value = number(report, "difference", name, "value", form="+.1f", times=100)
    ends = [
        number(report, "difference", name, end, form="+.1f", times=100) for end in ("low", "high")
    ]
    if difference["high"] < 0:
        result = "The pruned model is worse than the dense one"
    elif difference["low"] > 0:
        result = "The pruned model is better than the dense one"
    else:
        result = "These examples show no clear difference from the dense model"
    numbers = f"{user_text(name)} {value} points [{', '.join(ends)}]"
    return " ".join([f"{result}: {numbers}.", *selected(report)])


def quality(report: Report) -> str:
    """The section about metrics."""
    agree = ""
    if "agreement" in report and report.get("task") in TASKS:
        agree = TASKS[report["task"]].AGREEMENT.format(100 * report["agreement"])
    if "difference" not in report:
        alone = _alone(report) if "metrics" in report else ""
        if not alone and "budget" in report:
            alone = paragraph("There are no labels, so there are no metrics.", agree)
        return alone + _exported(report)
    names = list(report["difference"])
    rows = [
        [
            user_text(name),
            interval(report, "dense", name, form=".1f", times=100),
            interval(report, "pruned", name, form=".1f", times=100),
            interval(report, "difference", name, form="+.1f", times=100),
            number(report, "difference", name, "p", form=".3f", least=0.001),
        ]
        for name in names
    ]
    groups = [
        Group(name, [_mark(model, report[model][name]) for model in ("dense", "pruned")])
        for name in names
        if all(isfinite(x) for model in ("dense", "pruned") for x in report[model][name].values())
    ]
    description = "; ".join(
        f"{group.name}: dense {group.marks[0].value:.1f}, pruned {group.marks[1].value:.1f}"
        for group in groups
    )
    keys = legend([("dense", "dense"), ("pruned", "pruned")])
    numbers = table(
        "In points, with 95 % intervals", ("", "dense", "pruned", "difference", "p"), rows
    )
    about = paragraph(
        "The difference is measured on the same examples, so its interval is narrower than those "
        "of the two models; p is the chance of a difference this large if there is none.",
        soft=True,
    )
    if not groups:
        return figures(block(paragraph(agree), numbers, about), _exported(report))
    chart = figure("quality", "The same as a chart", f"{description}.", ranges(groups), keys=keys)
    return figures(block(paragraph(agree), numbers, about), block(chart, _exported(report)))


def _mark(colour: str, figure: dict[str, float]) -> Mark:
    low, high = (100 * figure[end] if end in figure else None for end in ("low", "high"))
    return Mark(colour, 100 * figure["value"], low, high)


def _alone(report: Report) -> str:
    rows = [
        [user_text(name), interval(report, "metrics", name, form=".1f", times=100)]
        for name in report["metrics"]
    ]
    return table("In points, with 95 % intervals", ("", "value"), rows)


def _exported(report: Report) -> str:
    """What `toprune export --data` measured with the ONNX files."""
    exported = report.get("onnx") or {}
    if not exported:
        return ""
    first = next(iter(exported.values()))
    rows = [
        [user_text(name)]
        + [
            interval(report, "onnx", precision, "metrics", name, form=".1f", times=100)
            for precision in exported
        ]
        for name in first.get("metrics", {})
    ]
    return "<h3>The exported files</h3>" + table(
        f"ONNX, {first.get('examples', '')} examples, in points", ("", *exported), rows
    )
