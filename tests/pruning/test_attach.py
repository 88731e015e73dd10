"""One truth, many executions: what an attached model answers does not depend on how it is run.

Models of double precision: rows in another order change the last bits of a score, and a tie in
single precision would flip a rank once in many thousand runs. Single precision has its own test.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    BertForTokenClassification,
)

from support.models import CONFIGS, FAMILIES, make_model
from support.strategies import (
    LAYERS,
    PAD,
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
from toprune.models.families import FAMILIES as KNOWN
from toprune.models.families.support import support_of
from toprune.models.heads import restore_of, task_outputs
from toprune.plan.plan import Plan, held_tokens
from toprune.pruning.attach import attach, attached, detach
from toprune.pruning.predictor import add_predictors
from toprune.tasks import make_task
from toprune.training.job import dense_plan

Texts = list[list[int]]
SINGLE = ("deberta-v2", "modernbert")  # parts of their stock code are in single precision
every_family = pytest.mark.parametrize("family", FAMILIES)
TEXTS = [random_text(n, n) for n in (24, 7, 15, 2)]


@cache
def double(family: str) -> Any:
    """Of three classes; never attached to: tests work on copies."""
    return make_model(family, num_labels=3).double()


def pruned(family: str, plan: Plan, *, gather: bool = True) -> Any:
    return attach(with_predictors(copy.deepcopy(double(family)), plan), plan, gather=gather)


def with_predictors(model: Any, plan: Plan) -> Any:
    """Those that the plan asks, if it does."""
    if plan.predictor is not None:
        torch.manual_seed(0)
        add_predictors(model, range(LAYERS - 1), plan.predictor, normed=True)
    return model


def steep(family: str = "bert", score: str = "received", **fields: Any) -> Plan:
    return make_plan(family, (0, "3/4"), (1, "1/2"), (2, "1/5"), score=score, **fields)


def assert_same(one: Tensor, other: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=0)
    assert torch.equal(one.argmax(-1), other.argmax(-1))


# -- what is trained -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "task"),
    [
        (family, task)
        for family in FAMILIES
        for task in ("classify", "tokens", "answer")
        if task in support_of(KNOWN[family]).tasks
    ],
)
def test_a_plan_of_no_steps_has_the_gradients_of_the_stock_model(family: str, task: str) -> None:
    """What fine-tuning relies on."""
    kind = make_task(task)
    stock = make_model(family, head=kind.HEAD).double()
    pruned_model = copy.deepcopy(stock)
    attach(pruned_model, dense_plan(pruned_model, restore_of(kind, pruned_model.config)))
    parameters = []
    for model in (stock, pruned_model):
        out = task_outputs(model, kind, pad(TEXTS))[0]
        live = out if out.dim() == 2 else out[pad(TEXTS)["attention_mask"].bool()]
        live.square().sum().backward()
        parameters.append(dict(model.named_parameters()))
    for name, p in parameters[0].items():
        if p.grad is not None:
            other = parameters[1][name].grad
            assert other is not None, name
            close = 1e-5 * (1 + float(p.grad.abs().max()))  # some are zero but for rounding
            torch.testing.assert_close(other, p.grad, atol=close, rtol=0)


# -- what is computed ----------------------------------------------------------------------------


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
                assert stay <= after <= before


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


def places(model: Any) -> list[list[set[int]]]:
    """For each text the original places of the tokens that entered each layer."""
    run = attached(model)
    assert run is not None
    entered = run.entered
    assert len(entered) == LAYERS
    return [
        [set(tokens.index[b][tokens.alive[b]].tolist()) for tokens in entered]
        for b in range(len(entered[0].n))
    ]


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


# -- what is refused -----------------------------------------------------------------------------


@every_family
def test_left_padding_is_refused(family: str) -> None:
    batch = pad(TEXTS)
    model = pruned(family, steep(family))
    with pytest.raises(ValueError, match="left"):
        model(**{name: x.flip(1) for name, x in batch.items()})


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="attention_mask"):
        pruned("bert", steep())(torch.tensor([TEXTS[0]]), torch.ones(1, 1, 24, 24))


def test_a_plan_for_another_model_is_refused() -> None:
    model = copy.deepcopy(double("bert"))
    attach(model, steep())
    before = logits(model, TEXTS)
    for other in (
        steep("roberta"),
        Plan("bert", 6, 32, "received", ()),
        Plan("bert", 4, 64, "received", ()),
    ):
        with pytest.raises(UserError, match="another model"):
            attach(model, other)
    assert torch.equal(logits(model, TEXTS), before)  # and the plan it had is still there


def test_an_unknown_architecture_is_refused() -> None:
    model = copy.deepcopy(double("bert"))
    model.config.model_type = "gpt2"
    with pytest.raises(UserError, match="not known; supported: bert"):
        attach(model, steep())
    decoder = copy.deepcopy(double("bert"))
    decoder.config.is_decoder = True
    with pytest.raises(UserError, match="decoder"):
        attach(decoder, steep())


# -- without a trace -----------------------------------------------------------------------------


@every_family
def test_attach_then_detach_is_exact(family: str) -> None:
    model = make_model(family)
    classes, keys = [type(m) for m in model.modules()], list(model.state_dict())
    before = logits(model, TEXTS)
    plan = steep(family)
    assert attach(model, plan) is model
    assert attached(model) is not None
    assert list(model.state_dict()) == keys
    assert all(isinstance(m, c) for m, c in zip(model.modules(), classes, strict=True))
    assert not torch.equal(logits(model, TEXTS), before)
    attach(model, steep(family, "probe"))  # a second plan replaces the first
    assert detach(model) is model
    assert attached(model) is None
    assert [type(m) for m in model.modules()] == classes
    assert torch.equal(logits(model, TEXTS), before)
    assert torch.equal(logits(detach(model), TEXTS), before)  # detaching twice is harmless


@every_family
def test_a_deepcopy_is_isolated(family: str) -> None:
    model = pruned(family, steep(family))
    before = logits(model, TEXTS)
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin, TEXTS), before)
    run, other = attached(model), attached(twin)
    assert run is not None
    assert other is not None
    assert run is not other
    logits(twin, TEXTS[:1])
    assert run.tokens[0] is not None
    assert len(run.tokens[0].n) == len(TEXTS)  # the original still shows its own last pass
    detach(twin)
    assert torch.equal(logits(model, TEXTS), before)
    assert torch.equal(logits(twin, TEXTS), logits(double(family), TEXTS))


@every_family
def test_save_pretrained_writes_a_stock_model(family: str, tmp_path: Path) -> None:
    stock = make_model(family)
    attach(make_model(family), steep(family)).save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(stock)
    assert type(loaded.base_model) is type(stock.base_model)
    assert torch.equal(logits(loaded, TEXTS), logits(stock, TEXTS))


# -- training ------------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("score", ["received", "probe"])
def test_masked_and_gathered_have_the_same_gradients(family: str, score: str) -> None:
    plan = steep(family, score)
    one, other = (gradients(pruned(family, plan, gather=g)) for g in (True, False))
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if double(name).supports_gradient_checkpointing]
)
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    plan = steep(family, protect=(5,))
    expected = gradients(pruned(family, plan).train())
    model = pruned(family, plan).train()
    model.gradient_checkpointing_enable()
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-9, rtol=1e-9, msg=name)


def gradients(model: Any) -> dict[str, Tensor]:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010
    model(**pad(TEXTS)).logits.square().sum().backward()
    actual = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert len(actual) > 6 * LAYERS
    return actual


def test_attention_dropout_only_while_training() -> None:
    model = pruned("bert", steep())
    assert torch.equal(model(**pad(TEXTS)).logits, model(**pad(TEXTS)).logits)
    model.train()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and "self" not in name:
            module.p = 0.0  # all but that of attention probabilities
    assert not torch.allclose(model(**pad(TEXTS)).logits, model(**pad(TEXTS)).logits)


# -- heads that read every token -----------------------------------------------------------------


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
