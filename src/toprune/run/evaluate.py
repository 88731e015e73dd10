"""Metrics of an exported bundle: what `toprune eval` says, without torch in the process."""

from typing import Any

import numpy as np

from toprune.data import Columns
from toprune.errors import UserError
from toprune.glue import Glue, as_reported, load_labelled
from toprune.progress import bar
from toprune.report import evaluation_report
from toprune.run.runner import Runner
from toprune.tasks import TASKS


def evaluate(
    runner: Runner,
    source: Any,
    *,
    glue: Glue | None = None,
    columns: Columns | None = None,
    split: str | None = None,
) -> dict[str, Any]:
    """The same report as of the torch model; both read data and compute metrics with one code."""
    task = runner.sheet.task
    names = None if runner.sheet.labels is None else list(runner.sheet.labels)
    chosen = load_labelled(
        source, task=task, glue=glue, columns=columns, split=split, label_names=names
    )
    most = max(chosen.labels or [0])
    if task == "classify" and most >= runner.outputs:
        raise UserError(f"labels go up to {most}, but the bundle has {runner.outputs} classes")
    texts: Any = chosen.texts
    if chosen.pairs is not None:
        texts = list(zip(chosen.texts, chosen.pairs, strict=True))
    rows: list[np.ndarray] = []
    with bar("evaluating", len(texts)) as advance:
        for row in runner.stream(texts):
            rows.append(row)
            advance()
    report = evaluation_report(TASKS[task], np.stack(rows), chosen)
    return as_reported(report, glue) | {"max_length": runner.sheet.max_length}
