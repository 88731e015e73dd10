"""A bundle with a safety net, from `prune --fallback` to the exported files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from support.refusals import one_line_error
from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.data.sets import apart_from
from toprune.export.export import export
from toprune.inspection.explain.explain import explain
from toprune.inspection.explain.explanation import fallback_text
from toprune.run.runner import Runner
from toprune.tasks import Classify
from toprune.tasks.fallback import Fallback
from toprune.training.safety_net import SHARE, TRAINED, set_aside
from toprune.training.settings import Training

NO_TRAINING = Training(soft_epochs=0, hard_epochs=0)
DATA = {"train": synthetic.rows(150, 0), "test": synthetic.rows(60, 1)}


def pruned(out: Path | None = None, budget: str = "1.5x", **options: Any) -> Bundle:
    options = {"task": "classify", "fallback": "90%", "training": NO_TRAINING} | options
    data = options.pop("data", DATA)
    return toprune.prune(make_model(), data, budget, tokenizer=make_tokenizer(), out=out, **options)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("net") / "bundle"
    pruned(out)
    export(out)
    return out


def test_both_models_together_meet_the_budget(bundle: Path):
    report = json.loads((bundle / "report.json").read_text())
    entry, budget = report["fallback"], report["budget"]
    assert budget["asked"] == "1.5x"
    assert entry["cost"] <= 1 / 1.5
    assert budget["executed"]["unpadded"] == pytest.approx(1 / entry["cost"], rel=0.01)
    assert entry["pruned_executed"]["unpadded"] > budget["executed"]["unpadded"]
    assert entry["texts"] == SHARE * 150  # and none of them was trained on
    assert report["provenance"]["settings"]["examples"] == (1 - SHARE) * 150
    deepest = entry["curves"][0]
    assert deepest["cost"] == pytest.approx(TRAINED / 1.5, rel=0.02)
    assert entry["curves"][entry["chosen"]]["points"][0][0] == pytest.approx(
        1 / entry["pruned_reduction"]
    )


def test_the_runtime_answers_as_was_reported(bundle: Path):
    report = json.loads((bundle / "report.json").read_text())
    run, texts = Runner(bundle, threads=1), [row["text"] for row in DATA["test"]]
    predictions = run.predict(texts)
    held_out = report["fallback"]["held_out"]
    assert sum(one["fallback"] for one in predictions) == held_out["fallen"]
    dense = Runner(bundle / "dense", threads=1)(texts)
    agreed = np.mean(run(texts).argmax(1) == dense.argmax(1))
    assert agreed == pytest.approx(held_out["agreement"]) == pytest.approx(report["agreement"])
    alone = Runner(bundle, threads=1, fallback=False)(texts)
    assert np.mean(alone.argmax(1) == dense.argmax(1)) <= agreed


def test_torch_evaluates_with_the_net(bundle: Path):
    report = json.loads((bundle / "report.json").read_text())
    evaluated = toprune.evaluate(bundle, DATA["test"])
    assert evaluated["metrics"] == report["pruned"]
    assert evaluated["fallback"]["fallen"] == report["fallback"]["held_out"]["fallen"]


def test_explain_names_the_model_that_answers(bundle: Path):
    texts = [row["text"] for row in DATA["test"]]
    fell = [one["fallback"] for one in Runner(bundle, threads=1).predict(texts)]
    assert 0 < sum(fell) < len(fell)
    explained = explain(bundle, texts)
    assert [one.fell for one in explained.texts] == fell
    assert [fallback_text(one).startswith("dense") for one in explained.texts] == fell


def test_the_dense_model_is_the_one_that_was_pruned(bundle: Path):
    weights = make_model().state_dict()
    dense = Bundle.load(bundle).dense
    assert dense is not None
    for name, tensor in dense.model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), weights[name].numpy())


def test_a_bundle_in_memory_saves_its_net(tmp_path: Path):
    made = pruned()
    made.save(tmp_path / "saved")
    again = Bundle.load(tmp_path / "saved")
    assert again.fallback == made.fallback
    assert again.dense is not None
    assert "Fallback: 90 %" in (tmp_path / "saved" / "README.md").read_text()


def test_a_bundle_that_lost_its_dense_model(tmp_path: Path):
    made = pruned()
    made.dense = None
    made.save(tmp_path / "saved")
    with one_line_error("has a fallback.json but no dense/"):
        Bundle.load(tmp_path / "saved")


def test_a_corrupted_fallback_is_refused(tmp_path: Path):
    pruned().save(tmp_path / "saved")
    (tmp_path / "saved" / "fallback.json").write_text("[1]")
    with one_line_error("fallback.json: it must be a JSON object"):
        Bundle.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallback": "0%"}, "--fallback 0% is not a share below 100 %"),
        ({"fallback": "120%"}, "--fallback 120% is not a share below 100 %"),
        ({"budget": "1.2x,1.5x"}, "--fallback needs one budget"),
        ({"budget": "3.8x"}, "budget 3.8x with a fallback is out of reach"),
        ({"method": "truncate"}, "but this method cuts texts"),
    ],
)
def test_requests_that_cannot_be(options: dict[str, Any], words: str):
    with one_line_error(words):
        pruned(**options)


def test_texts_are_set_aside_from_all_that_is_learned_from():
    train = Examples([f"text {i}" for i in range(100)], labels=[i % 2 for i in range(100)])
    rest, aside = set_aside(train, 0, Classify())
    assert (len(rest), len(aside)) == (80, 20)
    assert not {*rest.texts} & {*aside.texts}
    more = Examples([*train.texts, "another"])
    assert sorted(apart_from(more, aside, Classify.READS).texts) == sorted([*rest.texts, "another"])


def test_the_default_has_no_net(tmp_path: Path):
    made = pruned(fallback=None)
    assert (made.fallback, made.dense) == (None, None)
    assert Fallback.load(tmp_path) is None
