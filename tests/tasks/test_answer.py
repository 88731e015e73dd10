"""Question answering against a search of all spans and SQuAD's rules, written here again."""

import json
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
)

from support.models import make_model, make_tokenizer
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.tasks.answer import Answer, best_threshold
from toprune.tasks.tokenize import Row

QUESTION = 2  # tokens of every question here: [CLS] q q [SEP] context [SEP]
BEFORE = QUESTION + 2


def make_row(places: Sequence[tuple[int, int]], text: int = 0) -> Row:
    outside = (-1, -1)
    every = np.array([*[outside] * BEFORE, *places, outside], np.int64)
    return Row(np.zeros(len(every), np.int64), None, text, every)


def word_places(context: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", context)]


def tell(row: Row, start: int, end: int, *, score: float = 10.0, null: float = 0.0) -> np.ndarray:
    """(n, 2): logits that point at the context's tokens start to end with that score in all."""
    logits = np.full((len(row), 2), -20.0)
    logits[0] = null / 2
    logits[BEFORE + start, 0] = logits[BEFORE + end, 1] = score / 2
    return logits


def make_examples(contexts: list[str], labels: Any = None) -> Examples:
    return Examples(["who"] * len(contexts), contexts, labels=labels)


def say(context: str, words: str | None) -> tuple[Row, np.ndarray]:
    """A window over all of the context and logits that answer these words of it (None: none)."""
    places = word_places(context)
    row = make_row(places)
    if words is None:
        return row, tell(row, 0, 0, score=-30, null=10)
    at = context.index(words)
    start = next(i for i, (_, past) in enumerate(places) if past > at)
    end = max(i for i, (first, _) in enumerate(places) if first < at + len(words))
    return row, tell(row, start, end)


# The official scripts' rules, from their description.


def squad_normalise(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text, flags=re.UNICODE).split())


def squad_exact(gold: str, answer: str) -> int:
    return int(squad_normalise(gold) == squad_normalise(answer))


def squad_f1(gold: str, answer: str) -> float:
    golds, answer_words = squad_normalise(gold).split(), squad_normalise(answer).split()
    same = sum((Counter(golds) & Counter(answer_words)).values())
    if not golds or not answer_words:
        return int(golds == answer_words)
    if same == 0:
        return 0
    precision, recall = same / len(answer_words), same / len(golds)
    return 2 * precision * recall / (precision + recall)


def squad_scores(golds: list[str], answer: str) -> tuple[float, float]:
    golds = [gold for gold in golds if squad_normalise(gold)] or [""]
    return max(squad_f1(g, answer) for g in golds), max(squad_exact(g, answer) for g in golds)


def squad_best(scores: list[float], gaps: list[float], answerable: list[bool]) -> tuple:
    """find_best_thresh, with spans that are never empty."""
    current = best = float(len(answerable) - sum(answerable))
    threshold = None
    for i in sorted(range(len(gaps)), key=lambda i: gaps[i]):
        current += scores[i] if answerable[i] else -1
        if current > best:
            best, threshold = current, gaps[i]
    return best / len(scores), threshold


WORDS = ["the", "The", "a", "an", "A+++", "...", "—", "cat", "Cat,", "cats", "naïve", "NAÏVE"]
WORDS += ["ﬁn", "İstanbul", "東京", "e\u0301", "don't", "dont", "U.S.", "US", "«the»", "$5"]
phrases = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), st.lists(phrases, max_size=4))
def test_scores_are_the_official_ones(answer: list[str], golds: list[str]):
    context = "  ".join(["un", *answer, "deux"])
    row, logits = say(context, "  ".join(answer))
    labels = [[(gold, 0) for gold in golds]]
    stats = Answer().statistics([logits], [row], make_examples([context], labels))
    f1, exact = squad_scores(golds, "  ".join(answer))
    assert stats.shape == (1, 4)
    assert Answer().metrics(stats) == {"f1": pytest.approx(f1), "exact": exact}


@pytest.mark.parametrize(
    ("answer", "golds", "f1", "exact"),
    [
        ("the cat sat", ["cat sat"], 1, 1),  # articles do not count
        ("U.S.", ["us"], 1, 1),  # nor does punctuation
        ("the", [], 1, 1),  # nothing is left: as good as no answer
        ("cat", [], 0, 0),
        ("cat", ["the", "..."], 0, 0),  # golds of which nothing is left are no answers
        ("the", ["...", "cat"], 0, 0),
        ("—", ["cat"], 0, 0),  # not ASCII's punctuation: a word
        ("cat cat", ["cat"], 2 / 3, 0),  # words are counted
        ("cat sat", ["sat", "cat sat on"], 0.8, 0),  # the best of several golds
    ],
)
def test_scores_by_hand(answer: str, golds: list[str], f1: float, exact: float):
    row, logits = say(answer, answer)
    examples = make_examples([answer], [[(gold, 0) for gold in golds]])
    found = Answer().metrics(Answer().statistics([logits], [row], examples))
    assert found == {"f1": pytest.approx(f1), "exact": exact}


