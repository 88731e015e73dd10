"""The tables of latency.py's result files; table.py puts them into README.md and docs/."""

import json
from itertools import product
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
NONE = "Not measured yet."


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _ratio(row: dict[str, Any], who: str, over: str | None = None) -> dict[str, Any]:
    over = over or row["base"]
    return next(r for r in row["ratios"] if (r["who"], r["over"]) == (who, over))


def _interval(report: dict[str, Any]) -> str:
    return f"{report['value']:.1f}x ({report['low']:.1f} to {report['high']:.1f})"


def speed(threads: int, score: str) -> str:
    """Pruned over the fastest dense fp32 graph, one text at a time."""
    report = read("latency")
    if report is None:
        return NONE
    lines = [
        "| tokens | schedule | fewer FLOPs | fp32 over dense fp32 (95 %) "
        "| fp32 over ONNX Runtime's own dense fp32 | int8 over dense fp32 "
        "| int8 over dense int8 | dense int8 over dense fp32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        if row["threads"] != threads:
            continue
        for schedule in ("mild", "strong"):
            fp32 = _ratio(row, f"{schedule} {score} fp32")
            both = _ratio(row, f"{schedule} {score} int8")
            int8 = _ratio(row, f"{schedule} {score} int8", "dense int8")
            dense = _ratio(row, "dense int8")
            stock = _ratio(row, f"{schedule} {score} fp32", "ort dense fp32")
            lines.append(
                f"| {row['length']} | {schedule} | {fp32['flops']:.2f}x | {_interval(fp32)} "
                f"| {stock['value']:.1f}x "
                f"| {_interval(both)} | {_interval(int8)} | {dense['value']:.1f}x |"
            )
    return "\n".join(lines)


def scores() -> str:
    """The same schedule by either score, 1 thread."""
    report = read("latency")
    if report is None:
        return NONE
    lines = ["| tokens | schedule | received | probe | probe int8 |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        if row["threads"] == 1:
            for schedule in ("mild", "strong"):
                cells = [
                    _interval(_ratio(row, f"{schedule} {kind}"))
                    for kind in ("received fp32", "probe fp32", "probe int8")
                ]
                lines.append(f"| {row['length']} | {schedule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paper() -> str:
    report = read("latency_paper")
    if report is None:
        return NONE
    lines = [
        "| task, padded to | the paper's FLOPs factor | the paper's latency | ours, text of the "
        "maximum length (95 %) | ours, text of the mean length (95 %) |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        full, mean = (
            _interval(_ratio(row, f"pruned, {kind}")) for kind in ("padded", "mean length")
        )
        paper = row["paper"]
        lines.append(
            f"| {row['task']}, {row['length']} | {paper['flops']}x | {paper['latency']}x "
            f"| {full} | {mean} |"
        )
    return "\n".join(lines)


def ragged() -> str:
    report = read("latency_ragged")
    if report is None:
        return NONE
    row = report["rows"][0]
    lines = ["| what | times faster (95 %) |", "|---|---|"]
    for who in ("strong probe fp32", "strong probe int8", "strong received fp32"):
        for way in ("ragged", "row by row"):
            lines.append(f"| {who}, {way} | {_interval(_ratio(row, f'{who}, {way}'))} |")
    stock = _ratio(row, "strong probe fp32, ragged", "ort dense fp32, row by row")
    lines.append(
        f"| strong probe fp32, ragged, over ONNX Runtime's own dense | {_interval(stock)} |"
    )
    lines.append(f"| dense fp32, ragged | {_interval(_ratio(row, 'dense fp32, ragged'))} |")
    lines.append(f"| dense fp32, padded | {_interval(_ratio(row, 'dense fp32, padded'))} |")
    return "\n".join(lines)


def curve() -> str:
    """What the machine's own cost of few tokens leaves of the FLOPs factor."""
    report, measured = read("latency_curve"), read("latency")
    if report is None or measured is None:
        return NONE
    lines = [
        "| tokens | schedule | precision | fewer FLOPs | at most here, by the cost curve "
        "| measured, probe |",
        "|---|---|---|---|---|---|",
    ]
    for row in measured["rows"]:
        if row["threads"] != 1:
            continue
        for schedule in ("mild", "strong"):
            for curve_row in report["rows"]:
                precision = curve_row["precision"]
                over = row["base"] if precision == "fp32" else "dense int8"
                done = _ratio(row, f"{schedule} probe {precision}", over)
                most = curve_row["most"][schedule][str(row["length"])]
                lines.append(
                    f"| {row['length']} | {schedule} | {precision} | {done['flops']:.2f}x "
                    f"| {most:.1f}x | {done['value']:.1f}x |"
                )
    return "\n".join(lines)


def int8() -> str:
    report = read("int8")
    if report is None:
        return NONE
    lines = [
        "| model | fp32 | int8 | int8 minus fp32 (95 %) | same answer |",
        "|---|---|---|---|---|",
    ]
    for name, row in report["rows"].items():
        exact, rounded = (
            100 * row[precision]["accuracy"]["value"] for precision in ("fp32", "int8")
        )
        value, low, high = (
            100 * row["difference"]["accuracy"][k] for k in ("value", "low", "high")
        )
        lines.append(
            f"| {name} | {exact:.1f} | {rounded:.1f} | {value:+.1f} ({low:+.1f} to {high:+.1f}) "
            f"| {100 * row['same_answer']:.1f} % |"
        )
    return "\n".join(lines)


def runtime() -> str:
    size, soak = read("runtime_size"), read("soak")
    if size is None or soak is None:
        return NONE
    largest = sorted(size["mb_by_package"].items(), key=lambda item: -item[1])[:4]
    packages = ", ".join(f"{name} {mb:.0f}" for name, mb in largest)
    mb, first = soak["resident_mb"], size["seconds_to_first_prediction"]["median"]
    return (
        f"- `pip install toprune` alone: {size['mb']:.0f} MB beyond Python ({packages}; "
        f"{size['mb_of_bytecode']:.0f} of all is bytecode); no torch. `import toprune`, a Runner "
        f"and its first prediction (MiniLM): {first:.1f} s.\n"
        f"- {soak['requests']:,} mixed requests from {soak['threads']} threads on one Runner: "
        f"{soak['wrong']} wrong, {soak['lost']} lost; {mb['after_1000']:.0f} MB after 1,000 "
        f"requests, {mb['end']:.0f} MB at the end."
    )


def families() -> str:
    """Every family at base size: what its FLOPs factor is worth on a clock."""
    report = read("families")
    if report is None:
        return NONE
    lines = [
        "| family | layers | tokens | fewer FLOPs | fp32 over dense fp32 (95 %) | of the FLOPs "
        "| int8 over dense int8 | int8 over dense fp32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        fp32, int8 = _ratio(row, "strong fp32"), _ratio(row, "strong int8", "dense int8")
        lines.append(
            f"| {row['family']} | {row['layers']} | {row['tokens']} | {fp32['flops']:.2f}x "
            f"| {_interval(fp32)} | {fp32['realised']:.2f} | {_interval(int8)} "
            f"| {_interval(_ratio(row, 'strong int8'))} |"
        )
    return "\n".join(lines)


def machine() -> str:
    report = read("latency")
    if report is None:
        return NONE
    env = report["environment"]
    names = ("onnxruntime", "torch", "transformers")
    versions = ", ".join(f"{name} {env['versions'][name]}" for name in names)
    return f"{report['model']}, on {env['machine']} ({versions}), commit {env['commit']}."


def realised() -> str:
    """The share of its FLOPs factor that a file realises, and the same before."""
    report = read("realised")
    if report is None:
        return NONE
    lines = [
        "| model, tokens | plan | file | fewer FLOPs | over dense of the same kind (95 %) "
        "| realised | before | new over old, in ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        found = {(r["who"], r["over"]): r for r in row["ratios"]}
        for plan, precision in product(row["flops"], ("fp32", "int8")):
            if plan == "dense":
                continue
            who, old = f"new {plan} {precision}", f"old {plan} {precision}"
            now, before = (found.get((w, w.replace(plan, "dense"))) for w in (who, old))
            assert now is not None
            gain = found.get((who, old))
            lines.append(
                f"| {row['model']}, {row['length']} | {plan} | {precision} "
                f"| {row['flops'][plan]:.2f}x "
                f"| {now['value']:.2f}x ({now['low']:.2f} to {now['high']:.2f}) "
                f"| {100 * now['realised']:.0f} % "
                f"| {'' if before is None else format(100 * before['realised'], '.0f') + ' %'} "
                f"| {'' if gain is None else format(gain['value'], '.2f') + 'x'} |"
            )
    return "\n".join(lines)


def parts() -> dict[str, str]:
    return {
        "speed": f"{speed(1, 'probe')}\n\n{machine()}",
        "speed2": speed(2, "probe"),
        "speed-scores": scores(),
        "speed-paper": paper(),
        "speed-ragged": ragged(),
        "speed-curve": curve(),
        "speed-realised": realised(),
        "families": families(),
        "int8": int8(),
        "runtime": runtime(),
    }
