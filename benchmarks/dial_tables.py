"""The table of results/dial (dial.py): one dial against a training for each budget."""

import statistics
from collections import defaultdict

from accuracy_tables import TITLES, Runs, load, origin

Key = tuple[str, str, str]  # task, metric, budget


def parts() -> dict[str, str]:
    return {"dial": _dial()}


def _dial() -> str:
    """One row a task, metric and budget; seeds are averaged, and counted."""
    runs = load("dial")
    dials, apart = (
        [run for run in runs if (run["kind"] == "dial") is one] for one in (True, False)
    )
    rows, others = _differences(dials), _differences(apart)
    if not rows:
        return "No result files yet."
    lines = [
        "| task (metric) | fewer FLOPs | dial, against dense | same answer | separate, against "
        "dense | same answer | dial against separate | seeds |",
        "|" + "---|" * 8,
    ]
    for key, found in rows.items():
        task, metric, budget = key
        gap, same = (statistics.mean(column) for column in zip(*found, strict=True))
        cells = ["", "", ""]
        if key in others:
            other, other_same = (statistics.mean(c) for c in zip(*others[key], strict=True))
            cells = [f"{other:+.1f}", f"{other_same:.1f} %", f"{gap - other:+.1f}"]
        lines.append(
            f"| {TITLES[task][0].partition(',')[0]} ({metric}) | {budget} | {gap:+.1f} "
            f"| {same:.1f} % | {' | '.join(cells)} | {len(found)} |"
        )
    return "\n".join(lines) + f"\n\n{_costs(dials, apart)}\n\n{origin(runs)}"


def _differences(runs: Runs) -> dict[Key, list[tuple[float, float]]]:
    """Difference to dense in points, and agreement in percent, of each seed."""
    found: dict[Key, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        for row in run["budgets"]:
            for metric in TITLES[run["task"]][1]:
                numbers = 100 * row["difference"][metric]["value"], 100 * row["agreement"]
                found[run["task"], metric, row["asked"]].append(numbers)
    return found


def _costs(dials: Runs, apart: Runs) -> str:
    """What a dial costs beside one training, by the passes of the dense model that both take."""
    sentences: list[str] = []
    for task in dict.fromkeys(run["task"] for run in dials):
        own = statistics.mean(run["passes"] for run in dials if run["task"] == task)
        minutes = statistics.mean(run["minutes"] for run in dials if run["task"] == task)
        ones = {run["budgets"][0]["asked"]: run["passes"] for run in apart if run["task"] == task}
        ratios = ", ".join(f"{own / cost:.2f}x of {asked}" for asked, cost in sorted(ones.items()))
        title = TITLES[task][0].partition(",")[0]
        compared = f": {ratios} alone" if ratios else ""
        sentences.append(
            f"The dial of {title} took {minutes:.0f} minutes and cost as much as {own:.1f} forward "
            f"passes of the dense model over its training texts{compared}."
        )
    return " ".join(sentences)
