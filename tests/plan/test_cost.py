"""The cost model against numbers worked by hand and against every matrix product counted."""

from dataclasses import replace
from fractions import Fraction
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toprune.errors import UserError
from toprune.plan.budget import Lengths
from toprune.plan.cost import (
    Sizes,
    dense_macs,
    executed_macs,
    expected_share,
    paper_macs,
    reduction,
)
from toprune.plan.plan import Plan, Restore, Score, Step

TINY = Sizes(layers=2, width=2, heads=1, inner=3)
HALF = Plan("bert", 2, 2, "received", (Step(0, Fraction(1, 2)),))
BERT = Sizes(layers=12, width=768, heads=12, inner=3072)

restores: st.SearchStrategy[Restore] = st.sampled_from(["none", "last", "zero"])


@st.composite
def planned(draw: st.DrawFn) -> tuple[Sizes, Plan]:
    heads = draw(st.integers(1, 3))
    sizes = Sizes(draw(st.integers(1, 6)), heads * draw(st.integers(1, 4)), heads, 5)
    possible = range(sizes.layers - 1)
    layers = sorted(draw(st.sets(st.sampled_from(possible)))) if possible else []
    keeps = sorted((Fraction(draw(st.integers(1, 1000)), 1000) for _ in layers), reverse=True)
    score: Score = draw(st.sampled_from(get_args(Score)))
    ones = (1.0,) * sizes.width
    plan = Plan(
        family="bert",
        n_layers=sizes.layers,
        width=sizes.width,
        score=score,
        steps=tuple(map(Step, layers, keeps)),
        probe={"probe": ones, "probes": ones * len(layers)}.get(score),
        predictor=draw(st.integers(1, 4)) if score == "predicted" else None,
        min_tokens=draw(st.integers(1, 3)),
        restore=draw(restores),
    )
    return sizes, plan


def multiply(rows: int, inner: int, columns: int) -> int:
    """MACs of (rows, inner) @ (inner, columns)."""
    return rows * inner * columns


def counted(sizes: Sizes, plan: Plan, n: int, held: int = 0) -> int:
    """Walk through the model as toprune runs it and count each matrix product."""
    d, per_head = sizes.width, sizes.width // sizes.heads
    steps = {step.layer: step for step in plan.steps}
    macs, alive, ranked = 0, n, False
    for layer in range(sizes.layers):
        short = layer == sizes.layers - 1 and plan.restore == "none"
        queries = 1 if short else alive
        macs += 2 * multiply(alive, d, d)  # keys, values
        macs += 2 * multiply(queries, d, d)  # queries, output
        for _ in range(sizes.heads):
            macs += multiply(queries, per_head, alive) + multiply(queries, alive, per_head)
        if layer in steps and plan.score == "probe" and not ranked:
            macs, ranked = macs + multiply(alive, d, 1), True
        if layer in steps and plan.score == "probes":
            macs += multiply(alive, d, 1)
        if layer in steps and plan.predictor is not None:
            macs += multiply(alive, d, plan.predictor) + multiply(alive, plan.predictor, 1)
        kept = min(n, max(plan.keep(steps[layer], n), held)) if layer in steps else alive
        fed = 1 if short else alive if plan.restore == "last" else kept
        macs += multiply(fed, d, sizes.inner) + multiply(fed, sizes.inner, d)
        alive = kept
    return macs


def test_executed_by_hand() -> None:
    # layer 0: 4*4 * 4 tokens + 4 * 4^2 + 12 * 2 rows = 152; last: 8*2 + 8 + 4*2 + 12 = 44
    assert executed_macs(TINY, HALF, 4) == 152 + 44
    assert dense_macs(TINY, 4) == (64 + 64 + 48) + (32 + 8 + 16 + 12)
    probed = replace(HALF, score="probe", probe=(1.0, 1.0))
    assert executed_macs(TINY, probed, 4) == 152 + 44 + 8
    assert executed_macs(TINY, replace(probed, steps=()), 4) == dense_macs(TINY, 4)


def test_restore_by_hand() -> None:
    restored = replace(HALF, restore="last")
    assert executed_macs(TINY, restored, 4) == (64 + 64 + 48) + (32 + 16 + 24)
    assert dense_macs(TINY, 4, "last") == 2 * (64 + 64 + 48)


def test_paper_by_hand() -> None:
    assert paper_macs(TINY, [4, 2]) == (64 + 5 * 16 + 48) + (32 + 5 * 4 + 24)
    # BERT-base: 12 * 128 * 7,077,888 for the projections and FFN, 12 * 1,548 * 128^2 for attention
    assert paper_macs(BERT, [128] * 12) == 10_871_635_968 + 304_349_184


