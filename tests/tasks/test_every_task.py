"""Every task from data to answers: masked == gathered == alone == ONNX, int8 runs, and the whole
way through prune, export and Runner."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.executions import LIMIT, TASKS, as_rows, check_executions, make_examples
from support.models import CONFIGS, make_tokenizer
from toprune import Runner
from toprune.api import Data, evaluate, prune
from toprune.export.export import export
from toprune.methods.top import Top
from toprune.models.heads import HEADS, restore_of
from toprune.plan.plan import Score
from toprune.run.evaluate import evaluate as evaluate_onnx
from toprune.tasks import Multilabel, Task
from toprune.training.settings import Training

pytestmark = pytest.mark.usefixtures("rough_parity")


def make_model(task: Task, outputs: int) -> Any:
    config = CONFIGS["bert"](vocab_size=len(make_tokenizer()), num_labels=outputs, pad_token_id=1)
    if isinstance(task, Multilabel):
        config.problem_type = "multi_label_classification"
    torch.manual_seed(0)
    model = HEADS[task.HEAD].from_config(config).eval()
    if task.HEAD == "encoder":
        model.pooler = None
    return model


@pytest.mark.parametrize("score", Top.SCORES)
@pytest.mark.parametrize("name", TASKS)
def test_parity(name: str, score: Score, tmp_path: Path):
    """Of BERT; other families are in test_families.py."""
    task, outputs = TASKS[name]
    check_executions(make_model(task, outputs), make_tokenizer(), task, score, tmp_path / "bundle")


@pytest.mark.parametrize("score", Top.SCORES)
@pytest.mark.parametrize("name", TASKS)
def test_from_data_to_answers(name: str, score: Score, tmp_path: Path):
    task, outputs = TASKS[name]
    dense = tmp_path / "dense"
    make_model(task, outputs).save_pretrained(dense)
    make_tokenizer().save_pretrained(dense)
    rows = as_rows(task, make_examples(task, 48))
    data = Data(rows, max_length=LIMIT)
    bundle = prune(
        str(dense),
        data,
        "1.5x",
        task=task,
        out=tmp_path / "small",
        score=score,
        training=Training(soft_epochs=1, hard_epochs=1, batch_size=16),
    )
    assert bundle.plan is not None
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.02)
    assert bundle.plan.restore == restore_of(task, bundle.model.config)
    assert bundle.task == task
    assert np.isfinite(bundle.report["agreement"])
    export(tmp_path / "small", int8=True)
    run = Runner(tmp_path / "small", threads=1)
    assert run.task == task
    torch_report = evaluate(tmp_path / "small", data)
    onnx_report = evaluate_onnx(run, rows)
    for metric, found in torch_report["metrics"].items():
        assert onnx_report["metrics"][metric]["value"] == pytest.approx(found["value"], abs=2e-2)
