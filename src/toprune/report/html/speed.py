"""Latency ratios as `toprune bench` measured them; without them, how to."""

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
    words,
)

Report = dict[str, Any]
RACE = ("pruned fp32", "dense fp32")


def fastest(report: Report) -> tuple[str | int, ...] | None:
    """Where the first ratio is that is about the plan alone."""
    for i, row in enumerate(report.get("latency", {}).get("rows", [])):
        for j, ratio in enumerate(row["ratios"]):
            if (ratio["who"], ratio["over"]) == RACE:
                return "latency", "rows", i, "ratios", j
    return None


def speed(report: Report) -> str:
    if "latency" not in report:
        if "budget" not in report:
            return ""
        return (
            paragraph(
                "Not measured yet, and FLOPs are not milliseconds. On the machine that will serve:"
            )
            + command("toprune export BUNDLE", "--int8")
            + command("toprune bench BUNDLE", "--data DATA", "--save")
        )
    found = report["latency"]
    parts = [paragraph(words(found["verdict"]))]
    parts += [_row(report, i) for i in range(len(found["rows"]))]
    threads = f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    machine = found.get("environment", {}).get("machine", "")
    date = found.get("date", "").replace("T", " ").replace("+00:00", " UTC")
    told = [f"{threads}, ONNX Runtime", machine, date]
    parts.append(paragraph(words(" \u00b7 ".join(filter(None, told))), soft=True))
    return "".join(parts)


def _row(report: Report, at: int) -> str:
    row = report["latency"]["rows"][at]
    groups = [
        Group(
            f"{ratio['who']} over {ratio['over']}",
            [Mark(_kind(ratio), ratio["value"], ratio["low"], ratio["high"])],
        )
        for ratio in row["ratios"]
    ]
    rows = [
        [
            words(groups[j].name),
            number(report, "latency", "rows", at, "ratios", j, "value", unit="x"),
            number(report, "latency", "rows", at, "ratios", j, "low"),
            number(report, "latency", "rows", at, "ratios", j, "high"),
            number(report, "latency", "rows", at, "ratios", j, "flops", unit="x"),
        ]
        for j in range(len(groups))
    ]
    times = [
        [words(name), number(report, "latency", "rows", at, "ms_per_text", name, form=".2f")]
        for name in row["ms_per_text"]
    ]
    title = f"Times faster: {row['name']}, {row['tokens']:.0f} tokens in the mean"
    says = "; ".join(f"{g.name}: {g.marks[0].value:.2f} times faster" for g in groups)
    numbers = table(
        "Times faster, with 95 % intervals", ("", "ratio", "from", "to", "fewer FLOPs"), rows
    )
    medians = table("Milliseconds a text, medians", ("", "ms"), times)
    keys = legend([("pruned", "pruned and dense alike but for the plan"), ("dense", "others")])
    chart = figure(f"speed-{at}", title, f"{says}.", bars(groups, level=1.0), numbers, keys)
    return figures(chart, block(medians))


def _kind(ratio: dict[str, Any]) -> str:
    """Those that differ in the plan alone are told apart from those that differ in more."""
    who, over = (ratio[side].split(" ", 1) for side in ("who", "over"))
    return "pruned" if (who[0], over[0]) == ("pruned", "dense") and who[1:] == over[1:] else "dense"
