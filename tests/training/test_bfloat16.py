"""When a run trains in bfloat16: the caller decides, or the processor and the width do."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.models import make_model, make_tokenizer
from support.resuming import ROWS, TRAINING, Stopped, stop_at
from toprune.api import finetune, prune
from toprune.training import bfloat16
from toprune.training.bfloat16 import TRIAL, choose_bf16, runs_well
from toprune.training.settings import FINETUNE, Training

Machine = Callable[[bool], None]
SHORT = replace(TRAINING, soft_epochs=1, hard_epochs=0, save_steps=2)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets whether the processor has bfloat16; our models are wide enough for it."""

    def set_support(has_bf16: bool) -> None:
        monkeypatch.setattr(bfloat16, "is_supported", lambda: has_bf16)

    monkeypatch.setattr(bfloat16, "NARROW", 1)
    return set_support


def chosen(out: Path) -> bool:
    report = json.loads((out / "report.json").read_text())
    return report["provenance"]["settings"]["training"]["bf16"]


@pytest.mark.parametrize(
    ("bf16", "supported", "width", "trains", "result"),
    [
        (None, True, 384, True, True),
        (None, True, 128, True, True),
        (None, True, 127, True, False),
        (None, True, 384, False, False),
        (None, False, 384, True, False),
        (True, False, 16, True, True),
        (False, True, 384, True, False),
    ],
)
def test_who_decides(
    bf16: bool | None,
    supported: bool,
    width: int,
    trains: bool,
    result: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(bfloat16, "is_supported", lambda: supported)
    training = choose_bf16(Training(bf16=bf16), width, trains=trains)
    assert training == Training(bf16=result)
    assert ("--no-bf16" in capsys.readouterr().err) == (bf16 is None and result)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("pass", True),
        ("assert False", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
    ],
)
def test_a_child_that_dies_means_no(code: str, result: bool):
    assert runs_well(code) is result


def test_a_child_that_hangs_means_no(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bfloat16, "SECONDS", 0.01)
    assert not runs_well("input()")


def test_the_trial_compares_with_float32():
    """It passes where products are right, emulated ones too, and fails where they are not."""
    if "amx_bf16" in Path("/proc/cpuinfo").read_text():
        pytest.skip("a machine that may claim AMX without having it")
    assert runs_well(TRIAL)
    wrong = TRIAL.replace("return y", "y = y * (1.1 if enabled else 1)\n    return y")
    assert wrong != TRIAL
    assert not runs_well(wrong)


def test_a_run_keeps_what_it_began_with(untrained: Path, tmp_path: Path, machine: Machine):
    machine(True)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, "soft", 3)
        with pytest.raises(Stopped):
            prune(untrained, ROWS, "2x", out=tmp_path / "out", training=SHORT)
    machine(False)
    bundle = prune(untrained, ROWS, "2x", out=tmp_path / "out", training=SHORT, resume=True)
    assert chosen(tmp_path / "out")
    done = prune(untrained, ROWS, "2x", out=tmp_path / "out", training=SHORT, resume=True)
    assert done.report["provenance"]["run"] == bundle.report["provenance"]["run"]


def test_what_is_known_of_a_dense_model_decides(tmp_path: Path, machine: Machine):
    known = tmp_path / "known"
    for support in (False, True):
        machine(support)
        out = tmp_path / f"out-{support}"
        options = {"tokenizer": make_tokenizer(), "known": known, "training": SHORT}
        prune(make_model(), ROWS, "2x", out=out, **options)
        assert not chosen(out)


def test_finetune_chooses_too(tmp_path: Path, machine: Machine):
    machine(True)
    training = replace(FINETUNE, epochs=0.5)
    finetune(
        make_model(), ROWS, out=tmp_path / "out", tokenizer=make_tokenizer(), training=training
    )
    assert chosen(tmp_path / "out")
