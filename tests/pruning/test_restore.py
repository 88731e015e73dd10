"""Heads that read every token: dropped tokens come back with their last state, or as zeros."""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertForTokenClassification

from support.attached import TEXTS, Texts, assert_same, places, steep, with_predictors
from support.models import CONFIGS
from support.strategies import PAD, logits, make_plan, pad, plans, texts
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach


@cache
def tagger() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = CONFIGS["bert"](vocab_size=64, pad_token_id=PAD, num_labels=5)
        return BertForTokenClassification(config).eval().double()


def tagged(plan: Plan | None, rows: Sequence[Sequence[int]], **how: Any) -> list[Tensor]:
    """Logits of the live tokens of every text."""
    model = copy.deepcopy(tagger())
    if plan is not None:
        attach(with_predictors(model, plan), plan, **how)
    actual = logits(model, rows)
    return [actual[b, : len(row)] for b, row in enumerate(rows)]


def assert_all_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert_same(one, other)


@given(rows=texts(), score=st.sampled_from(["received", "probe"]))
@settings(deadline=None, max_examples=15)
def test_restore_keep_all_is_the_stock_model(rows: Texts, score: str) -> None:
    expected = tagged(None, rows)
    for steps in ((), ((0, "1"), (2, "1"))):
        assert_all_same(
            tagged(make_plan("bert", *steps, score=score, restore="last"), rows), expected
        )
        assert_all_same(
            tagged(make_plan("bert", *steps, score=score, restore="zero"), rows), expected
        )


@given(plan=plans("bert", restore="last") | plans("bert", restore="zero"), rows=texts())
@settings(deadline=None, max_examples=40)
def test_restore_masked_gathered_and_alone_are_one(plan: Plan, rows: Texts) -> None:
    alone = [tagged(plan, [row])[0] for row in rows]
    assert_all_same(tagged(plan, rows), alone)
    assert_all_same(tagged(plan, rows, gather=False), alone)


@pytest.mark.parametrize("gather", [True, False])
def test_last_token_survives_beside_a_text_that_keeps_more(gather: bool) -> None:
    """The fourth row of the second text is nobody's: it must not write over the text's last token,
    which stays because its id is protected."""
    plan = make_plan("bert", (0, "1/100"), score="pooled", restore="last", protect=(4, 8, 9))
    rows = [[0, 9, 11, 9, 8], [0, 16, 10, 16, 20, 7, 2, 12, 9, 19, 4]]
    assert_all_same(tagged(plan, rows, gather=gather), [tagged(plan, [row])[0] for row in rows])


@pytest.mark.parametrize("gather", [True, False])
def test_dropped_tokens_keep_their_last_state(gather: bool) -> None:
    """Dropped at layer 1 means: what it was after layer 1, in the stock model just that layer's
    output, because nothing was dropped before."""
    model = attach(
        copy.deepcopy(tagger()), make_plan("bert", (1, "1/3"), restore="last"), gather=gather
    )
    with torch.no_grad():
        out = model.base_model(**pad(TEXTS)).last_hidden_state
        stock = tagger().base_model(**pad(TEXTS), output_hidden_states=True)
    for b, (row, kept) in enumerate(zip(TEXTS, places(model), strict=True)):
        gone = sorted(set(range(len(row))) - kept[2])
        assert len(gone) == len(row) - max(2, -(-len(row) // 3))
        torch.testing.assert_close(out[b, gone], stock.hidden_states[2][b, gone])
        for i in kept[2]:
            assert not torch.allclose(out[b, i], stock.hidden_states[2][b, i])


@pytest.mark.parametrize("gather", [True, False])
def test_dropped_tokens_come_back_as_zeros(gather: bool) -> None:
    model = attach(
        copy.deepcopy(tagger()), make_plan("bert", (1, "1/3"), restore="zero"), gather=gather
    )
    with torch.no_grad():
        out = model.base_model(**pad(TEXTS)).last_hidden_state
    for b, (row, kept) in enumerate(zip(TEXTS, places(model), strict=True)):
        alive = set(torch.nonzero(out[b].abs().sum(-1)).flatten().tolist())
        assert alive == kept[2]
        assert len(alive) == max(2, -(-len(row) // 3))


def test_restored_models_copy_and_give_tuples() -> None:
    """A pass with gradients leaves states that hang in a graph; a copy must not choke on them."""
    model = attach(copy.deepcopy(tagger()), steep(restore="last"))
    out = model.base_model(**pad(TEXTS)).last_hidden_state
    twin = copy.deepcopy(model)
    assert torch.equal(twin.base_model(**pad(TEXTS), return_dict=False)[0], out)


def test_restore_passes_gradients_to_dropped_tokens() -> None:
    model = attach(copy.deepcopy(tagger()), steep(restore="last"))
    embedded = model.base_model.embeddings.word_embeddings(torch.tensor([TEXTS[0]])).detach()
    embedded.requires_grad_()
    logits_ = model(inputs_embeds=embedded).logits
    gone = sorted(set(range(24)) - places(model)[0][3])
    (gradient,) = torch.autograd.grad(logits_[0, gone].sum(), embedded)
    assert gradient[0, gone].abs().sum(-1).min() > 0
