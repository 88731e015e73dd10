"""The table of results/milliseconds.json (milliseconds.py): how near budgets in time come."""

import json
from pathlib import Path
from typing import Any

from accuracy_tables import origin

RESULTS = Path(__file__).parent / "results"
TITLES = {"minilm": "MiniLM", "gte-small": "gte-small", "bert-base": "BERT-base's shape"}
AIMS = {"fp32": 0.05, "int8": 0.08}  # relative error of the measured median


def parts() -> dict[str, str]:
    path = RESULTS / "milliseconds.json"
    if not path.exists():
        return {"milliseconds": "Not measured yet."}
    cells = sorted(json.loads(path.read_text())["rows"], key=_order)
    lines = [
        "| model, tokens | file | threads | dense | requested | predicted | measured first "
        "| measured (95 %) | error | drift |",
        "|" + "---|" * 10,
        *(_row(cell, budget) for cell in cells for budget in cell["budgets"]),
    ]
    return {"milliseconds": "\n".join([*lines, "", f"{_aims(cells)} {origin(cells)}"])}


def _order(cell: dict[str, Any]) -> tuple[int, str, int]:
    return list(TITLES).index(cell["model"]), cell["precision"], cell["threads"]


def _row(cell: dict[str, Any], budget: dict[str, Any]) -> str:
    value, low, high = (budget["measured"][key] for key in ("value", "low", "high"))
    return (
        f"| {TITLES[cell['model']]}, {cell['length']} | {cell['precision']} | {cell['threads']} "
        f"| {cell['dense']:.2f} | {budget['asked']:.2f} | {budget['predicted']:.2f} "
        f"| {budget['first']['value']:.2f} | {value:.2f} ({low:.2f} to {high:.2f}) "
        f"| {100 * budget['error']:+.1f} % | {100 * cell['drift']:+.1f} % |"
    )


def _aims(cells: list[dict[str, Any]]) -> str:
    """How many budgets are met within the aim, and the largest error."""
    sentences: list[str] = []
    for precision, aim in AIMS.items():
        errors = [
            abs(budget["error"])
            for cell in cells
            if cell["precision"] == precision
            for budget in cell["budgets"]
        ]
        if errors:
            met = sum(error <= aim for error in errors)
            sentences.append(
                f"{precision}: {met} of {len(errors)} within {100 * aim:.0f} %, the largest error "
                f"is {100 * max(errors):.1f} %."
            )
    return " ".join(sentences)
