"""A budget is met, not approached: on histograms like those of real data, from any plan."""

import math
import warnings
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.errors import OutOfReach, UserError
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, dense_macs, executed_macs, reduction
from toprune.plan.plan import DENOMINATOR, Plan, Restore, Score, Step
from toprune.plan.schedule import geometric, largest_reduction, repair

MINILM = Sizes(layers=6, width=384, heads=12, inner=1536)
PROBE = (1.0,) * 384
pytestmark = pytest.mark.filterwarnings("error")  # a budget that is missed warns


def histogram(mean: float, low: int, high: int) -> Lengths:
    """A skewed bell between low and high with about the given mean."""
    rng = np.random.default_rng(0)
    share = (mean - low) / (high - low)
    return Lengths.of((low + (high - low) * rng.beta(4 * share, 4 * (1 - share), 2000)).round())


HISTOGRAMS = {
    "mrpc": histogram(53, 25, 100),
    "imdb": histogram(207, 30, 256),
    "20news": histogram(320, 50, 512),
}
COLA = histogram(11, 4, 47)


def query_and_document(seed: int = 0) -> Lengths:
    """[CLS] query [SEP] document [SEP], the query protected: what a reranker reads."""
    rng = np.random.default_rng(seed)
    query, document = rng.integers(5, 21, 3000), rng.integers(20, 201, 3000)
    return Lengths.of(query + document + 3, held=query + 2)


PAIRS = query_and_document()


@st.composite
def plans(draw: st.DrawFn, first: int | None = 0) -> Plan:
    """Any monotone plan for MiniLM; its first step is at `first` if that is given."""
    layers = draw(st.sets(st.integers(first or 0, 4), min_size=1))
    layers = sorted(layers if first is None else layers | {first})
    keeps = sorted((Fraction(draw(st.integers(1, 1000)), 1000) for _ in layers), reverse=True)
    score: Score = draw(st.sampled_from(get_args(Score)))
    restore: Restore = draw(st.sampled_from(["none", "last", "zero"]))
    probe = {"probe": PROBE, "probes": PROBE * len(layers)}.get(score)
    inner = 32 if score == "predicted" else None
    return Plan(
        "bert",
        6,
        384,
        score,
        tuple(map(Step, layers, keeps)),
        probe=probe,
        predictor=inner,
        protect=(101,),
        restore=restore,
    )


def off(plan: Plan, lengths: Lengths, budget: Budget) -> float:
    return abs(reduction(MINILM, plan, lengths).unpadded / budget.reduction - 1)


@pytest.mark.parametrize("asked", ["1.5x", "2x", "3x", "5x"])
@pytest.mark.parametrize("name", HISTOGRAMS)
@settings(max_examples=12, deadline=None)
@given(plan=plans())
def test_budgets_are_met_within_one_percent(name: str, asked: str, plan: Plan) -> None:
    budget, lengths = Budget.parse(asked), HISTOGRAMS[name]
    repaired = repair(MINILM, plan, lengths, budget)
    assert off(repaired, lengths, budget) <= 0.01
    assert [step.layer for step in repaired.steps] == [step.layer for step in plan.steps]
    assert all(DENOMINATOR % step.keep.denominator == 0 for step in repaired.steps)
    assert replace(repaired, steps=plan.steps) == plan


@settings(max_examples=40, deadline=None)
@given(plan=plans())
def test_short_texts_meet_two_times(plan: Plan) -> None:
    budget = Budget.parse("2x")
    assert off(repair(MINILM, plan, COLA, budget), COLA, budget) <= 0.01


@pytest.mark.parametrize("asked", ["2x", "3x"])
@settings(max_examples=12, deadline=None)
@given(plan=plans())
def test_budgets_are_met_with_protected_queries(asked: str, plan: Plan) -> None:
    budget = Budget.parse(asked)
    guarded = replace(plan, protect_until=102)
    assert off(repair(MINILM, guarded, PAIRS, budget), PAIRS, budget) <= 0.01


@pytest.mark.parametrize("last", [None, 0])
@pytest.mark.parametrize("asked", ["2x", "3x"])
def test_geometric_with_protected_queries(asked: str, last: int | None) -> None:
    budget = Budget.parse(asked)
    plan = geometric(
        MINILM,
        PAIRS,
        budget,
        family="bert",
        first=0,
        last=last,
        score="received",
        protect_until=102,
    )
    assert plan.protect_until == 102
    assert off(plan, PAIRS, budget) <= 0.01


def test_without_the_queries_the_budget_is_missed() -> None:
    """The tests above would say little if queries hardly mattered."""
    budget = Budget.parse("3x")
    forgotten = Lengths(tuple((n, 0, many) for n, many in PAIRS.counts))
    plan = geometric(MINILM, forgotten, budget, family="bert", first=0, score="received")
    assert off(plan, PAIRS, budget) > 0.02


