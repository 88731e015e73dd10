"""The budgets of a dial side by side: what each executes and loses, with the same weights."""

from math import isfinite
from typing import Any

from toprune.report.html.parts import (
    block,
    figure,
    figures,
    interval,
    number,
    paragraph,
    table,
    user_text,
)
from toprune.report.svg import Line, Point, lines


def dial(report: dict[str, Any]) -> str:
    """The section about the dial; empty if the bundle has none."""
    rows = report.get("dial") or []
    if not rows:
        return ""
    names = list(rows[0].get("difference", {}))
    cells = [
        [
            user_text(row["asked"]),
            number(report, "dial", i, "executed", "unpadded", unit="x"),
            number(report, "dial", i, "executed", "padded", unit="x"),
            number(report, "dial", i, "agreement", form=".1f", times=100),
            *(interval(report, "dial", i, "difference", n, form="+.1f", times=100) for n in names),
        ]
        for i, row in enumerate(rows)
    ]
    header = ("", "fewer FLOPs", "padded", "agreement", *names)
    default = user_text(report["budget"]["asked"])
    about = paragraph(
        "One file runs at each of these budgets and at any between them; the default is "
        f"{default}. Metrics are differences to the dense model, in points."
    )
    numbers = table("In points, with 95 % intervals", header, cells)
    chart = _chart(rows, names[0]) if names else ""
    return figures(block(about, numbers), chart)


def _chart(rows: list[dict[str, Any]], name: str) -> str:
    points = [
        Point(row["executed"]["unpadded"], *(100 * gap[key] for key in ("value", "low", "high")))
        for row in rows
        if all(map(isfinite, (gap := row["difference"][name]).values()))
    ]
    if not points:
        return ""
    description = ", ".join(f"{p.y:+.1f} points at {p.x:.2f} times fewer FLOPs" for p in points)
    drawing = lines(
        [Line(name, points)], x="times fewer FLOPs", y="points", start=1.0, level=0.0, markers=True
    )
    title = f"{name} against dense, which is the dashed line"
    return figure("dial", title, f"{description}.", drawing)
