"""Extractive question answering: the answer is a span of the context, or there is none.

Texts are questions, pairs are contexts; a long context is read in windows. The rules of scoring are
those of SQuAD's v2 script, which gives the same results on v1.1's data as the v1.1 script.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toprune.data.examples import Examples
from toprune.data.reads import Reads
from toprune.errors import UserError
from toprune.tasks.base import Labels, Outputs, Predictions, Rows, Task, check_stride
from toprune.tasks.side_by_side import Change, SideBySide

if TYPE_CHECKING:
    from torch import Tensor

    from toprune.tasks.tokenize import Row

OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
PUNCTUATION = str.maketrans("", "", string.punctuation)
QUESTIONS = ("question", "query")  # usual names of columns
CONTEXTS = ("context", "passage", "paragraph", "document", "text")
ARTICLES = re.compile(r"\b(a|an|the)\b")

Span = tuple[int, int]  # first and past-the-end character in the context


@dataclass(frozen=True)
class Answer(Task):
    stride: int = 128  # tokens of the context that one window shares with the next
    max_answer: int = 30  # tokens
    best: int = 20  # spans of a window that share the probability of an answer
    no_answer: bool = False  # there may be no answer (SQuAD v2)
    # State of a dropped token for the head. With "zero" it cannot be an answer; it leaves before
    # the FFN, so more tokens fit the same budget. With "last" it still can be one.
    dropped: Literal["zero", "last"] = "last"
    # By how much "none" must beat the best span; fine-tuning and pruning choose it on train.
    threshold: float = 0.0

    NAME: ClassVar[str] = "answer"
    METRICS: ClassVar[tuple[str, ...]] = ("f1", "exact")  # with no_answer `metrics` adds best_*
    HEAD: ClassVar[str] = "answer"
    OUTPUTS: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    NUM_OUTPUTS: ClassVar[int | None] = 2
    MAX_LENGTH: ClassVar[int | None] = 384  # more tokens do not help
    KEEPS_FIRST: ClassVar[bool] = True
    PAIR_ROLES: ClassVar[tuple[str, str] | None] = ("question", "context")
    BY_TOKEN: ClassVar[bool] = True
    FINDS_SPANS: ClassVar[bool] = True
    READS: ClassVar[Reads] = Reads(
        "the task answer reads a question (--text), a context (--pair) and answers (--label)",
        texts=QUESTIONS,
        labels=("answers", "answer", "answer_text"),
        pairs=tuple((a, b) for a in QUESTIONS for b in CONTEXTS),
        label_type="answers",
        pair_roles=PAIR_ROLES,
        together="pairs",
        articles=True,
    )
    HUB_TAG: ClassVar[str] = "question-answering"
    EXAMPLE: ClassVar[str] = '[("Who wrote it?", "It was written by ...")]'
    UNIT: ClassVar[str] = "questions"
    AGREEMENT: ClassVar[str] = "Dense and pruned give the same answer to {:.1f} % of the questions."
    ANSWER: ClassVar[str] = "answer"

    def __post_init__(self) -> None:
        check_stride(self.stride)
        for name in ("max_answer", "best"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"{name} is {getattr(self, name)}, which leaves no span; use 1 or more"
                )
        if self.dropped not in ("zero", "last"):
            raise UserError(f"dropped tokens count as zero or last, not as '{self.dropped}'")
        if not isfinite(self.threshold):
            raise UserError(f"a threshold of {self.threshold} is not a number; 0 is usual")

    @property
    def restore(self) -> Literal["zero", "last"]:
        return self.dropped

    @property
    def needs_tuning(self) -> bool:
        return self.no_answer

    def tune(self, outputs: Outputs, rows: Rows, examples: Examples) -> Self:
        """Choose the threshold for "no answer" that gives the best F1."""
        return replace(self, threshold=best_threshold(self.statistics(outputs, rows, examples)))

    def head(self, examples: Examples) -> dict[str, Any]:
        """Forget the old head's name, which `check_head` would refuse."""
        return {"architectures": None}

    def check_head(self, config: Any, examples: Examples) -> None:
        """Refuse a head without two outputs, or one of another task.

        A name of pre-training (BertForMaskedLM) proves nothing: a model keeps its first name until
        it is saved.
        """
        if examples.pairs is None:
            raise UserError("answers are in a context; name its column too")
        other = [name for name in config.architectures or [] if name.endswith(OTHER_HEADS)]
        if other:
            raise UserError(
                f"the model is a {other[0]}, not one that answers questions; "
                "fine-tune it for that first (toprune finetune)"
            )
        if config.num_labels != 2:
            raise UserError(
                f"the model's head has {config.num_labels} outputs, but a span has 2, its start "
                "and its end; use a model with num_labels=2"
            )

    def target(self, row: "Row", label: Any) -> list[int]:
        """First and last token of the first answer; [0, 0] if the window does not contain all of
        it."""
        text, first = label[0] if label else ("", 0)
        first, text = first + len(text) - len(text.lstrip()), text.strip()
        end = first + len(text)
        starts, ends = _places(row).T
        inside = np.flatnonzero(starts >= 0)  # (m,) tokens of the context
        if not text or not len(inside) or starts[inside[0]] > first or ends[inside[-1]] < end:
            return [0, 0]
        span = inside[(ends[inside] > first) & (starts[inside] < end)]
        return [int(span[0]), int(span[-1])] if len(span) else [0, 0]

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B, S, 2) -> (B,): best minus second best token, of the start and of the end."""
        import torch

        least = torch.finfo(outputs.dtype).min
        best = outputs.masked_fill(mask[..., None] == 0, least).topk(2, dim=1).values  # (B, 2, 2)
        return (best[:, 0] - best[:, 1]).sum(1)

    def log_shares(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """As a start or as an end, whichever is more likely."""
        return _log_softmax(outputs, mask).amax(-1)

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        """KL(teacher || student) over live tokens, the mean of start and end; (B, S, 2).

        There is no temperature: it would give more weight to the many tokens that are no answer.
        """
        log_q, log_p = _log_softmax(student, mask), _log_softmax(teacher, mask)
        return (log_p.exp() * (log_p - log_q)).sum(1).mean()

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        """Cross entropy over live tokens, the mean of start and end; (B, S, 2), labels (B, 2)."""
        return -_log_softmax(student, mask).gather(1, labels[:, None]).mean()

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 4): F1 and exact match of the best span; by how much "none" beats it; 1 if "none" is
        right. `metrics` chooses between the span and "none", because it tries thresholds."""
        contexts, labels = examples.pairs or [], list[Any](examples.labels or [])
        statistics = []
        candidates = self._candidates(outputs, rows, len(examples), spans=1)
        for candidate, context, label in zip(candidates, contexts, labels, strict=True):
            answer = _normalise(_cut(context, candidate.best)[0])
            golds = [gold for gold in (_normalise(text) for text, _ in label) if gold] or [""]
            f1, exact = max(_f1(answer, gold) for gold in golds), answer in golds
            statistics.append((f1, exact, candidate.null - candidate.score, golds == [""]))
        return np.array(statistics, np.float64).reshape(-1, 4)

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """f1 and exact match; with `no_answer` also the best that any threshold gives."""
        if not self.no_answer:
            return {"f1": _mean(statistics[:, 0]), "exact": _mean(statistics[:, 1])}
        silent = statistics[:, 2] > self.threshold
        return {
            "f1": _mean(np.where(silent, statistics[:, 3], statistics[:, 0])),
            "exact": _mean(np.where(silent, statistics[:, 3], statistics[:, 1])),
            "best_f1": _try_thresholds(statistics, 0)[0],
            "best_exact": _try_thresholds(statistics, 1)[0],
        }

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N,): whether a question gets the same answer, letter by letter."""

        def answers(outputs: Outputs) -> list[str]:
            candidates = self._candidates(outputs, rows, len(examples), spans=1)
            pairs = zip(candidates, examples.pairs or [], strict=True)
            return [_cut(context, self._decide(candidate))[0] for candidate, context in pairs]

        return np.array([a == b for a, b in zip(answers(one), answers(other), strict=True)])

    def agree(self, compared: np.ndarray) -> float:
        return _mean(compared)

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        """`answer`, its `start` and `end` (exclusive) in the context; "", -1 and -1 for none.
        `score` is its probability among the best spans of all windows and "none"."""
        predictions = []
        candidates = self._candidates(outputs, rows, len(texts), spans=self.best)
        for candidate, (_, context) in zip(candidates, texts, strict=True):
            span = self._decide(candidate)
            text, start, end = _cut(context, span)
            scores = np.array([candidate.null, *candidate.spans.values()])
            chosen = candidate.null if span is None else candidate.spans[span]
            share = float(1 / np.exp(np.minimum(scores - chosen, 700)).sum())  # e^710 overflows
            predictions.append({"answer": text, "score": share, "start": start, "end": end})
        return predictions

    def answer_margins(self, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """Best minus next best span, which may overlap: it is another answer. Where there may be no
        answer, "none" competes, too."""
        margins = []
        for candidate in self._candidates(outputs, rows, count, spans=2):
            scores = sorted(candidate.spans.values(), reverse=True)
            margin = scores[0] - scores[1] if len(scores) > 1 else inf
            if self.no_answer:
                lead = candidate.null - candidate.score - self.threshold  # of "none"
                margin = lead if lead > 0 else min(margin, -lead)
            margins.append(margin)
        return np.array(margins, np.float64)

    def changes(self, sides: SideBySide) -> list[Change]:
        """The gain is in F1."""
        models = list(zip(sides.tasks, sides.outputs, strict=True))
        pairs = list(zip(sides.examples.texts, sides.examples.pairs or [], strict=True))
        dense, pruned = (t.predictions(x, sides.rows, pairs, None) for t, x in models)
        statistics = None
        if sides.examples.labels is not None:
            statistics = [(t, t.statistics(x, sides.rows, sides.examples)) for t, x in models]
        changes: list[Change] = []
        for i, (a, b) in enumerate(zip(dense, pruned, strict=True)):
            if a["answer"] == b["answer"]:
                continue
            golds, gain = sides.label(i), None
            if statistics is not None:
                before, after = (task.metrics(row[i : i + 1])["f1"] for task, row in statistics)
                gain = after - before
            label = None if golds is None else (golds[0][0] if golds else "")
            changes.append(Change(i, a["answer"], b["answer"], label, gain, around=a["start"]))
        return changes

    def _decide(self, candidate: "_Candidates") -> Span | None:
        is_none = self.no_answer and candidate.null - candidate.score > self.threshold
        return None if is_none else candidate.best

    def _candidates(
        self, outputs: Outputs, rows: Rows, count: int, *, spans: int
    ) -> "list[_Candidates]":
        """Join the windows of each of `count` texts, with the best `spans` of each window."""
        candidates = [_Candidates() for _ in range(count)]
        for logits, row in zip(outputs, rows, strict=True):
            logits = np.asarray(logits, np.float64)  # (n, 2)
            candidate = candidates[row.text]
            candidate.null = min(candidate.null, float(logits[0].sum()))
            for span, score in self._best_spans(logits, _places(row), spans):
                if score > candidate.spans.get(span, -inf):
                    candidate.spans.pop(span, None)  # to the end: the first to reach a score wins
                    candidate.spans[span] = score
        return candidates

    def _best_spans(
        self, logits: np.ndarray, places: np.ndarray, count: int
    ) -> list[tuple[Span, float]]:
        """The best of *all* spans that are short enough, best first. Equal scores: the earlier span
        first, then the shorter. The usual search among the best starts and ends can miss it."""
        inside = np.flatnonzero(places[:, 0] >= 0)  # (m,) tokens of the context
        if not len(inside):
            return []
        start, end = logits[inside].T  # (m,)
        width = min(self.max_answer, len(inside))
        ends = sliding_window_view(np.append(end, np.full(width - 1, -inf)), width)  # (m, width)
        scores = (start[:, None] + ends).ravel()  # (m * width,): for each start, by length
        count = min(count, len(scores))
        least = np.partition(scores, -count)[-count]
        chosen = np.flatnonzero((scores >= least) & (scores > -inf))
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")][:count]
        first, further = np.divmod(chosen, width)
        starts, ends = places[inside[first], 0], places[inside[first + further], 1]
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return list(zip(spans, scores[chosen].tolist(), strict=True))


@dataclass
class _Candidates:
    """Spans and the score of "none", over all windows of one text."""

    null: float = inf  # the least over the windows: one that finds an answer decides
    spans: dict[Span, float] = field(default_factory=dict)  # in the order of the windows

    @property
    def best(self) -> Span | None:
        return max(self.spans, key=self.spans.__getitem__) if self.spans else None

    @property
    def score(self) -> float:
        return max(self.spans.values(), default=-inf)


def best_threshold(statistics: np.ndarray) -> float:
    """The lowest threshold that gives the best F1 on these statistics."""
    return _try_thresholds(statistics, 0)[1]


def _try_thresholds(statistics: np.ndarray, column: int) -> tuple[float, float]:
    """The best mean of a column and its threshold.

    Like the official script, but questions with equal scores are answered together or not at all,
    as with any threshold; the script's result depends on their order.
    """
    if not len(statistics):
        return 0.0, 0.0
    statistics = statistics[np.argsort(statistics[:, 2], kind="stable")]
    gaps = statistics[:, 2]
    gains = np.cumsum(statistics[:, column] - statistics[:, 3])
    gains[:-1][gaps[:-1] == gaps[1:]] = -inf
    answered = int(np.argmax(gains))  # the last question that is answered
    if not gains[answered] > 0:  # it is best to answer none
        return _mean(statistics[:, 3]), float(np.nextafter(gaps[0], -inf))
    return _mean(statistics[:, 3]) + float(gains[answered]) / len(statistics), float(gaps[answered])


def _mean(values: np.ndarray) -> float:
    return float(values.sum() / max(len(values), 1))


def _places(row: "Row") -> np.ndarray:
    if row.places is None:
        raise UserError("a question was read without its context; give (question, context) pairs")
    return row.places


def _cut(context: str, span: Span | None) -> tuple[str, int, int]:
    """The text of a span and its place. Some tokenizers include the space before a word."""
    if span is None or not context[slice(*span)].strip():
        return "", -1, -1
    text = context[slice(*span)]
    start = span[0] + len(text) - len(text.lstrip())
    text = text.strip()
    return text, start, start + len(text)


def _normalise(text: str) -> str:
    """Lower case without ASCII punctuation, articles and extra white space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _f1(answer: str, gold: str) -> float:
    """F1 of the words that two normalised answers share; equality if one of them is empty."""
    if not answer or not gold:
        return float(answer == gold)
    words, gold_words = answer.split(), gold.split()
    shared = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * shared / (len(words) + len(gold_words))


def _log_softmax(logits: "Tensor", mask: "Tensor") -> "Tensor":
    """Log softmax over the live tokens (B, S, 2); 0 at padding, so that it adds nothing."""
    dead = mask[..., None] == 0  # (B, S, 1)
    return logits.masked_fill(dead, -inf).log_softmax(1).masked_fill(dead, 0)
