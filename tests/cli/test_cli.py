"""The command line from end to end on tiny models; bad input is in test_bad_inputs.py."""

import html
import inspect
import json
import re
import shlex
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import synthetic
from support.commands import call, refused, save_model, succeed
from support.models import make_model, make_tokenizer
from support.tables import Rows, write_rows
from toprune import cli
from toprune.bundle.bundle import Bundle
from toprune.cli import demo, parse
from toprune.methods import METHODS
from toprune.methods.drop_layers import DropLayers
from toprune.methods.top import Top
from toprune.models.load import fingerprint
from toprune.models.sentence_transformers import read_pooling, read_prompts, write_pooling
from toprune.plan.plan import Plan
from toprune.tasks.embed import Embed
from toprune.training.settings import Training


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model and data that are in order; tests must not change it."""
    place = tmp_path_factory.mktemp("place")
    save_model(place / "model")
    write_rows(place / "data.jsonl", synthetic.rows(60, 0))
    return place


# -- what works ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_from_model_to_bundle(place: Path, tmp_path: Path):
    data = ("--data", place / "data.jsonl")
    dense, small = tmp_path / "dense", tmp_path / "small"
    out = succeed("finetune", "--model", place / "model", *data, "--epochs", 1, "--out", dense)
    assert f"The model is in {dense}" in out
    out = succeed("prune", "--model", dense, *data, "--budget", "2x", "--epochs", 0, "--out", small)
    assert "dense" in out
    assert "against unpadded inputs (real)" in out
    assert "against inputs padded to the maximum (66)" in out
    assert "Tokens that enter layers 1 to 4" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense", "small"]

    report = json.loads(succeed("eval", small, *data, "--json"))
    assert report["examples"] == 60
    assert report["executed"]["unpadded"] == pytest.approx(2, rel=0.01)
    assert report["executed"]["padded"] > report["executed"]["unpadded"]
    assert "accuracy" in succeed("eval", small, *data)
    assert "executed" not in json.loads(succeed("eval", dense, *data, "--json"))

    plan = small / "plan.json"
    assert "of the original tokens" in succeed("plan", "show", plan)
    assert json.loads(succeed("plan", "show", plan, "--json"))["family"] == "bert"
    assert f"fits {dense}" in succeed("plan", "check", plan, "--model", dense)
    assert json.loads(succeed("plan", "check", plan, "--json"))["sound"] is True


@pytest.mark.slow
def test_from_bundle_to_the_fast_file(place: Path, tmp_path: Path):
    data, small = place / "data.jsonl", tmp_path / "small"
    succeed(
        "prune",
        "--model",
        place / "model",
        "--data",
        data,
        "--budget",
        "2x",
        "--epochs",
        0,
        "--out",
        small,
    )
    done = json.loads(succeed("export", small, "--int8", "--data", data, "--json"))
    assert set(done["measured"]) == {"fp32", "int8"}
    assert json.loads((small / "report.json").read_text())["onnx"] == done["measured"]
    torch_says = json.loads(succeed("eval", small, "--data", data, "--json"))
    onnx_says = json.loads(succeed("eval", small, "--data", data, "--runtime", "onnx", "--json"))
    assert torch_says["metrics"] == onnx_says["metrics"] == done["measured"]["fp32"]["metrics"]
    out = tmp_path / "out.jsonl"
    succeed("eval", small, "--data", data, "--runtime", "onnx", "--precision", "int8", "--out", out)
    again = ("--runtime", "onnx", "--out", out)
    refused(call("eval", small, "--data", data, *again), "--overwrite")
    refused(call("eval", small, "--data", data, *again, "--label", "label"), "for metrics")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == len(data.read_text().splitlines())
    assert {"text", "label", "predicted_label", "predicted_score"} <= rows[0].keys()


def test_bench_side_by_side(place: Path, tmp_path: Path):
    data, small = place / "data.jsonl", tmp_path / "small"
    succeed(
        "prune",
        "--model",
        place / "model",
        "--data",
        data,
        "--budget",
        "2x",
        "--epochs",
        0,
        "--out",
        small,
    )
    refused(call("bench", small), "toprune export")
    succeed("export", small)
    report = json.loads(succeed("bench", small, "--data", data, "--rounds", 5, "--json"))
    assert {"dense fp32", "pruned fp32", "dense int8", "pruned int8"} <= report["rows"][0][
        "ms_per_text"
    ].keys()
    args = ("bench", small, "--lengths", "8,16", "--rounds", 5, "--fp32")
    assert "latency" not in json.loads((small / "report.json").read_text())
    out = succeed(*args, "--save")
    assert "worth it" in out
    assert f"The times are also in {small / 'report.html'}" in out
    saved = json.loads((small / "report.json").read_text())["latency"]
    assert [row["name"] for row in saved["rows"]] == ["length 8", "length 16"]
    refused(call("bench", small, "--lengths", "8,x"), "--lengths")
    refused(call("bench", small, "--lengths", "500"), "lengths must be")


def test_prune_with_training_says_json_and_nothing_else(place: Path, tmp_path: Path):
    options = ("--epochs", 2, "--score", "received", "--batch-size", 16, "--bf16")
    options = (*options, "--token-states")
    more = ("--set", "first=1", "--set", "gates=false", "--set", "constraint=lagrangian")
    more = (*more, "--set", "distill=mse", "--protect", "w1")
    out = succeed(
        *("prune", "--model", place / "model", "--data", place / "data.jsonl", "--budget", "1.5x"),
        *("--out", tmp_path / "small", "--json", *options, *more),
    )
    report = json.loads(out)
    settings = report["provenance"]["settings"]
    assert settings["training"]["soft_epochs"] == settings["training"]["hard_epochs"] == 1
    assert (
        settings["method_settings"] | {"first": 1, "gates": False, "distill": "mse"}
        == settings["method_settings"]
    )
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.01)
    plan = Plan.load(tmp_path / "small" / "plan.json")
    assert [step.layer for step in plan.steps] == [1, 2]
    assert plan.score == "received"
    assert len(plan.protect) == 1
    _done_again(tmp_path / "small", tmp_path / "again")


def _done_again(bundle: Path, out: Path) -> None:
    """The command that the report page shows makes the same bundle."""
    page = (bundle / "report.html").read_text()
    shown = re.findall(r"<pre><code>(.*toprune prune.*?)</code></pre>", page)
    assert len(shown) == 1
    words = shlex.split(html.unescape(re.sub("<.*?>", "", shown[0])))
    assert words[:2] == ["toprune", "prune"]
    succeed(*(str(out) if word == "BUNDLE" else word for word in words[1:]))
    first, second = (Bundle.load(folder) for folder in (bundle, out))
    assert first.plan is not None
    assert second.plan is not None
    assert first.plan.steps == second.plan.steps
    assert first.plan.protect == second.plan.protect
    assert fingerprint(first.model) == fingerprint(second.model)


@pytest.mark.slow
def test_three_trials_choose_the_weight(place: Path, tmp_path: Path):
    out = succeed(
        *("prune", "--model", place / "model", "--data", place / "data.jsonl", "--budget", "2x"),
        *("--epochs", 2, "--set", "distill_weight=auto", "--out", tmp_path / "small", "--json"),
    )
    settings = json.loads(out)["provenance"]["settings"]
    assert settings["method_settings"]["distill_weight"] in (1e-2, 1e-3, 1e-4)


@pytest.mark.slow
def test_labels_are_optional(place: Path, tmp_path: Path):
    texts = [{"text": row["text"]} for row in synthetic.rows(40, 0)]
    data = ("--data", write_rows(tmp_path / "texts.jsonl", texts))
    out = succeed(
        *("prune", "--model", place / "model", *data, "--budget", "2x"),
        *("--epochs", 0, "--out", tmp_path / "small"),
    )
    assert "no labels, so there are no metrics" in " ".join(out.split())


@pytest.mark.slow
def test_overwrite_replaces(place: Path, tmp_path: Path):
    out = tmp_path / "small"
    out.mkdir()
    (out / "old").touch()
    words = ("prune", "--model", place / "model", "--data", place / "data.jsonl", "--budget", "2x")
    succeed(*words, "--epochs", 0, "--out", out, "--overwrite")
    assert (out / "plan.json").exists()
    assert not (out / "old").exists()


@pytest.mark.slow
def test_class_names_mean_the_same_in_every_set(tmp_path: Path):
    """A test set without some class, or in another order, must not shift the ids."""
    model = make_model(num_labels=3)
    model.config.id2label = {0: "neutral", 1: "bad", 2: "good"}
    model.config.label2id = {name: i for i, name in model.config.id2label.items()}
    folder = save_model(tmp_path / "model", model)
    rows = synthetic.rows(40, 0)
    named = [row | {"label": ("bad", "good")[row["label"]]} for row in rows]
    numbered = [row | {"label": row["label"] + 1} for row in rows]
    reports = [
        json.loads(succeed("eval", folder, "--json", "--data", write_rows(tmp_path / name, data)))
        for name, data in (("named.jsonl", named), ("numbered.jsonl", numbered))
    ]
    assert reports[0] == reports[1]


def test_defaults_are_those_of_the_library():
    options = inspect.signature(cli.prune).parameters
    training = Training()
    names = (
        "epochs",
        "soft_epochs",
        "soft_steps",
        "lr",
        "mask_lr",
        "sparsity_warmup",
        "batch_size",
        "accumulation",
        "label_weight",
    )
    for name in (*names, "token_states", "bf16", "seed", "report_to"):
        assert options[name].default == getattr(training, name)
    assert parse.method("top", (), {}) == (Top(), False)
    assert parse.method("top", ["distill_weight=auto"], {}) == (Top(), True)


@pytest.mark.parametrize(
    ("name", "pairs", "settings"),
    [
        ("top", ["bins=7", "gates=false", "distill=mse"], Top(bins=7, gates=False, distill="mse")),
        ("top", ["distill_weight=auto", "distill_weight=1e-2"], Top(distill_weight=0.01)),
        ("drop_layers", ["layers=3"], DropLayers(layers=3)),
        ("drop_layers", ["layers=3", "layers=none"], DropLayers()),
    ],
)
def test_settings_are_read_by_their_type(name: str, pairs: list[str], settings: Any):
    assert parse.method(name, pairs, {}) == (settings, False)


def test_settings_win_over_a_recipe():
    assert parse.method("top", ["bins=7"], {"bins": 9, "top_k": 5}) == (Top(bins=7, top_k=5), False)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("--bins", 20), "--set bins=20"),
        (("--top-k=5",), "--set top_k=5"),
        (("--first-layer", 1), "--set first=1"),
        (("--no-gates",), "--set gates=false"),
        (("--distill-weight", "auto"), "--set distill_weight=auto"),
        (("--constraint", "lagrangian"), "--set constraint=lagrangian"),
        (("--distill", "mse"), "--set distill=mse"),
    ],
)
def test_an_old_option_names_the_setting(words: tuple[Any, ...], instead: str):
    refused(call("prune", "--model", "m", "--budget", "2x", *words, "--out", "o"), instead)


def test_methods_and_their_settings():
    listed = json.loads(succeed("methods", "--json"))["methods"]
    assert [one["name"] for one in listed] == list(METHODS)
    for one in listed:
        assert not one["summary"].startswith(METHODS[one["name"]].__name__ + "(")  # dataclass's own
        settings = json.loads(succeed("methods", one["name"], "--json"))["settings"]
        assert [setting["name"] for setting in settings] == [
            field.name for field in fields(METHODS[one["name"]])
        ]
        assert all(setting["help"].endswith(".") for setting in settings)
    shown = succeed("methods", "top")
    assert "distill_weight" in shown
    assert "or auto" in " ".join(shown.split())
    assert "power_bert" in succeed("methods")
    refused(call("methods", "magic"), "method 'magic' is not known")


def test_help_without_arguments():
    done = call()
    assert done.exit_code == 0
    assert "toprune prune --model" in done.stdout


@pytest.mark.slow
def test_demo_on_a_tiny_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = save_model(tmp_path / "model", synthetic.untrained())
    monkeypatch.setattr(demo, "model_directory", lambda: folder)
    monkeypatch.setattr(demo, "read_reviews", lambda: synthetic.rows(200, 0))
    size = demo.Size(80, 40, 20, 32, dense_epochs=1, soft_epochs=1, hard_epochs=1, minutes=1)
    monkeypatch.setattr(demo, "QUICK", size)
    out = tmp_path / "demo"
    done = call("demo", "--quick", "--out", out)
    assert done.exit_code == 0, done.output
    assert "About 1 minute" in done.stderr
    assert "20 examples that training never saw" in done.stdout
    assert "against inputs padded to the maximum (32)" in done.stdout
    assert "model_int8.onnx" in done.stdout
    assert "times faster, 1 thread" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["dense", "pruned", "trade.svg"]
    refused(call("demo", "--quick", "--out", out), "--overwrite")


def test_demo_splits_apart():
    reviews = [{"text": str(i), "label": i % 2} for i in range(1000)]
    sets = demo.split(reviews, 300, 100, 100)
    learned, test = (
        {r["text"] for n in names for r in sets[n]}
        for names in (("train", "unlabelled"), ("test",))
    )
    assert (len(learned), len(test)) == (400, 100)
    assert max(map(int, learned)) < 800 <= min(map(int, test))
    assert sum(row["label"] for row in sets["test"]) == 50


def test_demo_data_is_what_it_was():
    assert (demo.model_directory() / "config.json").exists()
    reviews = demo.read_reviews()
    assert len({row["text"] for row in reviews}) == len(reviews) > 20_000


# -- what does not ---------------------------------------------------------------------------------


def _plan(**changes: Any) -> Plan:
    fields = {"family": "bert", "n_layers": 4, "width": 32, "score": "received", "steps": ()}
    return Plan(**fields | changes)


def test_plan_for_another_model(place: Path, tmp_path: Path):
    folder = tmp_path / "bundle"
    shutil.copytree(place / "model", folder)
    _plan(n_layers=12, width=384).save(folder / "plan.json")
    refused(call("eval", folder, "--data", place / "data.jsonl"), "prune this one")
    check = ("plan", "check", folder / "plan.json")
    assert call(*check).exit_code == 0
    refused(call(*check, "--model", place / "model"), "plan is for another model")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', "\x00\xff", '{"schema": 1, "family": 3}']
)
def test_unreadable_plan(text: str, place: Path, tmp_path: Path):
    folder = tmp_path / "bundle"
    shutil.copytree(place / "model", folder)
    (folder / "plan.json").write_bytes(text.encode("latin-1"))
    refused(call("plan", "show", folder / "plan.json"), "plan: ")
    refused(call("eval", folder, "--data", place / "data.jsonl"), "plan: ")


def test_debug_shows_the_traceback(place: Path):
    done = call("plan", "show", place / "none", "--debug")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("toprune: plan: cannot read")


@pytest.mark.slow
def test_nan_keeps_the_last_good_checkpoint(place: Path, tmp_path: Path):
    words = ("finetune", "--model", place / "model", "--data", place / "data.jsonl", "--epochs", 1)
    more = ("--batch-size", 8, "--save-steps", 1, "--out", tmp_path / "dense")
    done = call(*words, *more, "--lr", "1e30")
    assert done.exit_code == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("toprune: the loss became nan at step 2; ")
    assert "--resume with a smaller --lr" in line
    checkpoints = tmp_path / "dense.partial" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["checkpoint-1"]
    assert not (tmp_path / "dense").exists()
    refused(call(*words, "--batch-size", 4, *more[2:], "--resume"), "(training)")
    succeed(*words, *more, "--lr", "1e-4", "--resume")
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


# -- the other tasks -------------------------------------------------------------------------------


def _questions(count: int) -> Rows:
    """Every third without an answer; some contexts are longer than a window."""
    rng = np.random.default_rng(0)
    rows: Rows = []
    for i in range(count):
        words = [f"w{j}" for j in rng.integers(0, 60, rng.integers(10, 40))]
        answers = {"text": [], "answer_start": []}
        if i % 3:
            answers = {"text": [words[4]], "answer_start": [len(" ".join(words[:4])) + 1]}
        question = f"w{i} w{i + 1}"
        rows.append({"question": question, "context": " ".join(words), "answers": answers})
    return rows


@pytest.mark.usefixtures("few_draws")
def test_answers_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # random weights of this size are chaotic (see test_export.py)
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)
    base = save_model(tmp_path / "base", make_model(head="encoder"))
    data = write_rows(tmp_path / "qa.jsonl", _questions(40))
    dense, small = tmp_path / "dense", tmp_path / "small"
    options = ("--task", "answer", "--data", data, "--max-length", 24)
    succeed("finetune", "--model", base, *options, "--stride", 4, "--epochs", 1, "--out", dense)
    words = ("prune", "--model", dense, *options, "--no-answer", "--budget", "1.5x", "--epochs", 0)
    assert "Dense and pruned give the same answer to" in succeed(*words, "--out", small)
    settings = json.loads((small / "report.json").read_text())["task_settings"]
    assert settings["no_answer"] is True
    assert settings["stride"] == 4  # as the dense model's directory says
    plan = Plan.load(small / "plan.json")
    assert (plan.restore, plan.protect_until) == ("last", Bundle.load(small).tokenizer.sep_token_id)
    assert plan.score == "probes"
    succeed(*words, "--score", "probe", "--dropped", "zero", "--out", tmp_path / "once")
    plan = Plan.load(tmp_path / "once" / "plan.json")
    assert (plan.score, plan.restore) == ("probe", "zero")

    succeed("export", small)
    words = ("eval", small, "--data", data)
    torch_says = json.loads(succeed(*words, "--json"))
    onnx_says = json.loads(succeed(*words, "--json", "--runtime", "onnx"))
    assert onnx_says["metrics"].keys() == {"f1", "exact", "best_f1", "best_exact"}
    for name, metric in onnx_says["metrics"].items():  # one close call of 40 may fall otherwise
        assert metric["value"] == pytest.approx(torch_says["metrics"][name]["value"], abs=1 / 40)

    write_rows(data, [*_questions(40), {"question": " ", "context": "w1"}])
    words, out = (*words, "--runtime", "onnx", "--out"), tmp_path / "out.jsonl"
    done = call(*words, out)
    assert done.exit_code == 2
    assert "row 41 has no text in column 'question'" in done.stderr.splitlines()[-1]
    assert "--skip-bad-rows" in done.stderr
    done = call(*words, out, "--skip-bad-rows")
    assert done.exit_code == 0
    assert "toprune: no text in row 41: left out" in done.stderr.splitlines()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["question"] for row in rows] == [row["question"] for row in _questions(40)]
    for row in rows:
        assert row["answer"] == row["context"][max(row["start"], 0) : max(row["end"], 0)]
        assert 0 <= row["score"] <= 1


def test_vectors(tmp_path: Path):
    base = save_model(tmp_path / "base", make_model(head="encoder"))
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": None}
    write_pooling(base, Embed(), 32, 24, prompts)
    data = write_rows(tmp_path / "texts.jsonl", synthetic.rows(24, 0))
    words = ("prune", "--model", base, "--task", "embed", "--data", data, "--epochs", 0)
    out = succeed(*words, "--budget", "2x", "--pooling", "cls", "--out", tmp_path / "cls")
    assert "cosine of dense and pruned vectors" in out
    assert Plan.load(tmp_path / "cls" / "plan.json").restore == "none"
    assert read_pooling(tmp_path / "cls") == {"pooling": "cls", "normalize": True}
    assert read_prompts(tmp_path / "cls") == prompts


@pytest.mark.usefixtures("few_draws")
def test_a_ranker_keeps_its_query(tmp_path: Path):
    base = save_model(tmp_path / "base", make_model(num_labels=1))
    pairs = [
        {"query": f"w{i // 4}", "document": row["text"], "label": int(i % 4 == 0)}
        for i, row in enumerate(synthetic.rows(24, 0))
    ]
    data = write_rows(tmp_path / "pairs.jsonl", pairs)
    words = ("prune", "--model", base, "--task", "rank", "--data", data, "--budget", "1.5x")
    out = succeed(*words, "--epochs", 0, "--out", tmp_path / "kept")
    assert "Dense and pruned put the same document on top" in out
    separator = make_tokenizer().sep_token_id
    plan = Plan.load(tmp_path / "kept" / "plan.json")
    assert (plan.protect, plan.protect_until) == ((separator,), separator)
    succeed(*words, "--epochs", 0, "--no-protect-first", "--out", tmp_path / "free")
    plan = Plan.load(tmp_path / "free" / "plan.json")
    assert (plan.protect, plan.protect_until) == ((), None)


def test_bad_rows_are_skipped_when_asked(place: Path, tmp_path: Path):
    bad = write_rows(tmp_path / "bad.jsonl", [*synthetic.rows(60, 0), {"text": "", "label": 1}])
    words = ("eval", place / "model", "--data", bad)
    refused(call(*words), "leave it out: --skip-bad-rows")
    done = call(*words, "--skip-bad-rows", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["examples"] == 60
    assert done.stderr.startswith("toprune: 1 of 61 rows of the train set are bad and left out")
