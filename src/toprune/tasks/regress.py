"""One real number per text or pair, such as STS-B's similarity. The functions of `classify`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from toprune.data import Examples
from toprune.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

NAME = "regress"
METRICS = ("pearson", "spearman")


def num_outputs(examples: Examples) -> int:
    return 1


def check_head(config: Any, examples: Examples) -> None:
    if config.num_labels != 1:
        raise UserError(
            f"the model's head has {config.num_labels} outputs, but regression needs one; "
            "use the task classify or a model with num_labels=1"
        )


def predict(logits: np.ndarray) -> np.ndarray:
    """(N, 1) -> numbers (N,)."""
    return logits.squeeze(-1)


def metrics(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Pearson's and Spearman's correlation; 0 where it is 0/0, as with constant predictions."""
    guesses = predict(logits)
    return {
        "pearson": _correlate(guesses, labels),
        "spearman": _correlate(_ranks(guesses), _ranks(labels)),
    }


def _ranks(values: np.ndarray) -> np.ndarray:
    """From one; equal values share the mean of their ranks."""
    if np.isnan(values).any():  # NaN has no rank; it must not pass for the greatest number
        return np.full(len(values), np.nan)
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def _correlate(x: np.ndarray, y: np.ndarray) -> float:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if np.ptp(x) == 0 or np.ptp(y) == 0:  # asked before the mean's rounding blurs it
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def distill_loss(student: "Tensor", teacher: "Tensor") -> "Tensor":
    """Mean squared error of outputs (B, 1)."""
    from torch.nn import functional as F

    return F.mse_loss(student, teacher)


def label_loss(student: "Tensor", labels: "Tensor") -> "Tensor":
    """Mean squared error of outputs (B, 1) with numbers (B,)."""
    from torch.nn import functional as F

    return F.mse_loss(student.squeeze(-1), labels.to(student.dtype))
