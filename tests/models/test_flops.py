"""What cost.py says is what torch multiplies, to the last product."""

import copy
from functools import cache
from typing import Any

import pytest

from support.flops import counted_macs
from support.models import FAMILIES, make_model
from support.strategies import make_plan
from toprune.models.families import sizes_of
from toprune.plan.cost import dense_macs, executed_macs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach

SHAPES = {
    "no steps": (),
    "one step": ((1, "2/5"),),
    "early cut": ((0, "1/10"),),
    "three steps": ((0, "3/4"), (1, "1/2"), (2, "1/5")),
}


@cache
def stock(family: str) -> Any:
    return make_model(family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("score", ["received", "probe"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [2, 11, 40])
def test_executed_macs_are_what_torch_counts(family: str, score: str, shape: str, n: int) -> None:
    plan = make_plan(family, *SHAPES[shape], score=score)
    model = attach(copy.deepcopy(stock(family)), plan)
    assert counted_macs(model, n) == executed_macs(sizes_of(model), plan, n)


@pytest.mark.parametrize("score", ["received", "probe"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("restore", ["last", "zero"])
def test_restoring_costs_what_it_says(score: str, shape: str, restore: str) -> None:
    plan = make_plan("bert", *SHAPES[shape], score=score, restore=restore)
    model = attach(copy.deepcopy(stock("bert")), plan)
    assert counted_macs(model, 30) == executed_macs(sizes_of(model), plan, 30)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stock_model_is_the_dense_one_with_a_whole_last_layer(family: str) -> None:
    model, n = stock(family), 30
    sizes = sizes_of(model)
    assert counted_macs(model, n) == dense_macs(sizes, n, "last") > dense_macs(sizes, n)


def test_a_batch_costs_the_sum_of_its_texts() -> None:
    plan = make_plan("bert", *SHAPES["three steps"], score="probe", min_tokens=1)
    model = attach(copy.deepcopy(stock("bert")), plan)
    assert counted_macs(model, 20, copies=3) == 3 * executed_macs(sizes_of(model), plan, 20)


def test_sizes_come_from_the_config() -> None:
    """Families spell their sizes differently."""
    sizes = {family: sizes_of(stock(family)) for family in FAMILIES}
    plain = {sizes[name] for name in ("bert", "roberta", "electra", "distilbert", "mpnet")}
    assert len(plain) == 1
    plan = Plan("bert", 4, 32, "received", ())
    assert executed_macs(sizes["bert"], plan, 9) == dense_macs(sizes["distilbert"], 9)
