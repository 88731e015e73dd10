"""Which rows of a batch are which tokens, and the pure tensor functions that drop them.

Letters: B batch, S padded length, K rows at hand, D width. Row 0 is always the first token.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The rows that enter one layer. Dead rows (PAD or dropped) are neither queries nor keys."""

    index: Tensor  # (B, K) original position of each row
    alive: Tensor  # (B, K) bool
    protected: Tensor  # (B, K) bool, always kept
    n: Tensor  # (B,) tokens that the example came with
    full: bool  # every row is alive, so attention needs no mask
    rank: Tensor | None = None  # (B, K) place in a ranking that stays; None: not ranked yet
    weight: Tensor | None = None  # (B, K) soft key weight in [0, 1], only while learning
    total: Tensor | None = None  # (B, K) attention received in all layers so far


Rows = int | Tensor  # the first so many rows, or (B, k) row numbers


def start(attention_mask: Tensor, protected: Tensor | None = None) -> Tokens:
    """Return all tokens of a right-padded batch, alive where `attention_mask` (B, S) is set."""
    alive = attention_mask.bool()
    if not bool(alive[:, 0].all()):
        raise ValueError("left-padded batch: the first token must be live; pad on the right")
    keep = torch.zeros_like(alive) if protected is None else protected & alive
    keep = keep.index_fill(1, torch.zeros(1, dtype=torch.long, device=keep.device), True)
    index = torch.arange(alive.shape[1], device=alive.device).expand_as(alive)
    return Tokens(index, alive, keep, alive.sum(1), full=bool(alive.all()))


def take(x: Tensor, rows: Rows) -> Tensor:
    """Take rows of x (B, K, ...): a slice if `rows` is a count, else a gather."""
    if isinstance(rows, int):
        return x[:, :rows]
    if x.dim() == 2:
        return x.gather(1, rows)
    return x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def order(scores: Tensor, tokens: Tokens) -> Tensor:
    """Row numbers from best to worst (B, K): first token, protected ones, by score, dead ones."""
    top = torch.finfo(scores.dtype).max
    key = scores.detach().masked_fill(tokens.protected, top)
    key = key.masked_fill(~tokens.alive, -torch.inf)
    first = torch.zeros(1, dtype=torch.long, device=key.device)
    return key.index_fill(1, first, torch.inf).argsort(dim=1, descending=True, stable=True)


def accumulate(tokens: Tokens, received: Tensor) -> Tokens:
    """Add the attention received in this layer to the total. received (B, K) is the mean over live
    queries, the total is their sum."""
    summed = received * tokens.alive.sum(1, keepdim=True)
    return replace(tokens, total=summed if tokens.total is None else tokens.total + summed)


def by_probe(state: Tensor, probe: Tensor) -> Tensor:
    """(B, K, D), (D,) -> (B, K). Not in bfloat16, even in training: its three digits would swap
    neighbours in a ranking."""
    with torch.autocast(state.device.type, enabled=False):
        return state @ probe.to(state)


def by_place(index: Tensor) -> Tensor:
    """A score without information: a fixed pseudo-random number for every position, the same in
    torch and in ONNX."""
    x = index + 12345
    return (x * x * x % 65519).float()  # cubes modulo a prime of the form 3k + 2 all differ


def ranks(rows: Tensor) -> Tensor:
    """The inverse of `order`: the place (B, K) of every row, 0 the best."""
    places = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    return torch.empty_like(rows).scatter(1, rows, places)


def keep_top(tokens: Tokens, rows: Rows, k: Tensor, size: int, *, remember: bool) -> Tokens:
    """Drop rows: the best `size` rows stay, and of these the best k[b] are alive."""
    at = size if isinstance(rows, int) else rows[:, :size]
    place = torch.arange(size, device=k.device).expand(k.shape[0], -1)
    return replace(
        tokens,
        index=take(tokens.index, at),
        protected=take(tokens.protected, at),
        alive=place < k[:, None],
        full=bool((k == size).all()),  # texts of one length may protect different numbers of tokens
        rank=place if remember else None,
        total=None if tokens.total is None else take(tokens.total, at),
    )


