"""One real number per text or pair, such as STS-B's similarity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from toprune.data.examples import Examples
from toprune.data.reads import LABELS, TEXT_PAIRS, TEXTS, Reads
from toprune.errors import UserError
from toprune.tasks.base import Labels, Outputs, Predictions, Rows, Task, by_text
from toprune.tasks.side_by_side import Change, SideBySide

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Regress(Task):
    NAME: ClassVar[str] = "regress"
    METRICS: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    HEAD: ClassVar[str] = "sequence"
    OUTPUTS: ClassVar[tuple[str, ...]] = ("logits",)
    NUM_OUTPUTS: ClassVar[int | None] = 1
    READS_IMAGES: ClassVar[bool] = True
    READS: ClassVar[Reads] = Reads(
        "the task regress reads a text (--text), or two (--pair), and a number (--label)",
        texts=TEXTS,
        labels=LABELS,
        pairs=TEXT_PAIRS,
        label_type="number",
    )
    HUB_TAG: ClassVar[str] = "text-classification"
    NUMERIC: ClassVar[bool] = True
    AGREEMENT: ClassVar[str] = "The predictions of dense and pruned correlate by {:.1f} (Pearson)."
    ANSWER: ClassVar[str] = "value"
    NO_MARGIN: ClassVar[str | None] = (
        "numbers have no margin: two models always differ a little; leave --fallback out"
    )

    def head(self, examples: Examples) -> dict[str, Any]:
        return {"problem_type": "regression"}

    def check_head(self, config: Any, examples: Examples) -> None:
        if config.num_labels != 1:
            raise UserError(
                f"the model's head has {config.num_labels} outputs, but regression needs one; "
                "use the task classify or a model with num_labels=1"
            )

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B, 1) -> (B,): the number itself."""
        return outputs[:, 0]

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        """Mean squared error of outputs (B, 1)."""
        from torch.nn import functional as F

        return F.mse_loss(student, teacher)

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        """Mean squared error of outputs (B, 1) with numbers (B,)."""
        from torch.nn import functional as F

        return F.mse_loss(student.squeeze(-1), labels.to(student.dtype))

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 2): the predicted number, and the label."""
        values = by_text(outputs, rows, len(examples))[:, 0].astype(np.float64)
        return np.stack([values, np.asarray(examples.labels, np.float64)], 1)

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """Pearson's and Spearman's correlation; 0 where it is 0/0, as with constant predictions."""
        values, labels = statistics.T
        return {
            "pearson": correlate(values, labels),
            "spearman": correlate(ranks(values), ranks(labels)),
        }

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 2): the numbers that the two models predict."""
        a, b = (by_text(x, rows, len(examples))[:, 0] for x in (one, other))
        return np.stack([a, b], 1)

    def agree(self, compared: np.ndarray) -> float:
        """Pearson's correlation of the predicted numbers."""
        return correlate(*compared.T)

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        return [{"value": float(value)} for value in by_text(outputs, rows, len(texts))[:, 0]]

    def changes(self, sides: SideBySide) -> list[Change]:
        dense, pruned = (values[:, 0].astype(float).tolist() for values in sides.by_text())
        changes: list[Change] = []
        for i, (a, b) in enumerate(zip(dense, pruned, strict=True)):
            label = sides.label(i)
            gain = None if label is None else abs(a - label) - abs(b - label)
            changes.append(Change(i, a, b, label, gain, distance=abs(a - b)))
        return changes


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from one; equal values share the mean of their ranks."""
    if np.isnan(values).any():  # NaN has no rank, and must not count as the greatest number
        return np.full(len(values), np.nan)
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def correlate(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation; 0 if either is constant."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if np.ptp(x) == 0 or np.ptp(y) == 0:  # before the mean adds rounding errors
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))
