"""Bundles and stopped runs of the commit before the storeys (8740d1b) go on to work, to the byte.
`fixtures/make_before_storeys.py` made them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.optim.optimizer import register_optimizer_step_post_hook

from toprune import Bundle, Plan, Runner, Training, prune
from toprune.export.export import export
from toprune.report.build import environment
from toprune.run.manifest import Manifest

HERE = Path(__file__).parent / "fixtures" / "before_storeys"
BUNDLE = HERE / "bundle"
RUN = json.loads((HERE / "run.json").read_text())
LEFT_OPEN = {"soft_epochs": None, "hard_epochs": None, "epochs": 3}  # counted in steps today
LEFT = {"soft": 2 + 4, "hard": 1}  # optimizer steps after the checkpoint
ADDED = {"export_format": "toprune"}  # to manifests since
# Of what the trainer logs in the end: these count from the resumption.
NOT_RESULTS = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"}


def is_same_machine() -> bool:
    """Whether numbers can be the same to the bit: other kernels round in another order."""
    made, now = Manifest.load(BUNDLE).environment, environment()
    return all(made[name] == now[name] for name in ("machine", "versions"))


def check_close(values: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=0 if is_same_machine() else tolerance)


@pytest.fixture
def optimizer_steps() -> Iterator[list[None]]:
    """One entry for every step that any optimizer takes."""
    steps: list[None] = []
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(None))
    yield steps
    hook.remove()


def test_plan_and_manifest_are_written_as_they_were(tmp_path: Path):
    Plan.load(BUNDLE / "plan.json").save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_bytes() == (BUNDLE / "plan.json").read_bytes()
    manifest = json.loads((BUNDLE / "onnx" / "export.json").read_text())
    written = json.loads(Manifest.load(BUNDLE).to_json())
    assert written == manifest | ADDED | {"sizes": None}  # which it has not stored


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("int8", 0.05)])
def test_runner_gives_the_same_logits(precision: str, tolerance: float):
    run = Runner(BUNDLE, precision=precision, threads=1)  # pyright: ignore[reportArgumentType]
    check_close(
        np.stack(list(run(RUN["texts"]))), np.load(HERE / "logits.npz")[precision], tolerance
    )


def test_torch_gives_the_same_logits():
    bundle = Bundle.load(BUNDLE)
    batch = bundle.tokenizer(RUN["texts"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = bundle.model(**batch).logits.numpy()
    check_close(logits, np.load(HERE / "logits.npz")["torch"], 1e-6)


def test_a_bundle_is_saved_as_it_was(tmp_path: Path):
    Bundle.load(BUNDLE).save(tmp_path / "again")
    names = ["plan.json", "config.json", "model.safetensors", "tokenizer.json", "report.json"]
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (BUNDLE / name).read_bytes(), name


def test_graphs_that_are_written_again_give_the_same_logits(tmp_path: Path):
    """Graphs have become faster since, so their bytes differ."""
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    shutil.rmtree(bundle / "onnx")
    export(bundle, int8=True)
    for precision, elsewhere in (("fp32", 1e-5), ("int8", 0.05)):
        tolerance = 1e-6 if is_same_machine() else elsewhere
        run = Runner(bundle, precision=precision, threads=1)  # pyright: ignore[reportArgumentType]
        expected = np.load(HERE / "logits.npz")[precision]
        logits = np.stack(list(run(RUN["texts"])))
        np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)
    again, before = (json.loads((b / "onnx/export.json").read_text()) for b in (bundle, BUNDLE))
    assert again["files"].keys() == before["files"].keys()
    for name in ("environment", "checked", "files"):  # differences and hashes belong to a graph
        assert again.pop(name).keys() == before.pop(name).keys()
    assert again.pop("sizes")["layers"] == 3
    assert again == before | ADDED


@pytest.mark.parametrize(("stage", "settings"), [("soft", {}), ("hard", {}), ("hard", LEFT_OPEN)])
def test_a_stopped_run_goes_on(
    stage: str,
    settings: dict[str, Any],
    tmp_path: Path,
    optimizer_steps: list[None],
    monkeypatch: pytest.MonkeyPatch,
):
    """From its last checkpoint, and to the end of the run that was not stopped."""
    work = Path(shutil.copytree(HERE / f"stopped-{stage}", tmp_path / "out.partial"))
    for file in [*work.rglob("*.pt"), *work.rglob("*.pth")]:
        assert b"toprune" not in file.read_bytes(), "a pickle that names one of our modules"
    training, out = Training(**RUN["training"] | settings), tmp_path / "out"
    monkeypatch.chdir(HERE)
    prune("model", "data.jsonl", RUN["budget"], out=out, training=training, resume=True)
    assert len(optimizer_steps) == LEFT[stage]
    plan, expected = Plan.load(out / "plan.json"), Plan.load(BUNDLE / "plan.json")
    assert plan.steps == expected.steps
    assert plan.provenance["settings"] == expected.provenance["settings"]
    np.testing.assert_allclose(np.array(plan.probe), np.array(expected.probe), atol=1e-6)
    weights, others = (load_file(f / "model.safetensors") for f in (out, BUNDLE))
    assert weights.keys() == others.keys()
    for name, values in weights.items():
        check_close(values, others[name], 1e-4)
    report, before = (json.loads((f / "report.json").read_text()) for f in (out, BUNDLE))
    assert report.keys() == before.keys() | {"ranking"}
    assert report["provenance"]["run"] == before["provenance"]["run"]
    if is_same_machine():
        assert results(report) == results(before)


def results(report: dict[str, Any]) -> dict[str, Any]:
    """A report without times, commits and what reports had not yet."""
    others = ("provenance", "log", "ranking")
    kept = {name: value for name, value in report.items() if name not in others}
    log = [{k: v for k, v in line.items() if k not in NOT_RESULTS} for line in report["log"]]
    later = ("lost", "won")
    classes = [{k: v for k, v in row.items() if k not in later} for row in report["classes"]]
    executed = report["budget"]["executed"]
    counts = {name: executed[name] for name in ("unpadded", "padded", "paper")}  # there are more
    budget = report["budget"] | {"executed": counts}
    budget.pop("count", None)
    return kept | {"log": log, "classes": classes, "budget": budget}
