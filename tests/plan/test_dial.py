"""Plans for any budget of a dial: exact, in order, and never from a file that lies."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from toprune.errors import UserError
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, reduction
from toprune.plan.dial import Dial, Stop, parse_budgets
from toprune.plan.plan import Plan
from toprune.plan.schedule import geometric, repair

MINILM = Sizes(layers=6, width=384, heads=12, inner=1536)
LENGTHS = Lengths.of(np.random.default_rng(0).integers(30, 257, 500))
BUDGETS = parse_budgets("2x,3x,5x")


def shape(budget: Budget) -> Plan:
    return geometric(MINILM, LENGTHS, budget, family="bert", first=0, score="received")


def make_dial() -> Dial:
    tightest = shape(BUDGETS[-1])
    plans = [repair(MINILM, tightest, LENGTHS, budget) for budget in BUDGETS]
    stops = [Stop.of(budget, plan) for budget, plan in zip(BUDGETS, plans, strict=True)]
    return Dial(plans[0], tuple(stops), MINILM, LENGTHS)


DIAL = make_dial()


def test_every_budget_between_is_met_and_keeps_no_more_than_a_larger_one() -> None:
    budgets = [f"{2 * 1.02**i:.4f}x" for i in range(47)]  # 2 to 4.97
    plans = [DIAL.plan(budget) for budget in budgets]
    executed = [reduction(MINILM, plan, LENGTHS).unpadded for plan in plans]
    assert executed == pytest.approx([Budget.parse(b).reduction for b in budgets], rel=0.01)
    for one, other in pairwise(plans):
        assert all(a.keep >= b.keep for a, b in zip(one.steps, other.steps, strict=True))
    layers = {tuple(step.layer for step in plan.steps) for plan in plans}
    assert len(layers) == 1


def test_trained_budgets_have_their_own_plans() -> None:
    assert DIAL.asked == ["2x", "3x", "5x"]
    assert DIAL.default_budget.asked == "2x"
    for budget, plan in DIAL.plans().items():
        assert DIAL.plan(budget) == plan
        assert DIAL.plan(Budget.parse(budget)) == plan
    assert DIAL.plan("66.67%") == DIAL.plan("3x")


def test_a_plan_between_lies_between() -> None:
    """Also where the neighbours differ in shape: one drops nothing at its first step."""
    late = replace(DIAL.default, steps=DIAL.default.steps[1:])
    late = repair(MINILM, late, LENGTHS, BUDGETS[0])
    keep = (Fraction(1), *(step.keep for step in late.steps))
    dial = replace(
        DIAL, default=DIAL.plan("3x"), stops=(replace(DIAL.stops[0], keep=keep), *DIAL.stops[1:])
    )
    low, middle, high = dial.plan("2x"), dial.plan("2.5x"), dial.plan("3x")
    assert reduction(MINILM, middle, LENGTHS).unpadded == pytest.approx(2.5, rel=0.01)
    assert low.steps[0].keep > middle.steps[0].keep > high.steps[0].keep


def test_times_name_the_plans_that_were_trained_for_them() -> None:
    """Between them there are reductions: a time holds for one machine, and FLOPs for all."""
    times = ("9ms", "6ms", "p95:4ms")
    stops = tuple(
        replace(stop, budget=Budget(time, stop.budget.reduction))
        for time, stop in zip(times, DIAL.stops, strict=True)
    )
    dial = Dial.from_json(replace(DIAL, stops=stops).to_json(), DIAL.default)
    assert dial.asked == ["9ms", "6ms", "p95:4ms"]
    assert dial.plan("6 ms") == DIAL.plan("3x")
    assert dial.plan("p95:4.0ms") == DIAL.plan("5x")
    assert dial.plan("2.5x") == DIAL.plan("2.5x")
    for wanted in ("7ms", "4ms", "p95:6ms"):
        with pytest.raises(UserError, match=r"was not trained.* from 2\.00x to 5\.00x"):
            dial.plan(wanted)
    with pytest.raises(UserError, match="12ms was not trained"):
        DIAL.plan("12ms")


@pytest.mark.parametrize("budget", ["1.5x", "6x", "99%"])
def test_outside_the_range_is_refused(budget: str) -> None:
    with pytest.raises(UserError, match=r"outside the range that was trained, 2x to 5x"):
        DIAL.plan(budget)


def test_the_ladder_goes_from_the_largest_to_the_smallest() -> None:
    ladder = DIAL.ladder(5)
    assert (ladder[0], ladder[-1]) == (DIAL.plan("2x"), DIAL.plan("5x"))
    steps = [math.log(reduction(MINILM, plan, LENGTHS).unpadded) for plan in ladder]
    assert np.diff(steps) == pytest.approx(math.log(2.5) / 4, abs=0.02)


def test_it_reads_what_it_writes() -> None:
    text = DIAL.to_json()
    assert Dial.from_json(text, DIAL.default) == DIAL
    slim = replace(MINILM, slim=((12, 1536),) * 5 + ((6, 700),))
    dial = replace(DIAL, sizes=slim)
    assert Dial.from_json(dial.to_json(), dial.default) == dial


def test_budgets_are_parsed_in_the_order_of_the_request() -> None:
    assert [b.asked for b in parse_budgets("3x, 50%,5x")] == ["3x", "50%", "5x"]
    assert parse_budgets(["3x", Budget("2x")]) == parse_budgets("3x,2x")
    assert [b.asked for b in parse_budgets("8ms,12ms")] == ["8ms", "12ms"]
    assert parse_budgets("4x") == parse_budgets(Budget.parse("4x")) == (Budget.parse("4x"),)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("2x,50%", "2x and 50% are the same"),
        ("3x,3x", "are the same"),
        ("2x,,3x", "budget '' is not valid"),
        ("2x,0.5x", "budget '0.5x' is not valid"),
        ("8ms,0.008s", "8ms and 0.008s are the same"),
        ("2x,12ms", "2x and 12ms cannot be of one dial; give reductions"),
        ("8ms,p95:12ms", "8ms and p95:12ms cannot be of one dial: all its times"),
        ([Budget("8ms"), Budget("12ms", threads=2)], "cannot be of one dial: all its times"),
        ([], "0 budgets; give one"),
        (",".join(f"{i}x" for i in range(2, 40)), "38 budgets; give one"),
    ],
)
def test_bad_budgets_are_refused(asked: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_budgets(asked)


def _stop(data: dict[str, Any], **changes: Any) -> None:
    data["budgets"][1] |= changes


def _sizes(data: dict[str, Any], **changes: Any) -> None:
    data["sizes"] |= changes


BAD: dict[str, Any] = {
    "schema 2 is not known": lambda d: d.update(schema=2),
    "unknown fields": lambda d: d.update(more=1),
    "lacks the fields": lambda d: d.pop("lengths"),
    "belongs to another plan": lambda d: d.update(layers=[0, 1]),
    "layers must hold numbers": lambda d: d.update(layers=[0, "1"]),
    "it has 2 to 32 budgets": lambda d: d.update(budgets=d["budgets"][:1]),
    "has 2 to 32 budgets": lambda d: d.update(budgets=d["budgets"] * 20),
    "must be sorted": lambda d: d["budgets"].reverse(),
    "thousandths, 1 to 1000": lambda d: _stop(d, keep=[0] * 5),
    "keep must hold numbers": lambda d: _stop(d, keep=[0.5] * 5),
    "4 shares, the plan has 5": lambda d: _stop(d, keep=[500] * 4),
    "must not grow": lambda d: _stop(d, keep=[100, 200, 300, 400, 500]),
    "a reduction must be above one": lambda d: _stop(d, reduction=0.5),
    "reduction must be float or int": lambda d: _stop(d, reduction="3"),
    "a budget must be a JSON object": lambda d: d["budgets"].append(3),
    "sizes are those of another model": lambda d: _sizes(d, width=768),
    "sizes must be whole numbers": lambda d: _sizes(d, inner=0),
    "whole numbers": lambda d: _sizes(d, heads=1 << 40),
    "gated must be bool": lambda d: _sizes(d, gated=1),
    "slim must have two numbers": lambda d: _sizes(d, slim=[[1, 2]]),
    "sizes must be whole": lambda d: _sizes(d, slim=[["a", 2]] * 6),
    "lengths must hold numbers": lambda d: d.update(lengths={"5": "3"}),
    "dial: lengths must be an object": lambda d: d.update(lengths={"five": 3}),
    "dial: no lengths": lambda d: d.update(lengths={}),
    "too many or too long": lambda d: d.update(lengths={"1000000000000": 1 << 40}),
    "plan of plan.json": lambda d: d.update(budgets=d["budgets"][1:]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_files_are_refused(message: str) -> None:
    data = json.loads(DIAL.to_json())
    BAD[message](data)
    with pytest.raises(UserError, match=message):
        Dial.from_json(json.dumps(data), DIAL.default)
