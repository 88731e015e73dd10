"""Ranking losses against loops written from their formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from torch import Tensor

from toprune.training.ranking_losses import RANK_LOSSES, ce_loss, lambda_loss, mse_loss, ndcg


def random_scores(seed: int, b: int = 3, k: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    x, t = torch.randn(2, b, k, dtype=torch.float64, generator=made).unbind()
    live = torch.rand(b, k, generator=made) < 0.7
    return x, t, live


def slow_lambda(x: Tensor, t: Tensor, live: Tensor, top_k: int) -> float:
    """NDCG-Loss2 (Wang et al. 2018, eq. 18): a sum over pairs, y from the teacher's top k."""
    total = 0.0
    for b in range(len(x)):
        rows = [i for i in range(x.shape[1]) if live[b, i]]
        by_teacher = sorted(rows, key=lambda i: -t[b, i])
        by_student = sorted(rows, key=lambda i: -x[b, i])
        y = {i: max(0.0, 5 * (1 - place / top_k)) for place, i in enumerate(by_teacher)}
        best = sum((2 ** y[i] - 1) / math.log2(p + 2) for p, i in enumerate(by_teacher))
        for i in rows:
            for j in rows:
                if y[i] <= y[j]:
                    continue
                apart = abs(by_student.index(i) - by_student.index(j))
                delta = abs(1 / math.log2(1 + apart) - 1 / math.log2(2 + apart))
                gain = abs(2 ** y[i] - 2 ** y[j]) / best
                total += delta * gain * math.log2(1 + math.exp(-float(x[b, i] - x[b, j])))
    return total / len(x)


@given(st.integers(0, 999), st.integers(1, 12))
@settings(deadline=None, max_examples=30)
def test_lambda_loss_is_the_formula(seed: int, top_k: int) -> None:
    x, t, live = random_scores(seed)
    expected = slow_lambda(x, t, live, top_k)
    assert lambda_loss(x, t, live, top_k).item() == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.integers(0, 999), st.integers(1, 12))
@settings(deadline=None, max_examples=30)
def test_ndcg_is_the_formula(seed: int, top_k: int) -> None:
    x, t, live = random_scores(seed)
    live[:, :2] = True
    values = ndcg(x, t, live, top_k)
    for b, value in enumerate(values.tolist()):
        scores, target = x[b, live[b]], t[b, live[b]]
        place = target.argsort(descending=True).argsort()
        gain = 2 ** (5 * (1 - place / top_k)).clamp_min(0) - 1
        assert value == pytest.approx(ndcg_score(gain[None], scores[None]))


def test_ndcg_of_the_same_and_of_the_opposite_order() -> None:
    _, t, live = random_scores(3)
    live[:, :3] = True
    assert ndcg(2 * t + 1, t, live, 4).tolist() == pytest.approx([1, 1, 1])
    assert (ndcg(-t, t, live, 4) < 0.9).all()
    live[0] = False
    assert ndcg(t, t, live, 4).isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("name", RANK_LOSSES)
@given(seed=st.integers(0, 999))
@settings(deadline=None, max_examples=10)
def test_order_of_rows_and_padding_change_nothing(name: str, seed: int) -> None:
    loss = RANK_LOSSES[name]
    x, t, live = random_scores(seed)
    live[:, 0] = True
    expected = loss(x, t, live, 4)
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(loss(x[:, shuffled], t[:, shuffled], live[:, shuffled], 4), expected)
    waste = torch.full((3, 5), 50.0, dtype=x.dtype)  # would win every ranking if it counted
    wide_x, wide_t = (torch.cat([v, waste], 1) for v in (x, t))
    wide = loss(wide_x, wide_t, torch.cat([live, waste < 0], 1), 4)
    torch.testing.assert_close(wide, expected)


@pytest.mark.parametrize("name", RANK_LOSSES)
def test_dead_rows_get_no_gradient(name: str) -> None:
    x, t, live = random_scores(1)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(RANK_LOSSES[name](x, t, live, 4), x)
    assert gradient[~live].abs().max() == 0
    assert gradient[live].abs().max() > 0


@pytest.mark.parametrize("name", RANK_LOSSES)
def test_a_text_without_rows_that_count_is_no_nan(name: str) -> None:
    """All its tokens are protected: nothing to rank."""
    x, t, live = random_scores(1)
    x.requires_grad_()
    for none in (torch.zeros_like(live), live & (torch.arange(3) > 0)[:, None]):
        loss = RANK_LOSSES[name](x, t, none, 4)
        (gradient,) = torch.autograd.grad(loss, x)
        assert math.isfinite(loss.item())
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", RANK_LOSSES)
def test_the_right_ranking_beats_the_wrong_one(name: str) -> None:
    t = torch.arange(12.0).flip(0)[None] / 3
    live = torch.ones(1, 12, dtype=torch.bool)
    right, wrong = (RANK_LOSSES[name](x, t, live, 5).item() for x in (t, t.flip(1)))
    assert right < 0.8 * wrong
    assert right <= RANK_LOSSES[name](torch.zeros_like(t), t, live, 5).item()


def test_lambda_loss_descends_to_the_right_ranking() -> None:
    _, t, _ = random_scores(4)
    live = torch.ones(3, 9, dtype=torch.bool)
    x = torch.zeros_like(t).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        lambda_loss(x, t, live, 3).backward()
        optimizer.step()
    assert torch.equal(x.topk(3, dim=1).indices, t.topk(3, dim=1).indices)


def test_the_top_k_are_pushed_above_all_others_and_others_left_alone() -> None:
    """Top k against all: pairs outside the top k do not count, pairs with one inside do."""
    t = torch.tensor([[9.0, 8.0, 1.0, 0.5, 0.2]], dtype=torch.float64)
    live = torch.ones(1, 5, dtype=torch.bool)
    x = torch.tensor([[0.0, 0.1, 0.2, 0.3, 0.4]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(lambda_loss(x, t, live, 2), x)
    assert gradient[0, 0] < 0  # up with the best, down with the rest
    assert (gradient[0, 2:] > 0).all()
    swapped = t[:, [0, 1, 4, 3, 2]]  # another order of the irrelevant ones
    torch.testing.assert_close(lambda_loss(x, swapped, live, 2), lambda_loss(x, t, live, 2))


def test_mse_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 7.0], [0.0, 3.0, 1.0]])
    t = torch.tensor([[0.0, 4.0, 0.0], [0.5, 0.0, 0.0]])
    live = torch.tensor([[True, True, False], [True, False, False]])
    assert mse_loss(x, t, live).item() == pytest.approx((1 + 4 + 0.25) / 3)


def test_ce_by_hand() -> None:
    x, t = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[0.0, 1.0, 9.0]])
    live = torch.tensor([[True, True, False]])
    p = [math.exp(v) / (math.exp(1) + math.exp(2)) for v in (1, 2)]
    q = [math.exp(v) / (math.exp(0) + math.exp(1)) for v in (0, 1)]
    expected = -sum(b * math.log(a) for a, b in zip(p, q, strict=True))
    assert ce_loss(x, t, live).item() == pytest.approx(expected)
