"""How well a document answers a query: one logit per pair, from a cross-encoder.

The candidates of a query are the pairs with the same query text. Distillation of the teacher's
scores needs no labels, so unlabelled pairs are enough to prune.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from toprune.data.examples import Examples
from toprune.data.reads import Reads
from toprune.errors import UserError
from toprune.tasks.base import Labels, Outputs, Predictions, Rows, Task, by_text
from toprune.tasks.side_by_side import Change, SideBySide

if TYPE_CHECKING:
    from torch import Tensor

    from toprune.tasks.tokenize import Row

QUERIES = ("query", "question", "text", "sentence1")  # usual names of columns
DOCUMENTS = (
    *("document", "passage", "doc", "text", "context", "answer", "sentence", "text_pair"),
    "sentence2",
)
TOP = 10  # documents that count in nDCG and MRR


@dataclass(frozen=True)
class Rank(Task):
    NAME: ClassVar[str] = "rank"
    METRICS: ClassVar[tuple[str, ...]] = ("ndcg@10", "mrr@10", "map")
    HEAD: ClassVar[str] = "sequence"
    SAME_HEAD_AS: ClassVar[str | None] = "regress"
    OUTPUTS: ClassVar[tuple[str, ...]] = ("logits",)
    NUM_OUTPUTS: ClassVar[int | None] = 1
    KEEPS_FIRST: ClassVar[bool] = True
    RANKS: ClassVar[bool] = True
    PAIR_ROLES: ClassVar[tuple[str, str] | None] = ("query", "document")
    READS: ClassVar[Reads] = Reads(
        "the task rank reads a query (--text), a document (--pair) and a relevance (--label)",
        texts=QUERIES,
        labels=("label", "relevance", "score", "grade", "labels", "rating", "target"),
        pairs=tuple((a, b) for a in QUERIES for b in DOCUMENTS if a != b),
        label_type="number",
        least=0.0,
        pair_roles=PAIR_ROLES,
        together="texts",
    )
    HUB_TAG: ClassVar[str] = "text-ranking"
    EXAMPLE: ClassVar[str] = '[("a query", "a document"), ("a query", "another")]'
    UNIT: ClassVar[str] = "queries"
    AGREEMENT: ClassVar[str] = (
        "Dense and pruned put the same document on top for {:.1f} % of the queries."
    )
    ANSWER: ClassVar[str] = "score"
    NO_MARGIN: ClassVar[str | None] = (
        "the score of one document has no margin: leave --fallback out, and score the best "
        "documents again with Runner.rank(query, documents, rescore=k)"
    )

    def check_head(self, config: Any, examples: Examples) -> None:
        if config.num_labels != 1:
            raise UserError(
                f"the model's head has {config.num_labels} outputs, but ranking needs one score "
                "per pair; use the task classify or a model with num_labels=1"
            )
        if examples.pairs is None:
            raise UserError("ranking needs a query and a document in each row; name both columns")
        labels = examples.labels or []
        bad = [i for i, label in enumerate(labels) if not label >= 0]
        if bad:
            raise UserError(
                f"row {bad[0] + 1} has a relevance of {labels[bad[0]]}, but it must be 0 or more; "
                "write documents that are not relevant as 0"
            )

    def target(self, row: "Row", label: Any) -> Any:
        return float(label)

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B, 1) -> (B,): the logit itself."""
        return outputs[:, 0]

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        """Mean squared error of logits (B, 1): equal scores keep the order of a list."""
        from torch.nn import functional as F

        return F.mse_loss(student, teacher)

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        """Binary cross entropy of logits (B, 1) with the relevance (B,), clipped to [0, 1].

        So every grade from 1 up means relevant here; grades count only in nDCG.
        """
        from torch.nn import functional as F

        relevant = labels.to(student.dtype).clamp(0, 1)
        return F.binary_cross_entropy_with_logits(student[:, 0], relevant)

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(Q, 3): nDCG@10, reciprocal rank at 10 and average precision of each query.

        A query without a relevant candidate is left out: all orders of its documents are equally
        good. Documents that are not among the candidates do not count in the ideal order.
        """
        scores = by_text(outputs, rows, len(examples))[:, 0]
        relevance = np.asarray(examples.labels, np.float64)
        statistics: list[tuple[float, float, float]] = []
        for _, order in ranking(scores, examples.texts):
            # With equal scores the less relevant document comes first: files often list right
            # answers on top, and a model with constant scores must not gain from that.
            ranked = relevance[order][np.lexsort((relevance[order], -scores[order]))]
            if not (ranked > 0).any():
                continue
            if np.isnan(scores[order]).any():  # no order at all is not a bad order
                statistics.append((np.nan, np.nan, np.nan))
            else:
                statistics.append(
                    (_ndcg(ranked), _reciprocal_rank(ranked), _average_precision(ranked))
                )
        if not statistics:
            raise UserError(
                "no query has a relevant document among its candidates: there is nothing to "
                "measure; give pairs with a relevance above 0, or leave the labels out"
            )
        return np.array(statistics)

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """Means over queries."""
        means = statistics.mean(0)
        return {name: float(mean) for name, mean in zip(self.METRICS, means, strict=True)}

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(Q,): whether a query has the same document on top."""
        count, queries = len(examples), examples.texts
        a, b = (ranking(by_text(x, rows, count)[:, 0], queries) for x in (one, other))
        return np.array([x[0] == y[0] for (_, x), (_, y) in zip(a, b, strict=True)])

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        """`score`: the sigmoid of the logit, as CrossEncoder.predict gives for one output, unless
        the model's config names another activation. The order is the same either way."""
        logits = by_text(outputs, rows, len(texts))[:, 0].astype(np.float64)  # for logits above 17
        scores = np.exp(-np.logaddexp(0, -logits))
        return [{"score": float(score)} for score in scores]

    def changes(self, sides: SideBySide) -> list[Change]:
        """Queries with another document on top; `index` is the row of the dense model's."""
        documents: Any = sides.examples.pairs
        orders = [ranking(scores[:, 0], sides.examples.texts) for scores in sides.by_text()]
        changes: list[Change] = []
        for (_, (a, *_)), (_, (b, *_)) in zip(*orders, strict=True):
            if a != b:
                has_labels = sides.examples.labels is not None
                gain = float(sides.label(b) - sides.label(a)) if has_labels else None
                changes.append(Change(a, documents[a], documents[b], None, gain, around=None))
        return changes


