"""Attention over live tokens, and the attention each token receives.

One function for every execution: fused where no probabilities are needed, explicit where a score or
a soft key weight needs them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from toprune.pruning.tokens import Tokens

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
    # Autocast would compute the softmax in float32: twice the memory, and no closer, because the
    # logits are rounded already and the sums inside a softmax are always float32.
    with torch.autocast(q.device.type, enabled=scored and torch.is_autocast_enabled(q.device.type)):
        logits = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        p = (logits if bias is None else logits + bias.to(logits.dtype)).softmax(-1)  # (B, H, Q, K)
        received = _received(p, tokens) if scored else None
        return F.dropout(p, dropout, training=dropout > 0) @ v, received


def _slow_fused(q: Tensor) -> bool:
    """bfloat16 on a CPU: torch's fused kernel is slower there than explicit products, above all in
    its backward pass (benchmarks/finetune_cost.py)."""
    return q.dtype == torch.bfloat16 and q.device.type == "cpu"


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
