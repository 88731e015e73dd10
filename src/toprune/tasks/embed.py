"""One vector per text; the cosine of two vectors measures how similar the texts are.

Only the direction of a vector has a meaning, so every loss and score here uses that alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from toprune.data.examples import Examples
from toprune.data.reads import TEXT_PAIRS, TEXTS, Reads
from toprune.errors import UserError
from toprune.tasks.base import Labels, Outputs, Predictions, Rows, Task, by_text
from toprune.tasks.pool import Array, pool
from toprune.tasks.regress import correlate, ranks
from toprune.tasks.side_by_side import Change, SideBySide

if TYPE_CHECKING:
    from torch import Tensor


NO_FINETUNE = (
    "embedding models are not fine-tuned here; give a model that already makes sentence vectors "
    "(such as a sentence-transformers directory) and prune it without a label loss"
)


@dataclass(frozen=True)
class Embed(Task):
    """The texts of a pair are read apart: rows 0..N-1 are first texts, N..2N-1 second ones.

    The torch functions take vectors (B, D), the numpy ones vectors (D,): pooled, not normalised.
    """

    pooling: Literal["mean", "cls"] = "mean"
    normalize: bool = True  # predicted vectors have length one
    # What a dropped token adds to a mean: nothing, or its last state. Zeros do not change the
    # direction of a mean.
    dropped: Literal["zero", "last"] = "zero"

    NAME: ClassVar[str] = "embed"
    METRICS: ClassVar[tuple[str, ...]] = ("spearman", "pearson")
    HEAD: ClassVar[str] = "encoder"
    OUTPUTS: ClassVar[tuple[str, ...]] = ("last_hidden_state",)
    POOLS: ClassVar[bool] = True
    READS: ClassVar[Reads] = Reads(
        "the task embed reads a text (--text), or two (--pair) and their similarity (--label)",
        texts=TEXTS,
        labels=("score", "similarity", "similarity_score", "label", "labels"),
        pairs=(*TEXT_PAIRS, ("anchor", "positive")),
        label_type="number",
        alone=True,
    )
    HUB_TAG: ClassVar[str] = "sentence-similarity"
    NUMERIC: ClassVar[bool] = True
    AGREEMENT: ClassVar[str] = "The mean cosine of dense and pruned vectors is {:.1f} (times 100)."
    ANSWER: ClassVar[str] = "vector"
    NO_MARGIN: ClassVar[str | None] = (
        "vectors have no margin, and those of two models do not compare; leave --fallback out"
    )

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls"):
            raise UserError(f"pooling '{self.pooling}' is not known; use mean or cls")
        if self.dropped not in ("zero", "last"):
            raise UserError(f"dropped tokens count as zero or last, not as '{self.dropped}'")

    @property
    def reads_all(self) -> bool:
        """A mean needs the dropped tokens back; cls reads only the first token."""
        return self.pooling == "mean"

    @property
    def restore(self) -> Literal["zero", "last"]:
        """Zeros make a mean too short, so without normalising dropped tokens come back."""
        return self.dropped if self.normalize else "last"

    def check_finetune(self) -> None:
        """Good vectors need more than one loss."""
        raise UserError(NO_FINETUNE)

    def check_head(self, config: Any, examples: Examples) -> None:
        """Any encoder gives states to pool."""

    def pool(self, states: Array, mask: Array) -> Array:
        """(B, S, D), live tokens (B, S) -> (B, D), not normalised."""
        return pool(states, mask, self.pooling)

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B, D) -> (B,): the vector along one random direction, the same in every run.

        Not its length: that has nothing to do with the direction.
        """
        direction = np.random.default_rng(0).standard_normal(outputs.shape[1])
        return outputs @ outputs.new_tensor(direction / np.linalg.norm(direction))

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        """One minus the cosine of vectors (B, D)."""
        from torch.nn import functional as F

        return (1 - F.cosine_similarity(student, teacher, dim=-1)).mean()

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        raise UserError(NO_FINETUNE)

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 2): the cosine of the pair's vectors, and the label."""
        if examples.pairs is None or examples.labels is None:
            raise UserError(
                "metrics of vectors need pairs of texts with a similarity; "
                "name the column of the second text and of the label"
            )
        one, other = np.split(by_text(outputs, rows, 2 * len(examples)), 2)
        return np.stack([_cosine(one, other), np.asarray(examples.labels, np.float64)], 1)

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """Correlations of cosine and label; 0 where they are 0/0, as with constant cosines."""
        cosines, labels = statistics.T
        return {
            "spearman": correlate(ranks(cosines), ranks(labels)),
            "pearson": correlate(cosines, labels),
        }

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(texts,): the cosine between the two models' vectors of the same text."""
        count = len(examples) * (1 if examples.pairs is None else 2)
        a, b = (by_text(outputs, rows, count) for outputs in (one, other))
        return _cosine(a, b)

    def by_text(self, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """(count, D), of length one if `normalize` is set."""
        vectors = by_text(outputs, rows, count)
        return unit(vectors) if self.normalize else vectors

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        """`vector`, of length one if `normalize` is set."""
        return [{"vector": v} for v in self.by_text(outputs, rows, len(texts)).tolist()]

    def changes(self, sides: SideBySide) -> list[Change]:
        """The cosine of a pair's vectors; for single texts, of the two models' vectors."""
        n, has_pairs = len(sides.examples), sides.examples.pairs is not None
        dense, pruned = (
            unit(v.astype(np.float64)) for v in sides.by_text(2 * n if has_pairs else n)
        )
        if not has_pairs:
            cosines = (dense * pruned).sum(-1).tolist()
            return [Change(i, None, x, distance=1 - x) for i, x in enumerate(cosines)]
        a, b = ((v[:n] * v[n:]).sum(-1).tolist() for v in (dense, pruned))
        return [Change(i, a[i], b[i], sides.label(i), distance=abs(a[i] - b[i])) for i in range(n)]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length one; a vector of zeros stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def _cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(N, D), (N, D) -> (N,)."""
    return (unit(one.astype(np.float64)) * unit(other.astype(np.float64))).sum(-1)
