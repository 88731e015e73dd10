"""Losses that distil a ranking of tokens, so that early layers rank as the last one does, and nDCG,
which measures how well they do.

All take the student's scores x (B, K) as logs (so that differences are of order one
whatever the length), the teacher's t (B, K) for the same tokens, and which rows are live (B, K).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Ranking = Callable[[Tensor, Tensor, Tensor], Tensor]  # x, t, live

RELEVANCE = 5.0  # relevance of the teacher's best token; gain 2^y - 1 as in search evaluation


def lambda_loss(x: Tensor, t: Tensor, live: Tensor, top_k: int = 20) -> Tensor:
    """NDCG-Loss2 of LambdaLoss (Wang et al. 2018), the teacher's top k against *all* live tokens.

    ToP's code compares the top k only with each other, which never pushes one of them above the
    rest; pruning needs just that. Relevance falls linearly from RELEVANCE to 0 over the top k.
    """
    y, gain = _gains(t, live, top_k)
    student = _places(x.detach(), live)
    apart = (student[:, :, None] - student[:, None, :]).abs().clamp_min(1)
    delta = 1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)
    better = (y[:, :, None] > y[:, None, :]) & live[:, :, None] & live[:, None, :]
    weight = delta * (gain[:, :, None] - gain[:, None, :]) * better
    pairs = F.softplus(-(x[:, :, None] - x[:, None, :])) / torch.log(
        torch.tensor(2.0, device=x.device)
    )
    return (weight * pairs).sum((1, 2)).mean()


def ndcg(x: Tensor, t: Tensor, live: Tensor, top_k: int = 20) -> Tensor:
    """(B,): how well x ranks the teacher's top k among all live tokens; 1 is the teacher's order,
    NaN a text without live tokens."""
    gain = _gains(t, live, top_k)[1]
    value = (gain / torch.log2(_places(x, live) + 2)).sum(1)
    return value.masked_fill(~live.any(1), torch.nan)


def mse_loss(x: Tensor, t: Tensor, live: Tensor, top_k: int = 20) -> Tensor:
    """The paper's first alternative: match the values, not the order."""
    return ((x - t).square() * live).sum() / live.sum().clamp_min(1)


def ce_loss(x: Tensor, t: Tensor, live: Tensor, top_k: int = 20) -> Tensor:
    """The paper's second alternative: match the scores as distributions over tokens."""
    floor = torch.finfo(x.dtype).min
    log_p = x.masked_fill(~live, floor).log_softmax(1)
    q = t.masked_fill(~live, floor).softmax(1)
    return -(q * log_p.masked_fill(~live, 0)).sum(1).mean()


RANK_LOSSES = {"lambda": lambda_loss, "mse": mse_loss, "ce": ce_loss}


def _gains(t: Tensor, live: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Relevance and gain (B, K) of every row; the discounted gains of the teacher's own order sum
    to one."""
    place = _places(t, live)  # (B, K) in the teacher's order
    y = (RELEVANCE * (1 - place / top_k)).clamp_min(0) * live
    gain = 2**y - 1
    ideal = (gain / torch.log2(place + 2)).sum(1)  # DCG of the teacher's own order
    return y, gain / ideal.clamp_min(1e-6)[:, None]


def _places(scores: Tensor, live: Tensor) -> Tensor:
    """Place of every row by descending score, 0 the best; dead rows come last."""
    order = scores.masked_fill(~live, -torch.inf).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter(1, order, places).to(scores.dtype)
