"""Every bad input that we promise to name: exit code 2, one line, and nothing left behind."""

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import BertModel, GPT2Config, GPT2ForSequenceClassification

from support import synthetic
from support.commands import call, refused, save_model
from support.models import make_model, make_tokenizer
from support.report_case import make_report
from support.tables import write_rows
from toprune.plan.plan import Plan

PLAN = Plan("bert", 4, 32, "received", ())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, a bundle and data that are in order; tests must not change it."""
    place = tmp_path_factory.mktemp("place")
    save_model(place / "model")
    save_model(place / "bundle")
    PLAN.save(place / "bundle" / "plan.json")
    (place / "bundle" / "report.json").write_text(json.dumps(make_report()))
    write_rows(place / "data.jsonl", synthetic.rows(60, 0))
    return place


def listing(folder: Path) -> list[tuple[Path, int]]:
    return sorted((path, path.lstat().st_size) for path in folder.rglob("*"))


# -- training --------------------------------------------------------------------------------------


def _tokenizer_that_cleans() -> Any:
    """As BERT's: control characters go."""
    from tokenizers.normalizers import BertNormalizer

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = BertNormalizer()
    return tokenizer


def _left(place: Path) -> Path:
    folder = save_model(place / "left")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}))
    return folder


def _gpt2() -> Any:
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    return GPT2ForSequenceClassification(config)


def _unknown(place: Path) -> Path:
    folder = save_model(place / "frob")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "frob"}))
    return folder


def _decoder(place: Path) -> Path:
    model = make_model()
    model.config.is_decoder = True
    return save_model(place / "decoder", model)


def _headless(place: Path) -> Path:
    return save_model(place / "base", BertModel(make_model().config))


def _broken(place: Path) -> Path:
    folder = save_model(place / "broken")
    (folder / "model.safetensors").write_bytes(b"not weights")
    return folder


