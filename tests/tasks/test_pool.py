from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.tasks.pool import pool


@st.composite
def padded(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """States (B, S, D) with something in the padding too, and the mask (B, S) of live tokens."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    length = max(counts) + draw(st.integers(0, 3))
    mask = np.arange(length) < np.array(counts)[:, None]
    return rng.normal(size=(len(counts), length, 5)).astype(np.float32), mask.astype(np.int64)


def test_pool_by_hand():
    states = np.array([[[1, 2], [3, 6], [90, 90]], [[5, 7], [80, 80], [80, 80]]], np.float32)
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    assert pool(states, mask, "mean").tolist() == [[2, 4], [5, 7]]
    assert pool(states, mask, "cls").tolist() == [[1, 2], [5, 7]]


@settings(max_examples=60, deadline=None)
@given(padded(), st.sampled_from(["mean", "cls"]))
def test_torch_and_numpy_agree(batch: tuple[np.ndarray, np.ndarray], pooling: str):
    states, mask = batch
    mine = pool(states, mask, pooling)
    theirs = pool(torch.from_numpy(states), torch.from_numpy(mask), pooling)
    assert mine.dtype == np.float32
    assert theirs.dtype == torch.float32
    np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(padded(), st.sampled_from(["mean", "cls"]))
def test_padding_and_batch_mates_change_nothing(batch: tuple[np.ndarray, np.ndarray], pooling: str):
    states, mask = batch
    alone = [
        pool(s[None, : m.sum()], m[None, : m.sum()], pooling)[0]
        for s, m in zip(states, mask, strict=True)
    ]
    np.testing.assert_allclose(pool(states, mask, pooling), alone, rtol=1e-5, atol=1e-6)


def test_cls_needs_the_first_row_alone():
    states, mask = torch.randn(2, 4, 3), torch.ones(2, 4)
    assert torch.equal(pool(states[:, :1], mask, "cls"), pool(states, mask, "cls"))


def test_gradients_reach_live_tokens_alone():
    states, mask = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([[1, 1, 0], [1, 1, 1]])
    pool(states, mask, "mean").sum().backward()
    assert states.grad is not None
    torch.testing.assert_close(
        states.grad[:, :, 0], torch.tensor([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    )