def test_silence_is_right_where_there_is_no_answer():
    contexts = ["one two"] * 5
    answers = ["one", None, "two", "one", "two"]
    labels = [[("one", 0)], [], [], [("one", 0)], [("two", 4)]]
    rows, outputs = [], []
    for i, (context, words) in enumerate(zip(contexts, answers, strict=True)):
        row, logits = say(context, words)
        rows.append(Row(row.ids, None, i, row.places))
        outputs.append(logits)
    task = Answer(no_answer=True)
    stats = task.statistics(outputs, rows, make_examples(contexts, labels))
    found = task.metrics(stats)
    assert tuple(found) == (*task.METRICS, "best_f1", "best_exact")
    assert list(found.values()) == pytest.approx([4 / 5] * 4)
    assert best_threshold(stats) == -10  # no answer only where "none" leads by more
    never, always = (Answer(no_answer=True, threshold=t).metrics(stats) for t in (1e9, -1e9))
    assert (never["f1"], always["f1"]) == pytest.approx((3 / 5, 2 / 5))
    assert Answer().metrics(stats) == {"f1": 3 / 5, "exact": 3 / 5}


statistics_rows = st.tuples(st.floats(0, 1), st.integers(-5, 5), st.booleans())


@settings(max_examples=100, deadline=None)
@given(st.lists(statistics_rows, min_size=1, max_size=12, unique_by=lambda row: row[1]))
def test_best_threshold_is_the_official_one(drawn: list[tuple[float, int, bool]]):
    answerable = [can for _, _, can in drawn]
    scores = [score if can else 0.0 for score, _, can in drawn]
    gaps = [float(gap) for _, gap, _ in drawn]
    stats = np.array([[s, s, g, not a] for s, g, a in zip(scores, gaps, answerable, strict=True)])
    best, threshold = squad_best(scores, gaps, answerable)
    assert Answer(no_answer=True).metrics(stats)["best_f1"] == pytest.approx(best)
    if threshold is not None:
        at = Answer(no_answer=True, threshold=threshold).metrics(stats)
        assert at["f1"] == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(st.lists(statistics_rows, min_size=1, max_size=12))
def test_best_threshold_can_be_used(drawn: list[tuple[float, int, bool]]):
    """Ties, too: no threshold beats it, and used as a setting it gives what was promised."""
    stats = np.array([[f1, f1 == 1, gap, not can] for f1, gap, can in drawn], float)
    task = Answer(no_answer=True)
    best = task.metrics(stats)
    tried = [Answer(no_answer=True, threshold=t).metrics(stats) for t in np.arange(-6.5, 6.5, 0.5)]
    assert best["best_f1"] == pytest.approx(max(found["f1"] for found in tried))
    assert best["best_exact"] == pytest.approx(max(found["exact"] for found in tried))
    at = Answer(no_answer=True, threshold=best_threshold(stats)).metrics(stats)
    assert at["f1"] == pytest.approx(best["best_f1"])


def test_metrics_of_nothing_are_zero():
    assert Answer(no_answer=True).metrics(np.empty((0, 4)))["best_f1"] == 0


def search(task: Answer, logits: np.ndarray, row: Row) -> list[tuple[float, int, int]]:
    """Every span that is allowed: score, first and last token; best first."""
    assert row.places is not None
    inside = [i for i in range(len(row)) if row.places[i, 0] >= 0]
    spans = [
        (float(logits[i, 0] + logits[j, 1]), i, j)
        for i in inside
        for j in inside
        if i <= j < i + task.max_answer
    ]
    return sorted(spans, key=lambda span: (-span[0], span[1], span[2]))


