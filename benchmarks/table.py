"""Write the tables of README.md and of docs from the result files: no number by hand.

python benchmarks/table.py            # rewrites the parts between the markers
python benchmarks/table.py --check    # fails when they are not up to date (a test runs this)
"""

import argparse
import io
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console

import accuracy_tables
import dial_tables
import fallback_tables
import latency_tables
import milliseconds_tables
import openvino_tables
import reproduced_tables
import serve_tables
import task_tables
from sets import METRIC
from toprune.report.svg import Line, Point, chart
from toprune.report.terminal import stressed

HERE = Path(__file__).parent
ROOT = HERE.parent
TITLES = {"mrpc": "MRPC", "rte": "RTE", "cola": "CoLA", "stsb": "STS-B", "imdb": "IMDB"}
PART = {"mrpc": "all", "stsb": "all", "rte": "dev", "cola": "dev", "imdb": "test"}


def load(folder: str) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text()) for path in sorted((HERE / "results" / folder).glob("*.json"))
    ]


def core_table(runs: list[dict[str, Any]]) -> str:
    """Dense against pruned, one row a task and budget; seeds are averaged, and counted."""
    lines = [
        "| task (metric) | FLOPs removed | executed, unpadded | against padded | score "
        "| dense | pruned | difference (95 %) | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, budget, score, variant), found in _groups(runs):
        if variant == "default":
            lines.append(_row(task, budget, score, found))
    return "\n".join(lines)


# Of core, by the probe; a task with rows of accuracy.py has these alone.
HEADLINE = ("mrpc 50%", "mrpc 67%", "stsb 50%", "imdb 67%", "imdb 80%")
HEADLINE_TASKS = ("20news-3x", "20news-5x", "squad-1.7x", "trecqa-3x", "stsb-embed-2x")


def headline_table(runs: list[dict[str, Any]]) -> str:
    """README's one table: runs of accuracy.py, else core runs, which were not timed; and tasks."""
    newer = accuracy_tables.headline_rows()
    newer_tasks = {task for task, _ in newer}
    lines = [
        "| task (metric) | fewer FLOPs | dense | pruned | difference | faster, fp32 | faster, int8 "
        "| int8 over dense fp32 |",
        "|" + "---|" * 8,
    ]
    for (task, budget, score, variant), group in _groups(runs):
        is_shown = f"{task} {budget}" in HEADLINE and task not in newer_tasks
        if (score, variant) == ("probe", "default") and is_shown:
            dense, pruned, gap = _numbers(task, group)
            flops = statistics.mean(run["executed"]["unpadded"] for run in group)
            lines.append(
                f"| {TITLES[task]} ({METRIC[task]}) | {flops:.1f}x | {dense} | {pruned} | {gap} "
                "| | | |"
            )
    lines += [newer[key] for key in sorted(newer)]
    older = [name for name in HEADLINE_TASKS if name.rpartition("-")[0] not in newer_tasks]
    lines += map(task_tables.headline_row, older)
    return "\n".join(lines)


RIVALS = {
    "top": "toprune",
    "spatten": "SpAtten",
    "cofi": "CoFi (weights)",
    "top:received": "ToP's own score",
    "ltp": "LTP",
    "lat": "LAT",
    "transkimmer": "Transkimmer",
    "drop_layers": "fewer layers",
    "truncate": "truncation",
    "power_bert": "PoWER-BERT",
    "tr_bert": "TR-BERT",
    "adapler": "AdapLeR",
    "lot": "LoT",
}


def _seeds(comparison: dict[str, Any]) -> str:
    count = len({row["seed"] for row in comparison["rows"]})
    return "one seed" if count == 1 else f"{count} seeds"


def trade_chart() -> str:
    """README's picture: points below dense against times fewer FLOPs, by method."""
    found = json.loads((HERE / "results" / "compare" / "mrpc.json").read_text())
    points: dict[str, set[Point]] = {name: {Point(1.0, 0.0)} for name in RIVALS.values()}
    for mean in found["means"]:
        if mean["name"] in RIVALS and "difference" in mean:  # else the budget was out of reach
            gap = 100 * mean["difference"]["value"]
            points[RIVALS[mean["name"]]].add(Point(mean["executed"]["unpadded"], gap))
    seeds = _seeds(found)
    return chart(
        [
            Line(name, sorted(line, key=lambda p: p.x))
            for name, line in points.items()
            if len(line) > 1
        ],
        title=f"MRPC, MiniLM with 6 layers, {found['examples']} pairs, {seeds}",
        x="times fewer FLOPs (real: against unpadded inputs)",
        y="accuracy against dense, in points",
        start=1.0,
    )


def ablation_table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| task | score | variant | pruned | difference to dense (95 %) | seeds |",
        "|---|---|---|---|---|---|",
    ]
    groups = _groups(runs)
    with_variants = {key[:3] for key, _ in groups if key[3] != "default"}
    for key, found in groups:
        if key[:3] in with_variants:
            task, budget, score, variant = key
            _, pruned, gap = _numbers(task, found)
            lines.append(
                f"| {TITLES[task]} {budget} | {score} | {variant} "
                f"| {pruned} | {gap} | {len(found)} |"
            )
    return "\n".join(lines)