def ranking(
    scores: Sequence[float] | np.ndarray, queries: Sequence[str]
) -> list[tuple[str, list[int]]]:
    """Sort the candidates of each query by score.

    Args:
        scores: one for each pair.
        queries: the query of each pair.

    Returns:
        Each query, in order of first appearance, with its row numbers, best first. Equal scores
        keep the order of the rows, which is that of the first stage.
    """
    values = np.asarray(scores, np.float64)
    if values.shape != (len(queries),):
        raise UserError(
            f"{len(queries)} queries but scores of shape {values.shape}; "
            "give the query and one score for every pair"
        )
    rows: dict[str, list[int]] = {}
    for row, query in enumerate(queries):
        rows.setdefault(query, []).append(row)
    return [
        (query, [numbers[i] for i in np.argsort(-values[numbers], kind="stable")])
        for query, numbers in rows.items()
    ]


# These take the relevance (n,) of one query's candidates, best score first, not all of it 0.


def _ndcg(relevance: np.ndarray) -> float:
    """Gain 2^relevance - 1, discount log2 of the place plus one, over that of the ideal order."""
    gains = np.exp2(relevance) - 1
    discounts = 1 / np.log2(np.arange(2, 2 + min(TOP, len(gains))))
    ideal = np.sort(gains)[::-1][:TOP]
    return float(gains[:TOP] @ discounts / (ideal @ discounts))


def _reciprocal_rank(relevance: np.ndarray) -> float:
    hits = np.flatnonzero(relevance[:TOP] > 0)
    return float(1 / (hits[0] + 1)) if len(hits) else 0.0


def _average_precision(relevance: np.ndarray) -> float:
    """The mean, over relevant documents, of the precision from the top down to each."""
    places = np.flatnonzero(relevance > 0) + 1  # from one
    return float(np.mean(np.arange(1, len(places) + 1) / places))
