"""SpAtten: the line of its schedule by hand, and the budget."""

from dataclasses import replace
from fractions import Fraction

import pytest

from support.strategies import make_plan
from toprune.methods.spatten import line, whole_layers


def test_every_token_stays_in_the_first_layers() -> None:
    assert [whole_layers(layers) for layers in (4, 6, 12, 20, 24, 40)] == [3, 3, 3, 3, 4, 6]


def test_shares_fall_along_a_line() -> None:
    """Twelve layers, the first three whole, one half at the last: nine equal steps of 1/18."""
    blank = replace(make_plan(), n_layers=12, score="accumulated")
    plan = line(blank, 3, 0.5)
    assert [step.layer for step in plan.steps] == list(range(2, 11))
    for i, step in enumerate(plan.steps, start=1):
        assert float(step.keep) == pytest.approx(1 - i / 18, abs=5e-4)
    assert plan.steps[-1].keep == Fraction(1, 2)
    assert plan.lengths(100)[:4] == [100, 100, 100, 95]
    assert plan.lengths(100)[-1] == 50
