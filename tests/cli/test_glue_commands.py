"""GLUE by name on the command line, from the official files to a bundle."""

import json
from pathlib import Path
from typing import Any

import pytest

import toprune
from support import synthetic
from support.commands import call, refused, succeed
from support.glue_files import OFFICIAL, mrpc_lines, write
from support.models import make_model, make_tokenizer
from toprune.api import Data
from toprune.errors import UserError
from toprune.methods.top import Top
from toprune.training.settings import Training


def report_of(*args: Any) -> dict[str, Any]:
    return json.loads(succeed(*args, "--json"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a folder of MRPC that are in order; tests must not change them."""
    place = tmp_path_factory.mktemp("place")
    make_model().save_pretrained(place / "model")
    make_tokenizer().save_pretrained(place / "model")
    files = {"train.tsv": mrpc_lines(40, 0), "dev.tsv": mrpc_lines(20, 1)}
    write(place / "MRPC", files | {"test.tsv": mrpc_lines(30, 2)})
    write(place / "SST-2", OFFICIAL["sst2"][0])
    write(place / "STS-B", OFFICIAL["stsb"][0])
    return place


def test_from_name_to_bundle(place: Path, tmp_path: Path):
    small = tmp_path / "small"
    report = report_of(
        *("prune", "--model", place / "model", "--task", "MRPC", "--data", place / "MRPC"),
        *("--budget", "2x", "--epochs", 0, "--out", small),
    )
    assert (report["task"], report["glue"]) == ("classify", "mrpc")
    assert report["examples"] == 20  # validation, though there is a test set
    assert report["max_length"] == 66  # the model cannot take the paper's 128
    assert list(report["difference"]) == ["f1", "accuracy", "matthews"]
    settings = report["provenance"]["settings"]
    assert (settings["glue"], settings["schedule"]) == ("mrpc", "short")
    assert settings["examples"] == 40

    again = report_of("eval", small, "--data", place / "MRPC")
    assert again["metrics"] == report["pruned"]
    assert next(iter(again["metrics"])) == "f1"
    assert report_of("eval", small, "--data", place / "MRPC", "--split", "test")["examples"] == 30
    assert report_of("eval", small, "--data", place / "MRPC" / "dev.tsv") == again
    refused(call("eval", small, "--data", place / "SST-2"), "not a file of MRPC")

    rows = [{"text": "w1 w2", "text_pair": "w3", "label": i % 2} for i in range(4)]
    rows_file = tmp_path / "rows_file.jsonl"
    rows_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert report_of("eval", small, "--data", rows_file)["examples"] == 4

    exported = report_of("export", small, "--data", place / "MRPC")
    onnx = report_of("eval", small, "--data", place / "MRPC", "--runtime", "onnx")
    assert onnx["metrics"] == exported["measured"]["fp32"]["metrics"] == again["metrics"]
    assert list(onnx["metrics"]) == list(again["metrics"])


def test_the_paper_in_the_settings(place: Path, tmp_path: Path):
    """The report shows the recipe; options on the command line override it."""
    args = ("prune", "--model", place / "model", "--task", "mrpc", "--data", place / "MRPC")
    args += ("--budget", "1.5x", "--epochs", 0, "--schedule", "paper")
    settings = report_of(*args, "--out", tmp_path / "a")["provenance"]["settings"]
    assert (settings["schedule"], settings["score"]) == ("paper", "received")
    assert settings["training"]["lr"] == 2e-5
    assert settings["training"]["sparsity_warmup"] == 0.75
    assert (settings["method_settings"]["first"], settings["method_settings"]["constraint"]) == (
        1,
        "lagrangian",
    )
    more = ("--score", "probe", "--lr", 3e-5, "--set", "bins=10", "--set", "first=0")
    settings = report_of(*args, *more, "--out", tmp_path / "b")["provenance"]["settings"]
    assert settings["score"] == "probe"
    assert settings["training"]["lr"] == 3e-5
    assert (settings["method_settings"]["bins"], settings["method_settings"]["first"]) == (10, 0)
    assert settings["method_settings"]["top_k"] == 20


def test_the_epochs_of_the_paper(place: Path, monkeypatch: pytest.MonkeyPatch):
    """200, or as many as requested; all of them learn masks, unless --soft-epochs or --soft-steps
    is given, too."""
    seen: list[dict[str, Any]] = []

    def prune(*args: Any, **options: Any) -> Any:
        seen.append(options)
        raise UserError("enough")

    monkeypatch.setattr(toprune, "prune", prune)
    args = ("prune", "--model", "m", "--task", "mrpc", "--budget", "2x", "--out", "o")
    for more in ((), ("--epochs", 30), ("--epochs", 30, "--soft-epochs", 10), ("--soft-steps", 9)):
        refused(call(*args, "--schedule", "paper", *more), "enough")
    refused(call(*args), "enough")
    epochs = [(o["training"].soft_epochs, o["training"].hard_epochs) for o in seen]
    assert epochs == [(200, 0), (30, 0), (10, 20), (None, None), (None, None)]
    assert (seen[-2]["training"].epochs, seen[-2]["training"].soft_steps) == (200, 9)
    assert seen[-1]["training"] == Training()
    assert seen[-1]["method"] == Top()


@pytest.mark.slow
def test_train_by_name(place: Path, tmp_path: Path):
    dense = tmp_path / "dense"
    args = ("finetune", "--model", place / "model", "--task", "mrpc", "--data", place / "MRPC")
    report = report_of(*args, "--schedule", "paper", "--epochs", 1, "--out", dense)
    assert (report["task"], report["glue"], report["examples"]) == ("classify", "mrpc", 20)
    config = json.loads((dense / "config.json").read_text())
    assert config["id2label"] == {"0": "not_equivalent", "1": "equivalent"}
    written = json.loads((dense / "report.json").read_text())
    assert written["max_length"] == 66
    settings = written["provenance"]["settings"]
    assert (settings["glue"], settings["schedule"]) == ("mrpc", "paper")
    assert (settings["training"]["hard_epochs"], settings["training"]["lr"]) == (1, 2e-5)
    repeated = toprune.evaluate(dense, place / "MRPC")
    assert repeated["metrics"] == report["metrics"]

    args = ("prune", "--model", dense, "--task", "mrpc", "--data", place / "MRPC")
    args += ("--schedule", "paper", "--epochs", 2, "--budget", "1.5x", "--out", tmp_path / "small")
    report = report_of(*args)
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.01)
    training = report["provenance"]["settings"]["training"]
    assert (training["soft_epochs"], training["hard_epochs"]) == (2, 0)
    assert training["dropout"] is True


def test_regression_by_name():
    rows = [
        {"sentence1": row["text"], "sentence2": "w1 w2", "label": i / 8}
        for i, row in enumerate(synthetic.rows(40, 0))
    ]
    bundle = toprune.prune(
        make_model(num_labels=1),
        Data({"train": rows, "validation": rows}, max_length=32),
        "1.5x",
        task="sts-b",
        tokenizer=make_tokenizer(),
        training=Training(soft_epochs=0, hard_epochs=0),
    )
    assert (bundle.report["task"], bundle.report["glue"]) == ("regress", "stsb")
    assert bundle.report["max_length"] == 32
    assert list(bundle.report["pruned"]) == ["pearson", "spearman"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "wrong folder": ({"data": "SST-2"}, "not a file of MRPC"),
    "no folder": ({"data": "model/none"}, "check the path"),
    "unknown task": ({"task": "wnli"}, "of GLUE: cola, sst2, mrpc"),
    "no data, no task": ({"data": None, "task": "classify"}, "--data"),
    "no data, no hub": ({"data": None}, "nyu-mll/glue"),
    "schedule without a task": ({"task": "classify", "schedule": "paper"}, "tasks of GLUE"),
    "unknown schedule": ({"schedule": "long"}, "'short', 'paper'"),
    "too long": ({"max_length": 512}, "66"),
}


def test_head_for_classes(place: Path, tmp_path: Path):
    args = ("prune", "--model", place / "model", "--task", "stsb", "--data", place / "STS-B")
    refused(call(*args, "--budget", "2x", "--out", tmp_path / "out"), "use the task classify")


@pytest.mark.parametrize("command", ["prune", "finetune"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, command: str, place: Path, tmp_path: Path):
    changes, names = BAD[case]
    options = {"model": place / "model", "data": "MRPC", "task": "mrpc", "out": tmp_path / "out"}
    options |= {"budget": "2x", "epochs": 0} if command == "prune" else {}
    options |= changes
    if options["data"]:
        options["data"] = place / options["data"]
    args = [
        word
        for name, value in options.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    refused(call(command, *args), names)
    assert not list(tmp_path.iterdir())
