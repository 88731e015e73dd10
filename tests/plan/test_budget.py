"""Budgets as people write them, and the histogram of lengths they are asked over."""

import json
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprune.errors import UserError
from toprune.plan.budget import Budget, Lengths

samples = st.lists(st.integers(1, 512), min_size=1)
pairs = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1)  # query, document


@pytest.mark.parametrize(
    ("asked", "reduction", "sparsity"),
    [
        ("4x", 4, 0.75),
        ("4X", 4, 0.75),
        (" 2.5 x ", 2.5, 0.6),
        ("1.01x", 1.01, 1 - 1 / 1.01),
        ("65%", 1 / 0.35, 0.65),
        ("80 %", 5, 0.8),
        ("99.9%", 1000, 0.999),
    ],
)
def test_accepted_budgets(asked: str, reduction: float, sparsity: float) -> None:
    budget = Budget.parse(asked)
    assert budget.reduction == pytest.approx(reduction)
    assert budget.sparsity == pytest.approx(sparsity)
    assert budget.asked == asked
    assert Budget.parse(budget) is budget


@given(st.floats(0.1, 99.9))
def test_a_share_and_its_reduction_are_the_same_budget(percent: float) -> None:
    share = Budget.parse(f"{percent:.6f}%")
    assert share.sparsity == pytest.approx(percent / 100, abs=1e-7)
    assert Budget.parse(f"{share.reduction:.9f}x").sparsity == pytest.approx(share.sparsity)


REFUSED = "0x -2x fast 0.5x 1x 1.0x 0% 100% 100.0% 150% -5% x % 4 4xx x4 1e3x nanx infx .5x 4,5x"


@pytest.mark.parametrize("asked", [*REFUSED.split(), "", "4x 4x", "4x\n4x", "9" * 400 + "x"])
def test_refused_budgets_name_the_accepted_forms(asked: str) -> None:
    with pytest.raises(UserError, match=r"like 4x, .* like 65%") as caught:
        Budget.parse(asked)
    assert repr(asked) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("asked", [None, 4, 0.65])
def test_other_types_are_refused(asked: Any) -> None:
    with pytest.raises(UserError, match="like 4x"):
        Budget.parse(asked)


@pytest.mark.parametrize(
    ("asked", "milliseconds", "quantile"),
    [
        ("12ms", 12, 0.5),
        (" 3.5 MS", 3.5, 0.5),
        ("p50:8ms", 8, 0.5),
        ("p95:30ms", 30, 0.95),
        ("P95: 0.5 s", 500, 0.95),
    ],
)
def test_accepted_times(asked: str, milliseconds: float, quantile: float) -> None:
    """A time becomes a reduction when the dense model's is known."""
    budget = Budget(asked, threads=2, precision="int8")
    assert (budget.milliseconds, budget.quantile) == (milliseconds, quantile)
    assert np.isnan(budget.reduction)
    known = budget.against(3 * milliseconds)
    assert (known.reduction, known.sparsity) == pytest.approx((3, 2 / 3))
    assert (known.asked, known.milliseconds, known.threads) == (asked, milliseconds, 2)
    assert known.limit(6) == f"{milliseconds / 2:.2f} ms at least"
    with pytest.raises(UserError, match="the dense model takes"):
        budget.against(milliseconds)


@pytest.mark.parametrize("asked", ["0ms", "-3ms", "p95:0ms", "9" * 400 + "ms"])
def test_times_are_above_zero(asked: str) -> None:
    with pytest.raises(UserError, match="above zero"):
        Budget(asked)


@pytest.mark.parametrize("fields", [{"threads": 0}, {"precision": "fp16"}])
def test_times_need_threads_and_a_precision(fields: Any) -> None:
    with pytest.raises(UserError, match=next(iter(fields))):
        Budget("12ms", **fields)


@pytest.mark.parametrize("asked", ["p95:4x", "p99:12ms", "p95:30%", "ms", "12 min"])
def test_quantiles_are_of_times(asked: str) -> None:
    with pytest.raises(UserError, match="p95:30ms"):
        Budget(asked)


@pytest.mark.parametrize("fields", [{"threads": 2}, {"precision": "int8"}])
def test_flops_have_no_threads(fields: Any) -> None:
    with pytest.raises(UserError, match="for a budget in milliseconds"):
        Budget("3x", **fields)