@st.composite
def windows(draw: Any) -> tuple[str, list[Row], list[np.ndarray]]:
    """One context in windows of the same length that overlap, and their logits with many ties."""
    words = draw(st.integers(0, 9))
    context = " ".join(f"w{i}" for i in range(words))
    places = word_places(context)
    width = draw(st.integers(1, 6))
    step = draw(st.integers(1, width))
    rows = [make_row(places[i : i + width]) for i in range(0, max(words, 1), step)]
    number = st.integers(-2, 2).map(float) | st.floats(-50, 50, width=32)
    outputs = [
        np.array(draw(st.lists(st.tuples(number, number), min_size=len(row), max_size=len(row))))
        for row in rows
    ]
    return context, rows, outputs


@settings(max_examples=100, deadline=None)
@given(windows(), st.integers(1, 5), st.booleans(), st.sampled_from([-3.0, 0.0, 3.0]))
def test_answers_equal_a_search_of_all_spans(
    drawn: Any, max_answer: int, no_answer: bool, threshold: float
):
    context, rows, outputs = drawn
    task = Answer(max_answer=max_answer, best=1000, no_answer=no_answer, threshold=threshold)
    (found,) = task.predictions(outputs, rows, [("who", context)], None)

    null = min(float(logits[0].sum()) for logits in outputs)
    best: tuple[float, int, int] | None = None
    shares: dict[tuple[int, int], float] = {}
    for row, logits in zip(rows, outputs, strict=True):
        assert row.places is not None
        for score, i, j in search(task, logits, row):
            span = int(row.places[i, 0]), int(row.places[j, 1])
            shares[span] = max(score, shares.get(span, score))
            if best is None or score > best[0]:
                best = (score, *span)
    if best is None or (no_answer and null - best[0] > threshold):
        expected, chosen = ("", -1, -1), null
    else:
        expected, chosen = (context[best[1] : best[2]], best[1], best[2]), best[0]
    assert (found["answer"], found["start"], found["end"]) == expected
    weights = np.exp(np.array([null, *shares.values()]) - chosen)
    assert found["score"] == pytest.approx(1 / weights.sum())
    assert json.loads(json.dumps(found)) == found
    assert task.agreement(outputs, outputs, rows, make_examples([context])) == 1


@settings(max_examples=50, deadline=None)
@given(windows(), st.integers(1, 4))
def test_few_candidates_change_the_probability_alone(drawn: Any, best: int):
    context, rows, outputs = drawn
    few, all_ = (
        Answer(best=count).predictions(outputs, rows, [("who", context)], None)[0]
        for count in (best, 1000)
    )
    assert few["score"] >= all_.pop("score") * (1 - 1e-12)
    assert {name: few[name] for name in all_} == all_


def test_constant_logits_give_the_first_word():
    row = make_row(word_places("un deux trois"))
    (found,) = Answer().predictions(
        [np.zeros((len(row), 2))], [row], [("who", "un deux trois")], None
    )
    assert (found["answer"], found["start"], found["end"]) == ("un", 0, 2)
    assert found["score"] == pytest.approx(1 / 7)  # six spans and none


def test_the_end_may_be_the_last_token_and_long_spans_are_refused():
    context = "a b c d"
    row, logits = say(context, "a b c d")
    assert Answer(max_answer=4).predictions([logits], [row], [("q", context)], None)[0]["end"] == 7
    logits[BEFORE + 2, 1] = 1  # "a b c" is the second best
    assert Answer(max_answer=3).predictions([logits], [row], [("q", context)], None)[0]["end"] == 5


def test_tokens_outside_of_the_context_are_no_answers():
    row, logits = say("one two three", "two")
    logits[1:3] = 1e3  # the question
    logits[-1] = 1e3  # [SEP]
    assert (
        Answer().predictions([logits], [row], [("q", "one two three")], None)[0]["answer"] == "two"
    )


def test_windows_are_put_together():
    context = "w0 w1 w2 w3 w4 w5"
    places = word_places(context)
    rows = [make_row(places[:4]), make_row(places[2:]), make_row(word_places("x y"), text=1)]
    outputs = [
        tell(rows[0], 0, 1, score=4, null=20),
        tell(rows[1], 2, 3, score=5, null=-3),  # w4 w5: the best, and the least for "none"
        tell(rows[2], 0, 0, score=1, null=2),
    ]
    texts = [("q", context), ("q", "x y")]
    sure, unsure = Answer(no_answer=True).predictions(outputs, rows, texts, None)
    assert (sure["answer"], sure["start"], sure["end"]) == ("w4 w5", 12, 17)
    assert (unsure["answer"], unsure["start"], unsure["end"]) == ("", -1, -1)
    assert unsure["score"] == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-3)
    stats = Answer().statistics(
        outputs, rows, make_examples([context, "x y"], [[("w4 w5", 12)], []])
    )
    np.testing.assert_allclose(stats, [[1, 1, -8, 0], [0, 0, 1, 1]])
    # the order in which rows come does not matter to texts
    turned = Answer(no_answer=True).predictions(outputs[::-1], rows[::-1], texts, None)
    assert turned == [sure, unsure]


