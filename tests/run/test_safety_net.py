"""A Runner with a safety net: which texts the dense file answers, and that both belong together."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.refusals import one_line_error
from support.toy_bundle import expected, make_bundle, mixed_texts, write_manifest
from toprune.inspection.gate import gate as gate_module
from toprune.inspection.gate import times
from toprune.run.bulk import score_file
from toprune.run.evaluate import evaluate
from toprune.run.runner import Runner
from toprune.tasks import Answer, Classify
from toprune.tasks.fallback import Fallback

TEXTS = mixed_texts(120)
PRUNED, DENSE = expected(TEXTS, seed=0), expected(TEXTS, seed=7)  # (N, 3)
MARGINS = np.diff(np.sort(PRUNED, axis=1)[:, -2:], axis=1)[:, 0]
THRESHOLD = float(np.median(MARGINS))
FELL = MARGINS < THRESHOLD


def with_net(folder: Path, threshold: float = THRESHOLD, task: Any = "classify") -> Path:
    """A bundle (seed 0, in int8 seed 1) with its dense model (seed 7, in int8 seed 1, too)."""
    make_bundle(folder / "dense", seed=7, task=task)
    (folder / "fallback.json").write_text(
        Fallback(threshold, 0.99, 0.995, 0.99, 0.1, 0.33, 500).to_json()
    )
    return make_bundle(folder, seed=0, task=task)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_net(tmp_path_factory.mktemp("net"))


def test_texts_below_the_threshold_get_the_outputs_of_dense(bundle: Path):
    assert 20 < FELL.sum() < 100
    wanted = np.where(FELL[:, None], DENSE, PRUNED)
    run = Runner(bundle, threads=1)
    np.testing.assert_array_equal(run(TEXTS), wanted)
    np.testing.assert_array_equal(list(run.stream(TEXTS)), wanted)
    np.testing.assert_array_equal([output for _, output in run.read(TEXTS)], wanted)
    predictions = run.predict(TEXTS)
    assert [one["fallback"] for one in predictions] == FELL.tolist()
    labels = [run.manifest.labels[i] for i in wanted.argmax(1)] if run.manifest.labels else []
    assert [one["label"] for one in predictions] == labels
    count, fell = 4 * len(TEXTS), 4 * int(FELL.sum())
    assert run.stats() == {"texts": count, "fallbacks": fell, "share": fell / count}


def test_it_can_be_turned_off(bundle: Path):
    run = Runner(bundle, threads=1, fallback=False)
    np.testing.assert_array_equal(run(TEXTS), PRUNED)
    assert "fallback" not in run.predict(TEXTS[:1])[0]
    assert run.stats() == {"texts": len(TEXTS) + 1, "fallbacks": 0, "share": 0.0}
    assert run.fallback is None


def test_bundles_without_one_are_as_before(tmp_path: Path):
    run = Runner(make_bundle(tmp_path), threads=1)
    assert run.stats() == {"texts": 0, "fallbacks": 0, "share": 0.0}
    assert set(run.predict(TEXTS[:1])[0]) == {"label", "score"}


def test_many_threads_count_every_text(bundle: Path):
    run = Runner(bundle, threads=1)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(run, [TEXTS[i::8] for i in range(8)]))
    for i, part in enumerate(parts):
        wanted = np.where(FELL[:, None], DENSE, PRUNED)[i::8]
        np.testing.assert_array_equal(part, wanted)
    assert run.stats()["texts"] == len(TEXTS)
    assert run.stats()["fallbacks"] == FELL.sum()


def test_int8_falls_back_to_int8_or_to_fp32(tmp_path: Path):
    everything = with_net(tmp_path, threshold=1e6)
    int8, fp32 = expected(TEXTS, seed=1), DENSE
    np.testing.assert_array_equal(Runner(everything, precision="int8")(TEXTS), int8)
    (tmp_path / "dense" / "onnx" / "model_int8.onnx").unlink()
    write_manifest(tmp_path / "dense")
    write_manifest(tmp_path)
    np.testing.assert_array_equal(Runner(everything, precision="int8")(TEXTS), fp32)


def test_windows_of_a_text_fall_back_together(tmp_path: Path):
    task = Classify(stride=2)
    run = Runner(with_net(tmp_path, 1e6, task), threads=1)
    long = [" ".join(f"w{i}" for i in range(60))]
    dense = Runner(tmp_path / "dense", threads=1)
    np.testing.assert_array_equal(run(long), dense(long))
    assert len(list(run.read(long))) > 1
    assert run.stats() == {"texts": 2, "fallbacks": 2, "share": 1.0}


def test_answers_of_the_dense_model(tmp_path: Path):
    run = Runner(with_net(tmp_path, 1e6, Answer(stride=2)), threads=1)
    pairs = [("w1 w2", "w3 w4 w5 w6"), ("w1", " ".join(f"w{i}" for i in range(40)))]
    dense = Runner(tmp_path / "dense", threads=1)
    assert run.predict(pairs) == [one | {"fallback": True} for one in dense.predict(pairs)]


def test_metrics_and_bulk_work_use_it(bundle: Path, tmp_path: Path):
    labels = np.where(FELL, DENSE.argmax(1), PRUNED.argmax(1))
    texts = [text for text in TEXTS if isinstance(text, str)]
    kept = [i for i, text in enumerate(TEXTS) if isinstance(text, str)]
    labels[kept[0]] = (labels[kept[0]] + 1) % 3  # one is wrong
    rows = [
        {"text": text, "label": ("no", "yes", "maybe")[labels[i]]}
        for i, text in zip(kept, texts, strict=True)
    ]
    run = Runner(bundle, threads=1)
    run(TEXTS)  # what was read before does not count
    report = evaluate(run, {"test": rows})
    assert report["metrics"]["accuracy"]["value"] == pytest.approx(1 - 1 / len(texts))
    assert report["fallback"]["texts"] == len(texts)
    assert report["fallback"]["fallen"] == FELL[kept].sum()
    assert report["fallback"]["share"]["value"] == pytest.approx(FELL[kept].mean())
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    score_file(Runner(bundle, threads=1), source, out)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["fallback"] for one in answers] == FELL[kept].tolist()


@pytest.mark.parametrize(("threshold", "milliseconds"), [(0.0, 10), (1e9, 20)])
def test_the_gate_adds_the_time_of_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float, milliseconds: float
):
    """On a machine where a graph takes 10 ms: none of the texts falls back, or all do."""
    now = [0.0]

    class Engine:
        def run(self, feeds: Any) -> None:
            now[0] += 0.01

    monkeypatch.setattr(times, "open_engine", lambda *_: Engine())
    bundle = with_net(tmp_path, threshold)
    rows = [{"text": text} for text in TEXTS if isinstance(text, str)][:20]
    result = gate_module.gate(bundle, rows, max_ms=15, clock=lambda: now[0], rounds=5)
    assert [one.value for one in result.checks] == pytest.approx([milliseconds] * 2)
    assert result.passed == (milliseconds < 15)


def test_a_ranker_rescores_with_the_dense_model_in_its_bundle(tmp_path: Path):
    make_bundle(tmp_path / "dense", seed=7, task="rank")
    run = Runner(make_bundle(tmp_path, task="rank"), threads=1)
    documents = [f"w{i} w{2 * i}" for i in range(20)]
    outside = Runner(tmp_path, threads=1, fallback=False)
    beside = Runner(tmp_path, threads=1, dense=tmp_path / "dense")
    assert run.rank("w1", documents, rescore=5) == beside.rank("w1", documents, rescore=5)
    assert "fallback" not in run.predict([("w1", "w2")])[0]
    with one_line_error("rescore=5 needs"):
        outside.rank("w1", documents, rescore=5)


# Files that do not belong together


def test_the_dense_model_must_be_there_and_the_same(tmp_path: Path):
    folder = with_net(tmp_path)
    graph = folder / "dense" / "onnx" / "model.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content + b"x")
    with one_line_error("sha256 differs"):
        Runner(folder)
    graph.write_bytes(content)
    make_bundle(folder / "dense", seed=8)  # another model, with a manifest of its own
    with one_line_error("export.json is not the file that was exported"):
        Runner(folder)
    (folder / "dense" / "onnx" / "export.json").unlink()
    with one_line_error("is missing.*fallback=False"):
        Runner(folder)
    np.testing.assert_array_equal(Runner(folder, fallback=False)(TEXTS), PRUNED)


def test_a_threshold_that_someone_changed(tmp_path: Path):
    folder = with_net(tmp_path)
    place = folder / "fallback.json"
    changed = json.loads(place.read_text()) | {"threshold": 0}
    place.write_text(json.dumps(changed))
    with one_line_error("fallback.json is not the file that was exported"):
        Runner(folder)
    place.write_text("{")  # and signed
    write_manifest(folder)
    with one_line_error("fallback.json: not valid JSON"):
        Runner(folder)
    place.unlink()
    with one_line_error("fallback.json is missing"):
        Runner(folder)


def test_a_fallback_that_came_later(tmp_path: Path):
    folder = make_bundle(tmp_path)
    (folder / "fallback.json").write_text(Fallback(1, 0.99, 1, 1, 0.1, 0.3, 9).to_json())
    with one_line_error("was not there when the bundle was exported"):
        Runner(folder)
    write_manifest(folder)
    with one_line_error("exported without dense/"):
        Runner(folder)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"task": Classify(stride=3)}, "settings"),
        ({"labels": ("a", "b", "c")}, "labels"),
        ({"family": "roberta"}, "inputs"),
        ({"task": "multilabel"}, "task, settings"),
    ],
)
def test_another_dense_model(tmp_path: Path, other: dict[str, Any], words: str):
    folder = with_net(tmp_path)
    make_bundle(folder / "dense", seed=7, **other)
    write_manifest(folder)
    with one_line_error(f"is not the dense model of this bundle: it has another {words}"):
        Runner(folder)


@pytest.mark.parametrize("task", ["regress", "embed", "rank"])
def test_tasks_without_a_margin(tmp_path: Path, task: str):
    with one_line_error("has no margin"):
        Runner(with_net(tmp_path, task=task))
