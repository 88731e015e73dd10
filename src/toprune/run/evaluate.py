"""Metrics of an exported bundle: what `toprune eval` says, without torch in the process."""

from typing import Any

import numpy as np

from toprune.data import Columns, load
from toprune.errors import UserError
from toprune.progress import bar
from toprune.report import evaluation_report
from toprune.run.runner import Runner
from toprune.tasks import TASKS


def evaluate(
    runner: Runner, source: Any, *, columns: Columns | None = None, split: str | None = None
) -> dict[str, Any]:
    """The same report as of the torch model; both read data and compute metrics with one code."""
    task = runner.sheet.task
    names = None if runner.sheet.labels is None else list(runner.sheet.labels)
    sets = load(source, task=task, columns=columns, split=split, label_names=names)
    chosen = next(sets[s] for s in (split, "test", "validation", "train") if s in sets)
    if chosen.labels is None:
        raise UserError("evaluation needs labels; name their column with --label")
    if task == "classify" and max(chosen.labels) >= runner.outputs:
        raise UserError(
            f"labels go up to {max(chosen.labels)}, but the bundle has {runner.outputs} classes"
        )
    texts: Any = chosen.texts
    if chosen.pairs is not None:
        texts = list(zip(chosen.texts, chosen.pairs, strict=True))
    rows: list[np.ndarray] = []
    with bar("evaluating", len(texts)) as advance:
        for row in runner.stream(texts):
            rows.append(row)
            advance()
    report = evaluation_report(TASKS[task], np.stack(rows), chosen)
    return report | {"max_length": runner.sheet.max_length}
