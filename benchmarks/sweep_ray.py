"""Six runs of a sweep, in turn and on Ray: are the files the same, and what is won?

    python benchmarks/sweep_ray.py        # some minutes; writes results/sweep_ray.json

A tiny BERT learns which of six marked words is in a text of noise, then `top` with two weights of
its ranking distillation and `random` prune it to 2x and 3x. The same grid is swept in turn with one
thread, in turn with every core, and by Ray that is started here with two workers of one thread
each. Seconds are of the whole call, with the start of Ray and of its workers. The machine's load
before each is told: beside other work the ratios say little.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from toprune.api import Data, finetune
from toprune.compare.executors import Executor, in_turn, on_ray
from toprune.compare.runs import Subject
from toprune.compare.sweep import Grid, sweep
from toprune.plan.plan import Plan
from toprune.report.environment import environment
from toprune.training.settings import Training

RESULT = Path(__file__).parent / "results" / "sweep_ray.json"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [f"w{i}" for i in range(60)]
MARKED, WORKERS = 6, 2
TRAIN, TEST = 1000, 500
LEARNED = 0.95  # accuracy of the dense model, at least
TRAINING = Training(soft_epochs=1, hard_epochs=1, lr=1e-3)


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        words = list(rng.choice(WORDS[MARKED:], rng.integers(12, 41)))
        mark = int(rng.integers(MARKED))
        words[rng.integers(len(words))] = WORDS[mark]
        rows.append({"text": " ".join(words), "label": 2 * mark // MARKED})
    return rows


def make_dense(folder: Path, data: Any) -> None:
    vocabulary = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    raw = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    raw.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # pyright: ignore[reportAttributeAccessIssue]
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **names)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    how = Training(soft_epochs=0, hard_epochs=10, lr=2e-3, label_weight=1, train_embeddings=True)
    model = BertForSequenceClassification(config)
    report = finetune(model, data, out=folder, tokenizer=tokenizer, training=how)
    # One that guesses would give the same answers whatever is done to it: all runs would be equal.
    if report["metrics"]["accuracy"]["value"] < LEARNED:
        sys.exit("the dense model has not learned the task: nothing can be told by its pruned ones")


def timed(grid: Grid, out: Path, engine: Executor, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    load, started = os.getloadavg()[0], time.perf_counter()
    sweep(grid, out=out, engine=engine)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "load_before": load, "threads": threads}


def bundles(out: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in sorted(out.rglob("plan.json"))}


def same(one: Path, other: Path, read: Callable[[Path], Any]) -> int:
    """In how many bundles this is equal."""
    pairs = [(bundles(one)[name], bundles(other)[name]) for name in bundles(one)]
    return sum(read(a) == read(b) for a, b in pairs)


def plan_of(bundle: Path) -> Any:
    plan = Plan.load(bundle / "plan.json")
    return plan.score, plan.steps, plan.probe


def weights_of(bundle: Path) -> Any:
    return {
        name: t.numpy().tobytes() for name, t in load_file(bundle / "model.safetensors").items()
    }


def metrics_of(bundle: Path) -> Any:
    report = json.loads((bundle / "report.json").read_text())
    return [report[name] for name in ("dense", "pruned", "difference", "agreement")]


def main() -> None:
    data = {"train": texts(TRAIN, 0), "test": texts(TEST, 1)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_dense(folder / "dense", data)
        subject = Subject(folder / "dense", Data(data), training=TRAINING)
        grid = Grid({"marks": subject}, ["top", "random"], ["2x", "3x"], weights=[0, 1])
        cores = torch.get_num_threads()
        one, ray, all_ = (folder / place for place in ("one", "ray", "all"))
        took = {
            "in_turn_one_thread": timed(grid, one, in_turn, 1),
            "ray": timed(grid, ray, on_ray(workers=WORKERS), 1) | {"workers": WORKERS},
            "in_turn_every_core": timed(grid, all_, in_turn, cores),
        }
        reads = {"plans": plan_of, "weights": weights_of, "metrics": metrics_of}
        result = {
            "runs": len(bundles(one)),
            "texts": {"train": TRAIN, "test": TEST},
            "training": TRAINING.settings(),
            "took": took,
            "equal": {
                "ray": {what: same(one, ray, read) for what, read in reads.items()},
                "in_turn_every_core": {what: same(one, all_, read) for what, read in reads.items()},
                "tables": (one / "sweep.md").read_bytes() == (ray / "sweep.md").read_bytes(),
            },
            "ray_faster": {
                name: took[name]["seconds"] / took["ray"]["seconds"]
                for name in ("in_turn_one_thread", "in_turn_every_core")
            },
            "table": (ray / "sweep.md").read_text().splitlines(),
            "environment": environment(),
        }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    shown = {key: result[key] for key in ("runs", "took", "equal", "ray_faster")}
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
