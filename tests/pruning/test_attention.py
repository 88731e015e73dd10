"""Attention over live tokens against plain loops over live tokens."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toprune.pruning import attention
from toprune.pruning.attention import InBlocks, attend, key_bias, merge_heads, split_heads
from toprune.pruning.tokens import Tokens

B, H, K, D = 3, 2, 6, 4


def random_heads(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, B, H, K, D, dtype=torch.float64, generator=made).unbind()
    return 2 * q, k, v


def tokens_of(alive: Tensor, weight: Tensor | None = None) -> Tokens:
    index = torch.arange(alive.shape[1]).expand_as(alive)
    return Tokens(
        index,
        alive,
        torch.zeros_like(alive),
        alive.sum(1),
        full=bool(alive.all()),
        weight=weight,
    )


def random_alive(seed: int, share: float = 0.6) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return (torch.rand(B, K, generator=made) < share).index_fill(1, torch.tensor([0]), True)


def by_hand(q: Tensor, k: Tensor, v: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    """Context of live queries and received attention of live keys, one probability at a time."""
    context, received = torch.zeros_like(q), torch.zeros(B, K, dtype=q.dtype)
    for b in range(B):
        live = [r for r in range(K) if alive[b, r]]
        for h in range(H):
            for i in live:
                e = {j: math.exp(float(q[b, h, i] @ k[b, h, j]) / math.sqrt(D)) for j in live}
                for j in live:
                    p = e[j] / sum(e.values())
                    context[b, h, i] += p * v[b, h, j]
                    received[b, j] += p / (H * len(live))
    return context, received


@pytest.mark.parametrize("alive", [torch.ones(B, K, dtype=torch.bool), random_alive(0)])
def test_received_is_the_mean_over_heads_and_live_queries(alive: Tensor) -> None:
    q, k, v = random_heads()
    tokens = tokens_of(alive)
    context, received = attend(q, k, v, tokens, scored=True)
    expected, scores = by_hand(q, k, v, alive)
    assert received is not None
    torch.testing.assert_close(received.masked_fill(~alive, 0), scores)
    live = alive[:, None, :, None]
    torch.testing.assert_close(context * live, expected * live)
    assert received[~alive].abs().sum() == 0
    torch.testing.assert_close(received.sum(1), torch.ones(B, dtype=q.dtype))


@given(st.integers(0, 999))
@settings(deadline=None, max_examples=20)
def test_fused_and_explicit_attention_agree(seed: int) -> None:
    q, k, v = random_heads(seed)
    tokens = tokens_of(random_alive(seed))
    fused, nothing = attend(q, k, v, tokens)
    explicit, _ = attend(q, k, v, tokens, scored=True)
    assert nothing is None
    torch.testing.assert_close(fused, explicit)


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_bfloat16_is_trained_as_float32_is(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernel, slow in bfloat16, is not used there, and the softmax stays in bfloat16
    under autocast; both ways give what single precision gives, to bfloat16's digits."""
    dtypes: list[torch.dtype] = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def listen(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dtypes.append(q.dtype)
        return fused(q, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", listen)
    tokens = tokens_of(random_alive(3, share))
    live = tokens.alive[:, None, :, None]
    outputs: list[tuple[Tensor, ...]] = []
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (x.to(dtype).requires_grad_() for x in random_heads())
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            context, _ = attend(q, k, v, tokens)
            scored, received = attend(q, k, v, tokens, scored=True)
        assert context.dtype == scored.dtype == dtype
        assert received is not None
        torch.testing.assert_close(scored * live, context * live)
        grads = torch.autograd.grad((context * live).square().sum(), (q, k, v))
        score_grads = torch.autograd.grad(received.square().sum(), (q, k))
        outputs.append((context * live, received.float(), *grads, *score_grads))
    for single, half in zip(*outputs, strict=True):
        torch.testing.assert_close(half.float(), single, atol=0.08, rtol=0.05)
    assert dtypes == [torch.float32]


@pytest.mark.parametrize("block", [1, 70, 10_000])
def test_attention_in_blocks_is_attention(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One head at a time, some, or all: the same context and the right gradients, also for the
    bias, through which soft weights learn."""
    monkeypatch.setattr(attention, "BLOCK", block)
    q, k, v = (x.flatten(0, 1).requires_grad_() for x in random_heads())
    bias = torch.randn(len(q), 1, K, dtype=torch.float64, requires_grad=True)
    context = (q @ k.transpose(1, 2) + bias).softmax(-1) @ v
    torch.testing.assert_close(InBlocks.apply(q, k, v, bias)[0], context)
    assert torch.autograd.gradcheck(lambda *x: InBlocks.apply(*x)[0], (q, k, v, bias))


def test_attention_in_blocks_scores_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention received, and its gradient, which the ranking distillation needs."""
    monkeypatch.setattr(attention, "BLOCK", 70)
    q, k, v = (x.flatten(0, 1).requires_grad_() for x in random_heads())
    bias = torch.randn(len(q), 1, K, dtype=torch.float64, requires_grad=True)
    share = torch.rand(len(q), 1, K, dtype=torch.float64)
    received = share @ (q @ k.transpose(1, 2) + bias).softmax(-1)
    torch.testing.assert_close(InBlocks.apply(q, k, v, bias, share)[1], received)
    assert torch.autograd.gradcheck(lambda *x: InBlocks.apply(*x, share), (q, k, v, bias))


@given(st.integers(0, 999))
@settings(deadline=None, max_examples=20)
def test_weights_of_zero_and_one_are_removal(seed: int) -> None:
    q, k, v = random_heads(seed)
    keep = random_alive(seed)
    soft, soft_scores = attend(q, k, v, tokens_of(keep, weight=keep.to(q.dtype)), scored=True)
    for b in range(B):
        rows = keep[b].nonzero()[:, 0]
        one, two, three = (x[b : b + 1, :, rows] for x in (q, k, v))
        removed, scores = attend(one, two, three, tokens_of(keep[b : b + 1, rows]), scored=True)
        assert soft_scores is not None
        assert scores is not None
        torch.testing.assert_close(soft[b : b + 1, :, rows], removed)
        torch.testing.assert_close(soft_scores[b, rows], scores[0])


def test_a_weight_multiplies_the_key_before_normalisation() -> None:
    q, k, v = random_heads()
    weight = torch.tensor([1.0, 0.5, 0.25, 1.0, 0.01, 1e-3], dtype=q.dtype).expand(B, K)
    alive = torch.ones(B, K, dtype=torch.bool)
    context, received = attend(q, k, v, tokens_of(alive, weight), scored=True)
    e = (q @ k.transpose(-1, -2) / math.sqrt(D)).exp() * weight[:, None, None, :]
    p = e / e.sum(-1, keepdim=True)
    torch.testing.assert_close(context, p @ v)
    torch.testing.assert_close(received, p.mean((1, 2)))


def test_gradient_reaches_the_weights_of_keys() -> None:
    q, k, v = random_heads()
    alive = torch.ones(B, K, dtype=torch.bool)
    weight = torch.full((B, K), 0.5, dtype=q.dtype, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: attend(q, k, v, tokens_of(alive, w))[0], weight)


def test_scores_are_taken_before_dropout() -> None:
    q, k, v = random_heads()
    tokens = tokens_of(random_alive(1))
    plain, scores = attend(q, k, v, tokens, scored=True)
    dropped, same = attend(q, k, v, tokens, scored=True, dropout=0.5)
    torch.testing.assert_close(scores, same)
    assert not torch.allclose(plain, dropped)


def test_one_query_row_gives_its_own_context() -> None:
    q, k, v = random_heads()
    tokens = tokens_of(random_alive(2))
    whole, _ = attend(q, k, v, tokens)
    torch.testing.assert_close(attend(q[:, :, :1], k, v, tokens)[0], whole[:, :, :1])


def test_no_mask_when_all_rows_live() -> None:
    assert key_bias(tokens_of(torch.ones(B, K, dtype=torch.bool)), torch.float32) is None
    bias = key_bias(tokens_of(random_alive(0)), torch.float32)
    assert bias is not None
    assert bias.shape == (B, 1, 1, K)
    assert torch.equal(bias[:, 0, 0] == 0, random_alive(0))


def test_heads_split_and_merge() -> None:
    x = torch.randn(2, 5, H * D)
    heads = split_heads(x, D)
    assert heads.shape == (2, H, 5, D)
    assert torch.equal(heads[:, 1], x[..., D:])
    assert torch.equal(merge_heads(heads), x)


def test_attention_received_in_float16_has_a_finite_logarithm() -> None:
    """A probability of 1e-12 is zero in float16, and so is the floor that losses put below it."""
    q = torch.full((1, 1, 2, 4), 4.0, dtype=torch.float16)
    k = torch.stack([q[0, 0, 0], -q[0, 0, 0]])[None, None]
    _, received = attend(q, k, k, tokens_of(torch.ones(1, 2, dtype=torch.bool)), scored=True)
    assert received is not None
    assert received.clamp_min(1e-9).log().isfinite().all()
