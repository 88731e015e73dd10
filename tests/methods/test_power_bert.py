"""PoWER-BERT: its penalty and its retention by hand, its soft extraction against plain loops."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from support.models import make_model
from support.strategies import make_plan, pad, random_text
from toprune.methods.common import BRAKE, LEAST
from toprune.methods.power_bert import LAMBDA, Extract, PowerBert, SoftExtract
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.pruning.attach import attach_policy, attached, detach
from toprune.pruning.policies import Drop
from toprune.pruning.tokens import Tokens

LENGTHS = Lengths.of([20, 24, 16])


def selector(budget: str = "2x", **settings: Any) -> SoftExtract:
    model = make_model()
    return SoftExtract(PowerBert(**settings), sizes_of(model), LENGTHS, Budget.parse(budget))


def test_penalty_is_the_sum_of_layer_number_times_mass() -> None:
    extract = selector(bins=4)
    with torch.no_grad():
        extract.r.copy_(torch.tensor([[1, 1, 1, 0.5], [1, 0.5, 0, 0], [0.25, 0, 0, 0]]))
        extract.log_lambda.fill_(math.log(0.1))
    extract.progress = 0.0
    sparsity = float(extract.sparsity().detach())
    moved = math.exp(-(1 + BRAKE) * sparsity)  # beyond its target: lambda shrinks, and brakes
    assert float(extract.penalty().detach()) == pytest.approx(
        0.1 * moved * (1 * 3.5 + 2 * 1.5 + 3 * 0.25), rel=1e-5
    )


def test_lambda_follows_the_budget() -> None:
    extract = selector()
    extract.progress = 1.0
    before = float(extract.log_lambda)
    assert before == pytest.approx(math.log(LAMBDA))
    extract.penalty()  # nothing is gone yet, half of the FLOPs should be
    assert float(extract.log_lambda) == pytest.approx(before + 0.5)
    with torch.no_grad():
        extract.r.zero_()
    extract.penalty()
    assert float(extract.log_lambda) < before + 0.5


def test_lambda_comes_back() -> None:
    """Masks that went too far, for a thousand steps: the coefficient has not vanished."""
    extract = selector()
    extract.progress = 0.0
    with torch.no_grad():
        extract.r.fill_(0.1)
        for _ in range(999):
            extract.step_lambda()
        braked = float(extract.step_lambda())
        assert float(extract.log_lambda) == pytest.approx(math.log(LEAST * LAMBDA))
        assert braked < 1e-3 * LEAST * LAMBDA
        extract.progress = 1.0
        extract.r.fill_(1.0)
        for _ in range(20):
            extract.step_lambda()
        assert float(extract.step_lambda()) > LAMBDA


def test_retention_is_the_mass_and_never_grows() -> None:
    extract = selector(bins=4)
    with torch.no_grad():
        extract.r.copy_(torch.tensor([[1, 1, 1, 0.2], [1, 0.4, 0, 0], [1, 1, 0, 0]]))
    plan = extract.plan(make_plan(score="received"), None)
    assert [float(step.keep) for step in plan.steps] == pytest.approx([0.8, 0.35, 0.35])
    assert [step.layer for step in plan.steps] == [0, 1, 2]


def test_a_calibrated_start_is_half_way_to_a_schedule() -> None:
    """Texts have 20 tokens: 15 stay after the first layer, 5 after the third."""
    extract = selector(bins=4)
    extract.start_at(make_plan("bert", (0, "3/4"), (2, "1/5")))
    whole, half = 1.0, 0.5
    expected = [[whole, whole, whole, half]] * 2 + [[0.9, half, half, half]]
    assert extract.r.tolist() == [pytest.approx(row) for row in expected]
    extract.progress = 0.0
    assert extract.target() == pytest.approx(float(extract.sparsity().detach()))
    extract.progress = 1.0
    assert extract.target() == pytest.approx(0.5)


def test_a_first_layer_of_ones_own() -> None:
    extract = selector(bins=4, first=1)
    assert extract.r.shape == (2, 4)
    assert [step.layer for step in extract.plan(make_plan(), None).steps] == [1, 2]
    with torch.no_grad():
        extract.r.fill_(0.5)
    assert [share.item() for share in extract.ratios()] == [1, 0.5, 0.5]


def test_states_are_multiplied_by_r_at_their_rank() -> None:
    """Every token stays; a text's own length says which bin a rank is in; the first is spared."""
    model = make_model().double()
    extract = selector(bins=3).double()
    with torch.no_grad():
        extract.r.copy_(torch.tensor([[1, 0.5, 0.25]] * 3))
    rows = [random_text(9, 0), random_text(6, 1)]
    seen: list[tuple[Tensor, Tensor]] = []

    class Watched(Extract):
        def decide(
            self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
        ) -> Drop | None:
            drop = super().decide(layer, state, received, tokens)
            if layer == 0:
                assert received is not None
                assert drop is not None
                assert drop.scale is not None
                seen.append((received, drop.scale))
            return drop

    attach_policy(model, Watched(extract, "received"))
    with torch.no_grad():
        model(**pad(rows))
    run = attached(model)
    assert run is not None
    final = run.tokens[3]
    assert final is not None
    assert int(final.alive.sum()) == 15
    detach(model)
    received, scale = seen[0]
    for b, row in enumerate(rows):
        n = len(row)
        others = sorted(range(1, n), key=lambda i, b=b: -float(received[b, i]))
        for rank, place in enumerate([0, *others]):
            wanted = 1.0 if place == 0 else [1, 0.5, 0.25][rank * 3 // n]
            assert float(scale[b, place]) == wanted