@pytest.mark.parametrize("best", [1, 2, 20])
def test_ties_between_windows_do_not_depend_on_the_candidates(best: int):
    """The later window's first span wins, although the earlier one found its second."""
    context = "w0 w1 w2"
    places = word_places(context)
    rows = [make_row(places), make_row(places[1:])]
    outputs = [tell(rows[0], 0, 0, score=4), tell(rows[1], 0, 0, score=5)]
    outputs[0][BEFORE + 2] = 1.5  # w2: the second best
    outputs[1][BEFORE + 1] = 2.5  # w1, w1 w2 and w2 are the best
    (found,) = Answer(best=best).predictions(outputs, rows, [("q", context)], None)
    assert found["answer"] == "w1"


def test_spaces_around_a_span_are_not_of_it():
    """Some tokenizers count the space before a word to its token."""
    context = "un  deux trois"
    row = make_row([(0, 2), (2, 8), (8, 14)])
    (found,) = Answer().predictions([tell(row, 1, 1)], [row], [("q", context)], None)
    assert (found["answer"], found["start"], found["end"]) == ("deux", 4, 8)
    assert Answer().target(row, [("deux", 4)]) == [BEFORE + 1, BEFORE + 1]


def test_agreement_counts_equal_answers():
    context = "cat dog cat"
    first, cat = say(context, "cat")
    _, dog = say(context, "dog")
    last = tell(first, 2, 2)
    rows = [Row(first.ids, None, i, first.places) for i in range(2)]
    examples = make_examples([context] * 2)
    assert Answer().agreement([cat, cat], [cat, dog], rows, examples) == 0.5
    assert Answer().agreement([cat, cat], [last, cat], rows, examples) == 1  # the same word
    _, none = say(context, None)
    assert Answer(no_answer=True).agreement([none, none], [none, cat], rows, examples) == 0.5


def tokenize(context: str, max_length: int, stride: int) -> list[Row]:
    found = make_tokenizer()(
        "w1 w2",
        context,
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = []
    for i, ids in enumerate(found["input_ids"]):
        inside = np.array([part == 1 for part in found.sequence_ids(i)])
        places = np.where(inside[:, None], np.array(found["offset_mapping"][i]), -1)
        rows.append(Row(np.array(ids), None, 0, places))
    return rows


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_targets_decode_to_the_answer(data: st.DataObject):
    """In each window: all of the answer, or none of it; and it is in one window at least, when it
    is not longer than what windows share."""
    words = data.draw(st.lists(st.sampled_from(["cat", "naïve", "東京", "w3"]), min_size=1))
    gaps = data.draw(st.lists(st.sampled_from([" ", "  ", "\n"]), min_size=len(words)))
    context = "".join(word + gap for word, gap in zip(words, gaps, strict=False))
    places = word_places(context)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(first + 2, len(words) - 1)))
    start, past = places[first][0], places[last][1]
    label = [(context[start:past], start), ("not read", 0)]
    task, held = Answer(), 0
    for row in tokenize(context, max_length=BEFORE + 1 + 6, stride=3):
        assert row.places is not None
        i, j = task.target(row, label)
        inside = row.places[row.places[:, 0] >= 0]
        holds = inside[0, 0] <= start and past <= inside[-1, 1]
        held += holds
        if not holds:
            assert [i, j] == [0, 0]
            continue
        assert context[row.places[i, 0] : row.places[j, 1]] == context[start:past]
        logits = tell(row, i - BEFORE, j - BEFORE)
        found = task.predictions([logits], [row], [("w1 w2", context)], None)[0]
        assert (found["answer"], found["start"], found["end"]) == (context[start:past], start, past)
    assert held


def test_targets_by_hand():
    context = "un deux-trois quatre"
    row = make_row([(3, 7), (7, 8), (8, 13), (14, 20)])  # a window that does not begin at 0
    task = Answer()
    assert task.target(row, [("deux", 3)]) == [4, 4]
    assert task.target(row, [("deux-trois quatre", 3)]) == [4, 7]
    assert task.target(row, [("roi", 9)]) == [6, 6]  # within a token
    assert task.target(row, [(" quatre ", 13)]) == [7, 7]  # spaces are in no token
    assert task.target(row, [("un deux", 0)]) == [0, 0]  # begins before the window
    assert task.target(row, [("quatre cinq", 14)]) == [0, 0]  # ends after it
    assert task.target(row, [("un", 0), ("deux", 3)]) == [0, 0]  # the first answer alone
    assert task.target(row, []) == [0, 0]
    assert task.target(row, [("", 3)]) == [0, 0]
    assert task.target(row, [("  ", 7)]) == [0, 0]
    assert task.target(make_row([]), [("un", 0)]) == [0, 0]
    assert context[14:20] == "quatre"


