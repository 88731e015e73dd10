"""The choice of plan and threshold: exact bounds, known curves, and the file that stores it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from support.refusals import one_line_error
from toprune.tasks import TASKS, Answer, Classify, Multilabel, Tags
from toprune.tasks.fallback import Candidate, Fallback, answers_same, choose, parse_fallback
from toprune.tasks.intervals import exact_low, level_of
from toprune.tasks.tokenize import Row

FALLBACK = Fallback(0.5, 0.99, 0.995, 0.991, 0.08, 0.33, 2000)


def row(text: int, places: Any = None, n: int = 3) -> Row:
    ids = np.ones(n, np.int64)
    return Row(ids, np.zeros_like(ids), text=text, places=None if places is None else places)


# Bounds


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_bound_is_clopper_and_pearsons(total: int, share: float, level: float):
    count = round(share * total)
    wanted = 0.0 if count == 0 else beta.ppf((1 - level) / 2, count, total - count + 1)
    assert exact_low(count, total, level) == pytest.approx(wanted, abs=1e-9)


def test_bounds_of_several_plans_hold_together():
    assert level_of(1) == 0.95
    assert 1 - level_of(4) == pytest.approx(0.05 / 4)


# The choice


def candidate(cost: float, count: int = 1000, wrong: int = 100, seed: int = 0) -> Candidate:
    """Texts in a random order, of which those with the smallest margins are answered otherwise."""
    order = np.random.default_rng(seed).permutation(count)
    margins = np.arange(count)[order] / count + 1e-3
    return Candidate(f"{1 / cost:.2f}x", cost, margins, order >= wrong)


def test_a_known_curve():
    """The 100 texts with the smallest margins are wrong: each share of fallbacks rights as much."""
    curve = candidate(0.2).curve(np.full(1000, 1e-3))
    np.testing.assert_allclose(curve.costs, 0.2 + np.arange(1001) / 1000)
    np.testing.assert_array_equal(curve.right, np.minimum(900 + np.arange(1001), 1000))
    assert curve.points()[0] == [0.2, 0.9]
    assert curve.points()[-1] == [pytest.approx(1.2), 1.0]


def test_the_whole_budget_is_used_and_the_threshold_keeps_it():
    one = candidate(0.2)
    number, fallback = choose([one], np.ones(1000), 0.99, 1 / 3)
    assert number == 0
    assert fallback.share == pytest.approx(0.133)
    assert (one.margins < fallback.threshold).mean() == fallback.share
    assert fallback.cost <= 1 / 3 < fallback.cost + 2e-3
    assert (fallback.agreement, fallback.is_met) == (1.0, True)
    assert fallback.low == pytest.approx(exact_low(1000, 1000))


def test_the_best_plan_wins_and_the_bound_counts_all_of_them():
    plans = [candidate(0.2, wrong=300), candidate(0.25, wrong=90), candidate(0.32, wrong=20)]
    number, fallback = choose(plans, np.ones(1000), 0.99, 1 / 3)
    assert (number, fallback.agreement) == (2, pytest.approx(0.993))
    assert not fallback.is_met  # .993 of 1,000 texts does not show .99
    assert "NOT reached, 99.3 %" in fallback.describe()
    assert fallback.low == exact_low(993, 1000, level_of(3)) < exact_low(993, 1000)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=60),
    st.floats(0.05, 1.5),
    st.floats(0.05, 1.0),
)
def test_what_is_chosen_is_what_the_threshold_does(
    texts: list[tuple[int, bool]], budget: float, share: float
):
    """Also with equal margins: the threshold gives the agreement, the share and the cost."""
    margins, same = (np.array(column) for column in zip(*texts, strict=True))
    weights = np.arange(1.0, len(texts) + 1)
    one = Candidate("a", share, margins.astype(float), same)
    _, fallback = choose([one], weights, 0.9, budget)
    fell = margins < fallback.threshold
    assert fallback.share == pytest.approx(fell.mean())
    assert fallback.agreement == pytest.approx((same | fell).mean())
    assert fallback.cost == pytest.approx(share + weights[fell].sum() / weights.sum())
    assert fallback.cost <= budget * (1 + 1e-6) or not fell.any()


def test_long_texts_that_fall_back_cost_more():
    margins, same = np.arange(1.0, 11), np.ones(10, bool)
    one = Candidate("a", 0.2, margins, same)
    even = choose([one], np.ones(10), 0.9, 0.5)[1]
    long_first = choose([one], np.array([9.0, *[1] * 9]), 0.9, 0.5)[1]
    assert even.share == pytest.approx(0.3)
    assert long_first.share == 0  # the first one alone would take half of everything


def test_without_texts_nothing_can_be_chosen():
    with one_line_error("no texts to choose a fallback on"):
        Candidate("a", 0.2, np.zeros(0), np.zeros(0, bool))


def test_an_infinite_margin_never_falls_back():
    one = Candidate("a", 0.2, np.array([1.0, np.inf]), np.array([False, False]))
    _, fallback = choose([one], np.ones(2), 0.9, 5.0)
    assert (fallback.share, fallback.agreement) == (0.5, 0.5)


# Margins: 0 where two answers are level, and a change smaller than the margin changes no answer


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.floats(0, 0.99))
def test_a_smaller_change_than_the_margin_keeps_the_class(logits: list[float], part: float):
    task, rows = Classify(), [row(0)]
    (margin,) = task.answer_margins([np.array(logits)], rows, 1)
    changed = np.array(logits, np.float64)
    changed[int(np.argmin(logits))] += part * margin
    changed[int(np.argmax(logits))] -= 0
    assert margin >= 0
    if margin > 1e-6 and logits.count(min(logits)) == 1:
        assert changed.argmax() == np.argmax(logits)


def test_margins_of_labels_are_distances_from_their_thresholds():
    task = Multilabel(classes=2, thresholds=(0.5, 0.9))
    cut = np.log(9)
    outputs = [np.array([0.3, cut + 2]), np.array([-4.0, cut - 0.25])]
    margins = task.answer_margins(outputs, [row(0), row(1)], 2)
    np.testing.assert_allclose(margins, [0.3, 0.25], rtol=1e-5)


def spans(*tokens: tuple[float, float]) -> np.ndarray:
    """Start and end logits: [CLS], question, [SEP], and these tokens of the context."""
    return np.array([(0.0, 0.0), (-9, -9), (-9, -9), *tokens])


def test_margins_of_answers_are_to_the_next_span_or_to_none():
    places = np.array([(-1, -1)] * 3 + [(0, 2), (3, 5)])
    outputs = spans((5.0, 4.0), (1.0, 3.5))  # spans: 9, 8.5 (both words), 4.5
    task = Answer()
    assert task.answer_margins([outputs], [row(0, places, 5)], 1) == pytest.approx([0.5])
    with_none = replace(task, no_answer=True, threshold=0.0)
    assert with_none.answer_margins([outputs], [row(0, places, 5)], 1) == pytest.approx([0.5])
    outputs[0] = 4.4, 4.4  # "none" has 8.8: .2 below the best span
    assert with_none.answer_margins([outputs], [row(0, places, 5)], 1) == pytest.approx([0.2])
    outputs[0] = 5.0, 5.0  # it leads by 1
    assert with_none.answer_margins([outputs], [row(0, places, 5)], 1) == pytest.approx([1.0])
    one_word = row(0, places[:4], 4)
    assert task.answer_margins([outputs[:4]], [one_word], 1) == [np.inf]


def test_the_least_sure_word_decides_about_a_sentence():
    places = np.array([(-1, -1), (0, 0), (0, 1), (1, 0)])
    outputs = np.array([(0.0, 0.0), (3.0, 1.0), (5.0, 5.0), (0.0, 0.5)])
    assert Tags().answer_margins([outputs], [row(0, places, 4)], 1) == [0.5]


def test_tasks_without_a_margin_name_a_way_out():
    without = {name for name, task in TASKS.items() if task.NO_MARGIN is not None}
    assert without == {"regress", "rank", "embed"}
    assert all("leave --fallback out" in str(TASKS[name].NO_MARGIN) for name in without)


def test_answers_are_compared_as_the_task_gives_them():
    one, other = [np.array([1.0, 0]), np.array([0, 2.0])], [np.array([3.0, 0]), np.array([2.0, 0])]
    same = answers_same(Classify(), one, other, [row(0), row(1)], ["a", "b"])
    assert same.tolist() == [True, False]


# The request and the file


@pytest.mark.parametrize("requested", ["0%", "100%", "120%", "-3%", "99", "much", "nan%", 0.0, 1.5])
def test_bad_requests(requested: Any):
    with one_line_error("is not a share below 100 %"):
        parse_fallback(requested)


def test_good_requests():
    assert parse_fallback("99%") == parse_fallback(0.99) == 0.99
    assert parse_fallback("99.5%") == pytest.approx(0.995)


def test_the_file_reads_back(tmp_path: Path):
    assert Fallback.from_json(FALLBACK.to_json()) == FALLBACK
    assert Fallback.load(tmp_path) is None
    (tmp_path / "fallback.json").write_text(FALLBACK.to_json())
    assert Fallback.load(tmp_path) == FALLBACK


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threshold": float("nan")}, "threshold must be 0 or more"),
        ({"threshold": -1}, "threshold must be 0 or more"),
        ({"threshold": True}, "threshold must be float or int"),
        ({"threshold": "0.5"}, "threshold must be float or int"),
        ({"share": 1.5}, "share must be 0 to 1"),
        ({"agreement": float("inf")}, "agreement must be 0 to 1"),
        ({"cost": 0}, "cost must be above 0"),
        ({"texts": 0}, "texts must be 1 or more"),
        ({"schema": 2}, "schema 2 is not known"),
        ({"more": 1}, "unknown fields"),
        ({"low": None}, "low must be float or int"),
    ],
)
def test_a_file_that_someone_changed(change: dict[str, Any], words: str):
    data = json.loads(FALLBACK.to_json()) | change
    with one_line_error(words):
        Fallback.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1}', "null"])
def test_a_file_that_is_none(text: str):
    with one_line_error("fallback.json"):
        Fallback.from_json(text)
