"""The table of every kind of task, from results/tasks (written by tasks.py), and that of answers
without training (answers_study.py)."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "tasks"
TITLES = {
    "squad": ("SQuAD v1.1 dev, answers", "f1"),
    "squad2": ("SQuAD v2.0 half dev, answers", "best_f1"),
    "20news": ("20News test, 512 tokens", "accuracy"),
    "trecqa": ("TREC-QA test, ranking", "ndcg@10"),
    "cranfield": ("Cranfield, BM25 top 50, ranking", "ndcg@10"),
    "mrpc-mpnet": ("MRPC dev and test, MPNet-base", "accuracy"),
    "stsb-embed": ("STS-B test, embeddings", "spearman"),
}
HEAD = (
    "| task (metric) | trained on | pruned with | asked | executed, unpadded | dense | pruned "
    "| difference (95 %) | int8 | faster, fp32 | faster, int8 | int8 over dense fp32 |"
)
PAIRS = (  # what is timed against what
    ("pruned fp32", "dense fp32"),
    ("pruned int8", "dense int8"),
    ("pruned int8", "dense fp32"),
)


def parts() -> dict[str, str]:
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    found.sort(key=lambda run: (list(TITLES).index(run["name"]), run["budget"]["asked"]))
    lines = [HEAD, "|" + "---|" * 12, *map(_row, found)]
    commits = sorted({str(run["environment"]["commit"]) for run in found})
    machines: dict[str, list[str]] = {}
    for run in found:
        if "latency" in run:
            title = TITLES[run["name"]][0].partition(",")[0]
            machines.setdefault(run["latency"]["environment"]["machine"], []).append(title)
    timed = "; ".join(
        f"{', '.join(dict.fromkeys(titles))} on {machine}" for machine, titles in machines.items()
    )
    made = (
        f"One seed each, commits {', '.join(commits)}. Times: 1 thread, one text a call; {timed}. "
        "Times of different machines do not compare."
    )
    tasks = "\n".join(lines) + f"\n\n{made}" if found else "No result files yet."
    return {"tasks": tasks, "answers": _answers()}


def _answers() -> str:
    path = RESULTS.parent / "answers_study.json"
    if not path.exists():
        return "No result file yet."
    found = json.loads(path.read_text())
    lines = [
        "| ranked by | dropped tokens | F1 to dense (95 %) | same answer | plan |",
        "|---" * 5 + "|",
    ]
    for way in found["ways"]:
        gap = way["difference"]["f1"]
        low, high = 100 * gap["low"], 100 * gap["high"]
        steps = ", ".join(
            f"{layer + 1}: {float(Fraction(keep)):.2f}" for layer, keep in way["steps"]
        )
        cells = (
            f"`{way['score']}`",
            f"`{way['dropped']}`",
            f"{100 * gap['value']:+.1f} ({low:+.1f} to {high:+.1f})",
            f"{100 * way['agreement']:.1f} %",
            steps,
        )
        lines.append(f"| {' | '.join(cells)} |")
    shares = list(found["answer_kept_by_layer"][0])
    lines += ["", f"| ranked in layer | {' | '.join(shares)} |", "|---" * (len(shares) + 1) + "|"]
    for i, kept in enumerate(found["answer_kept_by_layer"]):
        told = (f"{100 * kept[share]:.0f} %" for share in shares)
        lines.append(f"| {i + 1} | {' | '.join(told)} |")
    dense = 100 * found["ways"][0]["dense"]["f1"]["value"]
    lines += [
        "",
        f"{found['ways'][0]['examples']} questions, dense F1 {dense:.1f}, one seed, commit "
        f"{found['environment']['commit']}. The plan: layer, and the share of tokens that it "
        "keeps. The second table: how often both ends of the dense model's answer are among so "
        "large a share of the tokens, ranked by that layer's own probe.",
    ]
    return "\n".join(lines)


def _row(run: dict[str, Any]) -> str:
    title, metric = TITLES[run["name"]]
    if run.get("query_protected") is False and run["task"] == "rank":
        title += ", query not protected"
    if run.get("method", "top") != "top":
        title += f", `--method {run['method']}`"
    if run["score"] == "probes":
        title += ", `--score probes`"
    if run["training"].get("token_states"):
        title += ", `--token-states`"
    if run["task"] == "answer" and run["task_settings"].get("dropped") == "zero":
        title += ", `--dropped zero`"
    gap = run["difference"][metric]
    low, high = 100 * gap["low"], 100 * gap["high"]
    cells = [
        f"{title} ({metric})",
        "brought" if run["dense_epochs"] is None else f"{run['trained_on']:,}",
        f"{run.get('pruned_with', run['trained_on']):,}",
        run["budget"]["asked"],
        f"{run['budget']['executed']['unpadded']:.2f}x",
        f"{100 * run['dense'][metric]['value']:.1f}",
        f"{100 * run['pruned'][metric]['value']:.1f}",
        f"{100 * gap['value']:+.1f} ({low:+.1f} to {high:+.1f})",
        f"{100 * run['int8'][metric]['value']:.1f}" if "int8" in run else "",
        *(_faster(run, *pair) for pair in PAIRS),
    ]
    return f"| {' | '.join(cells)} |"


def headline_row(name: str) -> str:
    """The row of README's table for one result file: the short form of the row above."""
    run = json.loads((RESULTS / f"{name}.json").read_text())
    title, metric = TITLES[run["name"]]
    gap = run["difference"][metric]
    low, high = 100 * gap["low"], 100 * gap["high"]
    by = ", `joint`" if run.get("method") == "joint" else ""
    cells = [
        f"{title} ({metric}){by}",
        f"{run['budget']['executed']['unpadded']:.1f}x",
        f"{100 * run['dense'][metric]['value']:.1f}",
        f"{100 * run['pruned'][metric]['value']:.1f}",
        f"{100 * gap['value']:+.1f} ({low:+.1f} to {high:+.1f})",
        *(_faster(run, *pair).partition(" ")[0] if "latency" in run else "" for pair in PAIRS),
    ]
    return f"| {' | '.join(cells)} |"


def _faster(run: dict[str, Any], who: str, over: str) -> str:
    if "latency" not in run:
        return "not timed"
    (row,) = run["latency"]["rows"]
    found = next(r for r in row["ratios"] if (r["who"], r["over"]) == (who, over))
    return f"{found['value']:.2f}x ({found['low']:.2f} to {found['high']:.2f})"
