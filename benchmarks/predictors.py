"""What choosing costs: a dense model, the same with Transkimmer's predictor at every layer, and
with the probe at the first, when every token stays. ToP's own table of prediction modules.

    python benchmarks/predictors.py     # on a quiet machine, two minutes

Random weights; 256 tokens, one thread, ONNX Runtime, contenders taking turns. Choosing includes the
ranking and the move of the rows, as a pruned model does them at every step.
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from families import drawn
from latency import RESULTS, SEED, Row, row_of, run_all, tell
from toprune.export.graph import write_onnx
from toprune.models.families import sizes_of
from toprune.plan.budget import Lengths
from toprune.plan.cost import reduction
from toprune.plan.plan import Plan, Step
from toprune.pruning.predictor import add_predictors
from toprune.report.environment import environment
from toprune.run.engines import OnnxRuntime
from toprune.run.timing import interleave, pinned
from toprune.training.job import dense_plan

TOKENS = 256
FILE = "predictors.json"
ROUNDS = 30
MODELS = {"12L-768": (12, 768, 12), "6L-512": (6, 512, 8), "4L-256": (4, 256, 4)}
ALWAYS = 1e-9  # odds that any token has


def built(layers: int, width: int, heads: int) -> Any:
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    torch.manual_seed(SEED)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    add_predictors(model, range(layers - 1), width, normed=True)
    return model


def plans(model: Any) -> dict[str, Plan]:
    """Of those who choose and drop nobody."""
    dense, sizes = dense_plan(model), sizes_of(model)
    steps = tuple(Step(layer, Fraction(1), ALWAYS) for layer in range(sizes.layers - 1))
    return {
        "dense": dense,
        "predictors": replace(dense, score="predicted", predictor=sizes.width, steps=steps),
        "probe": replace(
            dense, score="probe", probe=(1.0,) * sizes.width, steps=(Step(0, Fraction(1)),)
        ),
    }


def measure(name: str, folder: Path, *, tokens: int, rounds: int) -> Row:
    model = built(*MODELS[name])
    chosen, sizes = plans(model), sizes_of(model)
    for who, plan in chosen.items():
        write_onnx(model, plan, folder / f"{who}.onnx")
    feeds = [drawn(model, tokens)]
    with pinned(1):
        runs = {
            who: partial(run_all, OnnxRuntime(folder / f"{who}.onnx", threads=1), feeds)
            for who in chosen
        }
        times = interleave(runs, rounds=rounds, warmup=3, seed=SEED)
    flops = {
        who: 1 / reduction(sizes, plan, Lengths.of([tokens])).unpadded
        for who, plan in chosen.items()
    }
    pairs = [("dense", who, flops[who]) for who in ("predictors", "probe")]
    row = {"model": name, "tokens": tokens, "threads": 1} | row_of(times, "dense", pairs)
    tell(row, f"{name}, {tokens} tokens")
    return row | {"flops": flops}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], help="models; all if none")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    rows = []
    for name in args.names or MODELS:
        with TemporaryDirectory(prefix="toprune-predictors-") as folder:
            rows.append(measure(name, Path(folder), tokens=args.tokens, rounds=args.rounds))
    result = {"rows": rows, "seed": SEED, "environment": environment()}
    (args.out / FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