@given(planned(), st.integers(1, 60), st.integers(0, 60))
def test_executed_counts_every_product(case: tuple[Sizes, Plan], n: int, held: int) -> None:
    sizes, plan = case
    assert executed_macs(sizes, plan, n) == counted(sizes, plan, n)
    assert executed_macs(sizes, plan, n, held) == counted(sizes, plan, n, held)
    dense = replace(plan, steps=(), probe=None)
    assert dense_macs(sizes, n, plan.restore) == counted(sizes, dense, n)


def test_reduction_by_hand() -> None:
    # n = 2 keeps max(1, min_tokens) = 2, so only n = 4 saves
    short = dense_macs(TINY, 2)
    assert short == (32 + 16 + 24) + (16 + 8 + 8 + 12)
    lengths = Lengths.of([2, 4, 4])
    got = reduction(TINY, HALF, lengths)
    executed = short + 2 * 196
    assert got.unpadded == pytest.approx((short + 2 * 244) / executed)
    assert got.padded == pytest.approx(3 * 244 / executed)
    assert got.paper == pytest.approx((152 + 2 * 384) / (152 + 2 * 268))
    wider = reduction(TINY, HALF, lengths, max_length=8)
    assert wider.padded == pytest.approx(3 * dense_macs(TINY, 8) / executed)
    assert wider.unpadded == got.unpadded


def test_reduction_with_held_tokens_by_hand() -> None:
    # HALF keeps 2 of 4; where 3 are held, 3: 64 + 64 + 12 * 3 = 164 and 8 * 3 + 8 + 4 * 3 + 12 = 56
    assert executed_macs(TINY, HALF, 4, held=3) == 164 + 56
    got = reduction(TINY, HALF, Lengths.of([4, 4, 4, 4], held=[1, 2, 3, 3]))
    assert got.unpadded == got.padded == pytest.approx(4 * 244 / (2 * 196 + 2 * 220))
    assert got.paper == pytest.approx(4 * 384 / (2 * 268 + 2 * (192 + 4 * 4 * 3 + 5 * 9 + 12 * 3)))
    whole = reduction(TINY, HALF, Lengths.of([4], held=[4]))
    assert (whole.unpadded, whole.paper) == (1, 1)


def test_max_length_cannot_be_below_the_data() -> None:
    with pytest.raises(UserError, match="longest example"):
        reduction(TINY, HALF, Lengths.of([9]), max_length=8)


def test_no_steps_reduce_nothing() -> None:
    got = reduction(TINY, replace(HALF, steps=()), Lengths.of([5, 5]))
    assert (got.unpadded, got.padded, got.paper) == (1, 1, 1)


@given(
    st.lists(st.integers(1, 20), min_size=5, max_size=5),
    st.lists(st.integers(1, 25), min_size=1, max_size=8),
    restores,
)
def test_expected_is_executed_where_counts_are_whole(
    twentieths: list[int], lengths: list[int], restore: Restore
) -> None:
    """Lengths in multiples of 20 and ratios in twentieths: ceil has nothing to do."""
    sizes = Sizes(6, 384, 12, 1536)
    keeps = [Fraction(k, 20) for k in sorted(twentieths, reverse=True)]
    steps = tuple(Step(layer, keep) for layer, keep in enumerate(keeps))
    plan = Plan("bert", 6, 384, "received", steps, min_tokens=1, restore=restore)
    histogram = Lengths.of(20 * n for n in lengths)
    share = expected_share(sizes, [float(keep) for keep in keeps], histogram, restore)
    assert share == pytest.approx(1 / reduction(sizes, plan, histogram).unpadded, rel=1e-12)


@pytest.mark.parametrize("restore", ["none", "last", "zero"])
def test_expected_share_in_torch(restore: Restore) -> None:
    lengths = Lengths.of([20, 53, 100])
    ratios = torch.tensor([0.9, 0.6, 0.6, 0.3, 0.1], dtype=torch.float64, requires_grad=True)
    sizes = Sizes(6, 384, 12, 1536)
    share = expected_share(sizes, ratios, lengths, restore)
    assert share.item() == pytest.approx(expected_share(sizes, ratios.tolist(), lengths, restore))
    assert torch.autograd.gradcheck(lambda r: expected_share(sizes, r, lengths, restore), ratios)
    (slope,) = torch.autograd.grad(share, ratios)
    assert (slope > 0).all()
    single = expected_share(sizes, ratios.detach().float(), lengths, restore)
    assert single.item() == pytest.approx(share.item(), rel=1e-5)


def test_expected_share_wants_one_ratio_per_later_layer() -> None:
    assert expected_share(TINY, [1.0], Lengths.of([7])) == 1
    with pytest.raises(ValueError, match="one less than layers"):
        expected_share(TINY, [1.0, 1.0], Lengths.of([7]))
