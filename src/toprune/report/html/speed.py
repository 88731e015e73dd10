"""Latency ratios that `toprune bench` measured; without them, how to measure."""

from typing import Any

from toprune.report.html.charts import Group, Mark, bars
from toprune.report.html.parts import (
    block,
    command,
    figure,
    figures,
    legend,
    number,
    paragraph,
    table,
    user_text,
)

Report = dict[str, Any]
RACE = ("pruned fp32", "dense fp32")


def fastest(report: Report) -> tuple[str | int, ...] | None:
    """The path in the report of the first ratio that is about the plan alone."""
    for i, row in enumerate(report.get("latency", {}).get("rows", [])):
        for j, ratio in enumerate(row["ratios"]):
            if (ratio["who"], ratio["over"]) == RACE:
                return "latency", "rows", i, "ratios", j
    return None


def speed(report: Report) -> str:
    """The section about latency."""
    if "latency" not in report:
        if "budget" not in report:
            return ""
        return (
            paragraph(
                "Not measured yet; FLOPs are not milliseconds. Run on the machine that will serve:"
            )
            + command("toprune export BUNDLE", "--int8")
            + command("toprune bench BUNDLE", "--data DATA", "--save")
        )
    latency = report["latency"]
    parts = [paragraph(user_text(latency["verdict"]))]
    parts += [_row(report, i) for i in range(len(latency["rows"]))]
    threads = f"{latency['threads']} thread{'s' if latency['threads'] > 1 else ''}"
    machine = latency.get("environment", {}).get("machine", "")
    date = latency.get("date", "").replace("T", " ").replace("+00:00", " UTC")
    facts = [f"{threads}, ONNX Runtime", machine, date]
    parts.append(paragraph(user_text(" \u00b7 ".join(filter(None, facts))), soft=True))
    return "".join(parts)


def _row(report: Report, at: int) -> str:
    row = report["latency"]["rows"][at]
    groups = [
        Group(
            f"{ratio['who']} over {ratio['over']}",
            [Mark(_colour(ratio), ratio["value"], ratio["low"], ratio["high"])],
        )
        for ratio in row["ratios"]
    ]
    rows = [
        [
            user_text(groups[j].name),
            number(report, "latency", "rows", at, "ratios", j, "value", unit="x"),
            number(report, "latency", "rows", at, "ratios", j, "low"),
            number(report, "latency", "rows", at, "ratios", j, "high"),
            number(report, "latency", "rows", at, "ratios", j, "flops", unit="x"),
        ]
        for j in range(len(groups))
    ]
    times = [
        [user_text(name), number(report, "latency", "rows", at, "ms_per_text", name, form=".2f")]
        for name in row["ms_per_text"]
    ]
    title = f"Times faster: {row['name']}, {row['tokens']:.0f} tokens on average"
    description = "; ".join(f"{g.name}: {g.marks[0].value:.2f} times faster" for g in groups)
    numbers = table(
        "Times faster, with 95 % intervals", ("", "ratio", "from", "to", "fewer FLOPs"), rows
    )
    medians = table("Milliseconds per text, medians", ("", "ms"), times)
    keys = legend([("pruned", "pruned and dense differ in the plan only"), ("dense", "others")])
    chart = figure(f"speed-{at}", title, f"{description}.", bars(groups, level=1.0), numbers, keys)
    return figures(chart, block(medians))


def _colour(ratio: dict[str, Any]) -> str:
    """Ratios of models that differ in the plan alone have another colour."""
    who, over = (ratio[side].split(" ", 1) for side in ("who", "over"))
    return "pruned" if (who[0], over[0]) == ("pruned", "dense") and who[1:] == over[1:] else "dense"
