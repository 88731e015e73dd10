"""A run that was stopped and resumed ends where an uninterrupted one does: same plan, same bits."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import synthetic
from support.models import make_tokenizer
from support.resuming import ROWS, TRAINING, Stopped, same, stop_at
from support.tables import write_rows
from toprune.api import finetune, prune
from toprune.bundle import workdir
from toprune.errors import UserError
from toprune.methods.adapler import AdapLeR
from toprune.methods.ltp import Ltp
from toprune.methods.tr_bert import TrBert
from toprune.training.job import Method
from toprune.training.settings import Training
from toprune.training.trainer import StageTrainer, last_checkpoint


@pytest.fixture(scope="module")
def uninterrupted(
    untrained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Training], Path]:
    """Where the bundle of a run is that nobody stopped; checkpoints must not change it."""
    done: dict[Training, Path] = {}

    def run(training: Training) -> Path:
        training = replace(training, save_steps=None)
        if training not in done:
            done[training] = tmp_path_factory.mktemp("whole") / "bundle"
            prune(untrained, ROWS, "2x", out=done[training], training=training)
        return done[training]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "step", "training"),
    [
        ("soft", 10, {}),
        ("soft", 8, {"save_steps": None}),  # a checkpoint at the end of the first epoch only
        ("soft", 5, {"accumulation": 2, "save_steps": 3}),
        ("hard", 10, {}),
        ("hard", 0, {}),  # between the stages
    ],
)
def test_prune_ends_the_same(
    stage: str,
    step: int,
    training: dict[str, Any],
    untrained: Path,
    uninterrupted: Callable[[Training], Path],
    tmp_path: Path,
):
    changed = replace(TRAINING, **training)
    halved = tmp_path / "halved"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, stage, step)
        with pytest.raises(Stopped):
            prune(untrained, ROWS, "2x", out=halved, training=changed)
    assert not halved.exists()
    prune(untrained, ROWS, "2x", out=halved, resume=True, training=changed)
    same(uninterrupted(changed), halved)
    assert not halved.with_name("halved.partial").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [AdapLeR(), Ltp(start="calibrated"), TrBert(samples=2)])
def test_a_search_ends_the_same(method: Method, untrained: Path, tmp_path: Path):
    """What a search starts from is computed again, from the dense model."""
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    options: dict[str, Any] = {"method": method, "training": TRAINING}
    prune(untrained, ROWS, "2x", out=whole, **options)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, "soft", 10)
        with pytest.raises(Stopped):
            prune(untrained, ROWS, "2x", out=halved, **options)
    prune(untrained, ROWS, "2x", out=halved, resume=True, **options)
    same(whole, halved)


@pytest.mark.slow
def test_half_a_checkpoint_is_passed_over(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    training = Training(hard_epochs=2, batch_size=8, save_steps=4, lr=1e-3, label_weight=1.0)
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    finetune(untrained, ROWS, out=whole, training=training)
    with monkeypatch.context() as patch:
        stop_at(patch, "checkpoints", 10)
        with pytest.raises(Stopped):
            finetune(untrained, ROWS, out=halved, training=training)
    checkpoints = tmp_path / "halved.partial" / "checkpoints"
    (checkpoints / "checkpoint-12").mkdir()
    (checkpoints / "checkpoint-12" / "model.safetensors").write_bytes(b"half of it")
    (checkpoints / "checkpoint-13").mkdir()
    (checkpoints / "checkpoint-13" / "trainer_state.json").write_text('{"epoch": 1.')
    assert last_checkpoint(checkpoints) == str(checkpoints / "checkpoint-8")
    finetune(untrained, ROWS, out=halved, training=training, resume=True)
    same(whole, halved)


@pytest.mark.slow
def test_resume_wants_the_same_run(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    stop_at(monkeypatch, "soft", 5)
    with pytest.raises(Stopped):
        prune(untrained, ROWS, "2x", out=out, training=TRAINING)
    with pytest.raises(UserError, match=r"other settings \(budget\)"):
        prune(untrained, ROWS, "3x", out=out, training=TRAINING, resume=True)
    with pytest.raises(UserError, match=r"other settings \(score\)"):
        prune(untrained, ROWS, "2x", out=out, training=TRAINING, score="received", resume=True)
    another = synthetic.untrained()
    with pytest.raises(UserError, match=r"other settings \(weights\)"):
        prune(
            *(another, ROWS, "2x"),
            **{"out": out, "training": TRAINING, "tokenizer": make_tokenizer(), "resume": True},
        )
    assert last_checkpoint(tmp_path / "out.partial" / "stages" / "soft") is not None


@pytest.mark.slow
@pytest.mark.parametrize("again", ["prune", "finetune"])
def test_done_is_done(untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str):
    """Started once more with --resume, after a kill at the very end or by something that starts
    what has ended: nothing is trained, nothing is left behind, and other settings are refused."""
    training = replace(TRAINING, soft_epochs=0, hard_epochs=1, label_weight=1.0)

    def run(**how: Any) -> Any:
        how = {"out": tmp_path / "out", "training": training} | how
        return (
            prune(untrained, ROWS, "2x", **how)
            if again == "prune"
            else finetune(untrained, ROWS, **how)
        )

    with monkeypatch.context() as patch:
        publish = workdir.replace_directory
        patch.setattr(workdir, "replace_directory", lambda *paths: (publish(*paths), _stopped()))
        with pytest.raises(Stopped):
            run()
    assert (tmp_path / "out.partial").exists()
    written = (tmp_path / "out" / "report.json").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "compute_loss", _stopped)
        run(resume=True)
        assert {path.name for path in tmp_path.iterdir()} == {"out"}
        assert (tmp_path / "out" / "report.json").stat().st_mtime_ns == written
        with pytest.raises(UserError, match="not empty"):
            run(resume=True, training=replace(training, seed=1))
        with pytest.raises(UserError, match="not empty"):
            run()


def _stopped(*args: Any, **how: Any) -> None:
    raise Stopped


def test_no_checkpoint(tmp_path: Path):
    assert last_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.slow
def test_kill_dash_nine(untrained: Path, uninterrupted: Callable[[Training], Path], tmp_path: Path):
    long = replace(TRAINING, soft_epochs=10)  # enough to be killed in
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    write_rows(data, ROWS)
    arguments = f"prune --model {untrained} --data {data} --budget 2x --out {out} --epochs 12"
    arguments += " --soft-epochs 10 --batch-size 8 --save-steps 4 --lr 1e-3"
    command = [sys.executable, "-m", "toprune.cli", *arguments.split()]
    soft = tmp_path / "out.partial" / "stages" / "soft"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while last_checkpoint(soft) is None and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
    assert not out.exists()
    subprocess.run([*command, "--resume"], capture_output=True, check=True)
    same(uninterrupted(long), out)
