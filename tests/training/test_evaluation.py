"""What a model says over a set: to each row what it says to it alone, in order; kept whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.models import make_model, make_tokenizer
from support.strategies import pad, random_text
from toprune.tasks import Answer, Classify, Embed, Tags
from toprune.training.batches import Collate
from toprune.training.evaluation import collect_outputs, load_outputs, save_outputs

TEXTS = [random_text(n, n) for n in (5, 24, 2, 9, 13, 9)] * 7  # more than one batch
FEATURES = [{"input_ids": text, "index": i, "label": 0} for i, text in enumerate(TEXTS)]


def alone(model: Any, task: Any, text: list[int]) -> np.ndarray:
    with torch.no_grad():
        out = model(**pad([text]))
    if task.NAME == "embed":
        states = out.last_hidden_state[0]
        return (states.mean(0) if task.pooling == "mean" else states[0]).numpy()
    parts = [getattr(out, name)[0].numpy() for name in task.OUTPUTS]
    return parts[0] if len(parts) == 1 else np.stack(parts, -1)


@pytest.mark.parametrize(
    ("task", "head"),
    [
        (Classify(), "sequence"),
        (Tags(), "tokens"),
        (Answer(), "answer"),
        (Embed(), "encoder"),
        (Embed(pooling="cls"), "encoder"),
    ],
)
def test_answers_are_those_of_each_text_alone(task: Any, head: str, tmp_path: Path) -> None:
    model = make_model("bert", num_labels=2, head=head).train()
    outputs = collect_outputs(model, task, FEATURES, Collate(make_tokenizer()))
    assert model.training  # as it was, though dropout was off
    model.eval()
    for text, output in zip(TEXTS, outputs, strict=True):
        np.testing.assert_allclose(output, alone(model, task, text), atol=1e-4, rtol=1e-4)
    save_outputs(tmp_path / "said.npz", outputs)
    loaded = load_outputs(tmp_path / "said.npz")
    for one, other in zip(loaded, outputs, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["said.npz"]  # no draft left
