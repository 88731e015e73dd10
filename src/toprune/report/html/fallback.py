"""The safety net: how agreement with dense grows with what fallbacks cost, and the chosen point."""

from typing import Any

from toprune.report.fallback import fallback_line
from toprune.report.html.parts import (
    block,
    figure,
    figures,
    interval,
    legend,
    number,
    paragraph,
    steps,
    table,
    user_text,
)
from toprune.report.svg import Line, Point, lines, series_class


def fallback(report: dict[str, Any]) -> str:
    """The section about texts that the dense model answers; nothing where there is none."""
    entry = report.get("fallback")
    if not entry:
        return ""
    at = 100 * entry["cost"], 100 * entry["agreement"]
    drawn = [
        Line(f"plan {curve['name']}", [Point(100 * x, 100 * y) for x, y in curve["points"]])
        for curve in entry["curves"]
    ]
    drawn.append(Line("chosen", [Point(*at, 100 * entry["low"], 100 * entry["agreement"])]))
    rows = [
        [
            user_text(curve["name"]),
            number(report, "fallback", "curves", i, "cost", form=".1f", times=100),
            number(report, "fallback", "curves", i, "points", 0, 1, form=".1f", times=100),
        ]
        for i, curve in enumerate(entry["curves"])
    ]
    chart = figure(
        "fallback",
        "Answers that equal dense, in %, against the cost of both models, in % of dense",
        f"Chosen: {at[1]:.1f} % of the answers equal dense at {at[0]:.1f} % of its FLOPs.",
        lines(
            drawn,
            x="FLOPs of both models, in % of dense",
            y="agreement, in %",
            start=drawn[0].points[0].x,
            level=100 * entry["requested"],
        ),
        table("Plans without texts that fall back", ("plan", "FLOPs", "agreement"), rows),
        legend((series_class(i), line.name) for i, line in enumerate(drawn)),
    )
    facts = [
        (
            "agreement",
            number(report, "fallback", "agreement", form=".1f", times=100, unit=" %"),
            "with dense, on texts that were neither trained on nor reported",
        ),
        (
            "lower bound",
            number(report, "fallback", "low", form=".1f", times=100, unit=" %"),
            "of the exact 95 % interval, for all plans that were tried",
        ),
        (
            "answered by dense",
            number(report, "fallback", "share", form=".1f", times=100, unit=" %"),
            "of these texts",
        ),
        (
            "answered by dense, reported texts",
            interval(report, "fallback", "held_out", "share", form=".1f", times=100),
            "in %; the metrics of this page are those of both models together",
        ),
    ]
    return figures(block(paragraph(user_text(fallback_line(report))), steps(facts)), chart)