def mask_top(tokens: Tokens, rank: Tensor, k: Tensor, *, remember: bool) -> Tokens:
    """Simulate `keep_top`: every row stays where it is, and rows past rank k[b] are dead."""
    alive = tokens.alive & (rank < k[:, None])
    return replace(tokens, alive=alive, full=False, rank=rank if remember else None)


def gather_alive(tokens: Tokens) -> tuple[Tensor, Tokens]:
    """Return the rows (B, k) that bring every live row to the front, in order, and their tokens."""
    size = int(tokens.alive.sum(1).max())
    rows = (~tokens.alive).byte().argsort(dim=1, stable=True)[:, :size]
    return rows, Tokens(
        index=take(tokens.index, rows),
        alive=take(tokens.alive, rows),
        protected=take(tokens.protected, rows),
        n=tokens.n,
        full=False,
        rank=None if tokens.rank is None else take(tokens.rank, rows),
        weight=None if tokens.weight is None else take(tokens.weight, rows),
        total=None if tokens.total is None else take(tokens.total, rows),
    )


def groups(tokens: Tokens, k: Tensor, size: int) -> Tensor:
    """(B, K): the place among k[b] where each row goes when neighbours are merged. Protected rows
    come first, each alone; the others follow in runs of nearly equal length. The place `size` means
    nowhere: for dead rows, and for the others if protected rows leave no room."""
    held = tokens.alive & tokens.protected
    free = tokens.alive & ~tokens.protected
    alone, count = held.sum(1, keepdim=True), free.sum(1, keepdim=True)
    runs = k[:, None] - alone
    run = (free.cumsum(1) - 1) * runs // count.clamp_min(1)
    place = torch.where(held, held.cumsum(1) - 1, alone + run)
    return place.masked_fill(~(held | (free & (runs > 0))), size)


def merge(x: Tensor, place: Tensor, size: int) -> Tensor:
    """(B, K, D) -> (B, size, D): the mean of the rows that go to each place."""
    sums = x.new_zeros(len(x), size + 1, x.shape[2])
    sums = sums.scatter_add(1, place.unsqueeze(-1).expand_as(x), x)[:, :size]
    counts = x.new_zeros(len(x), size + 1).scatter_add(1, place, torch.ones_like(x[..., 0]))
    return sums / counts[:, :size, None].clamp_min(1)


def keep_merged(tokens: Tokens, place: Tensor, k: Tensor, size: int) -> Tokens:
    """Return the tokens of merged rows; each has the position of the first of its members."""
    last = tokens.index.amax(1, keepdim=True).expand(-1, size + 1)
    first = last.scatter_reduce(1, place, tokens.index, "amin")[:, :size]
    at = torch.arange(size, device=k.device).expand(len(k), -1)
    held = (tokens.protected & tokens.alive).sum(1, keepdim=True)
    return replace(
        tokens,
        index=first,
        alive=at < k[:, None],
        protected=at < held,
        full=bool((k == size).all()),
    )


def mask_merged(tokens: Tokens, place: Tensor, size: int) -> tuple[Tensor, Tokens]:
    """Simulate `keep_merged`: return the row (B, K) that stands for each row's group, which is its
    first one, and tokens of which only these rows are alive."""
    nowhere = place.shape[1]
    row = torch.arange(nowhere, device=place.device).expand_as(place)
    first = row.new_full((len(place), size + 1), nowhere).scatter_reduce(1, place, row, "amin")
    stands = first.gather(1, place).masked_fill(place == size, nowhere)
    return stands, replace(tokens, alive=stands == row, full=False)


def restore(buffer: Tensor, states: Tensor, tokens: Tokens) -> Tensor:
    """Write the states (B, K, D) of live rows to their original places in the buffer (B, S, D).
    Dead rows go to a place behind the last: after a merge, a dead row may have the index of a live
    one, and either could win if both wrote to one place."""
    behind = buffer.shape[1]
    at = tokens.index.masked_fill(~tokens.alive, behind).unsqueeze(-1).expand_as(states)
    return F.pad(buffer, (0, 0, 0, 1)).scatter(1, at, states)[:, :behind]
