"""The table of results/fallback (fallback.py): points lost at equal total cost."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "fallback"
TITLES = {"imdb": "IMDB", "20news": "20News", "trecqa": "TREC-QA"}
MODELS = {"minilm": "MiniLM", "gte": "gte-small", "": "MiniLM"}


def parts() -> dict[str, str]:
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    if not found:
        return {"fallback": "No result files yet."}
    lines = [
        "| task (metric), model | dense | 3x without the net | with the net | both together "
        "| answered by dense | same answer: without, with |",
        "|---" * 7 + "|",
        *map(_row, found),
    ]
    commits = sorted({str(run["environment"]["commit"]) for run in found})
    made = f"Differences to dense in points (95 %). Commits {', '.join(commits)}."
    return {"fallback": "\n".join(lines) + f"\n\n{made}"}


def _row(run: dict[str, Any]) -> str:
    task, _, model = run["name"].partition("-")
    metric = next(iter(run["dense"]))
    sides = [_gap(run.get(side), metric) for side in ("without", "with")]
    if "rescored" in run:
        share = f"the best {run['rescored']} of {run['documents']:.0f} documents"
    else:
        share = f"{100 * run['with']['share']['value']:.1f} %"
    same = [f"{100 * run[side]['agreement']:.1f} %" for side in ("without", "with") if side in run]
    return (
        f"| {TITLES[task]} ({metric}), {MODELS[model]} | {100 * run['dense'][metric]['value']:.1f} "
        f"| {sides[0]} | {sides[1]} | {run['with']['reduction']:.2f}x | {share} "
        f"| {', '.join(same)} |"
    )


def _gap(side: dict[str, Any] | None, metric: str) -> str:
    if side is None:
        return ""
    value, low, high = (100 * side["difference"][metric][key] for key in ("value", "low", "high"))
    return f"{value:+.2f} ({low:+.1f} to {high:+.1f})"
