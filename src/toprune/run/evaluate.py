"""Metrics of an exported bundle: what `toprune eval` says, without torch in the process."""

from dataclasses import replace
from typing import Any

import numpy as np

from toprune.data.columns import Columns
from toprune.data.presets import with_preset
from toprune.data.recipes import Preset
from toprune.data.sets import load_labelled
from toprune.errors import UserError
from toprune.io.progress import bar
from toprune.report.build import evaluation_report
from toprune.run.runner import Runner
from toprune.tasks import texts_of
from toprune.tasks.tokenize import Row


def evaluate(
    runner: Runner,
    source: Any,
    *,
    preset: Preset | None = None,
    columns: Columns | None = None,
    split: str | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Any]:
    """The same report as of the torch model; both read data and compute metrics with one code."""
    task = runner.task
    names = None if runner.manifest.labels is None else list(runner.manifest.labels)
    chosen = load_labelled(
        source,
        reads=task.READS,
        preset=preset,
        columns=replace(columns or Columns(), images=runner.manifest.images),
        split=split,
        label_names=names,
        skip_bad_rows=skip_bad_rows,
    )
    if task.NAME == "classify" and max(chosen.labels or [0]) >= runner.outputs:
        most = max(chosen.labels or [0])
        raise UserError(f"labels go up to {most}, but the bundle has {runner.outputs} classes")
    texts = texts_of(task, chosen)
    rows: list[Row] = []
    outputs: list[np.ndarray] = []
    with bar("evaluating", len(texts)) as advance:
        for row, output in runner.read(texts):
            advance(row.text + 1 - (rows[-1].text + 1 if rows else 0))
            rows.append(row)
            outputs.append(output)
    report = evaluation_report(task, outputs, rows, chosen)
    return with_preset(report, preset) | {"max_length": runner.max_length}