def test_what_is_held_bounds_the_reduction() -> None:
    """Half of every text held: more than about 2x cannot be, however little a plan keeps."""
    lengths = Lengths.of(range(20, 100, 2), held=range(10, 50))
    plan = Plan("bert", 6, 384, "received", (Step(0, Fraction(1, 2)),), protect_until=102)
    most = largest_reduction(MINILM, lengths, 0, 2, "none", "received")
    with pytest.raises(OutOfReach, match=f"{math.floor(most * 100) / 100:.2f}x at most"):
        repair(MINILM, plan, lengths, Budget.parse("3x"))
    met = repair(MINILM, plan, lengths, Budget("the most", most))
    assert reduction(MINILM, met, lengths).unpadded == pytest.approx(most, rel=0.01)
    everything = Lengths.of([30, 40], held=[30, 40])
    assert largest_reduction(MINILM, everything, 0, 2, "none", "received") == 1


@settings(max_examples=40, deadline=None)
@given(
    plan=plans(first=None),
    asked=st.sampled_from(["1.5x", "2x", "3x", "5x"]),
    lengths=st.sampled_from([HISTOGRAMS["mrpc"], PAIRS]),
)
def test_what_cannot_be_reached_is_said(plan: Plan, asked: str, lengths: Lengths) -> None:
    budget = Budget.parse(asked)
    least = [replace(step, keep=Fraction(1, DENOMINATOR)) for step in plan.steps]
    reachable = reduction(MINILM, replace(plan, steps=tuple(least)), lengths).unpadded
    if budget.reduction <= reachable * 1.01:
        assert off(repair(MINILM, plan, lengths, budget), lengths, budget) <= 0.01
        return
    with pytest.raises(UserError) as caught:
        repair(MINILM, plan, lengths, budget)
    said = f"{math.floor(reachable * 100) / 100:.2f}x at most"
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_reachable_budget_is_reached_when_asked() -> None:
    lengths = HISTOGRAMS["mrpc"]
    plan = Plan("bert", 6, 384, "received", (Step(2, Fraction(1, 2)),))
    with pytest.raises(OutOfReach, match=r"(\d+\.\d\d)x at most") as caught:
        repair(MINILM, plan, lengths, Budget.parse("50x"))
    said = str(caught.value).split(" reach ")[1].split(" at most")[0]
    assert (
        off(repair(MINILM, plan, lengths, Budget.parse(said)), lengths, Budget.parse(said)) < 0.01
    )


@pytest.mark.parametrize("score", ["received", "probe"])
@pytest.mark.parametrize("restore", ["none", "last", "zero"])
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("lengths", [COLA, PAIRS], ids=["texts", "pairs"])
def test_largest_reduction_is_the_lowest_plan(
    first: int, restore: Restore, score: Score, lengths: Lengths
) -> None:
    steps = tuple(Step(layer, Fraction(1, DENOMINATOR)) for layer in range(first, 5))
    probe = PROBE if score == "probe" else None
    plan = Plan("bert", 6, 384, score, steps, probe=probe, min_tokens=3, restore=restore)
    most = largest_reduction(MINILM, lengths, first, 3, restore, score)
    assert most == pytest.approx(reduction(MINILM, plan, lengths).unpadded, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(10, 40), st.integers(0, 10)), min_size=1, max_size=6),
    st.floats(1.05, 4),
)
def test_no_notch_of_a_single_cut_comes_closer(
    sample: list[tuple[int, int]], wanted: float
) -> None:
    """Brute force over all thousandths, on few and short lengths where whole tokens bite."""
    lengths, budget = Lengths.of(*zip(*sample, strict=True)), Budget("by hand", wanted)
    plan = Plan("bert", 6, 384, "received", (Step(0, Fraction(1, 2)),))
    dense = sum(dense_macs(MINILM, n) for n, _ in sample)

    def miss(candidate: Plan) -> float:
        executed = sum(executed_macs(MINILM, candidate, n, held) for n, held in sample)
        return abs(executed * wanted / dense - 1)

    try:
        with warnings.catch_warnings(action="ignore"):
            repaired = repair(MINILM, plan, lengths, budget)
    except UserError:
        assert largest_reduction(MINILM, lengths, 0, 2, "none", "received") * 1.01 < wanted
        return
    every = (replace(plan, steps=(Step(0, Fraction(k, 1000)),)) for k in range(1, 1001))
    assert miss(repaired) <= max(0.001, min(map(miss, every))) + 1e-9


def test_a_budget_between_whole_tokens_warns() -> None:
    plan = Plan("bert", 6, 384, "received", (Step(0, Fraction(1, 2)),))
    with pytest.warns(UserWarning, match="nearest"):
        repair(MINILM, plan, Lengths.of([10]), Budget.parse("3x"))