def batch(seed: int, extra: int, fill: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Student and teacher (2, 5 + extra, 2) and mask; fill: what stands at padding."""
    lengths = torch.tensor([5, 3])
    generator = torch.Generator().manual_seed(seed)
    live = torch.arange(5 + extra) < lengths[:, None]
    made = []
    for _ in range(2):
        logits = torch.full((2, 5 + extra, 2), fill, dtype=torch.double)
        logits[:, :5] = torch.randn(2, 5, 2, generator=generator, dtype=torch.double)
        made.append(logits.masked_fill(~live[..., None], fill).requires_grad_())
    return made[0], made[1], live.long()


@pytest.mark.parametrize("fill", [0.0, 1e4, -1e4, torch.inf, torch.nan])
@pytest.mark.parametrize("extra", [0, 7])
def test_padding_changes_nothing(fill: float, extra: int):
    task, labels = Answer(), torch.tensor([[1, 4], [0, 2]])

    def results(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor) -> list:
        values = [
            task.margin(student, mask).sum(),
            task.distill_loss(student, teacher, mask),
            task.label_loss(student, labels, mask),
        ]
        return values + [torch.autograd.grad(value, student)[0][:, :5] for value in values]

    student, teacher, mask = batch(0, extra, fill)
    for found, expected in zip(
        results(student, teacher, mask), results(*batch(0, 0, 0.0)), strict=True
    ):
        torch.testing.assert_close(found, expected)
    gradient = torch.autograd.grad(task.distill_loss(student, teacher, mask), student)[0]
    assert (gradient[mask == 0] == 0).all()


def test_losses_by_hand():
    student, teacher, mask = batch(1, 2, 0.0)
    labels = torch.tensor([[1, 4], [0, 2]])
    kl, entropy, margin = [], [], []
    for b, n in enumerate(mask.sum(1).tolist()):
        for side in range(2):
            x, t = student[b, :n, side], teacher[b, :n, side]
            p, q = t.softmax(0), x.softmax(0)
            kl.append((p * (p / q).log()).sum())
            entropy.append(-x.log_softmax(0)[labels[b, side]])
            margin.append(x.sort(descending=True).values[:2])
    task = Answer()
    torch.testing.assert_close(task.distill_loss(student, teacher, mask), torch.stack(kl).mean())
    torch.testing.assert_close(task.label_loss(student, labels, mask), torch.stack(entropy).mean())
    expected = torch.stack([best[0] - best[1] for best in margin]).view(2, 2).sum(1)
    torch.testing.assert_close(task.margin(student, mask), expected)
    assert task.distill_loss(teacher, teacher, mask).item() == pytest.approx(0, abs=1e-12)


def test_heads(tmp_path: Any):
    task, examples = Answer(), make_examples(["one"])
    assert task.num_outputs(examples) == 2
    task.check_head(BertConfig(), examples)
    task.check_head(BertConfig(architectures=["BertForQuestionAnswering"]), examples)
    make_model().save_pretrained(tmp_path)  # a sequence classifier of two classes
    old = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"BertForSequenceClassification.*finetune"):
        task.check_head(old.config, examples)
    new = AutoModelForQuestionAnswering.from_pretrained(tmp_path, **task.head(examples))
    task.check_head(new.config, examples)
    three: dict[str, Any] = {"num_labels": 3}
    with pytest.raises(UserError, match=r"3 outputs.*num_labels=2"):
        task.check_head(BertConfig(**three), examples)
    with pytest.raises(UserError, match="context"):
        task.check_head(BertConfig(), Examples(["who"]))


@pytest.mark.parametrize(
    "wrong", [{"stride": -1}, {"max_answer": 0}, {"best": 0}, {"threshold": float("nan")}]
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]):
    with pytest.raises(UserError, match=r"use|usual"):
        Answer(**wrong)


def test_a_row_without_places_is_refused():
    with pytest.raises(UserError, match="pairs"):
        Answer().target(Row(np.zeros(3, np.int64), None), [("x", 0)])
