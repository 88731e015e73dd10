"""Models in double precision with a plan attached, and texts for them."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from support.models import FAMILIES, make_model
from support.strategies import LAYERS, make_plan, random_text
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attached
from toprune.pruning.predictor import add_predictors

Texts = list[list[int]]
SINGLE = ("deberta-v2", "modernbert")  # parts of their stock code are in single precision
every_family = pytest.mark.parametrize("family", FAMILIES)
TEXTS = [random_text(n, n) for n in (24, 7, 15, 2)]


@cache
def double(family: str) -> Any:
    """A model of three classes. Tests attach plans to copies of it only."""
    return make_model(family, num_labels=3).double()


def pruned(family: str, plan: Plan, *, gather: bool = True) -> Any:
    return attach(with_predictors(copy.deepcopy(double(family)), plan), plan, gather=gather)


def with_predictors(model: Any, plan: Plan) -> Any:
    """Give the model the predictors that the plan needs, if any."""
    if plan.predictor is not None:
        torch.manual_seed(0)
        add_predictors(model, range(LAYERS - 1), plan.predictor, normed=True)
    return model


def steep(family: str = "bert", score: str = "received", **fields: Any) -> Plan:
    return make_plan(family, (0, "3/4"), (1, "1/2"), (2, "1/5"), score=score, **fields)


def assert_same(one: Tensor, other: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=0)
    assert torch.equal(one.argmax(-1), other.argmax(-1))


def places(model: Any) -> list[list[set[int]]]:
    """For each text the original places of the tokens that entered each layer."""
    run = attached(model)
    assert run is not None
    entered = run.entered
    assert len(entered) == LAYERS
    return [
        [set(tokens.index[b][tokens.alive[b]].tolist()) for tokens in entered]
        for b in range(len(entered[0].n))
    ]
