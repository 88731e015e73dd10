"""The Python face, as design.md writes it: objects in, a bundle out."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from toprune.errors import UserError
from toprune.plan.plan import Score
from toprune.pruning.attach import attached
from toprune.training import stages
from toprune.training.settings import Training

NO_TRAINING = Training(soft_epochs=0, hard_epochs=0)
DATA = {"train": synthetic.rows(64, 0), "test": synthetic.rows(32, 1)}


def test_prune_without_out_returns_a_bundle_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bundle = toprune.prune(
        make_model(), DATA, budget="2x", tokenizer=make_tokenizer(), training=NO_TRAINING
    )
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(2, rel=0.01)
    assert not list(tmp_path.iterdir())
    assert bundle.plan is not None
    model = toprune.attach(bundle.model, bundle.plan)
    ids = torch.tensor([[0, 10, 20, 30, 2]])
    assert model(input_ids=ids).logits.shape == (1, 2)


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_a_tokenizer_with_segments_serves_a_model_without(family):
    bundle = toprune.prune(
        make_model(family), DATA, "2x", tokenizer=make_tokenizer("bert"), training=NO_TRAINING
    )
    assert bundle.plan is not None
    assert bundle.plan.family == family


def test_saved_bundle_evaluates_like_the_pruned_model(tmp_path):
    bundle = toprune.prune(
        make_model(),
        DATA,
        "2x",
        tokenizer=make_tokenizer(),
        training=NO_TRAINING,
        out=tmp_path / "small",
    )
    report = toprune.evaluate(tmp_path / "small", DATA["test"])
    assert report["metrics"]["accuracy"] == bundle.report["pruned"]["accuracy"]


def test_model_object_from_nowhere_needs_a_tokenizer():
    with pytest.raises(UserError, match="tokenizer="):
        toprune.prune(make_model(), DATA, "2x", training=NO_TRAINING)


def test_what_is_known_of_a_dense_model_is_not_asked_again(tmp_path, monkeypatch):
    """Other scores and budgets use it, with the same outcome; other texts may not."""
    calls = []
    for name in ("fit_probes", "teach"):
        real = getattr(stages, name)
        counting = partial(lambda n, r, *a, **k: calls.append(n) or r(*a, **k), name, real)
        monkeypatch.setattr(stages, name, counting)

    def pruned(data=DATA, budget="2x", score: Score = "probe", bf16=False, **more):
        training = Training(soft_epochs=0.5, hard_epochs=0.5, lr=1e-3, bf16=bf16)
        return toprune.prune(
            make_model(),
            data,
            budget,
            tokenizer=make_tokenizer(),
            training=training,
            score=score,
            **more,
        )

    alone = pruned()
    assert calls == ["fit_probes", "teach"]
    known = tmp_path / "known"
    pruned(budget="3x", known=known)
    calls.clear()
    shared = pruned(known=known)
    assert calls == []
    assert shared.plan is not None
    assert alone.plan is not None
    assert shared.plan.steps == alone.plan.steps
    weights, other = alone.model.state_dict(), shared.model.state_dict()
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    pruned(score="received", known=known)
    assert calls == ["teach"]  # with other scores for the ranking to be distilled from
    with pytest.raises(UserError, match="of another model or of other texts"):
        pruned({"train": synthetic.rows(64, 5), "test": DATA["test"]}, known=known)
    with pytest.raises(UserError, match="another --bf16; choose"):
        pruned(bf16=True, known=known)


@pytest.mark.parametrize("bf16", [False, True])
def test_bfloat16_is_for_training_alone(bf16, tmp_path):
    """Products while training; weights, answers and losses are float32 all the same."""
    model, seen = make_model(), set()

    def listen(module, inputs, output):
        seen.add((module.training, output.dtype))

    model.classifier.register_forward_hook(listen)
    training = Training(soft_epochs=0, hard_epochs=1, label_weight=1, bf16=bf16)
    out, tokenizer = tmp_path / "out", make_tokenizer()
    toprune.finetune(model, DATA, out=out, tokenizer=tokenizer, training=training)
    while_training = torch.bfloat16 if bf16 else torch.float32
    assert seen == {(True, while_training), (False, torch.float32)}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("training", "method"),
    [
        (Training(1, 0, token_states=True), "top"),
        (Training(0, 1, token_states=True, state_weight=0), "top"),
        (Training(0, 1, token_states=True), "pool"),
    ],
)
def test_states_of_tokens_that_nothing_would_teach_are_refused(training, method):
    with pytest.raises(UserError, match="--token-states"):
        toprune.prune(
            make_model(), DATA, "2x", tokenizer=make_tokenizer(), method=method, training=training
        )


@pytest.mark.parametrize(("dropout", "is_on"), [(None, True), (True, True), (False, False)])
def test_fine_tuning_has_dropout_unless_told(dropout, is_on, tmp_path):
    model, seen = make_model(), []
    model.classifier.register_forward_hook(lambda module, *_: seen.append(module.training))
    training = Training(soft_epochs=0, hard_epochs=1, label_weight=1, dropout=dropout)
    tokenizer = make_tokenizer()
    toprune.finetune(model, DATA, out=tmp_path / "out", tokenizer=tokenizer, training=training)
    assert seen[0] is is_on  # the first batch is one that is trained
    assert seen[-1] is False


def test_fine_tuning_leaves_the_model_as_it_came(tmp_path, monkeypatch):
    """It runs under a plan of no steps, which is gone afterwards, whatever happened."""
    model, tokenizer = make_model(), make_tokenizer()
    training = Training(soft_epochs=0, hard_epochs=1, label_weight=1)
    runs = []
    model.classifier.register_forward_hook(lambda *_: runs.append(attached(model)))
    toprune.finetune(model, DATA, out=tmp_path / "a", tokenizer=tokenizer, training=training)
    assert runs[0] is not None
    assert attached(model) is None

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("toprune.api.train", fail)
    with pytest.raises(KeyboardInterrupt):
        toprune.finetune(model, DATA, out=tmp_path / "b", tokenizer=tokenizer, training=training)
    assert attached(model) is None


def test_prune_learns_from_unlabelled_texts_too():
    """The budget and the metrics are those of the labelled data; the further texts are longer."""
    more = [{"text": " ".join(f"w{i}" for i in range(10, 50))}] * 2 + [{"text": "w11 w12 w13"}]
    one, other = (
        toprune.prune(
            make_model(),
            toprune.Data(DATA, unlabelled=sources),
            "2x",
            tokenizer=make_tokenizer(),
            training=Training(soft_epochs=0, hard_epochs=1),
        )
        for sources in ((), (more,))
    )
    settings = [bundle.report["provenance"]["settings"] for bundle in (one, other)]
    assert [s["examples"] for s in settings] == [64, 66]  # one of the further texts is there twice
    assert settings[0]["lengths"] == settings[1]["lengths"]
    assert one.report["dense"] == other.report["dense"]
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_a_budget_can_be_for_other_lengths_than_those_of_the_training_texts():
    """Longer texts count, nothing is learned from them, and they need no column of labels."""
    served = [{"text": " ".join(f"w{i}" for i in range(10, 50))}] * 3
    bundle = toprune.prune(
        make_model(),
        toprune.Data(DATA, toprune.Columns(label="label"), lengths_of=served),
        "2x",
        tokenizer=make_tokenizer(),
        training=NO_TRAINING,
    )
    settings = bundle.report["provenance"]["settings"]
    assert settings["lengths"] == {"42": 3}  # with the two special tokens
    assert settings["examples"] == 64
    assert abs(bundle.report["budget"]["executed"]["unpadded"] / 2 - 1) < 0.01
    pairs = [{"text": "w11", "text_pair": "w12"}]
    with pytest.raises(UserError, match="the texts of --lengths-of have pairs"):
        toprune.prune(
            make_model(), toprune.Data(DATA, lengths_of=pairs), "2x", tokenizer=make_tokenizer()
        )


def test_unlabelled_texts_have_their_limits(tmp_path: Path):
    data = toprune.Data(DATA, unlabelled=(synthetic.rows(8, 2),))
    options: Any = {"tokenizer": make_tokenizer(), "out": tmp_path / "out"}
    with pytest.raises(UserError, match="label-weight"):
        toprune.prune(make_model(), data, "2x", training=Training(label_weight=1), **options)
    with pytest.raises(UserError, match="prune"):
        toprune.finetune(make_model(), data, **options)
    reported = toprune.Data(DATA, unlabelled=(DATA["test"],))
    with pytest.raises(UserError, match="32 unlabelled"):
        toprune.prune(make_model(), reported, "2x", training=NO_TRAINING, **options)
    assert not (tmp_path / "out").exists()
