"""Metrics with their intervals, dense against pruned. In points (times 100)."""

from math import isfinite
from typing import Any

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
    words,
)
from toprune.tasks import TASKS

Report = dict[str, Any]


def verdict(report: Report) -> str:
    """Is it worse than dense? In one sentence, by the metric that the task is judged by."""
    name, found = next(iter(report["difference"].items()))
    apart = number(report, "difference", name, "value", form="+.1f", times=100)
    ends = [
        number(report, "difference", name, end, form="+.1f", times=100) for end in ("low", "high")
    ]
    told = f"{words(name)} {apart} points [{', '.join(ends)}]"
    if found["high"] < 0:
        return f"The pruned model is worse than the dense one: {told}."
    if found["low"] > 0:
        return f"The pruned model is better than the dense one: {told}."
    return f"These examples prove no difference to the dense model, nor that there is none: {told}."


def quality(report: Report) -> str:
    agree = ""
    if "agreement" in report and report.get("task") in TASKS:
        agree = TASKS[report["task"]].AGREEMENT.format(100 * report["agreement"])
    if "difference" not in report:
        alone = _alone(report) if "metrics" in report else ""
        if not alone and "budget" in report:
            alone = paragraph("There were no labels, so there are no metrics:", agree)
        return alone + _exported(report)
    names = list(report["difference"])
    rows = [
        [
            words(name),
            interval(report, "dense", name, form=".1f", times=100),
            interval(report, "pruned", name, form=".1f", times=100),
            interval(report, "difference", name, form="+.1f", times=100),
            number(report, "difference", name, "p", form=".3f", least=0.001),
        ]
        for name in names
    ]
    groups = [
        Group(name, [_mark(kind, report[kind][name]) for kind in ("dense", "pruned")])
        for name in names
        if all(isfinite(x) for kind in ("dense", "pruned") for x in report[kind][name].values())
    ]
    says = "; ".join(
        f"{group.name}: dense {group.marks[0].value:.1f}, pruned {group.marks[1].value:.1f}"
        for group in groups
    )
    keys = legend([("dense", "dense"), ("pruned", "pruned")])
    told = table("In points, with 95 % intervals", ("", "dense", "pruned", "difference", "p"), rows)
    about = paragraph(
        "The difference is of the same examples, so its interval is narrower than those of the two "
        "models; p is the chance of one as large without a real one.",
        soft=True,
    )
    if not groups:
        return figures(block(paragraph(agree), told, about), _exported(report))
    chart = figure("quality", "The same as a picture", f"{says}.", ranges(groups), keys=keys)
    return figures(block(paragraph(agree), told, about), block(chart, _exported(report)))


def _mark(kind: str, figure: dict[str, float]) -> Mark:
    low, high = (100 * figure[end] if end in figure else None for end in ("low", "high"))
    return Mark(kind, 100 * figure["value"], low, high)


def _alone(report: Report) -> str:
    rows = [
        [words(name), interval(report, "metrics", name, form=".1f", times=100)]
        for name in report["metrics"]
    ]
    return table("In points, with 95 % intervals", ("", "value"), rows)


def _exported(report: Report) -> str:
    """What `toprune export --data` measured of the ONNX files."""
    found = report.get("onnx") or {}
    if not found:
        return ""
    first = next(iter(found.values()))
    rows = [
        [words(name)]
        + [interval(report, "onnx", kind, "metrics", name, form=".1f", times=100) for kind in found]
        for name in first.get("metrics", {})
    ]
    return "<h3>The exported files</h3>" + table(
        f"ONNX, {first.get('examples', '')} examples, in points", ("", *found), rows
    )
