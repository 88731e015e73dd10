"""Metrics of an exported bundle, without torch in the process."""

from dataclasses import replace
from typing import Any

import numpy as np

from toprune.data.columns import Columns
from toprune.data.presets import with_preset
from toprune.data.recipes import Preset
from toprune.data.sets import load_labelled
from toprune.io.progress import bar
from toprune.report.build import evaluation_report
from toprune.run.runner import Runner
from toprune.tasks.fallback import counted
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
    """Compute the metrics of a bundle on labelled data.

    Data and metrics are read and computed by the same code as for the torch model.

    Args:
        runner: the loaded bundle.
        source: a file, a directory, a dataset of the hub or rows in memory.
        preset: the preset that the bundle was made with, if any.
        columns: the columns to read; None: they are guessed.
        split: the set to read, where the source has several.
        skip_bad_rows: leave bad rows out with a warning, instead of refusing the data.

    Returns:
        The report, as `api.evaluate` gives it.
    """
    task, manifest = runner.task, runner.manifest
    examples = load_labelled(
        source,
        reads=task.READS,
        preset=preset,
        columns=replace(columns or Columns(), images=manifest.images),
        split=split,
        label_names=None if manifest.labels is None else list(manifest.labels),
        skip_bad_rows=skip_bad_rows,
    )
    task.check_labels(examples, runner.outputs)
    texts = examples.inputs(task.READS)
    before = runner.stats()
    rows: list[Row] = []
    outputs: list[np.ndarray] = []
    with bar("evaluating", len(texts)) as advance:
        for row, output in runner.read(texts):
            advance(row.text + 1 - (rows[-1].text + 1 if rows else 0))
            rows.append(row)
            outputs.append(output)
    report = evaluation_report(task, outputs, rows, examples)
    if runner.fallback is not None:
        fallen, read = (runner.stats()[key] - before[key] for key in ("fallbacks", "texts"))
        report["fallback"] = counted(fallen, read)
    return with_preset(report, preset) | {"max_length": runner.max_length}
