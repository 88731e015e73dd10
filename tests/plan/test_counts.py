"""Budgets in the words of a paper: equation 4 by hand, and plans that meet it."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from toprune.errors import UserError
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Count, Lengths
from toprune.plan.cost import Sizes, authors_macs, measured_reduction, paper_macs, reduction
from toprune.plan.counts import KEYS, Published, against_unpadded, counted
from toprune.plan.dial import parse_budgets
from toprune.plan.plan import Plan, Step
from toprune.plan.schedule import repair
from toprune.training.settings import Training

BERT = Sizes(layers=12, width=768, heads=12, inner=3072)
TINY = Sizes(layers=2, width=2, heads=1, inner=3)
HALF = Plan("bert", 2, 2, "received", (Step(0, Fraction(1, 2)),))


def by_hand(entering: list[int], *, authors: bool) -> int:
    """4 d^2 T + (2 d + H) T^2 + 2 d d' U, for BERT-base."""
    total = 0
    for layer, t in enumerate(entering):
        fed = entering[min(layer + 1, len(entering) - 1)] if authors else t
        total += 4 * 768**2 * t + (2 * 768 + 12) * t**2 + 2 * 768 * 3072 * fed
    return total


def test_one_layer_by_hand() -> None:
    # 4 * 4 * 4 tokens + 5 * 4^2 + 12 * 4 = 192; then 32 + 20 + 24 = 76
    assert paper_macs(TINY, [4, 2]) == 192 + 76
    # the two that leave do not reach the first FFN: 24 less
    assert authors_macs(TINY, [4, 2]) == 192 - 24 + 76


def test_bert_by_hand() -> None:
    entering = [53] * 2 + [40, 30, 24, 20, 16, 12, 10, 8, 6, 4]
    assert paper_macs(BERT, entering) == by_hand(entering, authors=False)
    assert authors_macs(BERT, entering) == by_hand(entering, authors=True)


def test_a_reduction_has_both_counts() -> None:
    lengths = Lengths.of([4, 4, 2])
    got = reduction(TINY, HALF, lengths, max_length=8)
    # 3 texts padded to 8: 16 * 8 + 5 * 64 + 12 * 8 = 544 in each of 2 layers; a text of 2 keeps 2
    short = 2 * (32 + 20 + 24)
    assert got.paper_padded == pytest.approx(3 * 2 * 544 / (2 * 268 + short))
    assert got.authors_padded == pytest.approx(3 * 2 * 544 / (2 * 244 + short))
    counts = np.array([[4, 2], [4, 2], [2, 2]])
    assert vars(measured_reduction(TINY, HALF, counts, max_length=8)) == pytest.approx(vars(got))
    slim = replace(TINY, slim=((1, 2), (1, 1)))  # against the model with all columns
    from_lengths = reduction(slim, HALF, lengths, max_length=8, before=TINY)
    measured = measured_reduction(slim, HALF, counts, max_length=8, before=TINY)
    assert vars(measured) == pytest.approx(vars(from_lengths))
    assert measured.unpadded > got.unpadded


def test_a_cost_in_sums_equals_the_count_of_each_text() -> None:
    rows = [[9, 5, 5, 2], [7, 7, 3, 3]]
    sizes = replace(BERT, layers=4)
    sums = [sum(column) for column in zip(*rows, strict=True)]
    squares = [sum(t * t for t in column) for column in zip(*rows, strict=True)]
    for cost, macs in (
        (Published(sizes, "paper"), paper_macs),
        (Published(sizes, "authors"), authors_macs),
    ):
        total = cost.total(sums, squares, examples=2, restore="none")
        assert total == sum(macs(sizes, row) for row in rows)
    assert counted(sizes, "executed") is sizes


def test_padding_is_divided_out() -> None:
    lengths = Lengths.of([2, 4])
    budget = against_unpadded(Budget("8x", count="paper"), TINY, lengths, 8)
    padding = 2 * 2 * 544 / (2 * (32 + 20 + 24) + 2 * 192)
    assert budget.padding == pytest.approx(padding)
    assert budget.reduction == pytest.approx(8 / padding)
    assert budget.limit(2.0).startswith(f"{np.floor(200 * padding) / 100:.2f}x")
    assert against_unpadded(Budget("8x"), TINY, lengths, 8) == Budget("8x")


@pytest.mark.parametrize("count", ["paper", "authors"])
@pytest.mark.parametrize("asked", ["6.32x", "7.47x"])
def test_a_repaired_plan_meets_the_count(count: Count, asked: str) -> None:
    """The two budgets of MRPC in the paper, on lengths like its own."""
    lengths = Lengths.of(range(30, 77))
    steps = tuple(Step(layer, Fraction(1, 2)) for layer in range(1, 11))
    plan = Plan("bert", 12, 768, "received", steps)
    budget = against_unpadded(Budget(asked, count=count), BERT, lengths, 128)
    plan = repair(counted(BERT, count), plan, lengths, budget)
    padded = 47 * by_hand([128] * 12, authors=False)
    pruned = sum(by_hand(plan.lengths(n), authors=count == "authors") for n in range(30, 77))
    assert padded / pruned == pytest.approx(float(asked[:-1]), rel=0.01)


def test_prune_meets_the_paper_s_count() -> None:
    data = {"train": synthetic.rows(40, 0), "test": synthetic.rows(16, 1)}
    for count in ("paper", "authors"):
        bundle = toprune.prune(
            make_model(),
            toprune.Data(data, max_length=64),
            Budget("6x", count=count),
            tokenizer=make_tokenizer(),
            score="received",
            training=Training(soft_epochs=0, hard_epochs=0),
        )
        report, plan = bundle.report["budget"], bundle.plan
        assert plan is not None
        assert (report["asked"], report["count"]) == ("6x", count)
        assert report["executed"][KEYS[count]] == pytest.approx(6, rel=0.015)
        sizes, lengths = sizes_of(bundle.model), Lengths.from_json(bundle.report["lengths"])
        macs = paper_macs if count == "paper" else authors_macs
        pruned = sum(many * macs(sizes, plan.lengths(n)) for n, many in lengths.counts)
        padded = lengths.total * paper_macs(sizes, [64] * sizes.layers)
        assert padded / pruned == pytest.approx(report["executed"][KEYS[count]])
        assert bundle.report["provenance"]["settings"]["count"] == count


def test_refusals() -> None:
    with pytest.raises(UserError, match="padding alone"):
        against_unpadded(Budget("1.5x", count="paper"), BERT, Lengths.of([50]), 128)
    with pytest.raises(UserError, match="in FLOPs"):
        Budget("12ms", count="paper")
    with pytest.raises(UserError, match="executed, paper, authors"):
        Budget("3x", count="guess")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="dial counts executed"):
        parse_budgets([Budget("3x", count="paper"), Budget("5x", count="paper")])
    for method in ("cofi", "joint", "truncate", "drop_layers"):
        with pytest.raises(UserError, match="leave --count out"):
            toprune.prune(
                make_model(),
                {"train": synthetic.rows(8, 0)},
                Budget("3x", count="paper"),
                tokenizer=make_tokenizer(),
                method=method,
            )