def test_repair_keeps_the_shape() -> None:
    """All ratios move by one power: their logs keep their proportions."""
    steps = tuple(Step(i, Fraction(k, 100)) for i, k in enumerate([80, 60, 60, 40, 30]))
    plan = Plan("bert", 6, 384, "received", steps)
    repaired = repair(MINILM, plan, HISTOGRAMS["imdb"], Budget.parse("3x"))
    powers = [
        math.log(after.keep) / math.log(before.keep)
        for before, after in zip(steps, repaired.steps, strict=True)
    ]
    assert max(powers) / min(powers) < 1.03
    again = repair(MINILM, repaired, HISTOGRAMS["imdb"], Budget.parse("3x"))
    moved = [abs(a.keep - b.keep) for a, b in zip(again.steps, repaired.steps, strict=True)]
    assert max(moved) <= Fraction(3, 1000)


def test_steps_that_keep_everything_are_repaired_alike() -> None:
    plan = Plan("bert", 6, 384, "received", tuple(Step(i, Fraction(1)) for i in range(5)))
    budget, lengths = Budget.parse("3x"), HISTOGRAMS["imdb"]
    repaired = repair(MINILM, plan, lengths, budget)
    assert off(repaired, lengths, budget) <= 0.01
    assert repaired.steps[0].keep - repaired.steps[-1].keep <= Fraction(1, 100)


def test_two_steps_on_short_texts_make_up_for_each_other() -> None:
    """Half of every even length is a jump of 2.5 % here: the other step has to give way."""
    plan = Plan("bert", 6, 384, "received", (Step(0, Fraction(1)), Step(1, Fraction(1, 2))))
    budget = Budget.parse("1.5x")
    assert off(repair(MINILM, plan, COLA, budget), COLA, budget) <= 0.01


def test_a_plan_without_steps_reaches_nothing() -> None:
    plan = Plan("bert", 6, 384, "received", ())
    with pytest.raises(OutOfReach, match=r"1\.00x at most"):
        repair(MINILM, plan, COLA, Budget.parse("2x"))
    assert repair(MINILM, plan, COLA, Budget.parse("1.005x")) == plan


@pytest.mark.parametrize("asked", ["1.5x", "2x", "65%"])
@pytest.mark.parametrize("name", HISTOGRAMS)
def test_geometric_drops_the_same_share_everywhere(name: str, asked: str) -> None:
    lengths, budget = HISTOGRAMS[name], Budget.parse(asked)
    plan = geometric(MINILM, lengths, budget, family="bert", first=0, score="probe", probe=PROBE)
    assert [step.layer for step in plan.steps] == [0, 1, 2, 3, 4]
    assert off(plan, lengths, budget) <= 0.01
    keeps = [1.0, *(float(step.keep) for step in plan.steps)]
    shares = [after / before for before, after in pairwise(keeps)]
    assert max(shares) - min(shares) < 0.06


def test_geometric_between_first_and_last() -> None:
    lengths, budget = HISTOGRAMS["imdb"], Budget.parse("1.5x")
    plan = geometric(
        MINILM, lengths, budget, family="bert", first=1, score="received", last=3, restore="last"
    )
    assert [step.layer for step in plan.steps] == [1, 2, 3]
    assert plan.restore == "last"
    assert off(plan, lengths, budget) <= 0.01


def test_geometric_suits_deep_models() -> None:
    large = Sizes(layers=24, width=1024, heads=16, inner=4096)
    budget, lengths = Budget.parse("3x"), HISTOGRAMS["20news"]
    plan = geometric(large, lengths, budget, family="bert", first=0, score="received")
    assert len(plan.steps) == 23
    assert reduction(large, plan, lengths).unpadded == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize("asked", ["2x", "3x", "5x"])
def test_single_cut(asked: str) -> None:
    lengths, budget = HISTOGRAMS["imdb"], Budget.parse(asked)
    plan = geometric(
        MINILM,
        lengths,
        budget,
        family="bert",
        first=0,
        last=0,
        score="received",
        protect=(101, 102),
    )
    assert [step.layer for step in plan.steps] == [0]
    assert plan.protect == (101, 102)
    assert off(plan, lengths, budget) <= 0.01


@pytest.mark.parametrize(("first", "last"), [(-1, None), (5, None), (3, 2), (0, 5)])
def test_steps_must_fit_the_model(first: int, last: int | None) -> None:
    with pytest.raises(UserError, match="within 0 to 4"):
        geometric(
            MINILM,
            COLA,
            Budget.parse("2x"),
            family="bert",
            first=first,
            score="received",
            last=last,
        )


def test_huge_histograms_do_not_overflow() -> None:
    lengths = Lengths(tuple((n, 7, 10**7) for n in range(50, 513)))
    budget = Budget.parse("3x")
    plan = geometric(MINILM, lengths, budget, family="bert", first=0, score="received")
    assert off(plan, lengths, budget) <= 0.01
