"""Targets of the ranking distillation: which layers, what is stored, and how one is chosen."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from support import synthetic
from support.models import make_model, make_tokenizer
from toprune.api import prune
from toprune.methods.top import Top
from toprune.plan.plan import Plan, Step
from toprune.pruning.attach import attach_policy, detach
from toprune.tasks import Classify
from toprune.training.batches import Collate, in_batches
from toprune.training.evaluation import batch_outputs, distance
from toprune.training.job import dense_plan
from toprune.training.settings import Training
from toprune.training.target import (
    TARGETS,
    Oracle,
    record_received,
    target_distances,
    target_layers,
)
from toprune.training.teacher import teach

TEXTS = [" ".join(f"w{(7 * i + j * j) % 60}" for j in range(4 + 3 * i)) for i in range(6)]
FEATURES: list[dict[str, Any]] = [
    {"input_ids": ids, "index": i} for i, ids in enumerate(make_tokenizer()(TEXTS)["input_ids"])
]


def batches() -> list[dict[str, torch.Tensor]]:
    return [batch for _, batch in in_batches(FEATURES, Collate(make_tokenizer()))]


def one_cut(model: Any, layer: int) -> Plan:
    return replace(dense_plan(model), steps=(Step(layer, Fraction(1, 3)),))


def test_layers_of_a_target():
    assert [target_layers(target, 6) for target in TARGETS] == [(5,), (3,), (2, 3, 4)]
    assert target_layers("middles", 12) == (4, 5, 6, 7, 8)
    for layers in range(2, 30):
        for target in TARGETS:
            chosen = target_layers(target, layers)
            assert chosen
            assert 0 <= min(chosen) <= max(chosen) < layers


@pytest.mark.parametrize("target", TARGETS)
def test_the_teacher_stores_the_mean_over_the_layers(target: Any):
    model = make_model().eval()
    stored = teach(
        model, Classify(), FEATURES, Collate(make_tokenizer()), probes=None, target=target
    )
    record = record_received(range(4))
    attach_policy(model, record)
    for feature in FEATURES:
        ids = torch.tensor([feature["input_ids"]])
        with torch.inference_mode():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
        mean = torch.stack([record.values[i] for i in target_layers(target, 4)]).mean(0)[0]
        row = slice(*stored.starts[feature["index"] :][:2])
        scores = torch.from_numpy(stored.scores[row, 0])
        torch.testing.assert_close(scores.exp(), mean, atol=1e-5, rtol=1e-4)


def test_an_oracle_of_the_layers_own_scores_changes_nothing():
    """A plan that drops tokens once ranks by the scores of that layer: the oracle knows them."""
    model = make_model().eval()
    plan, record = one_cut(model, 1), record_received([1])
    for batch, expected in zip(
        batches(), batch_outputs(model, Classify(), batches(), plan), strict=True
    ):
        with torch.inference_mode():
            attach_policy(model, record)
            model(**batch)
            attach_policy(detach(model), Oracle(plan, record.values[0]))
            outputs = model(**batch).logits
        detach(model)
        torch.testing.assert_close(outputs, expected)


def test_the_distance_of_a_target_is_that_of_dropping_by_it():
    """The cut is in the middle layer, so the target `middle` ranks as the plan does by itself."""
    model = make_model()
    plan = one_cut(model, target_layers("middle", 4)[0])
    distances = target_distances(model, Classify(), batches(), plan)
    dense = batch_outputs(model, Classify(), batches())
    own = distance(Classify(), batch_outputs(model, Classify(), batches(), plan), dense, batches())
    assert distances["middle"] == pytest.approx(own, rel=5e-3)
    assert distances["last"] != pytest.approx(own, rel=5e-2)
    assert model.training == make_model().training


@pytest.mark.parametrize("target", ["middles", "auto"])
def test_a_run_learns_from_its_target(target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`auto` takes the one that changes the outputs least."""
    monkeypatch.setattr(
        "toprune.methods.top.target_distances",
        lambda *args: {"last": 0.3, "middle": 0.1, "middles": 0.2},
    )
    chosen = "middle" if target == "auto" else target
    bundle = prune(
        make_model(),
        synthetic.rows(40, 0),
        "2x",
        tokenizer=make_tokenizer(),
        method=Top(target=target),
        score="received",
        training=Training(soft_epochs=0.5, hard_epochs=0),
        known=tmp_path / "known",
    )
    assert bundle.report["ranking"]["target"] == chosen
    assert (tmp_path / "known" / f"teacher-{chosen}").is_dir()
    assert not (tmp_path / "known" / "teacher").exists()


def test_where_no_ranking_is_distilled_nothing_is_chosen():
    bundle = prune(
        make_model(),
        synthetic.rows(40, 0),
        "2x",
        tokenizer=make_tokenizer(),
        method=Top(target="auto"),
        score="probe",
        training=Training(soft_epochs=0.5, hard_epochs=0),
    )
    assert bundle.report["ranking"]["target"] == "probe"
