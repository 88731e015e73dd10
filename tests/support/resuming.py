"""Runs that are stopped at a chosen step, and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support import synthetic
from toprune.plan.plan import Plan
from toprune.training.settings import Training
from toprune.training.trainer import StageTrainer

# 54 texts of 60 are for training: 7 batches of 8, so that checkpoints fall inside epochs
ROWS = synthetic.rows(60, 0)
TRAINING = Training(soft_epochs=2, hard_epochs=2, batch_size=8, save_steps=4, lr=1e-3)


class Stopped(Exception):
    """Stands for anything that ends a process: what follows must not depend on a clean exit."""


def stop_at(patch: pytest.MonkeyPatch, stage: str, step: int) -> None:
    """Let the loss of that step raise; `stage` is the name of its checkpoint directory."""
    loss = StageTrainer.compute_loss

    def compute_loss(self: StageTrainer, *args: Any, **kwargs: Any) -> Any:
        if Path(str(self.args.output_dir)).name == stage and self.state.global_step == step:
            raise Stopped
        return loss(self, *args, **kwargs)

    patch.setattr(StageTrainer, "compute_loss", compute_loss)


def same(one: Path, other: Path) -> None:
    """Bit by bit: there is no reason for less on one machine."""
    if (one / "plan.json").exists():
        assert Plan.load(one / "plan.json").steps == Plan.load(other / "plan.json").steps
    weights, others = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert weights.keys() == others.keys()
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []
