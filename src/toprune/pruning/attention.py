"""Attention over live tokens, and the attention each token receives.

One function for every execution: fused where no probabilities are needed, explicit where a score or
a soft key weight needs them.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from toprune.pruning.tokens import Tokens

BLOCK = 1 << 20  # probabilities that are computed at once
TINY = 1e-8  # keys below this weight get no gradient; exact zeros are gathered out before


def key_bias(tokens: Tokens, dtype: torch.dtype) -> Tensor | None:
    """Return what is added to the logits of every key, (B, 1, 1, K); None when all rows are live.

    A soft weight w multiplies exp(logit) before normalisation, p = w exp(x) / sum w exp(x): with w
    in {0, 1} that *is* removal, so what is learned is what will run.
    """
    if tokens.full and tokens.weight is None:
        return None
    if tokens.weight is None:
        bias = torch.zeros(tokens.alive.shape, dtype=dtype, device=tokens.alive.device)
    else:
        bias = tokens.weight.clamp_min(TINY).log()
    return bias.masked_fill(~tokens.alive, torch.finfo(dtype).min)[:, None, None, :]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tokens: Tokens,
    *,
    scale: float | None = None,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    scored: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax attention over live tokens.

    Args:
        q: (B, H, Q, d) queries.
        k: (B, H, K, d) keys.
        v: (B, H, K, d) values.
        tokens: of the K rows.
        scale: of the logits; 1 / sqrt(d) by default.
        position_bias: (B, H or 1, Q, K), what the family adds to the logits.
        dropout: of the probabilities.
        scored: whether to return the received attention; then Q == K.

    Returns:
        The context (B, H, Q, d), and the received attention (B, K) if `scored`: the mean over heads
        and *live* queries of the probability that a token gets, before dropout (ToP eq. 3).
    """
    bias = key_bias(tokens, q.dtype)
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    if not scored and tokens.weight is None and not _slow_fused(q):
        context = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale
        )
        return context, None
    scaled_by = q.shape[-1] ** -0.5 if scale is None else scale
    if position_bias is None and dropout == 0 and _slow_fused(q):
        return _attend_in_blocks(q * scaled_by, k, v, bias, tokens if scored else None)
    logits = q @ k.transpose(-1, -2) * scaled_by
    p = (logits if bias is None else logits + bias).softmax(-1)  # (B, H, Q, K)
    received = _received(p, tokens) if scored else None
    return F.dropout(p, dropout, training=dropout > 0) @ v, received


def _slow_fused(q: Tensor) -> bool:
    """bfloat16 on a CPU: torch's fused kernel is slower there than explicit products, above all in
    its backward pass (benchmarks/finetune_cost.py)."""
    return q.dtype == torch.bfloat16 and q.device.type == "cpu"


def _attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scored: Tokens | None
) -> tuple[Tensor, Tensor | None]:
    """Attention (B, H, Q, d) with scaled queries, and the attention that the `scored` tokens
    receive; bias (B, 1, 1, K) as of `key_bias`."""
    texts, heads = q.shape[:2]
    if bias is None:
        bias = q.new_zeros(texts, 1, 1, k.shape[2])
    key_biases = bias.to(q.dtype).expand(-1, heads, -1, -1).flatten(0, 1)  # (B * H, 1, K)
    share = None if scored is None else scored.alive / scored.alive.sum(1, keepdim=True)  # (B, Q)
    if share is not None:
        share = share.to(q.dtype).repeat_interleave(heads, 0).unsqueeze(1)  # (B * H, 1, Q)
    rows = (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), key_biases, share)
    context, received = cast(tuple[Tensor, Tensor | None], InBlocks.apply(*rows))
    if received is not None:
        received = received.unflatten(0, (texts, heads)).float().mean((1, 2))
    return context.unflatten(0, (texts, heads)), received


class InBlocks(torch.autograd.Function):
    """Softmax attention, a few heads at a time, so that probabilities stay in the cache. The
    backward pass computes them again: to store them would take most of the memory of a step.

    `share` (B * H, 1, Q) is the weight of each query in the attention that a token receives from
    a head, the second result (B * H, 1, K); None: nothing is scored.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, share: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(q, k, v, bias, share)
        context = torch.empty_like(q)
        received = None if share is None else torch.empty_like(bias)
        for block in InBlocks.blocks(q, k):
            p = InBlocks.probabilities(q[block], k[block], bias[block])
            torch.bmm(p, v[block], out=context[block])
            if share is not None and received is not None:
                torch.bmm(share[block], p, out=received[block])
        return context, received

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor, received_gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, v, bias, share = ctx.saved_tensors
        dq, dk, dv, dbias = (torch.empty_like(x) for x in (q, k, v, bias))
        for block in InBlocks.blocks(q, k):
            p, g = InBlocks.probabilities(q[block], k[block], bias[block]), gradient[block]
            torch.bmm(p.transpose(1, 2), g, out=dv[block])
            dp = torch.bmm(g, v[block].transpose(1, 2))  # (heads, Q, K)
            if share is not None:
                dp.baddbmm_(share[block].transpose(1, 2), received_gradient[block])
            dlogits = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
            torch.sum(dlogits, 1, keepdim=True, out=dbias[block])
            torch.bmm(dlogits, k[block], out=dq[block])
            torch.bmm(dlogits.transpose(1, 2), q[block], out=dk[block])
        return dq, dk, dv, dbias, None

    @staticmethod
    def blocks(q: Tensor, k: Tensor) -> list[slice]:
        heads = max(1, BLOCK // (q.shape[1] * k.shape[1]))
        return [slice(i, i + heads) for i in range(0, len(q), heads)]

    @staticmethod
    def probabilities(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        """(heads, Q, K)"""
        return torch.baddbmm(bias, q, k.transpose(1, 2)).softmax(-1)


def _received(p: Tensor, tokens: Tokens) -> Tensor:
    """(B, K) the attention that each token receives, mean over heads and live queries."""
    if p.dtype == torch.float16:  # its smallest numbers would become zero, and their log infinite
        p = p.float()
    if tokens.full:
        return p.mean((1, 2))
    live = tokens.alive.to(p.dtype)  # (B, Q)
    return torch.einsum("bhqk,bq->bk", p, live) / (p.shape[1] * live.sum(1, keepdim=True))


def split_heads(x: Tensor, size: int) -> Tensor:
    """(B, T, H * d) -> (B, H, T, d)"""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat keys or values (B, G, T, d) of groups of heads, for every head: (B, H, T, d)."""
    groups = x.shape[1]
    if groups == heads:
        return x
    return x.unsqueeze(2).expand(-1, -1, heads // groups, -1, -1).flatten(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (B, H, T, d) by the angles of its rows' positions, (B, T, d) each."""
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), -1) * sin.unsqueeze(1)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, d) -> (B, T, H * d)"""
    return x.transpose(1, 2).flatten(2)