def _labelled(change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Callable[[Path], Path]:
    rows = [row | change(i, row) for i, row in enumerate(synthetic.rows(60, 0))]
    return lambda place: write_rows(place / "bad.jsonl", rows)


def _full(place: Path) -> Path:
    (place / "full").mkdir()
    (place / "full" / "thesis.tex").touch()
    return place / "full"


def _file(place: Path) -> Path:
    (place / "file").touch()
    return place / "file"


# what is asked for -> what the line must name; callables make the bad thing in a fresh directory
PRUNE: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": lambda p: p / "none"}, "give a directory or a hub id"),
    "decoder only": ({"model": lambda p: save_model(p / "gpt", _gpt2())}, "supported: bert"),
    "bert as decoder": ({"model": _decoder}, "is_decoder=False"),
    "unknown architecture": ({"model": _unknown}, "roberta"),
    "no trained head": ({"model": _headless}, "toprune finetune"),
    "broken weights": ({"model": _broken}, "download them again"),
    "head for classes": ({"task": "regress"}, "use the task classify"),
    "head for a number": (
        {"model": lambda p: save_model(p / "one", make_model(num_labels=1))},
        "use the task regress",
    ),
    "unknown task": ({"task": "guess"}, "classify, regress"),
    "no data": ({"data": lambda p: p / "none.csv"}, "check the path"),
    "no text column": ({"text": "review"}, "columns here: text, label"),
    "no label column": ({"label": "stars"}, "columns here: text, label"),
    "empty data": ({"data": lambda p: write_rows(p / "empty.jsonl", [])}, "at least two examples"),
    "one class": ({"data": _labelled(lambda i, row: {"label": 1})}, "two classes or more"),
    "labels out of range": ({"data": _labelled(lambda i, row: {"label": i % 3})}, "0 to 1"),
    "labels below zero": ({"data": _labelled(lambda i, row: {"label": i % 3 - 1})}, "renumber"),
    "empty text": ({"data": _labelled(lambda i, row: {"text": " "} if i == 7 else {})}, "row 8"),
    "zero tokens": (
        {
            "data": _labelled(lambda i, row: {"text": "\x01"}),
            "model": lambda p: save_model(p / "clean", tokenizer=_tokenizer_that_cleans()),
        },
        "drop these texts",
    ),
    "left padding": ({"model": _left}, "tokenizer_config.json"),
    "too long": ({"max_length": 512}, "66"),
    "budget 0x": ({"budget": "0x"}, "like 4x"),
    "budget -2x": ({"budget": "-2x"}, "like 4x"),
    "budget fast": ({"budget": "fast"}, "like 4x"),
    "budget 0.5x": ({"budget": "0.5x"}, "like 4x"),
    "budget 0ms": ({"budget": "0ms"}, "above zero"),
    "budget p99:12ms": ({"budget": "p99:12ms"}, "p95:30ms"),
    "milliseconds of a method for FLOPs": ({"budget": "5ms", "method": "joint"}, "in FLOPs"),
    "threads of FLOPs": ({"threads": 2}, "for a budget in milliseconds"),
    "precision of FLOPs": ({"precision": "int8"}, "for a budget in milliseconds"),
    "count of milliseconds": ({"budget": "5ms", "count": "paper"}, "in FLOPs"),
    "count of a dial": ({"budget": "2x,3x", "count": "paper"}, "a dial counts executed"),
    "count below the padding": ({"budget": "1.2x", "count": "paper"}, "padding alone"),
    "count of fewer weights": ({"count": "authors", "method": "cofi"}, "leave --count out"),
    "count with a fallback": ({"fallback": "99%", "count": "paper"}, "in executed FLOPs"),
    "profile of FLOPs": ({"profile": "curve.json"}, "for a budget in milliseconds"),
    "no profile": ({"budget": "5ms", "profile": "none.json"}, "none.json"),
    "budget out of reach": ({"budget": "50x"}, "x at most"),
    "fallback 0%": ({"fallback": "0%"}, "like 98%"),
    "fallback 120%": ({"fallback": "120%"}, "like 98%"),
    "fallback of a number": ({"fallback": "99%", "task": "regress"}, "leave --fallback out"),
    "fallback out of reach": ({"fallback": "99%", "budget": "3.9x"}, "with a fallback is out"),
    "fallback with a dial": ({"fallback": "99%", "budget": "2x,3x"}, "one budget"),
    "no texts of the served lengths": ({"lengths_of": "none.csv"}, "none.csv"),
    "pairs of the served lengths": (
        {"lengths_of": lambda p: write_rows(p / "pairs.jsonl", [{"text": "a", "text_pair": "b"}])},
        "the texts of --lengths-of have pairs",
    ),
    "full directory": ({"out": _full}, "--overwrite"),
    "a file in the way": ({"out": _file}, "another --out"),
    "first layer": ({"set": "first=9"}, "0..2"),
    "protected word": ({"protect": "zebra"}, "zebra"),
    "soft epochs": ({"epochs": 1, "soft_epochs": 2}, "--soft-epochs"),
    "soft epochs and steps": ({"soft_epochs": 0, "soft_steps": 9}, "--soft-steps"),
    "negative epochs": ({"epochs": -1}, "0 or more"),
    "distill weight": ({"set": "distill_weight=much"}, "auto"),
    "unknown score": ({"score": "luck"}, "received"),
    "unknown option": ({"colour": "red"}, "--help"),
}


@pytest.mark.parametrize("case", PRUNE)
def test_bad_input_is_one_line(case: str, place: Path, tmp_path: Path):
    changes, names = PRUNE[case]
    options: dict[str, Any] = {"model": place / "model", "data": place / "data.jsonl"}
    options |= {"budget": "2x", "epochs": 0, "out": tmp_path / "out"} | changes
    options = {name: v(tmp_path) if callable(v) else v for name, v in options.items()}
    before = sorted(tmp_path.rglob("*"))
    words = [word for name, v in options.items() for word in (f"--{name.replace('_', '-')}", v)]
    refused(call("prune", *words), names)
    assert sorted(tmp_path.rglob("*")) == before


DEVICES: dict[str, tuple[str, ...]] = {
    "finetune": ("--model", "{place}/model", "--data", "{place}/data.jsonl", "--out", "{out}"),
    "prune": (
        *("--model", "{place}/model", "--data", "{place}/data.jsonl", "--out", "{out}"),
        *("--budget", "2x"),
    ),
    "compare": (
        *("--model", "{place}/model", "--data", "{place}/data.jsonl", "--out", "{out}"),
        *("--budgets", "2x"),
    ),
    "eval": ("{place}/bundle", "--data", "{place}/data.jsonl"),
    "explain": ("{place}/bundle", "w1 w2"),
    "scores": ("{place}/bundle", "--data", "{place}/data.jsonl"),
    "stress": ("{place}/bundle", "--data", "{place}/data.jsonl"),
    "bench": ("{place}/bundle",),
}


