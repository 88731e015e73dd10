"""Any number of classes per text or pair, none included: one yes or no for each class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from toprune.data.examples import Examples
from toprune.data.reads import TEXT_PAIRS, TEXTS, Reads
from toprune.errors import UserError
from toprune.tasks.base import Labels, Outputs, Predictions, Rows, Task, by_text, check_stride
from toprune.tasks.classify import check_class_order
from toprune.tasks.side_by_side import Change, SideBySide

if TYPE_CHECKING:
    from torch import Tensor

    from toprune.tasks.tokenize import Row


@dataclass(frozen=True)
class Multilabel(Task):
    classes: int = 0  # their number; a training target has as many zeros and ones
    thresholds: tuple[float, ...] | None = None  # least probability of each class; None: 0.5
    stride: int | None = None  # overlap of windows over long texts; None: they are cut off

    NAME: ClassVar[str] = "multilabel"
    METRICS: ClassVar[tuple[str, ...]] = ("f1_micro", "f1_macro", "exact")
    HEAD: ClassVar[str] = "sequence"
    SAME_HEAD_AS: ClassVar[str | None] = "classify"
    OUTPUTS: ClassVar[tuple[str, ...]] = ("logits",)
    HAS_LABEL_NAMES: ClassVar[bool] = True
    READS_IMAGES: ClassVar[bool] = True
    READS: ClassVar[Reads] = Reads(
        "the task multilabel reads a text (--text), or two (--pair), and a list of classes "
        "(--label)",
        texts=TEXTS,
        labels=("labels", "label", "classes", "tags", "topics", "target"),
        pairs=TEXT_PAIRS,
        label_type="classes",
    )
    HUB_TAG: ClassVar[str] = "text-classification"
    AGREEMENT: ClassVar[str] = "Dense and pruned give the same labels to {:.1f} % of the examples."
    ANSWER: ClassVar[str] = "labels"

    def __post_init__(self) -> None:
        check_stride(self.stride)
        if self.classes < 0:
            raise UserError(f"there cannot be {self.classes} classes; use 1 or more")
        if self.thresholds is None:
            return
        if not isinstance(self.thresholds, tuple | list):
            raise UserError("thresholds are a list with a number for each class: [0.5, 0.3]")
        for threshold in self.thresholds:
            if not 0 < threshold < 1:
                raise UserError(f"a threshold of {threshold} is not between 0 and 1; 0.5 is usual")
        object.__setattr__(self, "thresholds", tuple(map(float, self.thresholds)))  # from JSON
        if self.classes:
            self._cuts(self.classes)

    def sized(self, outputs: Callable[[], int]) -> Self:
        return self if self.classes else replace(self, classes=outputs())

    def num_outputs(self, examples: Examples) -> int:
        if examples.label_names is not None:
            return len(examples.label_names)
        if self.classes:
            return self.classes
        if examples.labels is None:
            raise UserError("a new head needs labels; name the label column")
        if (most := _greatest(examples)) < 0:
            raise UserError("no text has a label, so the classes are not known; give their names")
        return most + 1

    def head(self, examples: Examples) -> dict[str, Any]:
        return {"problem_type": "multi_label_classification"}

    def check_head(self, config: Any, examples: Examples) -> None:
        outputs = config.num_labels
        if config.problem_type in ("regression", "single_label_classification"):
            raise UserError(
                f"the model's head is for {config.problem_type}, not for several labels per text; "
                "use the task regress or classify, or fine-tune a new head (toprune finetune)"
            )
        if self.classes not in (0, outputs):
            raise UserError(
                f"the task has {self.classes} classes, but the model's head has {outputs}; "
                f"use classes={outputs} or fine-tune a head for these labels"
            )
        self._cuts(outputs)
        if (most := _greatest(examples)) >= outputs:
            raise UserError(
                f"labels go up to {most}, but the model's head has {outputs} classes "
                f"(0 to {outputs - 1}); fine-tune a head for these labels first (toprune finetune)"
            )
        check_class_order(config, examples)

    def target(self, row: "Row", label: Any) -> Any:
        """One or zero for each class."""
        if not self.classes:
            raise UserError("the number of classes is not set; use Multilabel(classes=...)")
        return _multi_hot([label], self.classes)[0].astype(float).tolist()

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B, C) -> (B,): distance of the logits from their thresholds, summed over classes."""
        cuts = outputs.new_tensor(self._cuts(outputs.shape[1]))  # (C,)
        return (outputs - cuts).abs().sum(1)

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        """KL(teacher || student) of the probabilities of logits (B, C), mean over texts and
        classes: cross entropy minus the teacher's entropy, so that 0 means the same answers."""
        from torch.nn import functional as F

        target = teacher.sigmoid()
        cross_entropy = F.binary_cross_entropy_with_logits(student, target)
        return cross_entropy - F.binary_cross_entropy_with_logits(teacher, target)

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        """Binary cross entropy of logits (B, C) with ones and zeros (B, C)."""
        from torch.nn import functional as F

        return F.binary_cross_entropy_with_logits(student, labels.to(student.dtype))

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 3 C + 1) of ones and zeros: true positive, false positive and false negative of each
        class; and last, whether the whole set of labels is right."""
        chosen = self._choose(by_text(outputs, rows, len(examples)))  # (N, C)
        labels: Any = examples.labels
        right = _multi_hot(labels, chosen.shape[1])
        exact = (chosen == right).all(1, keepdims=True)
        parts = [chosen & right, chosen & ~right, ~chosen & right, exact]
        return np.concatenate(parts, axis=1).astype(np.int8)

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """F1 over all decisions; mean of the classes' F1, where a class that never occurs counts 0,
        as in scikit-learn; share of the texts whose whole set is right."""
        counts = statistics.sum(0, dtype=np.int64)
        right, wrong, missed = counts[:-1].reshape(3, -1)  # (C,) each
        involved = 2 * right + wrong + missed
        return {
            "f1_micro": float(2 * right.sum() / max(involved.sum(), 1)),
            "f1_macro": float(np.mean(2 * right / np.maximum(involved, 1))),
            "exact": float(counts[-1] / max(len(statistics), 1)),
        }

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N,): whether a text gets the same set of labels."""
        a, b = (self._choose(by_text(x, rows, len(examples))) for x in (one, other))
        return (a == b).all(1)

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        """`labels`, the names or ids chosen, and `scores`, the probability of every class."""
        logits = by_text(outputs, rows, len(texts)).astype(np.float64)
        scores = self.probabilities(logits)
        names: Sequence[str | int] = labels or range(logits.shape[1])
        return [
            {
                "labels": [names[i] for i in np.flatnonzero(yes)],
                "scores": dict(zip(names, row.tolist(), strict=True)),
            }
            for yes, row in zip(self._choose(logits), scores, strict=True)
        ]

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Sigmoid of each class, without overflow."""
        return np.exp(-np.logaddexp(0, -logits.astype(np.float64)))

    def answer_margins(self, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """Distance of the nearest logit from its threshold."""
        logits = by_text(outputs, rows, count).astype(np.float64)
        return np.abs(logits - self._cuts(logits.shape[1])).min(1)

    def changes(self, sides: SideBySide) -> list[Change]:
        dense, pruned = _choices(sides)
        changes: list[Change] = []
        for i in np.flatnonzero((dense != pruned).any(1)).tolist():
            ids = sides.label(i)
            a, b = (np.flatnonzero(chosen[i]).tolist() for chosen in (dense, pruned))
            gain = None if ids is None else float(len({*a} ^ {*ids}) - len({*b} ^ {*ids}))
            label = None if ids is None else _listed(sides, ids)
            changes.append(Change(i, _listed(sides, a), _listed(sides, b), label, gain))
        return changes

    def recalls(self, sides: SideBySide) -> list[dict[str, Any]]:
        """A text counts as changed for a class that only one of the models gives it."""
        dense, pruned = _choices(sides)
        labels: Any = sides.examples.labels
        return sides.recall_rows(_multi_hot(labels, dense.shape[1]), dense, pruned, dense != pruned)

    def _choose(self, logits: np.ndarray) -> np.ndarray:
        """(N, C) -> which classes each text gets (N, C)."""
        return logits >= self._cuts(logits.shape[1])

    def _cuts(self, count: int) -> np.ndarray:
        """The thresholds as logits (C,)."""
        if self.thresholds is None:
            return np.zeros(count)
        if len(self.thresholds) != count:
            raise UserError(
                f"{len(self.thresholds)} thresholds for {count} classes; give one for each class"
            )
        least = np.array(self.thresholds)
        return np.log(least) - np.log1p(-least)


def _choices(sides: SideBySide) -> tuple[np.ndarray, np.ndarray]:
    """(N, C) of booleans: the classes that each model gives, by its own thresholds."""
    tasks: Any = sides.tasks
    dense, pruned = (t._choose(x) for t, x in zip(tasks, sides.by_text(), strict=True))
    return dense, pruned


def _listed(sides: SideBySide, ids: Sequence[int]) -> str:
    return ", ".join(map(sides.name, ids)) or "(none)"


def _greatest(examples: Examples) -> int:
    """The greatest class id, or -1."""
    labels: Any = examples.labels or []
    return max((i for ids in labels for i in ids), default=-1)


def _multi_hot(labels: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """Lists of class ids as bool (N, C)."""
    hot = np.zeros((len(labels), count), bool)
    for row, ids in zip(hot, labels, strict=True):
        for i in ids:
            if not 0 <= i < count:
                raise UserError(f"the label {i} is not a class; they go from 0 to {count - 1}")
            row[i] = True
    return hot
