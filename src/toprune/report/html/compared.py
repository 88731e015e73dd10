"""The accuracy-FLOPs curve of `toprune compare`, on its page and on the page of a bundle."""

import math
from collections.abc import Mapping
from typing import Any

from toprune.report.html.parts import (
    block,
    figure,
    figures,
    interval,
    legend,
    number,
    paragraph,
    section,
    table,
    user_text,
)
from toprune.report.html.shell import page, read_asset
from toprune.report.svg import Line, Point, lines, series_class


def curves(report: Mapping[str, Any], x: str) -> list[Line]:
    """One line for each method, in points (times 100).

    The interval is that of the difference, added to the dense model's value: where it crosses the
    dense line, the data does not separate the two models.

    Args:
        report: compare.json.
        x: "faster" for measured speed, "reduction" for FLOPs.
    """
    points: dict[str, list[Point]] = {}
    for cell in report["means"]:
        if "pruned" not in cell:
            continue
        at = cell["faster"] if x == "faster" else cell["executed"]["unpadded"]
        gap, dense = cell["difference"], cell["dense"]["value"]
        low, high = (100 * (dense + gap[end]) if end in gap else None for end in ("low", "high"))
        y = 100 * cell["pruned"]["value"]
        if at is not None and math.isfinite(y):
            points.setdefault(cell["name"], []).append(Point(at, y, low, high))
    return [Line(name, those) for name, those in points.items()]


def curve(compared: Mapping[str, Any], bundle: Mapping[str, Any] | None = None) -> str:
    """The chart and its table. bundle: the report of a bundle, to mark it in the chart."""
    drawn = curves(compared, "reduction")
    metric = compared.get("metric", "")
    if not drawn:
        return paragraph("No method could be measured.")
    if bundle is not None and metric in bundle.get("pruned", {}):
        here = bundle["budget"]["executed"]["unpadded"], 100 * bundle["pruned"][metric]["value"]
        drawn.append(Line("this bundle", [Point(*here)]))
    cells = [i for i, cell in enumerate(compared["means"]) if "pruned" in cell]
    rows = [
        [
            user_text(f"{compared['means'][i]['name']} at {compared['means'][i]['budget']}"),
            number(compared, "means", i, "executed", "unpadded", unit="x"),
            number(compared, "means", i, "executed", "padded", unit="x"),
            interval(compared, "means", i, "pruned", form=".1f", times=100),
            interval(compared, "means", i, "difference", form="+.1f", times=100),
            number(compared, "means", i, "faster", unit="x"),
        ]
        for i in cells
    ]
    header = ("", "fewer FLOPs", "padded", str(metric), "difference", "faster")
    description = "; ".join(
        f"{line.name}: " + ", ".join(f"{p.y:.1f} at {p.x:.2f}x" for p in line.points)
        for line in drawn
    )
    dense = 100 * compared["dense"]["value"]
    chart = figure(
        "curve",
        f"{metric} in points; the dashed line is dense, {dense:.1f}",
        f"Dense: {dense:.1f}. {description}.",
        lines(drawn, x="times fewer FLOPs", y=str(metric), start=1.0, level=dense, markers=True),
        table(f"{metric} in points, with 95 % intervals", header, rows),
        legend((series_class(i), line.name) for i, line in enumerate(drawn)),
    )
    about = paragraph(
        "Every method has the same model, data, epochs and seeds. A bar is the 95 % interval of "
        "the difference to dense, drawn around the dense model's value: where it crosses the "
        "dashed line, the data does not separate the two."
    )
    return f'<div data-file="compare.json">{figures(chart, block(about))}</div>'


def front(report: Mapping[str, Any]) -> str:
    """The schedules of a method that serves many budgets with the same weights (LAT's search)."""
    members = report.get("front") or []
    if len(members) < 2:
        return ""
    drawn = [Line("schedules", [Point(m["reduction"], m["divergence"]) for m in members])]
    rows = [
        [str(i + 1)]
        + [number(report, "front", i, key, form=".4g") for key in ("reduction", "divergence")]
        for i in range(len(members))
    ]
    least, most = (f(m["reduction"] for m in members) for f in (min, max))
    return figures(
        figure(
            "front",
            "The same weights at other budgets",
            f"{len(members)} schedules, from {least:.2f} to {most:.2f} times fewer FLOPs.",
            lines(drawn, x="times fewer FLOPs", y="from dense", start=1.0, floor=0.0, markers=True),
            table("Distance to the dense model's answers", ("", "reduction", "distance"), rows),
        )
    )


def compare_page(report: Mapping[str, Any]) -> str:
    """compare.html, from compare.json."""
    refused = [row for row in report["rows"] if "error" in row]
    facts = [f"task {report['task']}"]
    if "examples" in report:
        facts.append(f"{report['examples']:,} examples that training never saw")
    reasons = [f"{row['name']} at {row['budget']}: {row['error']}" for row in refused]
    items = "".join(f"<li>{user_text(line)}</li>" for line in dict.fromkeys(reasons))
    machine = report.get("environment", {}).get("machine", "")
    body = [
        "<h1>Methods side by side</h1>",
        paragraph(user_text(" \u00b7 ".join(facts)), soft=True),
        section("Accuracy against FLOPs", curve(report)),
        section("What could not be done", f"<ul>{items}</ul>" if items else ""),
        section("Where the numbers come from", paragraph(user_text(machine)) if machine else ""),
    ]
    return page(
        "Methods side by side", "\n".join(body), style=read_asset(__package__, "report.css")
    )
