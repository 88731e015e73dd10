"""The tables of results/accuracy (accuracy.py) and results/defaults (defaults.py), and the chart of
results/ladder (ladder.py)."""

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from toprune.report.svg import Line, Point, chart

RESULTS = Path(__file__).parent / "results"
TITLES = {
    "imdb": ("IMDB, 256 tokens", ("accuracy",)),
    "20news": ("20News, 512 tokens", ("accuracy",)),
    "mrpc": ("MRPC", ("accuracy", "f1")),
    "stsb": ("STS-B", ("pearson",)),
    "trecqa": ("questions and sentences", ("ndcg@10",)),
}
MODELS = {"minilm": "MiniLM, 6 layers", "gte": "gte-small, 12 layers"}
SHORT = {"minilm": "MiniLM (6)", "gte": "gte-small (12)"}  # in a legend
HEADLINE = {"imdb": "top", "20news": "top"}  # the method in README's table, if not joint
Runs = list[dict[str, Any]]


def parts() -> dict[str, str]:
    return {"accuracy": _accuracy(), "defaults": _defaults(), "siblings": _siblings()}


def load(folder: str) -> Runs:
    return [json.loads(path.read_text()) for path in sorted((RESULTS / folder).glob("*.json"))]


def _accuracy() -> str:
    """One row a task, model, budget and metric; seeds are averaged, and counted."""
    groups: dict[tuple[str, str, str, str], Runs] = defaultdict(list)
    for run in load("accuracy"):
        task, _, model = run["name"].partition("-")
        groups[task, model, run["budget"]["asked"], run["method"]].append(run)
    lines = [
        "| task (metric) | model | method | fewer FLOPs | dense | pruned | difference (95 %) "
        "| same answer | int8 | seeds |",
        "|" + "---|" * 10,
    ]
    names = list(TITLES)
    for (task, model, budget, method), runs in sorted(
        groups.items(), key=lambda item: (names.index(item[0][0]), item[0][1] == "gte", item[0][2:])
    ):
        title, metrics = TITLES[task]
        for metric in metrics:
            dense, pruned = (_mean(runs, part, metric, "value") for part in ("dense", "pruned"))
            int8 = _mean(runs, "int8", metric, "value")
            same = 100 * statistics.mean(run["agreement"] for run in runs)
            lines.append(
                f"| {title} ({metric}) | {MODELS[model]} | `{method}` | {budget} "
                f"| {dense:.1f} | {pruned:.1f} | {_gap(runs, metric)} | {same:.1f} % "
                f"| {int8:.1f} | {len(runs)} |"
            )
    every = [run for runs in groups.values() for run in runs]
    return "\n".join(lines) + f"\n\n{origin(every)}" if every else "No result files yet."


def headline_rows() -> dict[tuple[str, float], str]:
    """README's rows by task and reduction: MiniLM, with the ladder's times where it has them."""
    groups: dict[tuple[str, str], Runs] = defaultdict(list)
    for run in load("accuracy"):
        task, _, model = run["name"].partition("-")
        if model == "minilm" and run["method"] == HEADLINE.get(task, "joint"):
            groups[task, run["budget"]["asked"]].append(run)
    rows: dict[tuple[str, float], str] = {}
    for (task, budget), runs in groups.items():
        title, (metric, *_) = TITLES[task]
        dense, pruned = (_mean(runs, part, metric, "value") for part in ("dense", "pruned"))
        flops = statistics.mean(run["budget"]["executed"]["unpadded"] for run in runs)
        cells = (
            f"{title} ({metric}), `{runs[0]['method']}`",
            f"{flops:.1f}x",
            f"{dense:.1f}",
            f"{pruned:.1f}",
            _gap(runs, metric),
            *_faster(task, runs[0]["method"], budget),
        )
        rows[task, float(budget.removesuffix("x"))] = f"| {' | '.join(cells)} |"
    return rows


def _faster(task: str, method: str, budget: str) -> tuple[str, str, str]:
    """Times as fast: fp32 and int8 over dense of the same precision, int8 over dense fp32."""
    path = RESULTS / "ladder" / f"{task}.json"
    points = json.loads(path.read_text())["points"] if path.exists() else []
    ms = {
        (p["budget"], p["precision"]): p["ms"]
        for p in points
        if p["model"] == "minilm" and p["method"] in ("dense", method)
    }
    if (budget, "int8") not in ms:
        return "", "", ""
    pairs = (("fp32", "fp32"), ("int8", "int8"), ("fp32", "int8"))
    fp32, int8, both = (f"{ms['1x', a] / ms[budget, b]:.2f}x" for a, b in pairs)
    return fp32, int8, both


