"""Intervals for decisions, against scipy's exact ones and by how often they hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap

from toprune.tasks.intervals import cautious, cautious_difference, units_needed

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def exact(hits: int, units: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of Clopper and Pearson."""
    ends = binomtest(hits, units).proportion_ci(level, "exact")
    return ends.low, ends.high


@settings(max_examples=40, deadline=None)
@given(counts, st.sampled_from([0.8, 0.95, 0.99]))
def test_losses_alone_reach_as_far_as_the_exact_interval(count: tuple[int, int], level: float):
    lost, units = count
    figure = cautious_difference(lost, 0, units, level=level)
    low, high = exact(lost, units, level)
    assert figure["value"] == -lost / units
    slack = 0.1 * (high - low)
    assert figure["low"] == pytest.approx(-high, abs=slack)
    assert figure["high"] >= -low - slack  # the next unit might even be won


@settings(max_examples=15, deadline=None)
@given(counts)
def test_a_share_is_near_the_exact_interval(count: tuple[int, int]):
    hits, units = count
    same = np.arange(units) < hits
    figure = cautious(lambda picks: float(same[picks].mean()), units, 0.0)
    low, high = exact(hits, units)
    near = pytest.approx([low, high], abs=0.2 * (high - low))
    assert [figure["low"], figure["high"]] == near
    assert figure["value"] == hits / units


def test_what_never_happened_may_still_happen():
    """3.7 of n: no bootstrap has that."""
    for units in (3, 30, 3000):
        figure = cautious(lambda _: 1.0, units, 0.0)
        assert figure["low"] == pytest.approx(exact(units, units)[0], abs=0.4 / units)
        assert figure["high"] == 1


def test_many_units_give_the_bootstrap_of_scipy():
    rng = np.random.default_rng(0)
    gains = rng.normal(-0.1, 0.3, 3000).clip(-1, 1)
    figure = cautious(lambda picks: float(gains[picks].mean()), len(gains), -1.0)
    ends = bootstrap(
        (gains,), np.mean, n_resamples=2000, method="percentile", rng=1
    ).confidence_interval
    assert [figure["low"], figure["high"]] == pytest.approx([ends.low, ends.high], abs=2e-3)


@pytest.mark.parametrize(
    ("units", "lost", "won"), [(60, 0.03, 0.0), (200, 0.02, 0.01), (800, 0.01, 0.01)]
)
def test_a_loss_beyond_the_limit_rarely_passes(units: int, lost: float, won: float):
    """The far end must not be on the good side of the truth more than 2.5 times in a hundred."""
    rng = np.random.default_rng(units)
    draws = rng.multinomial(units, [lost, won, 1 - lost - won], 300)
    passed = [
        cautious_difference(int(a), int(b), units, seed=i)["low"] > won - lost
        for i, (a, b, _) in enumerate(draws)
    ]
    assert np.mean(passed) <= 0.025 + 2 * np.sqrt(0.025 / len(draws))


@settings(max_examples=25, deadline=None)
@given(st.integers(50, 800), st.integers(0, 20), st.integers(0, 20), st.floats(0.001, 0.05))
def test_as_many_units_as_needed_are_enough(units: int, lost: int, won: int, gap: float):
    """With more units of the same kind, the interval reaches about as far as it may."""

    def reach(n: int) -> float:
        figure = cautious_difference(round(lost * n / units), round(won * n / units), n)
        return figure["value"] - figure["low"]

    needed = units_needed(reach(units), units, gap)
    if reach(units) > gap:
        assert needed > units
        assert 0.7 * gap < reach(needed) < 1.3 * gap


def test_more_groups_need_wider_intervals():
    ends = [cautious_difference(3, 1, 50, level=level)["low"] for level in (0.9, 0.95, 0.995)]
    assert ends == sorted(ends, reverse=True)
