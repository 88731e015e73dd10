"""One class per text or pair.

The metrics are plain numpy on a confusion matrix, equal to scikit-learn's to the last digit that
matters: a bootstrap calls them thousands of times, where scikit-learn's input checks take minutes.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from toprune.data import Examples
from toprune.errors import UserError
from toprune.labels import fold

if TYPE_CHECKING:
    from torch import Tensor

NAME = "classify"
METRICS = ("accuracy", "f1", "matthews")
TEMPERATURE = 2.0


def num_outputs(examples: Examples) -> int:
    """How many outputs a new head needs for these labels."""
    if examples.labels is None:
        raise UserError("a new head needs labels; name the label column")
    if examples.label_names is not None:
        return len(examples.label_names)
    if min(examples.labels) > 0:
        raise UserError(
            f"labels run from {min(examples.labels)} to {max(examples.labels)}, but classes count "
            "from 0; renumber them or write them as names"
        )
    return int(max(examples.labels)) + 1


def class_names(config: Any) -> list[str] | None:
    """The head's class names by id; None for the LABEL_0, LABEL_1 ... that stand for no name."""
    names = [str(config.id2label[i]) for i in range(config.num_labels)]
    return None if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names


def check_head(config: Any, examples: Examples) -> None:
    """Refuse a model whose head cannot mean these labels."""
    outputs = config.num_labels
    if outputs < 2 or config.problem_type in ("regression", "multi_label_classification"):
        kind = config.problem_type or "regression"
        raise UserError(
            f"the model's head has {outputs} output(s) for {kind}, not one per class; "
            "use the task regress or a model fine-tuned for classes"
        )
    if examples.labels is not None and max(examples.labels) >= outputs:
        raise UserError(
            f"labels go up to {max(examples.labels)}, but the model's head has {outputs} classes "
            f"(0 to {outputs - 1}); fine-tune a head for these labels first (toprune finetune)"
        )
    names, own = examples.label_names or [], class_names(config) or []
    if fold(names) != fold(own) and set(fold(names)) == set(fold(own)):
        raise UserError(
            f"the data orders its classes {', '.join(names)}, the model {', '.join(own)}; "
            "load the data with the model's label_names"
        )


def predict(logits: np.ndarray) -> np.ndarray:
    """(N, C) -> class ids (N,)."""
    return logits.argmax(-1)


def metrics(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """accuracy; f1 of class 1 (of two) or macro-F1 over the classes seen; Matthews' correlation.

    What is 0/0 counts as 0: F1 without positives, Matthews when all predictions are one class.
    """
    classes = logits.shape[-1]
    pairs = np.asarray(labels, np.int64) * classes + predict(logits)
    table = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)  # (true, predicted)
    return {
        "accuracy": float(np.trace(table) / table.sum()),
        "f1": _f1(table),
        "matthews": _matthews(table),
    }


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


def distill_loss(student: "Tensor", teacher: "Tensor") -> "Tensor":
    """T^2 KL(teacher || student) of logits (B, C) at temperature T (Hinton et al. 2015)."""
    from torch.nn import functional as F

    loss = F.kl_div(
        F.log_softmax(student / TEMPERATURE, -1),
        F.log_softmax(teacher / TEMPERATURE, -1),
        reduction="batchmean",
        log_target=True,
    )
    return TEMPERATURE**2 * loss


def label_loss(student: "Tensor", labels: "Tensor") -> "Tensor":
    """Cross entropy of logits (B, C) with class ids (B,)."""
    from torch.nn import functional as F

    return F.cross_entropy(student, labels)
