"""What cost.py says is what torch multiplies, to the last product."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from conftest import FAMILIES, make_model
from support.strategies import make_plan, pad, random_text
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


def _mv_flops(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def _folded(model: Any) -> int:
    """DeBERTa projects its table of relative positions in every layer, once a batch: a constant,
    which the exported file holds ready."""
    sizes = sizes_of(model)
    return 2 * sizes.layers * (sizes.relative + sizes.relative_keys) * sizes.width**2


def counted_macs(model: Any, n: int, copies: int = 1) -> int:
    """Of the base model without its pooler. Fused attention on a CPU goes uncounted, so ask for the
    plain one; a matrix times a vector (the probe) is unknown to torch's table."""
    base = model.base_model
    known = {torch.ops.aten.mv: _mv_flops}
    counter = FlopCounterMode(display=False, custom_mapping=known)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        base(**pad([random_text(n, n)] * copies))
    flops = counter.get_total_flops() - _folded(model)
    if getattr(base, "pooler", None) is not None:
        flops -= 2 * copies * model.config.hidden_size**2
    assert flops % 2 == 0
    return flops // 2


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
