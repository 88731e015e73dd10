"""The bundles that serve.py loads: dense, at 3x, and with a dial, for each mix of texts.

What a text costs depends on the plan, not on what the weights have learned. So the dense models see
little, and plans are calibrated on them without training (`--epochs 0`). Bundles go to the cache
directory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import sets
from candidates import trecqa
from dense import CACHE
from toprune.api import Data, finetune, prune
from toprune.cli.demo import model_directory
from toprune.data.examples import Examples
from toprune.export.export import export
from toprune.training.settings import Training

REVIEWS, POOL = 1200, 2000  # IMDB reviews to learn from, and to send
SHED = ("2x", "3x", "5x")
BUDGETS: dict[str, str | tuple[str, ...]] = {"pruned": "3x", "dial": SHED}
UNTRAINED = Training(soft_epochs=0, hard_epochs=0)
# Task, tokens of a text, and the texts of train and test. A third of a pair is its question; to
# reach 3x, it may be dropped, too.
MIXES: dict[str, tuple[str, int, Callable[[], tuple[Examples, Examples]], dict[str, Any]]] = {
    "imdb": (
        "classify",
        256,
        lambda: (sets.train_set("imdb", REVIEWS), sets.report_sets("imdb", POOL)["test"]),
        {},
    ),
    "trecqa": (
        "rank",
        128,
        lambda: (trecqa()["train"], trecqa()["test"]),
        {"protect_first": False},
    ),
}


def texts_of(mix: str) -> list[Any]:
    """The test texts, or pairs of texts."""
    _, test = MIXES[mix][2]()
    return list(test.texts if test.pairs is None else zip(test.texts, test.pairs, strict=True))


def bundle_of(mix: str, kind: str) -> Path:
    """The exported bundle of a mix: `dense`, `pruned` or `dial`."""
    out = CACHE / "serve" / f"{mix}-{kind}"
    if (out / "onnx" / "export.json").exists():
        return out
    task, length, load, options = MIXES[mix]
    train, _ = load()
    data = Data({"train": sets.rows(train)}, max_length=length)
    if kind == "dense":
        training = Training(soft_epochs=0, hard_epochs=1, lr=1e-4, label_weight=1.0)
        finetune(model_directory(), data, task=task, out=out, training=training, resume=True)
    else:
        dense = bundle_of(mix, "dense")
        options = options | {"task": task, "out": out, "training": UNTRAINED, "resume": True}
        prune(dense, data, BUDGETS[kind], **options)
    export(out)
    return out
