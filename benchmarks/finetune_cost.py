"""What fine-tuning costs, by how it is done: ways interleaved in one process, as in train_cost.py.

    python benchmarks/finetune_cost.py        # on a quiet machine, one with bfloat16 products

The embedded MiniLM with a head for two classes on film reviews cut at several lengths. Stock: the
model as transformers runs it, whose attention is fused where it has no dropout. Ours: under a plan
of no steps, which is what `toprune finetune` runs.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sets import say
from toprune.cli.demo import model_directory, read_reviews, split
from toprune.data.examples import Examples
from toprune.models.load import load_model, load_tokenizer
from toprune.pruning.attach import attach
from toprune.report.environment import environment
from toprune.tasks import Classify
from toprune.training.batches import Collate, in_batches
from toprune.training.features import encode
from toprune.training.job import dense_plan
from toprune.training.learner import Learner
from train_cost import BATCHES, interleave

OUT = Path(__file__).parent / "results" / "finetune_cost.json"
LENGTHS, BATCH, ROUNDS = (128, 256, 512), 8, 4
# name: ours, dropout, bfloat16
WAYS = {
    "stock, dropout": (False, True, False),
    "stock": (False, False, False),
    "stock, bfloat16": (False, False, True),
    "ours, dropout": (True, True, False),
    "ours": (True, False, False),
    "ours, bfloat16": (True, False, True),
}


class Half(Learner):
    """As the Trainer does with `bf16`."""

    # Learners are called with names alone, so this takes all that they take.
    def forward(self, **batch: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(**batch)


def prepare(length: int) -> dict[str, Any]:
    task = Classify()
    torch.manual_seed(0)
    rows = split(read_reviews(), 4 * BATCH * BATCHES, 0, 0)["train"]
    examples = Examples([r["text"] for r in rows], None, [r["label"] for r in rows])
    tokenizer = load_tokenizer(model_directory())
    features = encode(tokenizer, task, examples, length)
    longest = sorted(features, key=lambda one: -len(one["input_ids"]))[: 2 * BATCH * BATCHES]
    batches = [batch for _, batch in in_batches(longest, Collate(tokenizer), BATCH)]
    dense = load_model(model_directory(), task, examples, new_head=True)
    for p in dense.base_model.embeddings.parameters():
        p.requires_grad_(False)
    kinds: dict[str, Any] = {}
    for name, (ours, dropout, half) in WAYS.items():
        model = copy.deepcopy(dense)
        if ours:
            attach(model, dense_plan(model))
        learner_class = Half if half else Learner
        kinds[name] = learner_class(model, task, label_weight=1.0, dropout=dropout), batches
    return kinds


def main() -> None:
    rng, results = np.random.default_rng(0), []
    for length in LENGTHS:
        times = interleave(prepare(length), ROUNDS)
        base = np.array(times["stock, dropout"])
        for name, seconds in times.items():
            ratios = base / np.array(seconds)
            draws = [np.median(rng.choice(ratios, len(ratios))) for _ in range(1000)]
            low, high = np.quantile(draws, [0.025, 0.975])
            results.append(
                {
                    "length": length,
                    "name": name,
                    "faster": float(np.median(ratios)),
                    "low": float(low),
                    "high": float(high),
                    "rounds": ratios.tolist(),
                }
            )
            say(f"{length} tokens, {name}: {results[-1]['faster']:.2f}x")
    result = {"rows": results, "threads": torch.get_num_threads(), "environment": environment()}
    OUT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
