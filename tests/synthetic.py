"""A task with known important tokens: which of two marked words occurs among noise?

One marked word per text (w0..w2 for class 0, w3..w5 for class 1), 12 to 30 noise words. A method
that works must keep just that word.
"""

from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification

from conftest import CONFIGS, make_tokenizer

MARKED = [f"w{i}" for i in range(6)]


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = [f"w{i}" for i in rng.integers(10, 60, rng.integers(12, 31))]
        mark = int(rng.integers(6))
        words[rng.integers(len(words))] = MARKED[mark]
        found.append({"text": " ".join(words), "label": mark // 3})
    return found


def untrained(family: str = "bert") -> Any:
    """A fresh tiny model with an ordinary initialisation, ready to learn."""
    tokenizer = make_tokenizer(family)
    config = CONFIGS[family](
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=2
    )
    config.initializer_range = 0.1
    return AutoModelForSequenceClassification.from_config(config)
