"""Where dense and pruned disagree on held-out examples: class by class, and some examples.

A mean hides who pays for it. Two models of the same accuracy may differ in every tenth answer, and
all of these may be of one class.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data.images import Picture
from toprune.tasks.side_by_side import Change, SideBySide
from toprune.training.settings import OPTIMISTIC

SHOWN = 20  # examples
CUT = 280  # characters of a text


def selected(report: Mapping[str, Any]) -> list[str]:
    """A warning where the reported examples chose the weights (`best-dev`)."""
    training = report.get("provenance", {}).get("settings", {}).get("training", {})
    return [OPTIMISTIC] if training.get("select") == "best-dev" else []


def differences(sides: SideBySide) -> dict[str, Any]:
    """What the report says about changed answers.

    Returns:
        `changed`: `count` of the examples with another answer (None where answers are numbers),
        how many of these were `lost` and `won` where there are labels, and up to 20 `examples`,
        lost ones first. `classes`, where there are classes and labels: see `Task.recalls`.
    """
    task = sides.tasks[0]
    changes = task.changes(sides)
    changed: dict[str, Any] = {"count": None if task.NUMERIC else len(changes)}
    has_labels = sides.examples.labels is not None
    if has_labels and not task.NUMERIC:
        changed["lost"] = sum((change.gain or 0) < 0 for change in changes)
        changed["won"] = sum((change.gain or 0) > 0 for change in changes)
    order = np.random.default_rng(0).permutation(len(changes))  # files are often sorted by class
    mixed = sorted((changes[i] for i in order), key=lambda c: (-c.distance, c.gain or 0))
    changed["examples"] = [_shown(sides, change) for change in mixed[:SHOWN]]
    classes = task.recalls(sides) if has_labels else []
    return {"changed": changed} | ({"classes": classes} if classes else {})


def _shown(sides: SideBySide, change: Change) -> dict[str, Any]:
    """An example for the report, with no more of the user's text than is needed."""
    shown: dict[str, Any] = {"text": _text(sides, change.index)}
    if sides.examples.pairs is not None and change.around is not None:
        shown["pair"] = _cut(sides.examples.pairs[change.index], change.around)
    for key in ("dense", "pruned", "label"):
        value = getattr(change, key)
        if value is not None:
            shown[key] = _cut(value) if isinstance(value, str) else value
    if change.gain is not None:
        shown["outcome"] = "lost" if change.gain < 0 else "won" if change.gain > 0 else "even"
    return shown


def _text(sides: SideBySide, index: int) -> str:
    """A text; for an image the end of its path."""
    text = sides.examples.texts[index]
    if isinstance(text, list):
        return _cut(" ".join(map(str, text)))
    if not isinstance(text, str):
        return f"image {index + 1}"
    is_path = len(sides.rows) > 0 and isinstance(sides.rows[0], Picture)
    return "/".join(Path(text).parts[-2:]) if is_path else _cut(text)


def _cut(text: str, around: int = 0) -> str:
    """Shorten a long text so that the character `around` is in the middle."""
    start = max(0, min(around - CUT // 2, len(text) - CUT))
    part = text[start : start + CUT]
    return ("..." if start else "") + part + ("..." if start + CUT < len(text) else "")
