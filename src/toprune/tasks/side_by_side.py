"""Outputs of the dense and the pruned model for the same examples, which a task compares."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toprune.data.examples import Examples
from toprune.tasks.base import by_text

if TYPE_CHECKING:
    from toprune.tasks.base import Outputs, Rows, Task


@dataclass(frozen=True)
class Change:
    """An example for which the two models give different answers."""

    index: int
    dense: Any
    pruned: Any
    label: Any = None
    gain: float | None = None  # how much better the pruned answer is; None: there is no label
    distance: float = 0.0  # between answers that are numbers, which always differ
    around: int | None = 0  # character of the second text to show; None: do not show that text


@dataclass(frozen=True)
class SideBySide:
    """Each model is read with its own settings of the task: thresholds may differ."""

    tasks: "tuple[Task, Task]"  # dense, pruned
    outputs: "tuple[Outputs, Outputs]"
    rows: "Rows"
    examples: Examples
    names: Sequence[str] | None  # of classes or tags, by id

    def by_text(self, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(N, C) for each model: the mean over the windows of a text."""
        n = len(self.examples) if count is None else count
        dense, pruned = (by_text(outputs, self.rows, n) for outputs in self.outputs)
        return dense, pruned

    def label(self, index: int) -> Any:
        """The label of an example; None if there are no labels."""
        return None if self.examples.labels is None else self.examples.labels[index]

    def name(self, class_id: int) -> str:
        """The name of a class or tag; its number if it has none."""
        return str(class_id) if self.names is None else self.names[class_id]

    def recall_rows(
        self, labels: np.ndarray, dense: np.ndarray, pruned: np.ndarray, changed: np.ndarray
    ) -> list[dict[str, Any]]:
        """One row per class for the report.

        Args:
            labels: (units, C) booleans: does this text or word have this class?
            dense, pruned: the same for the classes that each model gives.
            changed: (units, C) booleans: does this unit count as changed for this class?
        """
        rows: list[dict[str, Any]] = []
        for c in range(labels.shape[1]):
            members = labels[:, c]
            row: dict[str, Any] = {"name": self.name(c), "count": int(members.sum())}
            for key, chosen in (("dense", dense), ("pruned", pruned)):
                row[key] = float(chosen[members, c].mean()) if members.any() else None
            row["changed"] = int(changed[:, c].sum())
            row["lost"] = int((members & dense[:, c] & ~pruned[:, c]).sum())
            row["won"] = int((members & ~dense[:, c] & pruned[:, c]).sum())
            rows.append(row)
        return rows

    def recalls_of_one_class(
        self, labels: Sequence[int], dense: Sequence[int], pruned: Sequence[int], classes: int
    ) -> list[dict[str, Any]]:
        """The same where each unit has one class, given by id: a unit counts as changed for the
        class of its label."""
        hot = np.eye(classes, dtype=bool)
        wanted, one, other = (hot[np.asarray(ids, int)] for ids in (labels, dense, pruned))
        return self.recall_rows(wanted, one, other, wanted & (one != other).any(1, keepdims=True))