@pytest.mark.parametrize("command", DEVICES)
def test_a_device_that_is_not_here(
    command: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    words = [word.format(place=place, out=tmp_path / "out") for word in DEVICES[command]]
    library = "onnxruntime" if command == "bench" else "torch"
    refused(call(command, *words, "--device", "cuda"), f"--device cuda: {library} ")
    assert list(tmp_path.iterdir()) == []


FINETUNE: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"data": lambda p: write_rows(p / "x.jsonl", [{"text": "w1"}] * 9)}, "--label"),
    "classes from one": ({"data": _labelled(lambda i, row: {"label": i % 2 + 1})}, "count from 0"),
    "no epochs": ({"epochs": 0}, "1 or more"),
    "too long": ({"max_length": 512}, "66"),
    "full directory": ({"out": _full}, "--overwrite"),
}


@pytest.mark.parametrize("case", FINETUNE)
def test_bad_input_of_finetune(case: str, place: Path, tmp_path: Path):
    changes, names = FINETUNE[case]
    options: dict[str, Any] = {"model": place / "model", "data": place / "data.jsonl"}
    options |= {"out": tmp_path / "out"} | changes
    options = {name: v(tmp_path) if callable(v) else v for name, v in options.items()}
    before = sorted(tmp_path.rglob("*"))
    words = [word for name, v in options.items() for word in (f"--{name.replace('_', '-')}", v)]
    refused(call("finetune", *words), names)
    assert sorted(tmp_path.rglob("*")) == before


OTHER_TASKS: dict[str, tuple[tuple[Any, ...], str]] = {
    "vectors are not fine-tuned": (("finetune", "--task", "embed"), "not fine-tuned here"),
    "windows of a number": (("finetune", "--task", "regress", "--stride", 4), "setting (stride)"),
    "windows of GLUE": (("finetune", "--task", "mrpc", "--stride", 4), "leave out: stride"),
    "pooling of classes": (("prune", "--pooling", "cls"), "no such setting (pooling)"),
    "unknown task": (("finetune", "--task", "guess"), "answer, tokens, embed, and of GLUE: cola"),
    "unknown and set": (("prune", "--task", "guess", "--stride", 4), "answer, tokens, embed"),
    "no context": (("prune", "--task", "answer", "--text", "text"), "which column is the context"),
}


@pytest.mark.parametrize("case", OTHER_TASKS)
def test_what_a_task_does_not_have(case: str, place: Path, tmp_path: Path):
    words, names = OTHER_TASKS[case]
    options = (
        "--model",
        place / "model",
        "--data",
        place / "data.jsonl",
        "--out",
        tmp_path / "out",
    )
    budget = ("--budget", "2x") if words[0] == "prune" else ()
    refused(call(*words, *options, *budget), names)
    assert list(tmp_path.iterdir()) == []


# -- all the others --------------------------------------------------------------------------------


