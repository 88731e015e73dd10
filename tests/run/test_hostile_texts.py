"""Texts from anywhere: every one gets a finite answer or one clear line, whoever stands beside it;
what is no number never chooses tokens; and in pages a text stays a text."""

import html.parser
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toprune
from support.commands import call, save_model, succeed
from support.fuzz_case import make_victim
from support.hostile import LONGEST, MARKUP, TEXTS, hostile_texts
from support.models import make_model, make_tokenizer
from support.report_case import make_compared, make_report
from support.toy_bundle import make_bundle
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.inspection.explain.explain import explain
from toprune.inspection.explain.page import explain_page
from toprune.models.checks import check_finite
from toprune.plan.plan import Plan, Step
from toprune.pruning.predictor import add_predictors
from toprune.report.card import model_card
from toprune.report.html.compared import compare_page
from toprune.report.html.report import report_page
from toprune.run.runner import Runner
from toprune.serve.ui import Form, ui_page
from toprune.tasks import make_task
from toprune.training.batches import Collate
from toprune.training.evaluation import collect_outputs
from toprune.training.features import encode

STEPS = (Step(0, Fraction(1, 2)), Step(2, Fraction(1, 4)))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_runtime_answers_all_of_them(tmp_path: Path, precision: Any):
    """The toy's int8 graph is arithmetic, too: a real one rounds by what is in the batch."""
    run = Runner(make_bundle(tmp_path), precision=precision, threads=1)
    texts = [text for _, text in hostile_texts(6 * len(TEXTS))]
    together = run(texts)
    assert np.isfinite(together).all()
    np.testing.assert_array_equal(together, np.concatenate([run([text]) for text in texts]))
    assert len(run.predict(texts)) == len(texts)


