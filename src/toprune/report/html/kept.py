"""Tokens that enter each layer, for the lengths of the user's texts."""

from typing import Any

from toprune.report.html.charts import columns
from toprune.report.html.parts import figure, figures, legend, number, paragraph, table
from toprune.report.svg import Line, Point, lines, series_class

NAMES = {0.1: "short", 0.5: "median", 0.9: "long", 1.0: "longest"}


def kept(report: dict[str, Any]) -> str:
    """The section about kept tokens."""
    entering = report.get("kept_per_layer")
    if not entering:
        return ""
    share = 100 * entering[-1] / entering[0] if entering[0] else 100
    summary = (
        f"A text of mean length has {entering[0]} tokens; {entering[-1]} of them ({share:.0f} %) "
        f"reach the last of {len(entering)} layers."
    )
    rows = [
        [str(i + 1), number(report, "kept_per_layer", i, form=",")] for i in range(len(entering))
    ]
    mean = figure(
        "kept",
        "Tokens that enter each layer, mean length",
        f"{summary} By layer: {', '.join(map(str, entering))}.",
        columns(entering, x="layer"),
        table("Tokens that enter each layer", ("layer", "tokens"), rows),
    )
    return paragraph(summary) + figures(mean, _by_length(report))


def _by_length(report: dict[str, Any]) -> str:
    rows_by_length = report.get("kept_by_length") or []
    named: dict[int, list[str]] = {}  # lengths are often equal where texts are cut
    for row in rows_by_length:
        named.setdefault(row["tokens"], []).append(NAMES.get(row["share"], str(row["share"])))
    if len(named) < 2:  # images have one length
        return ""
    chosen = {row["tokens"]: at for at, row in enumerate(rows_by_length)}
    names = [f"{' to '.join(dict.fromkeys((n[0], n[-1])))}: {t}" for t, n in named.items()]
    kept = [rows_by_length[chosen[tokens]]["kept"] for tokens in named]
    drawn = [
        Line(name, [Point(i + 1, count) for i, count in enumerate(counts)])
        for name, counts in zip(names, kept, strict=True)
    ]
    rows = [
        [str(i + 1)]
        + [number(report, "kept_by_length", chosen[t], "kept", i, form=",") for t in named]
        for i in range(len(kept[0]))
    ]
    description = "; ".join(
        f"{name} tokens, of which {counts[-1]} reach the last layer"
        for name, counts in zip(names, kept, strict=True)
    )
    return figure(
        "kept-by-length",
        "The same for texts of other lengths",
        f"{description}.",
        lines(drawn, x="layer", y="tokens", floor=0.0),
        table("Tokens that enter each layer, by length", ("layer", *names), rows),
        legend((series_class(i), f"{name} tokens") for i, name in enumerate(names)),
    )