def _groups(runs: list[dict[str, Any]]) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Runs that differ in their seed only, in the order of the table."""
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        spec = run["spec"]
        groups[spec["task"], spec["budget"], spec["score"], spec["variant"]].append(run)
    return sorted(groups.items(), key=_order)


def _order(item: Any) -> Any:
    (task, budget, score, variant), _ = item
    return list(TITLES).index(task), budget, score != "probe", variant != "default", variant


def _row(task: str, budget: str, score: str, found: list[dict[str, Any]]) -> str:
    dense, pruned, gap = _numbers(task, found)
    real = statistics.mean(run["executed"]["unpadded"] for run in found)
    padded = statistics.mean(run["executed"]["padded"] for run in found)
    return (
        f"| {TITLES[task]} ({METRIC[task]}) | {budget} | {real:.2f}x | {padded:.1f}x | {score} "
        f"| {dense} | {pruned} | {gap} | {len(found)} |"
    )


def _numbers(task: str, found: list[dict[str, Any]]) -> tuple[str, str, str]:
    """In points. The interval is the paired bootstrap's over examples, averaged over seeds."""
    parts = [run["reported"][PART[task]] for run in found]
    metric = METRIC[task]

    def mean(group: str, field: str) -> float:
        return 100 * statistics.mean(part[group][metric][field] for part in parts)

    low, high = mean("difference", "low"), mean("difference", "high")
    gap = f"{mean('difference', 'value'):+.1f} ({low:+.1f} to {high:+.1f})"
    return f"{mean('dense', 'value'):.1f}", f"{mean('pruned', 'value'):.1f}", gap