def _spoiled(change: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    """A copy of the bundle, bad/, with something wrong in it."""

    def make(place: Path, folder: Path) -> None:
        shutil.copytree(place / "bundle", folder / "bad")
        change(folder / "bad")

    return make


def _text(name: str, text: str) -> Callable[[Path, Path], None]:
    return _spoiled(lambda bundle: (bundle / name).write_text(text))


def _nan(bundle: Path) -> None:
    weights = load_file(bundle / "model.safetensors")
    weights["classifier.bias"] = np.full_like(weights["classifier.bias"], np.nan)
    save_file(weights, bundle / "model.safetensors", {"format": "pt"})


def _pickled(bundle: Path) -> None:
    (bundle / "model.safetensors").unlink()
    (bundle / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def _more_words(bundle: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(bundle)


def _code(bundle: Path) -> None:
    config = json.loads((bundle / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (bundle / "config.json").write_text(json.dumps(config | own))
    (bundle / "own.py").write_text("raise SystemExit('this code was run')")


def _huge(bundle: Path) -> None:
    config = json.loads((bundle / "config.json").read_text())
    (bundle / "config.json").write_text(json.dumps(config | {"hidden_size": 10**6}))


def _linked(bundle: Path) -> None:
    shutil.move(bundle / "config.json", bundle.parent / "outside.json")
    (bundle / "config.json").symlink_to(bundle.parent / "outside.json")


def _large(bundle: Path) -> None:
    os.truncate(bundle / "report.json", 500 << 20)


def _one(name: str, content: str = "x") -> Callable[[Path, Path], int]:
    return lambda place, folder: (folder / name).write_text(content)


# name -> the words ({0}: a place with a model, a bundle, and data.jsonl; {1}: an empty folder),
# what the line must name, and what is in the folder if it is not empty
DATA = "--data {0}/data.jsonl"
OTHERS: dict[str, tuple[Any, ...]] = {
    "eval: no bundle": (f"eval {{1}}/none {DATA}", "directory that prune wrote"),
    "eval: no data": ("eval {0}/model --data {1}/none.csv", "check the path"),
    "eval: no such kind of data": (
        "eval {0}/model --data {1}/data.xyz",
        "data.xyz",
        _one("data.xyz"),
    ),
    "eval: data that are none": (
        "eval {0}/model --data {1}/data.parquet",
        "data.parquet",
        _one("data.parquet"),
    ),
    "eval: no labels": (
        "eval {0}/model --data {1}/texts.jsonl",
        "--label",
        lambda place, folder: write_rows(folder / "texts.jsonl", [{"text": "w1"}, {"text": "w2"}]),
    ),
    "eval: no head": (
        f"eval {{1}}/base {DATA}",
        "toprune finetune",
        lambda place, folder: _headless(folder),
    ),
    "eval: too long": (f"eval {{0}}/model {DATA} --max-length 512", "66"),
    "eval: length 0": (f"eval {{0}}/model {DATA} --max-length 0", "--help"),
    "eval: not exported": (f"eval {{0}}/model {DATA} --runtime onnx", "toprune export"),
    "eval: answers of torch": (f"eval {{0}}/model {DATA} --out {{1}}/o.jsonl", "--runtime onnx"),
    "eval: threads of torch": (f"eval {{0}}/model {DATA} --threads 2", "--runtime onnx"),
    "eval: a runtime": (f"eval {{0}}/model {DATA} --runtime abacus", "--help"),
    "eval: no dial": (f"eval {{0}}/bundle {DATA} --budget 3x", "one budget and no dial"),
    "eval: a dial": (f"eval {{1}}/bad {DATA}", "dial: ", _text("dial.json", "{")),
    "eval: a plan": (f"eval {{1}}/bad {DATA}", "plan: ", _text("plan.json", "{")),
    "eval: a report": (f"eval {{1}}/bad {DATA}", "report.json", _text("report.json", "[]")),
    "eval: a report's length": (
        f"eval {{1}}/bad {DATA}",
        "max_length",
        _text("report.json", '{"max_length": "x"}'),
    ),
    "eval: a huge report": (f"eval {{1}}/bad {DATA}", "larger than 16 MB", _spoiled(_large)),
    "eval: NaN": (f"eval {{1}}/bad {DATA}", "is not a number", _spoiled(_nan)),
    "eval: a pickle": (f"eval {{1}}/bad {DATA}", "model.safetensors", _spoiled(_pickled)),
    "eval: code": (f"eval {{1}}/bad {DATA}", "cannot read a model", _spoiled(_code)),
    "eval: a huge model": (f"eval {{1}}/bad {DATA}", "numbers", _spoiled(_huge)),
    "eval: a link out": (f"eval {{1}}/bad {DATA}", "inside the bundle", _spoiled(_linked)),
    "eval: an adapter": (
        f"eval {{1}}/bad {DATA}",
        "merge it",
        _text("adapter_config.json", "{}"),
    ),
    "eval: another's tokenizer": (f"eval {{1}}/bad {DATA}", "own tokenizer", _spoiled(_more_words)),
    "eval: a broken tokenizer": (
        f"eval {{1}}/bad {DATA}",
        "no tokenizer",
        _text("tokenizer.json", "{}"),
    ),
    "export: no bundle": ("export {1}/none", "directory that prune wrote"),
    "export: NaN": ("export {1}/bad", "is not a number", _spoiled(_nan)),
    "export: no texts": ("export {0}/bundle --int8-openvino {1}/none.csv", "none.csv"),
    "export: no tokenizer": (
        "export {1}/bad",
        "tokenizer",
        _spoiled(lambda bundle: (bundle / "tokenizer.json").unlink()),
    ),
    "bench: no bundle": ("bench {1}/none", "directory that prune wrote"),
    "bench: not exported": ("bench {0}/bundle", "toprune export"),
    "bench: no dense file": (
        "bench {0}/bundle --dense-onnx {1}/none.onnx",
        "there is no such file",
    ),
    "bench: lengths": ("bench {0}/bundle --lengths 8,x", "--lengths"),
    "bench: rounds": ("bench {0}/bundle --rounds 1", "--help"),
    "gate: no bundle": (f"gate {{1}}/none {DATA} --max-loss 1", "directory that prune wrote"),
    "gate: not exported": (f"gate {{0}}/bundle {DATA} --max-loss 1", "toprune export"),
    "gate: no limit": (f"gate {{0}}/bundle {DATA}", "give --max-loss"),
    "gate: a share": (f"gate {{0}}/bundle {DATA} --min-agreement 98", "like 98%"),
    "gate: no time": (f"gate {{0}}/bundle {DATA} --max-ms 0", "above 0"),
    "gate: a place": (
        f"gate {{0}}/bundle {DATA} --max-ms 9 --junit {{1}}/none/x.xml",
        "create it first",
    ),
    "report: no bundle": ("report {1}/none", "directory that prune wrote"),
    "report: broken": ("report {1}/bad", "not valid JSON", _text("report.json", "{")),
    "report: of others": ("report {1}/bad", "can show", _text("report.json", '{"budget": 7}')),
    "report: nothing compared": ("report {0}/bundle --compared {1}/none", "what compare wrote"),
    "explain: no bundle": ("explain {1}/none text", "directory that prune wrote"),
    "explain: no text": ("explain {0}/bundle", "give a text"),
    "explain: no dial": ("explain {0}/bundle text --budget 3x", "one budget and no dial"),
    "explain: no plan": ("explain {0}/model text", "no plan.json"),
    "explain: pairs": ("explain {0}/bundle text --pair a --pair b", "one --pair for each text"),
    "explain: both": (f"explain {{0}}/bundle text {DATA}", "not both"),
    "explain: a page": (
        "explain {0}/bundle text --html {1}/x.html",
        "--overwrite",
        _one("x.html"),
    ),
    "explain: nowhere": ("explain {0}/bundle w1 --html {1}/none/x.html", "check the path"),
    "scores: no bundle": (f"scores {{1}}/none {DATA}", "directory that prune wrote"),
    "scores: a chart": (
        f"scores {{0}}/bundle {DATA} --svg {{1}}/x.svg",
        "--overwrite",
        _one("x.svg"),
    ),
    "scores: dense": (f"scores {{0}}/bundle {DATA} --dense {{0}}/model", "question answering"),
    "stress: no bundle": (f"stress {{1}}/none {DATA}", "directory that prune wrote"),
    "ui: no bundle": ("ui {1}/none --port 18999", "directory that prune wrote"),
    "serve: no bundle": ("serve {1}/none --port 18998", "directory that prune wrote"),
    "serve: not exported": ("serve {0}/bundle --port 18998", "toprune export"),
    "serve: one name twice": (
        "serve {0}/bundle {1}/bundle --port 18998",
        "two bundles have the name bundle",
    ),
    "serve: no name": ("serve =x --port 18998", "NAME=DIRECTORY"),
    "serve: a port": ("serve {0}/bundle --port 0", "--help"),
    "serve: a host": ("serve {0}/bundle --host 203.0.113.1", "--port"),
    "serve: no key": ("serve {0}/bundle --api-key-file {1}/none", "name a file with the key"),
    "serve: budgets that loosen": ("serve {0}/bundle --shed 3x,2x", "the loosest first"),
    "serve: replicas without ray": ("serve {0}/bundle --replicas 2", "--engine ray"),
    "serve: fewer replicas at most": (
        "serve {0}/bundle --engine ray --replicas 3 --max-replicas 2",
        "--max-replicas 2 is below",
    ),
    "serve: explanations on ray": ("serve {0}/bundle --engine ray --explain", "leave --engine ray"),
    "ui: not exported": ("ui {0}/bundle --port 18998", "toprune export"),
    "serve: a cost of nothing": ("serve {0}/bundle --max-batch-cost 0", "--help"),
    "ui: a port": ("ui {0}/bundle --port 99999", "--help"),
    "ui: a host": ("ui {0}/bundle --host 203.0.113.1", "--port"),
    "compare: no model": (
        f"compare --model {{1}}/none {DATA} --budgets 2x --out {{1}}/out",
        "give a directory or a hub id",
    ),
    "compare: a method": (
        f"compare --model {{0}}/model {DATA} --budgets 2x --methods luck --out {{1}}/out",
        "luck",
    ),
    "compare: a budget": (
        f"compare --model {{0}}/model {DATA} --budgets fast --out {{1}}/out",
        "like 4x",
    ),
    "compare: seeds": (
        f"compare --model {{0}}/model {DATA} --budgets 2x --seeds x --out {{1}}/out",
        "--seeds",
    ),
    "sweep: no file": ("sweep {1}/none.toml --out {1}/out", "none.toml"),
    "push: no bundle": ("push {1}/none me/it", "directory that prune wrote"),
    "push: not pruned": ("push {0}/model me/it", "directory that prune wrote"),
    "demo: a full directory": (
        "demo --out {1}",
        "--overwrite",
        lambda place, folder: save_model(folder / "dense"),
    ),
    "families: an option": ("families --colour", "--help"),
    "plan show: no dial": ("plan show {0}/bundle/plan.json --budget 3x", "dial: "),
    "plan show: none": ("plan show {1}/none.json", "plan: "),
    "plan show: deep": ("plan show {1}/x.json", "nests too deeply", _one("x.json", "[" * 10**5)),
    "plan check: no model": (
        "plan check {0}/bundle/plan.json --model {1}/none",
        "give a directory",
    ),
    "no such command": ("prun", "--help"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_of_every_command(case: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words, names, *more = OTHERS[case]
    for make in more:
        make(place, tmp_path)
    before = listing(tmp_path), listing(place)
    refused(call(*words.format(place, tmp_path).split()), names)
    assert (listing(tmp_path), listing(place)) == before


# -- the disk --------------------------------------------------------------------------------------


def _full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _full_for_rust(*_: Any, **__: Any) -> None:
    raise SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("fails", [_full_disk, _full_for_rust])
@pytest.mark.parametrize("out", ["out", "there"])
def test_a_full_disk(
    fails: Callable[..., None],
    out: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old").write_text("x")
    before = listing(tmp_path)
    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", fails)
    words = ("--model", place / "model", "--data", place / "data.jsonl", "--budget", "2x")
    done = call("prune", *words, "--epochs", 0, "--out", tmp_path / out, "--overwrite")
    assert done.exit_code == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("toprune: ")
    assert "No space left on device" in line
    assert "Traceback" not in done.stderr
    assert listing(tmp_path) == before


@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_a_page_that_cannot_be_written(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(place / "bundle", tmp_path / "bundle")
    whole = Path.write_text

    def cut(self: Path, text: str, *rest: Any, **more: Any) -> int:
        if name not in self.name:
            return whole(self, text, *rest, **more)
        whole(self, text[:10], *rest, **more)
        raise OSError(errno.ENOSPC, "No space left on device")

    before = listing(tmp_path)
    monkeypatch.setattr(Path, "write_text", cut)
    done = call("report", tmp_path / "bundle")
    if name == "report.json":  # is not written
        assert done.exit_code == 0
        return
    refused(done, "No space left on device; check the path")
    assert listing(tmp_path) == before


def test_a_file_where_the_folder_should_be(place: Path, tmp_path: Path):
    """As read-only directories, which root can write."""
    (tmp_path / "file").touch()
    words = ("--model", place / "model", "--data", place / "data.jsonl", "--budget", "2x")
    refused(call("prune", *words, "--epochs", 0, "--out", tmp_path / "file" / "out"), "--out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_work_directory_that_vanishes(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def gone(self: Any, folder: Path) -> None:
        shutil.rmtree(tmp_path / "out.partial")
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr("toprune.bundle.bundle.Bundle.save", gone)
    words = ("--model", place / "model", "--data", place / "data.jsonl", "--budget", "2x")
    done = call("prune", *words, "--epochs", 0, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "out.partial" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
