"""What dense and pruned say to the same texts, each read with its own settings of the task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprune.data.examples import Examples
from toprune.tasks import Task, texts_of
from toprune.tasks.base import Answers, Outputs, Rows
from toprune.tasks.windows import by_text


@dataclass(frozen=True)
class Both:
    tasks: tuple[Task, Task]  # dense, pruned
    outputs: tuple[Outputs, Outputs]
    rows: Rows
    examples: Examples
    names: Sequence[str] | None  # of classes or tags, by id

    @property
    def kind(self) -> str:
        return self.tasks[0].NAME

    def by_text(self, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(N, C) of each."""
        n = len(self.examples) if count is None else count
        one, other = (by_text(outputs, self.rows, n) for outputs in self.outputs)
        return one, other

    def answers(self) -> tuple[Answers, Answers]:
        """For people, with names where there are any."""
        texts = texts_of(self.tasks[0], self.examples)
        names = None if self.names is None else tuple(self.names)
        one, other = (
            task.answers(outputs, self.rows, texts, names)
            for task, outputs in zip(self.tasks, self.outputs, strict=True)
        )
        return one, other

    def label(self, at: int) -> Any:
        return None if self.examples.labels is None else self.examples.labels[at]

    def name(self, which: int) -> str:
        return str(which) if self.names is None else self.names[which]