def machine(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return "No result files yet."
    env = runs[-1]["environment"]
    versions = ", ".join(f"{k} {v}" for k, v in env["versions"].items() if k != "toprune")
    commits = sorted({str(run["environment"]["commit"]) for run in runs})
    return f"Made on {env['machine']} ({versions}), commits {', '.join(commits)}."


def cost_table() -> str:
    path = HERE / "results" / "train_cost.json"
    if not path.exists():
        return "Not measured yet."
    found = json.loads(path.read_text())
    lines = ["| epoch | cost against plain fine-tuning (95 %) | peak memory |", "|---|---|---|"]
    for row in found["rows"]:
        lines.append(
            f"| {row['name']} | {row['ratio']:.2f}x ({row['low']:.2f} to {row['high']:.2f}) "
            f"| {row['memory_ratio']:.2f}x |"
        )
    return "\n".join(lines)


def finetune_table() -> str:
    path = HERE / "results" / "finetune_cost.json"
    if not path.exists():
        return "Not measured yet."
    found = json.loads(path.read_text())
    cells: dict[str, list[str]] = {}
    for row in found["rows"]:
        told = f"{row['faster']:.2f}x ({row['low']:.2f} to {row['high']:.2f})"
        cells.setdefault(row["name"], []).append(told)
    lengths = [f"{n} tokens" for n in dict.fromkeys(row["length"] for row in found["rows"])]
    lines = [
        f"| fine-tuning, faster than stock with dropout | {' | '.join(lengths)} |",
        "|---" * (1 + len(lengths)) + "|",
        *(f"| {name} | {' | '.join(own)} |" for name, own in cells.items()),
    ]
    threads = f"{found['threads']} thread" + "s" * (found["threads"] > 1)
    return "\n".join([*lines, "", f"{threads}. {machine([found])}"])


def predictors_table() -> str:
    """What choosing costs where nobody leaves."""
    path = HERE / "results" / "predictors.json"
    if not path.exists():
        return "Not measured yet."
    found = json.loads(path.read_text())
    lines = ["| model, 256 tokens | chosen by | FLOPs | latency (95 %) |", "|---|---|---|---|"]
    for row in found["rows"]:
        for ratio in row["ratios"]:
            who = ratio["over"]
            value, low, high = (100 * (ratio[key] - 1) for key in ("value", "low", "high"))
            lines.append(
                f"| {row['model']} | {who} | {100 * (row['flops'][who] - 1):+.1f} % "
                f"| {value:+.0f} % ({low:+.0f} to {high:+.0f}) |"
            )
    return "\n".join([*lines, "", f"One thread. {machine([found])}"])


def weights_table() -> str:
    """Fewer weights, fewer tokens, and both, against the first dense model."""
    runs = load("weights")
    if not runs:
        return "Not measured yet."
    lines = [
        "| method | executed, unpadded | dense | pruned | difference (95 %) |",
        "|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda run: (run["asked"], len(run["stages"]), run["name"])):
        way = ", then ".join(f"`{stage['method']}`" for stage in run["stages"])
        dense, pruned = (100 * run[who]["accuracy"]["value"] for who in ("dense", "pruned"))
        gap = run["difference"]["accuracy"]
        value, low, high = (100 * gap[key] for key in ("value", "low", "high"))
        lines.append(
            f"| {way} | {run['executed']['unpadded']:.2f}x | {dense:.1f} | {pruned:.1f} "
            f"| {value:+.1f} ({low:+.1f} to {high:+.1f}) |"
        )
    return "\n".join([*lines, "", machine(runs)])


def compare_table(name: str) -> str:
    """What `toprune compare` wrote, and where it was made."""
    folder = HERE / "results" / "compare"
    if not (folder / f"{name}.json").exists():
        return "Not measured yet."
    found = json.loads((folder / f"{name}.json").read_text())
    made, training = found["environment"], found["settings"]["training"]
    if training["soft_epochs"] is None:
        length = f"{training['soft_steps']} steps of search, {training['epochs']:.3g} epochs in all"
    else:
        length = f"{training['soft_epochs'] + training['hard_epochs']:g} epochs each"
    return (
        folder / f"{name}.md"
    ).read_text() + f"\n{length}, {_seeds(found)}; {made['machine']}, commit {made['commit']}."


def stress_output() -> str:
    """What `toprune stress` shows of the first bundle, and what it concludes of the others."""
    path = HERE / "results" / "stress.json"
    if not path.exists():
        return "Not measured yet."
    found = json.loads(path.read_text())
    first, *others = found["rows"]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(stressed(first))
    lines = [line.rstrip() for line in console.export_text().rstrip().splitlines()]
    told = [f"The same by `{row['bundle']}`: {row['verdict']}" for row in others]
    return "\n".join(["```text", *lines, "```", *(f"\n{one}" for one in [*told, machine([found])])])


def fill(path: Path, parts: dict[str, str]) -> str:
    text = path.read_text()
    for name, content in parts.items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        if begin in text:
            head, rest = text.split(begin, 1)
            text = f"{head}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    runs = load("core")
    parts = {
        "core": f"{core_table(runs)}\n\n{machine(runs)}",
        "headline": headline_table(runs),
        "ablations": ablation_table(runs),
        "cost": cost_table(),
        "finetune": finetune_table(),
        "compare-mrpc": compare_table("mrpc"),
        "compare-imdb": compare_table("imdb"),
        "predictors": predictors_table(),
        "weights": weights_table(),
        "stress": stress_output(),
    }
    parts |= latency_tables.parts() | task_tables.parts() | accuracy_tables.parts()
    parts |= fallback_tables.parts() | openvino_tables.parts() | reproduced_tables.parts()
    parts |= dial_tables.parts() | milliseconds_tables.parts() | serve_tables.parts()
    docs = ROOT / "docs"
    pages = (
        "results.md",
        "methods.md",
        "reproduce.md",
        "how-to/guardrails.md",
        "how-to/serving.md",
    )
    written = {path: fill(path, parts) for path in (ROOT / "README.md", *(docs / p for p in pages))}
    written[docs / "images" / "trade.svg"] = trade_chart()
    for name, picture in reproduced_tables.pictures().items():
        written[docs / "images" / name] = picture
    for task in accuracy_tables.TITLES:
        if (picture := accuracy_tables.ladder_chart(task)) is not None:
            written[docs / "images" / f"ladder-{task}.svg"] = picture
    for path, new in written.items():
        if not args.check:
            path.write_text(new)
        elif not path.exists() or new != path.read_text():
            sys.exit(f"{path.name} is not what the result files say; run benchmarks/table.py")


if __name__ == "__main__":
    main()
