"""Truncation: which length meets a budget, and who reads what."""

import pytest

from support.models import make_model
from toprune.errors import OutOfReach
from toprune.methods.baselines import cut_for
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import dense_macs, reduction
from toprune.training.job import dense_plan

LENGTHS = Lengths.of([200, 100, 30])


def test_lengths_that_are_cut() -> None:
    assert LENGTHS.cut(100).rows == ((30, 0, 1), (100, 0, 2))
    assert Lengths.of([8, 8], [2, 6]).cut(4).rows == ((4, 2, 1), (4, 4, 1))


def test_reduction_counts_what_is_read() -> None:
    model = make_model()
    sizes, plan = sizes_of(model), dense_plan(model)
    whole = sum(dense_macs(sizes, n) for n in (200, 100, 30))
    read = sum(dense_macs(sizes, n) for n in (50, 50, 30))
    assert reduction(sizes, plan, LENGTHS, cut=50).unpadded == pytest.approx(whole / read)
    assert reduction(sizes, plan, LENGTHS, cut=200).unpadded == 1


@pytest.mark.parametrize("budget", ["1.2x", "2x", "3x"])
def test_the_nearest_length_wins(budget: str) -> None:
    model = make_model()
    sizes, plan = sizes_of(model), dense_plan(model)
    target = Budget.parse(budget)
    off = {
        m: abs(reduction(sizes, plan, LENGTHS, cut=m).unpadded / target.reduction - 1)
        for m in range(4, 201)
    }
    assert cut_for(sizes, plan, LENGTHS, target) == min(off, key=lambda m: off[m])


def test_out_of_reach() -> None:
    model = make_model()
    with pytest.raises(OutOfReach, match="1000x is out of reach"):
        cut_for(sizes_of(model), dense_plan(model), LENGTHS, Budget.parse("1000x"))
