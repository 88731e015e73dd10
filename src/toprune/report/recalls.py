"""Class by class: how many of its own each model finds, and how many answers changed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from toprune.report.both import Both


def recalls(both: Both) -> list[dict[str, Any]]:
    """Rows for the report; none where answers are no classes, or nobody knows the right ones.

    `changed` counts the class's own texts (or words) with another answer; where a text has several
    labels, the texts that get this one from one model and not from the other.
    """
    if both.examples.labels is None or both.kind not in ("classify", "multilabel", "tokens"):
        return []
    wanted, one, other = _decisions(both)  # (units, C) of booleans each
    if both.kind == "multilabel":
        moved = one != other
    else:
        moved = wanted & (one != other).any(1, keepdims=True)
    rows: list[dict[str, Any]] = []
    for c in range(wanted.shape[1]):
        own = wanted[:, c]
        dense, pruned = (float(told[own, c].mean()) if own.any() else None for told in (one, other))
        row = {"name": both.name(c), "count": int(own.sum()), "dense": dense, "pruned": pruned}
        rows.append(row | {"changed": int(moved[:, c].sum())})
    return rows


def _decisions(both: Both) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Wanted, told by dense, told by pruned: which of the classes each unit has."""
    labels: Any = both.examples.labels
    if both.kind == "classify":
        one, other = both.by_text()
        chosen = [labels, one.argmax(-1).tolist(), other.argmax(-1).tolist()]
        found = [_hot([[c] for c in part], one.shape[1]) for part in chosen]
        return found[0], found[1], found[2]
    count = both.outputs[0][0].shape[-1]
    ids = {both.name(c): c for c in range(count)}
    key = "labels" if both.kind == "multilabel" else "tags"
    named = [[[ids[str(name)] for name in said[key]] for said in part] for part in both.answers()]
    if both.kind == "tokens":  # words are the units
        parts = [[[tag] for tags in part for tag in tags] for part in (labels, *named)]
    else:
        parts = [labels, *named]
    found = [_hot(part, count) for part in parts]
    return found[0], found[1], found[2]


def _hot(chosen: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """(N, C)"""
    hot = np.zeros((len(chosen), count), bool)
    for row, own in zip(hot, chosen, strict=True):
        row[list(own)] = True
    return hot
