"""One class per text or pair.

The metrics are plain numpy on a confusion matrix and equal scikit-learn's: a bootstrap calls them
thousands of times, and scikit-learn's input checks would take minutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from toprune.data.examples import Examples
from toprune.data.labels import fold
from toprune.data.reads import LABELS, TEXT_PAIRS, TEXTS, Reads
from toprune.errors import UserError
from toprune.tasks.base import Labels, Outputs, Predictions, Rows, Task, by_text, check_stride
from toprune.tasks.side_by_side import Change, SideBySide

if TYPE_CHECKING:
    from torch import Tensor


TEMPERATURE = 2.0


@dataclass(frozen=True)
class Classify(Task):
    stride: int | None = None  # overlap of windows over long texts; None: they are cut off

    NAME: ClassVar[str] = "classify"
    METRICS: ClassVar[tuple[str, ...]] = ("accuracy", "f1", "matthews")
    HEAD: ClassVar[str] = "sequence"
    OUTPUTS: ClassVar[tuple[str, ...]] = ("logits",)
    MIN_CLASSES: ClassVar[int] = 2
    HAS_LABEL_NAMES: ClassVar[bool] = True
    READS_IMAGES: ClassVar[bool] = True
    READS: ClassVar[Reads] = Reads(
        "the task classify reads a text (--text), or two (--pair), and a class (--label)",
        texts=TEXTS,
        labels=LABELS,
        pairs=TEXT_PAIRS,
    )
    HUB_TAG: ClassVar[str] = "text-classification"
    AGREEMENT: ClassVar[str] = "Dense and pruned predict the same for {:.1f} % of the examples."
    ANSWER: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        check_stride(self.stride)

    def num_outputs(self, examples: Examples) -> int:
        """How many outputs a new head needs for these labels."""
        if examples.labels is None:
            raise UserError("a new head needs labels; name the label column")
        if examples.label_names is not None:
            return len(examples.label_names)
        if min(examples.labels) > 0:
            raise UserError(
                f"labels run from {min(examples.labels)} to {max(examples.labels)}, but classes "
                "count from 0; renumber them or write them as names"
            )
        return int(max(examples.labels)) + 1

    def head(self, examples: Examples) -> dict[str, Any]:
        return {"problem_type": "single_label_classification"}

    def check_head(self, config: Any, examples: Examples) -> None:
        """Refuse a model whose head cannot mean these labels."""
        outputs = config.num_labels
        if outputs < 2 or config.problem_type in ("regression", "multi_label_classification"):
            problem = config.problem_type or "regression"
            raise UserError(
                f"the model's head has {outputs} output(s) for {problem}, not one per class; "
                "use the task regress, rank or multilabel, or a model fine-tuned for classes"
            )
        self.check_labels(examples, outputs)
        check_class_order(config, examples)

    def check_labels(self, examples: Examples, outputs: int) -> None:
        if examples.labels is not None and max(examples.labels) >= outputs:
            raise UserError(
                f"labels go up to {max(examples.labels)}, but the model's head has {outputs} "
                f"classes (0 to {outputs - 1}); fine-tune a head for these labels first "
                "(toprune finetune)"
            )

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B, C) -> (B,): best minus second best logit."""
        best = outputs.topk(2, dim=1).values
        return best[:, 0] - best[:, 1]

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        return distill(student, teacher)

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        """Cross entropy of logits (B, C) with class ids (B,)."""
        from torch.nn import functional as F

        return F.cross_entropy(student, labels)

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 3): the class, the predicted class, and the number of classes."""
        logits = by_text(outputs, rows, len(examples))
        labels = np.asarray(examples.labels, np.int64)
        count = np.full_like(labels, logits.shape[1])
        return np.stack([labels, logits.argmax(-1), count], 1)

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """accuracy; f1 of class 1 (of two) or macro-F1 over the classes that occur; Matthews'
        correlation. 0/0 counts as 0: F1 without positives, Matthews of constant predictions."""
        true, predicted, classes = statistics[:, 0], statistics[:, 1], int(statistics[0, 2])
        pairs = true * classes + predicted
        table = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
        return {
            "accuracy": float(np.trace(table) / table.sum()),
            "f1": _f1(table),
            "matthews": _matthews(table),
        }

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N,): whether a text gets the same class."""
        a, b = (by_text(x, rows, len(examples)).argmax(-1) for x in (one, other))
        return a == b

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        """`label`, its name or id, and its probability as `score`."""
        logits = by_text(outputs, rows, len(texts))
        scores = self.probabilities(logits).max(-1)  # (N,)
        return [
            {"label": int(i) if labels is None else labels[i], "score": float(score)}
            for i, score in zip(logits.argmax(-1), scores, strict=True)
        ]

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Softmax."""
        weights = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float64)
        return weights / weights.sum(-1, keepdims=True)

    def answer_margins(self, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """Best minus second best logit. Probabilities give the same order for two classes, but
        those of sure answers all round to one."""
        return top_two_gap(by_text(outputs, rows, count))

    def changes(self, sides: SideBySide) -> list[Change]:
        dense, pruned = (logits.argmax(-1) for logits in sides.by_text())
        changes: list[Change] = []
        for i in np.flatnonzero(dense != pruned).tolist():
            label, a, b = sides.label(i), int(dense[i]), int(pruned[i])
            gain = None if label is None else float(b == label) - float(a == label)
            name = None if label is None else sides.name(label)
            changes.append(Change(i, sides.name(a), sides.name(b), name, gain))
        return changes

    def recalls(self, sides: SideBySide) -> list[dict[str, Any]]:
        labels: Any = sides.examples.labels
        dense, pruned = sides.by_text()
        return sides.recalls_of_one_class(
            labels, dense.argmax(-1).tolist(), pruned.argmax(-1).tolist(), dense.shape[1]
        )


def distill(student: "Tensor", teacher: "Tensor") -> "Tensor":
    """T^2 KL(teacher || student) of logits (B, C) at temperature T (Hinton et al. 2015)."""
    from torch.nn import functional as F

    loss = F.kl_div(
        F.log_softmax(student / TEMPERATURE, -1),
        F.log_softmax(teacher / TEMPERATURE, -1),
        reduction="batchmean",
        log_target=True,
    )
    return TEMPERATURE**2 * loss


def top_two_gap(logits: np.ndarray) -> np.ndarray:
    """(N, C) -> (N,): best minus second best; infinite if there is only one."""
    if logits.shape[1] < 2:
        return np.full(len(logits), np.inf)
    best = np.partition(logits.astype(np.float64), -2, axis=1)[:, -2:]
    return best[:, 1] - best[:, 0]


def check_class_order(config: Any, examples: Examples) -> None:
    """Refuse data whose classes are the model's in another order."""
    names, model_names = examples.label_names or [], class_names(config) or []
    data, model = fold(names), fold(model_names)
    if data != model and set(data) == set(model):
        raise UserError(
            f"the data orders its classes {', '.join(names)}, the model {', '.join(model_names)}; "
            "load the data with the model's label_names"
        )


def class_names(config: Any) -> list[str] | None:
    """The head's class names by id; None for LABEL_0, LABEL_1 ..., which are no names."""
    names = [str(config.id2label[i]) for i in range(config.num_labels)]
    return None if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names


def all_class_names(config: Any, examples: Examples) -> list[str] | None:
    """The names of all classes by id: the model's, or the data's, which may lack some."""
    names = class_names(config) or examples.label_names
    return names and [*names, *map(str, range(len(names), config.num_labels))]


def _f1(table: np.ndarray) -> float:
    involved = table.sum(0) + table.sum(1)  # 2 tp + fp + fn of each class
    scores = 2 * np.diag(table) / np.maximum(involved, 1)
    return float(scores[1] if len(table) == 2 else scores[involved > 0].mean())


def _matthews(table: np.ndarray) -> float:
    """Gorodkin's form for any number of classes; for two it is the usual one."""
    table = table.astype(np.float64)
    true, predicted, total = table.sum(1), table.sum(0), table.sum()
    shared = np.trace(table) * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(shared / np.sqrt(spread)) if spread > 0 else 0.0
