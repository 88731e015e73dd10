"""One truth, many executions: the outputs of an attached model do not depend on how it is run.

Models have double precision: rows in another order change the last bits of a score, and a tie in
single precision would flip a rank once in many thousand runs. Single precision has its own test.
"""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.attached import (
    SINGLE,
    TEXTS,
    Texts,
    assert_same,
    double,
    every_family,
    places,
    pruned,
    steep,
)
from support.models import make_model
from support.strategies import (
    SEP,
    guarded,
    logits,
    make_plan,
    pad,
    plans,
    random_text,
    texts,
)
from toprune.errors import UserError
from toprune.plan.plan import Plan, held_tokens
from toprune.pruning.attach import attach


@every_family
@given(data=st.data())
@settings(deadline=None, max_examples=12)
def test_keep_all_is_the_stock_model(family: str, data: st.DataObject) -> None:
    plan = data.draw(plans(family))
    steps = {step.layer: (step.layer, "1") for step in plan.steps}
    all_kept = make_plan(
        family,
        *steps.values(),
        score=plan.score,
        protect=plan.protect,
        protect_until=plan.protect_until,
        min_tokens=plan.min_tokens,
    )
    rows = data.draw(texts())
    expected = logits(double(family), rows)
    for gather in (True, False):
        actual = logits(pruned(family, all_kept, gather=gather), rows)
        assert_same(actual, expected, 1e-5 if family in SINGLE else 1e-9)


@every_family
@given(data=st.data(), extra=st.integers(1, 9))
@settings(deadline=None, max_examples=25)
def test_masked_gathered_padded_and_alone_are_one(
    family: str, data: st.DataObject, extra: int
) -> None:
    plan, rows = data.draw(plans(family)), data.draw(texts())
    model = pruned(family, plan)
    alone = torch.cat([logits(model, [row]) for row in rows])
    assert_same(logits(model, rows), alone)
    assert_same(logits(model, rows, extra), alone)
    assert_same(logits(model, rows[::-1]), alone.flip(0))
    masked = pruned(family, plan, gather=False)
    assert_same(logits(masked, rows), alone)
    assert_same(logits(masked, rows, extra), alone)


@every_family
@pytest.mark.parametrize("score", ["received", "probe"])
def test_single_precision(family: str, score: str) -> None:
    plan = steep(family, score, protect=(5,))
    model, masked = attach(make_model(family), plan), attach(make_model(family), plan, gather=False)
    alone = torch.cat([logits(model, [row]) for row in TEXTS])
    assert_same(logits(model, TEXTS), alone, 1e-4)
    assert_same(logits(masked, TEXTS), alone, 1e-4)
    stock = make_model(family)
    dense = logits(attach(make_model(family), make_plan(family)), TEXTS)
    assert_same(dense, logits(stock, TEXTS), 5e-5)
    assert (alone - logits(stock, TEXTS)).abs().max() > 0.01  # the plan does bite


def test_texts_of_one_length_may_protect_different_numbers() -> None:
    """Then a batch without padding still gets dead rows."""
    guarded, plain = [0, *[5] * 9], random_text(10, 3)
    plan = make_plan("bert", (0, "1/5"), (1, "1/10"), protect=(5,))
    model = pruned("bert", plan)
    alone = torch.cat([logits(model, [row]) for row in (guarded, plain)])
    assert_same(logits(model, [guarded, plain]), alone)


@every_family
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_lengths_follow_the_plan_and_protected_tokens_survive(
    family: str, data: st.DataObject
) -> None:
    plan, rows = data.draw(plans(family)), data.draw(texts())
    for gather in (True, False):
        model = pruned(family, plan, gather=gather)
        logits(model, rows, extra=data.draw(st.integers(0, 3)))
        for row, kept in zip(rows, places(model), strict=True):
            stay = guarded(plan, row)
            assert held_tokens(row, plan.protect, plan.protect_until) == len(stay)
            assert [len(k) for k in kept] == plan.lengths(len(row), len(stay))
            assert kept[0] == set(range(len(row)))
            for before, after in pairwise(kept):
                assert stay <= after
                assert plan.returns or after <= before


@pytest.mark.parametrize("score", ["received", "probe"])
def test_the_first_text_of_a_pair_stays(score: str) -> None:
    """Its separator too; the second one, of the end, is a token like any other."""
    query, document = random_text(6, 1), [8, 9, 10, 11, 12, 13] * 4
    query = [7 if token == SEP else token for token in query]
    pair, alone = [*query, SEP, *document, SEP], [*query, *document]
    model = pruned("bert", steep(score=score, protect_until=SEP))
    logits(model, [pair, alone], extra=2)
    of_pair, of_alone = places(model)
    assert [len(k) for k in of_pair] == [32, 24, 16, 7]
    assert of_pair[3] == set(range(7))
    assert of_alone == [set(range(30))] * 4  # no separator: there is no second text to drop from