def _defaults() -> str:
    """Candidates for the defaults of `prune`, judged on held-out training texts."""
    groups: dict[tuple[str, str, str], Runs] = defaultdict(list)
    for run in load("defaults"):
        groups[run["name"], run["budget"]["asked"], run["candidate"]].append(run)
    lines = [
        "| task (metric) | fewer FLOPs | score | states of | texts | steps | difference (95 %) "
        "| same answer | seeds |",
        "|" + "---|" * 9,
    ]
    for (name, budget, _), runs in sorted(groups.items()):
        title, (metric, *_) = TITLES[name]
        first = runs[0]
        training = first["training"]
        states = "all kept tokens" if training["token_states"] else "the head's token"
        same = 100 * statistics.mean(run["agreement"] for run in runs)
        epochs = training["soft_epochs"] + training["hard_epochs"]
        steps = round(epochs * first["pruned_with"] / training["batch_size"])
        lines.append(
            f"| {title.partition(',')[0]} ({metric}) | {budget} | `{first['score']}` | {states} "
            f"| {first['pruned_with']:,} | {steps:,} | {_gap(runs, metric)} | {same:.1f} % "
            f"| {len(runs)} |"
        )
    every = [run for runs in groups.values() for run in runs]
    return "\n".join(lines) + f"\n\n{origin(every)}" if every else "No result files yet."


def _gap(runs: Runs, metric: str) -> str:
    """In points. The interval is the paired bootstrap's over examples, averaged over seeds."""
    value, low, high = (
        _mean(runs, "difference", metric, part) for part in ("value", "low", "high")
    )
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def _mean(runs: Runs, part: str, metric: str, field: str) -> float:
    return 100 * statistics.mean(run[part][metric][field] for run in runs)


def origin(runs: Runs) -> str:
    """Where and from what commits the runs were made."""
    machines = sorted({run["environment"]["machine"] for run in runs})
    commits = sorted({str(run["environment"]["commit"]) for run in runs})
    return f"Made on {', '.join(machines)}; commits {', '.join(commits)}."


def _siblings() -> str:
    """README's answer: is a smaller model not as good?"""
    run = json.loads((RESULTS / "ladder" / "mrpc.json").read_text())
    points = {(p["model"], p["budget"], p["precision"]): p for p in run["points"]}

    def measured(model: str, budget: str, precision: str) -> str:
        point = points[model, budget, precision]
        return f"{point['ms']:.1f} ms, {100 * point['metrics'][run['metric']]['value']:.1f} %"

    large, large_int8 = (measured("gte", "3x", precision) for precision in ("fp32", "int8"))
    small, small_int8 = (measured("minilm", "1x", precision) for precision in ("fp32", "int8"))
    return (
        f"**Is a smaller model not as good?** On MRPC, gte-small (12 layers) pruned to 3x by "
        f"`joint` ({large}; int8 {large_int8}) is faster and more accurate than dense MiniLM "
        f"(6 layers: {small}; int8 {small_int8}). One seed, {run['examples']:,} pairs."
    )


def ladder_chart(task: str) -> str | None:
    """Accuracy against measured milliseconds; None: not measured yet."""
    path = RESULTS / "ladder" / f"{task}.json"
    if not path.exists():
        return None
    run = json.loads(path.read_text())
    lines: dict[str, list[Point]] = defaultdict(list)
    for point in run["points"]:
        measured = point["metrics"][run["metric"]]
        if point["method"] not in ("dense", HEADLINE.get(task, "joint")):
            continue
        name = "dense" if point["method"] == "dense" else point["budget"]
        lines[f"{SHORT[point['model']]}, {point['precision']}"].append(
            Point(point["ms"], 100 * measured["value"], name=name)
        )
    return chart(
        [Line(name, sorted(line, key=lambda p: p.x)) for name, line in lines.items()],
        title=f"{TITLES[task][0]}, {run['examples']:,} texts that no model was trained on",
        x="milliseconds a text, one thread (measured in turns)",
        y=run["metric"],
        start=0.0,
    )
