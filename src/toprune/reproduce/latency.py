"""Targets that take times: table 1 (networks that predict tokens) and table 6 (padded inputs).

Times hold for one machine on which nothing else runs.
"""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from toprune.compare.bench import PADDED, bench
from toprune.export.export import export
from toprune.export.graph import input_names, write_onnx
from toprune.models.families import sizes_of
from toprune.models.load import read_config
from toprune.plan.budget import Lengths
from toprune.plan.cost import reduction
from toprune.plan.plan import Plan, Step
from toprune.pruning.predictor import add_predictors
from toprune.reproduce.case import Case
from toprune.reproduce.probe import held_out
from toprune.run.engines import OnnxRuntime
from toprune.run.manifest import PLACE
from toprune.run.timing import interleave, pinned, ratio
from toprune.tasks import TASKS
from toprune.training.job import dense_plan

ALWAYS = 1e-9  # odds that any token has: nothing is dropped
LENGTHS = (128, 256, 384, 512)  # padded tokens in table 6
ROUNDS = {"tiny": 3, "cpu": 30, "paper": 60}
SECONDS = {"tiny": 1.0, "cpu": 45.0, "paper": 120.0}
TEXTS = {"tiny": 4, "cpu": 64, "paper": 64}
PAIR = ("pruned fp32", "dense fp32")


def predictor_cost(case: Case) -> dict[str, Any]:
    """What Transkimmer's networks cost where every token stays: FLOPs, counted, and time.

    The weights are random: neither depends on them.
    """
    config = read_config(case.model())
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        model = AutoModelForSequenceClassification.from_config(config).eval()
        sizes, dense = sizes_of(model), dense_plan(model)
        add_predictors(model, range(sizes.layers - 1), sizes.width, normed=True)
    steps = tuple(Step(layer, Fraction(1), ALWAYS) for layer in range(sizes.layers - 1))
    plans = {
        "dense": dense,
        "predictors": replace(dense, score="predicted", predictor=sizes.width, steps=steps),
    }
    tokens, rounds = case.max_length, ROUNDS[case.options.scale]
    flops = 1 / reduction(sizes, plans["predictors"], Lengths.of([tokens])).unpadded
    times = _times(model, plans, tokens, rounds, SECONDS[case.options.scale])
    slower = ratio(times["predictors"], times["dense"])  # of dense over predictors
    return {
        "length": tokens,
        "layers": sizes.layers,
        "width": sizes.width,
        "threads": 1,
        "flops": 100 * (flops - 1),
        "cpu": {key: 100 * (value - 1) for key, value in slower.items()},
    }


def _times(
    model: Any, plans: dict[str, Plan], tokens: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Seconds of each plan on one random text, in turns, on one thread."""
    ids = np.random.default_rng(0).integers(4, model.config.vocab_size, (1, tokens))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    inputs |= {"token_type_ids": np.zeros_like(ids)}
    feeds = {name: inputs[name] for name in input_names(model.config)}
    with TemporaryDirectory(prefix="toprune-predictors-") as folder, pinned(1):
        paths = {name: Path(folder) / f"{name}.onnx" for name in plans}
        for name, plan in plans.items():
            write_onnx(model, plan, paths[name])
        runs = {
            name: partial(OnnxRuntime(path, threads=1).run, feeds) for name, path in paths.items()
        }
        return interleave(runs, rounds=rounds, seconds=seconds)


def padded_latency(case: Case, bundle: Path) -> dict[str, Any]:
    """Times of a pruned model: on texts of the data, against dense with and without padding, and on
    random texts of the paper's lengths, as far as the model reads so many tokens."""
    scale, say = case.options.scale, case.options.say
    if not (bundle / PLACE).exists():
        export(bundle, say=say)
    inputs = held_out(case).inputs(TASKS[case.task_name].READS)
    order = np.random.default_rng(case.seed).permutation(len(inputs))[: TEXTS[scale]]
    how: Any = {"int8": False, "rounds": ROUNDS[scale], "seconds": SECONDS[scale], "say": say}
    texts = bench(bundle, texts=[inputs[i] for i in order], **how)
    lengths = sorted({n for n in LENGTHS if n < case.max_length} | {case.max_length})
    random = bench(bundle, lengths=lengths, **how)
    rows = [_row("texts of the data", texts["rows"][0])]
    rows += [
        _row(f"{n} random tokens", row) for n, row in zip(lengths, random["rows"], strict=True)
    ]
    return {"rows": rows, "threads": texts["threads"], "max_length": texts["max_length"]}


def _row(name: str, row: dict[str, Any]) -> dict[str, Any]:
    ratios = {(one["who"], one["over"]): one for one in row["ratios"]}
    parts = {"unpadded": ratios[PAIR], "padded": ratios.get((PAIR[0], PADDED), ratios[PAIR])}
    return {
        "name": name,
        "length": row["tokens"],
        "milliseconds": row["ms_per_text"],
        **{
            part: {key: one[key] for key in ("value", "low", "high")} for part, one in parts.items()
        },
    }
