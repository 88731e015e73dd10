"""Parts of a dataset as rows of a table: fewer texts for two cores, or a share to search on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.io.atomic import write_text

PLAIN = Columns("text", "text_pair", "label")


def columns_of(examples: Examples, names: Columns = PLAIN) -> Columns:
    """The columns that `as_rows` writes for these examples."""
    return Columns(names.text, None if examples.pairs is None else names.pair, names.label)


def as_rows(examples: Examples, names: Columns) -> list[dict[str, Any]]:
    """Examples as rows; classes by their names, where these are known."""
    rows: list[dict[str, Any]] = []
    for i, text in enumerate(examples.texts):
        row: dict[str, Any] = {str(names.text): text}
        if examples.pairs is not None:
            row[str(names.pair)] = examples.pairs[i]
        if examples.labels is not None:
            row[str(names.label)] = _cell(examples.labels[i], examples.label_names)
        rows.append(row)
    return rows


def _cell(label: Any, names: Sequence[str] | None) -> Any:
    """A label as a cell of a table: the name of a class, a number, or answers as in SQuAD."""
    if isinstance(label, list):
        answers: list[tuple[str, int]] = label
        return {"text": [a for a, _ in answers], "answer_start": [at for _, at in answers]}
    return names[label] if names else label


def write_sample(
    sets: dict[str, Examples], folder: Path, names: Columns, *, most: int, seed: int
) -> None:
    """Write a seeded sample of each set, in the order of the set.

    Args:
        sets: by the names of their files.
        folder: to write into; what is there is kept, so that a run goes on with the same texts.
        names: of the columns.
        most: texts of a set.
        seed: of the choice.
    """
    for name, examples in sets.items():
        path = folder / f"{name}.jsonl"
        if path.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        rows = np.random.default_rng(seed).permutation(len(examples))[:most]
        chosen = as_rows(examples.take(np.sort(rows)), names)
        write_text(path, "".join(json.dumps(row) + "\n" for row in chosen))
