"""Static int8 for OpenVINO: calibrated, checked, and run by the Runner. Needs NNCF."""

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.models import make_model, make_tokenizer
from support.refusals import one_line_error
from toprune.bundle.bundle import Bundle
from toprune.export import openvino as module
from toprune.export.export import evaluate_files, export
from toprune.export.openvino import CALIBRATED, sample
from toprune.plan.plan import Plan, Step
from toprune.run.manifest import OPENVINO_INT8, Manifest
from toprune.run.runner import Runner

pytestmark = pytest.mark.usefixtures("rough_parity")

PLAN = Plan("bert", 4, 32, "received", (Step(0, Fraction(3, 5)), Step(2, Fraction(1, 5))))
RNG = np.random.default_rng(0)
ROWS = [
    {"text": " ".join(f"w{i}" for i in RNG.integers(0, 60, n)), "label": int(n > 10)}
    for n in RNG.integers(2, 28, 40)
]
TEXTS = [row["text"] for row in ROWS]


def write_bundle(folder: Path) -> Path:
    report = {"task": "classify", "max_length": 32}
    Bundle(make_model(), make_tokenizer(), PLAN, report).save(folder)
    return folder


def test_calibrated_file(tmp_path: Path, capfd: Any):
    pytest.importorskip("nncf")
    folder = write_bundle(tmp_path / "bundle")
    report = export(folder, calibration=ROWS)
    assert capfd.readouterr().out == ""  # bars of NNCF go to stderr: --json stays clean
    assert report["checked"]["int8 openvino"]["texts"] == len(ROWS)
    assert {"openvino_int8.xml", "openvino_int8.bin"} <= set(report["bytes"])
    manifest = Manifest.load(folder)
    assert manifest.graph("int8", "openvino") == OPENVINO_INT8
    rounded = Runner(folder, precision="int8", runtime="openvino")  # checks the plan in the file
    assert rounded.plan == PLAN
    exact, found = Runner(folder)(TEXTS), rounded(TEXTS)
    assert np.abs(found - exact).max() > 0  # it is another file
    assert np.mean(found.argmax(1) == exact.argmax(1)) > 0.7  # chaotic weights: see rough_parity
    measured = evaluate_files(folder, ROWS)
    assert list(measured) == ["fp32", "int8 openvino"]
    xml = (folder / OPENVINO_INT8).read_text()
    assert 'type="FakeQuantize"' in xml
    with one_line_error("was exported without onnx/model_int8.onnx"):
        Runner(folder, precision="int8")


def test_texts_are_drawn_once_and_the_same():
    texts = [str(i) for i in range(1000)]
    drawn = sample(texts)
    assert len(set(drawn)) == CALIBRATED
    assert drawn == sample(texts)
    assert sample(["a"]) == ["a"]


def test_without_nncf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nncf", None)
    with one_line_error(
        r"int8 for OpenVINO needs nncf; install it with: pip install 'toprune\[nncf"
    ):
        module.quantize_openvino(tmp_path / "a.onnx", tmp_path / "b.xml", [{}])


def test_an_export_that_fails_leaves_the_older_one(tmp_path: Path, monkeypatch: Any):
    folder = write_bundle(tmp_path / "bundle")
    export(folder)
    monkeypatch.setitem(sys.modules, "nncf", None)
    with one_line_error("int8 for OpenVINO needs nncf"):
        export(folder, calibration=ROWS)
    Manifest.load(folder).verify(folder)
    assert not (folder / OPENVINO_INT8).exists()
