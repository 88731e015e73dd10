"""Hard-concrete masks: probabilities against draws, constants against methods.md section 0."""

import math

import pytest
import torch

from toprune.methods.top import START
from toprune.training.hard_concrete import BETA, HIGH, LIMIT, LOW, p_open, sample


def test_constants_of_the_paper() -> None:
    assert (LOW, HIGH, pytest.approx(2 / 3)) == (-0.1, 1.1, BETA)
    assert pytest.approx(4.605, abs=1e-3) == LIMIT
    # "gates start closed (.047), ranks open (.998)"; methods.md lists P(z > 0) for these log-alphas
    for loga, probability in [
        (10, 1.000),
        (4.605, 0.998),
        (0, 0.832),
        (-1.5986, 0.500),
        (-4.605, 0.047),
        (-10, 0.0002),
        (START, 0.998),
        (-START, 0.047),
    ]:
        value = p_open(torch.tensor(float(loga), dtype=torch.float64)).item()
        assert value == pytest.approx(probability, abs=5e-4)


@pytest.mark.parametrize("loga", [-4.6, -2.0, -0.5, 0.0, 1.0, 3.0])
def test_probabilities_are_those_of_the_draws(loga: float) -> None:
    torch.manual_seed(0)
    count = 200_000
    z = sample(torch.full((count,), loga))
    opened = p_open(torch.tensor(loga)).item()
    whole = 1 / (1 + math.exp(-(loga - 1.5986)))  # P(z = 1)
    assert z.min() >= 0
    assert z.max() <= 1
    for value, expected in ((z > 0, opened), (z == 1, whole)):
        error = 4 * math.sqrt(expected * (1 - expected) / count)
        assert value.double().mean().item() == pytest.approx(expected, abs=error + 1e-6)


def test_a_draw_follows_the_formula() -> None:
    loga = torch.tensor([-1.0, 0.0, 2.0, 0.3])
    torch.manual_seed(7)
    z = sample(loga)
    torch.manual_seed(7)
    u = torch.rand(4).tolist()
    for a, v, value in zip(loga.tolist(), u, z.tolist(), strict=True):
        s = 1 / (1 + math.exp(-(math.log(v) - math.log(1 - v) + a) / (2 / 3)))
        assert value == pytest.approx(min(1, max(0, s * 1.2 - 0.1)), abs=1e-5)


def test_gradient_is_that_of_the_same_draw() -> None:
    loga = torch.zeros(500, dtype=torch.float64, requires_grad=True)

    def draw(a: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return sample(a)

    (gradient,) = torch.autograd.grad(draw(loga).sum(), loga)
    z, nudged = draw(loga), draw(loga + 1e-6)
    between = (z > 1e-4) & (z < 1 - 1e-4)
    assert 100 < between.sum() < 400
    torch.testing.assert_close(gradient[between], ((nudged - z) / 1e-6)[between], rtol=1e-4, atol=0)
    assert gradient[(z == 0) | (z == 1)].abs().max() == 0
