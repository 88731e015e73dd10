"""Pure tensor functions that say who goes on, against plain Python."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.pruning.tokens import (
    Tokens,
    by_probe,
    gather_alive,
    keep_top,
    mask_top,
    order,
    ranks,
    restore,
    start,
    take,
)


@st.composite
def scored_tokens(draw: st.DrawFn) -> tuple[Tokens, torch.Tensor]:
    """Texts of random lengths, some tokens protected, with distinct scores."""
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    width = max(counts) + draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    mask = torch.arange(width) < torch.tensor(counts)[:, None]
    protected = torch.from_numpy(rng.random(mask.shape) < 0.2)
    scores = torch.from_numpy(rng.permuted(np.arange(mask.numel())).reshape(mask.shape))
    return start(mask, protected), scores.double() - mask.numel() / 2


def by_hand(tokens: Tokens, scores: torch.Tensor, b: int) -> list[int]:
    """Live rows of text b, best first: the first token, then the protected ones, then by score."""
    live = [r for r in range(tokens.alive.shape[1]) if tokens.alive[b, r]]
    guarded = [r for r in live if r == 0 or tokens.protected[b, r]]
    rest = sorted((r for r in live if r not in guarded), key=lambda r: -scores[b, r])
    return guarded + rest


def test_start_reads_the_mask() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    tokens = start(mask, torch.tensor([[False, True, False], [False, True, False]]))
    assert tokens.alive.tolist() == [[True, True, True], [True, False, False]]
    assert tokens.protected.tolist() == [[True, True, False], [True, False, False]]  # PAD is not
    assert tokens.index.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert tokens.n.tolist() == [3, 1]
    assert not tokens.full
    assert start(mask[:1]).full
    assert start(mask).protected.tolist() == [[True, False, False], [True, False, False]]


def test_left_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="left-padded"):
        start(torch.tensor([[1, 1, 1], [0, 1, 1]]))


def test_take_slices_or_gathers() -> None:
    x = torch.arange(24).reshape(2, 4, 3)
    rows = torch.tensor([[2, 0], [3, 1]])
    assert torch.equal(take(x, 2), x[:, :2])
    assert torch.equal(take(x, rows), torch.stack([x[0, [2, 0]], x[1, [3, 1]]]))
    assert take(x[..., 0], rows).tolist() == [[6, 0], [21, 15]]


@given(scored_tokens())
@settings(deadline=None)
def test_order_is_first_protected_score_dead(drawn: tuple[Tokens, torch.Tensor]) -> None:
    tokens, scores = drawn
    rows = order(scores, tokens)
    for b, n in enumerate(tokens.n.tolist()):
        assert rows[b, 0] == 0
        live = rows[b, :n].tolist()
        guarded = int(tokens.protected[b].sum())
        expected = by_hand(tokens, scores, b)
        assert set(live[:guarded]) == set(expected[:guarded])
        assert live[guarded:] == expected[guarded:]
        assert sorted(rows[b].tolist()) == list(range(rows.shape[1]))


def test_order_ranks_below_protected_tokens_whatever_their_score() -> None:
    tokens = start(torch.ones(1, 4, dtype=torch.long), torch.tensor([[False, False, False, True]]))
    scores = torch.tensor([[-9.0, 5.0, 7.0, -99.0]])
    assert order(scores, tokens).tolist() == [[0, 3, 2, 1]]


@given(scored_tokens())
@settings(deadline=None)
def test_ranks_invert_order(drawn: tuple[Tokens, torch.Tensor]) -> None:
    rows = order(drawn[1], drawn[0])
    places = torch.arange(rows.shape[1]).expand_as(rows)
    assert torch.equal(ranks(rows).gather(1, rows), places)
    assert torch.equal(rows.gather(1, ranks(rows)), places)


@given(scored_tokens(), st.data(), st.booleans())
@settings(deadline=None)
def test_keep_top_and_mask_top_keep_the_same(
    drawn: tuple[Tokens, torch.Tensor], data: st.DataObject, remember: bool
) -> None:
    tokens, scores = drawn
    k = torch.tensor([data.draw(st.integers(1, n)) for n in tokens.n.tolist()])
    rows = order(scores, tokens)
    size = int(k.max())
    gone = keep_top(tokens, rows, k, size, remember=remember)
    masked = mask_top(tokens, ranks(rows), k, remember=remember)
    assert gone.index.shape == (len(k), size)
    assert gone.full == bool(gone.alive.all())
    assert (gone.rank is not None) == (masked.rank is not None) == remember
    for b, kept in enumerate(k.tolist()):
        index = gone.index[b][gone.alive[b]].tolist()
        assert index == rows[b, :kept].tolist()  # in the order of the ranking
        assert sorted(index) == masked.index[b][masked.alive[b]].tolist()
        assert torch.equal(gone.protected[b], tokens.protected[b, rows[b, :size]])


@given(scored_tokens(), st.integers(0, 999))
@settings(deadline=None)
def test_gather_alive_keeps_live_rows_in_place_order(
    drawn: tuple[Tokens, torch.Tensor], seed: int
) -> None:
    tokens, scores = drawn
    mask = torch.from_numpy(np.random.default_rng(seed).random(tokens.alive.shape) < 0.5)
    alive = tokens.alive & mask.index_fill(1, torch.tensor([0]), True)
    tokens = Tokens(
        tokens.index, alive, tokens.protected, tokens.n, False, scores.long(), scores.clone()
    )
    rows, kept = gather_alive(tokens)
    assert rows.shape[1] == int(alive.sum(1).max())
    for b in range(len(rows)):
        assert kept.index[b][kept.alive[b]].tolist() == tokens.index[b][alive[b]].tolist()
        assert kept.weight is not None
        assert torch.equal(kept.weight[b][kept.alive[b]], scores[b][alive[b]])
        assert kept.rank is not None
        assert torch.equal(kept.rank[b], scores[b, rows[b]].long())


def test_restore_writes_live_rows_only() -> None:
    buffer = torch.zeros(1, 4, 2)
    tokens = Tokens(
        index=torch.tensor([[2, 0, 3]]),
        alive=torch.tensor([[True, True, False]]),
        protected=torch.zeros(1, 3, dtype=torch.bool),
        n=torch.tensor([4]),
        full=False,
    )
    states = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    out = restore(buffer, states, tokens)
    assert out.tolist() == [[[3, 4], [0, 0], [1, 2], [0, 0]]]
    assert buffer.abs().sum() == 0  # pure


def test_probe_scores_are_not_rounded_while_training_in_bfloat16() -> None:
    state, probe = torch.randn(2, 200, 32) + 5, torch.randn(32)
    plain = by_probe(state, probe)
    torch.testing.assert_close(plain, state @ probe)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(by_probe(state, probe), plain)
        assert len((state @ probe).unique()) < len(plain.unique())  # what would have happened
