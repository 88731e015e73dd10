"""Two runtimes, one call, the same answers."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from support.toy_bundle import PLAN, WASTE, tables, write_graph
from toprune.errors import UserError
from toprune.run.engines import Engine, OnnxRuntime, OpenVino, providers_on
from toprune.tasks import Answer, Tags


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_graph(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture(params=[OnnxRuntime, OpenVino])
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param is OpenVino:
        pytest.importorskip("openvino")
    return request.param


def feeds(ids: list[list[int]]) -> dict[str, np.ndarray]:
    array = np.array(ids)
    return {
        "input_ids": array,
        "attention_mask": (array != 1).astype(np.int64),
        "token_type_ids": np.zeros_like(array),
    }


def test_runs(kind: Any, path: Path):
    engine: Engine = kind(path, threads=1)
    assert set(engine.inputs) == {"input_ids", "attention_mask", "token_type_ids"}
    assert engine.outputs == 3
    assert engine.plan == PLAN.to_json()
    words, segments = tables(3, 0)
    table = words + segments[0]
    logits = engine.run(feeds([[4, 5, 1], [6, 7, 8]]))
    first, second = table[4] + 2 * table[5], table[6] + 2 * table[7] + 3 * table[8]
    np.testing.assert_array_equal(logits, [first, second])
    assert logits.dtype == np.float32
    kept = logits.copy()
    np.testing.assert_array_equal(engine.run(feeds([[9]])), table[[9]])
    np.testing.assert_array_equal(logits, kept)  # an answer is the caller's own


def test_many_threads(kind: Any, path: Path):
    engine: Engine = kind(path)
    rng = np.random.default_rng(0)
    jobs = [feeds(rng.integers(2, 60, (b, s)).tolist()) for b, s in rng.integers(1, 9, (500, 2))]
    alone = [engine.run(job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        for one, other in zip(pool.map(engine.run, jobs), alone, strict=True):
            np.testing.assert_array_equal(one, other)


def test_without_metadata(kind: Any, path: Path):
    write_graph(path, plan=None)
    assert kind(path).plan is None


@pytest.mark.parametrize("content", [b"", b"hello", bytes(64), None])
def test_broken_files(kind: Any, path: Path, content: bytes | None, capfd: Any):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UserError, match=r"model.onnx.*export .*again") as caught:
        kind(path)
    assert "\n" not in str(caught.value)
    if kind is OnnxRuntime:  # OpenVINO tries all formats that it knows and lists them
        assert capfd.readouterr().err == ""


def test_outputs_have_names(kind: Any, path: Path):
    """Whether they are the task's, the Runner asks."""
    assert kind(path).names == ("logits",)
    model = write_graph(path)
    model.graph.node[-1].output[0] = model.graph.output[0].name = "scores"
    path.write_bytes(model.SerializeToString())
    assert kind(path).names == ("scores",)


def test_an_answer_for_each_token(kind: Any, path: Path):
    write_graph(path, task=Tags())
    engine: Engine = kind(path, threads=1)
    assert (engine.names, engine.outputs) == (("logits",), 3)
    words, segments = tables(3, 0)
    table, waste = words + segments[0], np.full(3, WASTE)
    found = engine.run(feeds([[4, 5, 1], [6, 7, 8]]))
    wanted = [[table[4], 2 * table[5], waste], [table[6], 2 * table[7], 3 * table[8]]]
    np.testing.assert_array_equal(found, wanted)


def test_two_outputs_are_two_columns(kind: Any, path: Path):
    write_graph(path, task=Answer(), outputs=2)
    engine: Engine = kind(path, threads=1)
    assert (engine.names, engine.outputs) == (("start_logits", "end_logits"), 2)
    words, segments = tables(2, 0)
    table = words + segments[0]  # (V, 2): starts, ends
    found = engine.run(feeds([[4, 5, 6]]))
    np.testing.assert_array_equal(found, [[table[4], 2 * table[5], 3 * table[6]]])
    kept = found.copy()
    engine.run(feeds([[9, 9, 9]]))
    np.testing.assert_array_equal(found, kept)  # an answer is the caller's own


def test_unknown_provider(path: Path):
    with pytest.raises(UserError, match=r"no provider AbacusExecutionProvider.*CPUExecution"):
        OnnxRuntime(path, providers=["AbacusExecutionProvider", "CPUExecutionProvider"])


def test_devices_are_providers(monkeypatch: pytest.MonkeyPatch):
    assert providers_on("cpu") == ["CPUExecutionProvider"]
    with pytest.raises(UserError, match="--device mps: exported files run on cpu or cuda"):
        providers_on("mps")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(UserError, match=r"--device cuda: onnxruntime .* onnxruntime-gpu"):
        providers_on("cuda")
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: both)
    assert providers_on("cuda") == both


def test_a_provider_that_does_not_start(path: Path, monkeypatch: pytest.MonkeyPatch):
    """ONNX Runtime goes on with the CPU where a GPU's driver is missing."""
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda _: [])
    with pytest.raises(UserError, match="could not start CPUExecutionProvider"):
        OnnxRuntime(path)


def test_openvino_is_not_installed(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UserError, match=r"pip install 'toprune\[openvino\]'"):
        OpenVino(path)