@pytest.mark.parametrize("reduction", [1.0, 0.5, float("inf"), float("nan")])
def test_a_budget_cannot_be_built_wrong(reduction: float) -> None:
    with pytest.raises(UserError):
        Budget("by hand", reduction)


def test_lengths_by_hand() -> None:
    lengths = Lengths.of([5, 3, 5, 9])
    assert lengths.counts == ((3, 1), (5, 2), (9, 1))
    assert (lengths.total, lengths.mean, lengths.max) == (4, 5.5, 9)
    assert lengths.moment(2) == 9 + 25 + 25 + 81
    assert [lengths.quantile(q) for q in (0, 0.25, 0.26, 0.75, 0.76, 1)] == [3, 3, 5, 5, 9, 9]
    assert lengths.to_json() == {"3": 1, "5": 2, "9": 1}


def test_one_example_at_a_quantile() -> None:
    lengths = Lengths.of([5, 3, 5, 5, 9], held=[2, 0, 4, 3, 9])
    assert lengths.at(0.5).rows == ((5, 3, 1),)
    assert lengths.at(0.95).rows == ((9, 9, 1),)


def test_held_tokens_by_hand() -> None:
    lengths = Lengths.of([5, 3, 5, 5, 9], held=[2, 0, 4, 2, 9])
    assert lengths.rows == ((3, 0, 1), (5, 2, 2), (5, 4, 1), (9, 9, 1))
    assert lengths.counts == ((3, 1), (5, 3), (9, 1))
    assert (lengths.total, lengths.mean, lengths.max, lengths.quantile(0.5)) == (5, 5.4, 9, 5)
    assert lengths.to_json() == {"3": 1, "5/2": 2, "5/4": 1, "9/9": 1}
    assert Lengths.of([5, 3]) == Lengths.of([5, 3], held=[0, 0])


@given(pairs)
def test_who_does_not_care_sees_the_lengths_alone(sample: list[tuple[int, int]]) -> None:
    plain = Lengths.of(q + d for q, d in sample)
    joint = Lengths.of((q + d for q, d in sample), held=(q for q, _ in sample))
    assert joint.counts == plain.counts
    assert [joint.moment(p) for p in (0, 1, 2)] == [plain.moment(p) for p in (0, 1, 2)]
    assert (joint.mean, joint.max) == (plain.mean, plain.max)
    assert joint.quantile(0.7) == plain.quantile(0.7)
    assert Lengths.from_json(json.loads(json.dumps(joint.to_json()))) == joint


@given(samples, st.floats(0, 1))
def test_lengths_agree_with_the_list(sample: list[int], q: float) -> None:
    lengths = Lengths.of(np.array(sample))
    assert lengths.total == len(sample)
    assert lengths.max == max(sample)
    assert lengths.mean == pytest.approx(statistics.fmean(sample))
    at = lengths.quantile(q)
    assert sum(n <= at for n in sample) >= q * len(sample)
    assert at == min(sample) or sum(n < at for n in sample) < q * len(sample)


@given(samples)
def test_lengths_survive_json(sample: list[int]) -> None:
    lengths = Lengths.of(sample)
    assert Lengths.from_json(json.loads(json.dumps(lengths.to_json()))) == lengths


@pytest.mark.parametrize("sample", [[], [0], [4, -1]])
def test_bad_samples_are_refused(sample: list[int]) -> None:
    with pytest.raises(UserError):
        Lengths.of(sample)


def test_each_length_has_its_held_tokens() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Lengths.of([3, 4], held=[1])


BAD_ROWS = [
    ((3, 0, 0),),
    ((5, 0, 1), (3, 0, 1)),
    ((3, 0, 1), (3, 0, 1)),
    ((3, 2, 1), (3, 1, 1)),
    ((3, 4, 1),),
    ((3, -1, 1),),
]


@pytest.mark.parametrize("rows", BAD_ROWS)
def test_bad_rows_are_refused(rows: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(UserError):
        Lengths(rows)


BAD_JSON = [
    {},
    {"a": 1},
    {"3": None},
    {"3": 0},
    [3, 4],
    None,
    {"3": "x"},
    {"3/4": 1},
    {"3/": 1},
    {"3/1/1": 1},
    {"3": 1, "3/0": 1},
]


@pytest.mark.parametrize("data", BAD_JSON)
def test_bad_lengths_json_is_refused(data: Any) -> None:
    with pytest.raises(UserError):
        Lengths.from_json(data)


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
def test_bad_quantiles_are_refused(q: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        Lengths.of([3]).quantile(q)
