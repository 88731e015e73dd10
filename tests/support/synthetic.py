"""A task with known important tokens: which of two marked words occurs among noise?

One marked word per text (w0..w2 for class 0, w3..w5 for class 1), 12 to 30 noise words. A method
that works must keep just that word.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from support.models import CONFIGS, make_tokenizer
from toprune.api import finetune
from toprune.training.settings import Training

MARKED = [f"w{i}" for i in range(6)]


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        words = [f"w{i}" for i in rng.integers(10, 60, rng.integers(12, 31))]
        mark = int(rng.integers(6))
        words[rng.integers(len(words))] = MARKED[mark]
        result.append({"text": " ".join(words), "label": mark // 3})
    return result


DATA = {"train": rows(800, 0), "test": rows(200, 1)}


def untrained(family: str = "bert", num_labels: int = 2) -> Any:
    """A fresh tiny model with an ordinary initialisation, ready to learn."""
    tokenizer = make_tokenizer(family)
    config = CONFIGS[family](
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=num_labels
    )
    config.initializer_range = 0.1
    return AutoModelForSequenceClassification.from_config(config)


def save_untrained(folder: Path) -> Path:
    """Write `untrained()`, the same every time, and its tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        untrained().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def fine_tuned(
    data: dict[str, Any], build: Callable[[], Any] = untrained, least: float = 0.97
) -> Any:
    """Build the dense model that methods start from and train it to an accuracy of `least`."""
    torch.manual_seed(0)
    model = build()
    training = Training(hard_epochs=6, lr=2e-3, label_weight=1, train_embeddings=True)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        report = finetune(model, data, out=out, tokenizer=make_tokenizer(), training=training)
    assert report["metrics"]["accuracy"]["value"] >= least
    return model.eval()