def test_ten_megabytes(tmp_path: Path):
    run = Runner(make_bundle(tmp_path), threads=1)
    one, long, other = run(["w1", "w2 " * (LONGEST // 3), "w1"])
    np.testing.assert_array_equal(one, other)
    assert np.isfinite(long).all()


@pytest.mark.parametrize("score", ["received", "probe"])
def test_torch_answers_all_of_them(score: Any):
    tokenizer, task = make_tokenizer(), make_task("classify")
    drawn = [text for kind, text in hostile_texts(6 * len(TEXTS), 1)]
    texts = [text for text in drawn if tokenizer.tokenize(text.encode("utf-8", "replace").decode())]
    assert len(texts) > 4 * len(TEXTS)
    probe = tuple(i / 32 for i in range(32)) if score == "probe" else None
    model = toprune.attach(make_model(), Plan("bert", 4, 32, score, STEPS, probe))

    def outputs(texts_read: list[str]) -> np.ndarray:
        features = encode(tokenizer, task, Examples(texts_read), 24)
        return np.stack(collect_outputs(model, task, features, Collate(tokenizer)))

    alone = np.concatenate([outputs([text]) for text in texts[:: len(texts) // 20]])
    np.testing.assert_allclose(outputs(texts)[:: len(texts) // 20], alone, atol=1e-5)


def test_bulk_work(tmp_path: Path):
    """Rows with a text are answered, the others named; half a character comes through."""
    bundle = make_bundle(tmp_path / "bundle")
    texts = [text for kind, text in hostile_texts(2 * len(TEXTS), 2)]
    data, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ("eval", bundle, "--data", data, "--runtime", "onnx", "--out", out)
    done = call(*words)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    assert not out.exists()
    succeed(*words, "--skip-bad-rows")
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(TEXTS) < len(rows) < len(texts)
    assert {row["label"] for row in rows} <= {"no", "yes", "maybe"}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_victim(tmp_path_factory.mktemp("hostile") / "victim")


def test_explain_shows_or_refuses(victim: Path, tmp_path: Path):
    for i, (kind, text) in enumerate(hostile_texts(2 * len(TEXTS), 3)):
        page = tmp_path / f"{i}.html"
        done = call("explain", victim, "--html", page, "--", text)
        assert done.exit_code in (0, 2), (kind, done.output)
        if done.exit_code == 2:
            assert len(done.stderr.splitlines()) == 1
            assert not page.exists()
        explained = call("explain", victim, "--", text)
        assert explained.exit_code == done.exit_code, (kind, explained.output, explained.exception)


# -- what is no number -----------------------------------------------------------------------------


def batch() -> dict[str, torch.Tensor]:
    return dict(make_tokenizer()(["w1 w2 w3 w4 w5 w6 w7 w8"], return_tensors="pt"))


@pytest.mark.parametrize("flaw", [float("nan"), float("inf")])
@pytest.mark.parametrize("score", ["received", "probe"])
def test_scores_that_are_no_numbers_choose_nothing(score: Any, flaw: float):
    probe = (1.0,) * 32 if score == "probe" else None
    model = make_model()
    attention = model.bert.encoder.layer[0].attention.self
    spoiled = attention.query if score == "received" else attention.value
    spoiled.weight.data[3, 3] = flaw
    with pytest.raises(UserError, match=r"layer.0.attention.self.* is not a number"):
        check_finite(model, "here")
    toprune.attach(model, Plan("bert", 4, 32, score, STEPS, probe))
    with torch.no_grad(), pytest.raises(UserError, match=r"layer 1 are not numbers.*check the w"):
        model(**batch())


def test_predictors_that_are_no_numbers_choose_nothing():
    """States stay clean, so the answer would look like any other."""
    model = make_model()
    made: Any = add_predictors(model, [0, 2], 8, normed=True)
    toprune.attach(model, Plan("bert", 4, 32, "predicted", STEPS, predictor=8))
    with torch.no_grad():
        assert model(**batch()).logits.isfinite().all()
        made["2"].keep.bias.data[:] = torch.nan
        with pytest.raises(UserError, match="layer 3 are not numbers"):
            model(**batch())
    with pytest.raises(UserError, match=r"token_predictors.2.keep.bias in here is not a number"):
        check_finite(model, "here")


def test_a_probe_beyond_float32_is_no_probe():
    for number in (1e39, -1e300, float("nan"), float("inf")):
        with pytest.raises(UserError, match="the probe is not finite"):
            Plan("bert", 4, 2, "probe", STEPS, (0.0, number))
        with pytest.raises(UserError, match="finite number"):
            Step(0, Fraction(1, 2), number)


def test_answers_that_are_no_numbers(tmp_path: Path):
    model = make_model(num_labels=2)
    model.classifier.bias.data[1] = torch.inf
    tokenizer, task = make_tokenizer(), make_task("classify")
    features = encode(tokenizer, task, Examples(["w1", "w2 w3"]), 24)
    with pytest.raises(UserError, match=r"answer to row 2 is not a number"):
        collect_outputs(model, task, features, Collate(tokenizer))
    save_model(tmp_path, model)
    with pytest.raises(UserError, match=r"classifier.bias in .* is not a number"):
        toprune.Bundle.load(tmp_path)


# -- pages -----------------------------------------------------------------------------------------


class Seen(html.parser.HTMLParser):
    """Elements, and attributes that run code."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.runs: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.runs += [name for name, _ in attrs if name.startswith("on") or name == "srcdoc"]


def everywhere(found: Any, text: str) -> Any:
    """The text in place of every string, and behind every name."""
    if isinstance(found, dict):
        return {key: everywhere(part, text) for key, part in found.items()}
    if isinstance(found, list):
        return [everywhere(part, text) for part in found]
    return text if isinstance(found, str) else found


@pytest.mark.parametrize("text", MARKUP)
def test_a_text_stays_a_text(text: str, victim: Path):
    calm, hostile = make_report(), make_report()
    for report, word in ((calm, "word"), (hostile, text)):
        report["classes"] = everywhere(report["classes"], word)
        report["changed"] = everywhere(report["changed"], word)
        report["provenance"] = everywhere(report["provenance"], word)
        report["budget"]["asked"] = word
    found, hostile_explained = (explain(victim, [f"w1 {word} w2"]) for word in ("word", text))
    compared = [everywhere(make_compared(), word) for word in ("word", text)]
    for one in compared:
        one["metric"] = "accuracy"
    pages = {
        "report": (report_page(calm), report_page(hostile)),
        "explain": (explain_page(found), explain_page(hostile_explained)),
        "compare": (compare_page(compared[0]), compare_page(compared[1])),
        "ui": tuple(
            ui_page(Form([word], 0, ("First text", "Second text"), (word, word)), error=word)
            for word in ("word", text)
        ),
    }
    for name, (plain, made) in pages.items():
        made.encode("utf-8")
        assert not Seen(made).runs, name
        for tag in ("script", "img", "style", "title", "iframe", "textarea"):
            assert Seen(made).tags.count(tag) == Seen(plain).tags.count(tag), (name, tag)


def test_the_card_holds_no_texts(tmp_path: Path):
    report = make_report() | {"max_length": 24, "kept_per_layer": [9, 5, 3, 2]}
    for part in ("classes", "changed"):
        report[part] = everywhere(report[part], "a user's own words")
    assert "own words" not in model_card(tmp_path, report)