@pytest.mark.parametrize("score", ["received", "probe"])
def test_the_best_scored_tokens_are_those_that_stay(score: str) -> None:
    """The state after the first attention, computed with transformers alone."""
    plan = make_plan("bert", (0, "1/3"), score=score)
    text = random_text(12, 1)
    model = pruned("bert", plan)
    logits(model, [text])
    stock = copy.deepcopy(double("bert"))
    stock.set_attn_implementation("eager")
    seen: list[Tensor] = []
    layer = stock.base_model.encoder.layer[0].attention
    layer.register_forward_hook(lambda _m, _i, out: seen.append(out[0]))
    with torch.no_grad():
        attention = stock(**pad([text]), output_attentions=True).attentions[0]  # (1, H, S, S)
    if score == "received":
        scores = attention[0].mean((0, 1))
    else:
        scores = seen[0][0] @ torch.tensor(plan.probe, dtype=torch.float64)
    best = scores[1:].topk(3).indices + 1  # and the first token: 4 of 12
    assert places(model)[0][1] == {0, *best.tolist()}


def test_a_probe_ranks_once() -> None:
    plan = make_plan("bert", (0, "3/4"), (1, "1/2"), (2, "1/4"), score="probe")
    direct = make_plan("bert", (0, "1/4"), score="probe")
    text = random_text(16, 5)
    model, at_once = pruned("bert", plan), pruned("bert", direct)
    logits(model, [text])
    logits(at_once, [text])
    assert places(model)[0][3] == places(at_once)[0][1]


def test_probes_rank_anew_at_every_step() -> None:
    """Each by its own vector: the second step keeps who is best there, not who was best before."""
    steps = ((0, "3/4"), (2, "1/4"))
    plan = make_plan("bert", *steps, score="probes")
    probes = plan.probes
    assert probes.keys() == {0, 2}
    assert probes[0] != probes[2]
    text = random_text(16, 5)
    model = pruned("bert", plan)
    logits(model, [text])
    first = make_plan("bert", (0, "3/4"), score="probe", probe=probes[0])
    alone = pruned("bert", first)
    logits(alone, [text])
    assert places(model)[0][1] == places(alone)[0][1]
    swapped = pruned("bert", replace(plan, probe=probes[0] + probes[0]))
    logits(swapped, [text])
    assert places(swapped)[0][3] != places(model)[0][3]
    negated = pruned("bert", replace(plan, probe=probes[0] + tuple(-x for x in probes[2])))
    logits(negated, [text])
    best, worst = places(model)[0][3], places(negated)[0][3]
    assert best & worst == {0}  # a quarter each, of twelve


def test_embeddings_in_place_of_ids() -> None:
    model = pruned("bert", steep())
    batch = pad(TEXTS)
    given_ids = model(**batch).logits
    embedded = model.base_model.embeddings.word_embeddings(batch.pop("input_ids"))
    assert_same(model(inputs_embeds=embedded, **batch).logits, given_ids)
    with pytest.raises(UserError, match="input_ids"):
        pruned("bert", steep(protect=(5,)))(inputs_embeds=embedded, **batch)
    with pytest.raises(UserError, match="input_ids"):
        pruned("bert", steep(protect_until=SEP))(inputs_embeds=embedded, **batch)


def test_no_mask_means_all_live() -> None:
    model = pruned("bert", steep())
    ids = torch.tensor([TEXTS[0]])
    assert torch.equal(model(ids).logits, model(ids, torch.ones_like(ids)).logits)


def test_strategies_draw_what_they_say() -> None:
    """The properties above mean little if plans rarely drop or never protect."""
    dropped, listed, pairs = [], [], []

    @given(plan=plans("bert"), rows=texts())
    @settings(deadline=None, max_examples=200, derandomize=True)
    def look(plan: Plan, rows: Texts) -> None:
        left = [plan.lengths(len(row), len(guarded(plan, row)))[-1] for row in rows]
        shorter = [k < len(row) for k, row in zip(left, rows, strict=True)]
        dropped.append(any(shorter))
        listed.append(any(token in plan.protect for row in rows for token in row))
        pairs.append(plan.protect_until is not None and any(shorter))

    look()
    assert sum(dropped) > 30
    assert sum(listed) > 30
    assert sum(pairs) > 8
