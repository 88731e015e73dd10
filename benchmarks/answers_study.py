"""Answers without training: ranked once or anew at every step, dropped tokens with their last state
or as zeros.

    python benchmarks/answers_study.py

The dense SQuAD model of tasks.py, frozen, at a real 1.7x, on questions of the training sources that
it never saw (never on a reported set). First, where the answer can be told: of each layer's own
probe, how often both ends of the dense model's answer are among the best ranks. Then the schedule
that calibration finds for each way, and what it loses. Writes results/answers_study.json.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sets
import tasks
from toprune.api import Data, prune
from toprune.data.examples import Examples
from toprune.methods.baselines import Calibrate
from toprune.models.families import has_segments, sizes_of
from toprune.models.heads import task_outputs
from toprune.models.load import load_model, load_tokenizer
from toprune.plan.plan import Score
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Protection, Record
from toprune.pruning.tokens import order, ranks
from toprune.report.environment import environment
from toprune.tasks import Task, make_task
from toprune.training.batches import Collate, in_batches
from toprune.training.features import encode
from toprune.training.probe import fit_probes
from toprune.training.settings import Training

OUT = Path(__file__).parent / "results" / "answers_study.json"
BUDGET = "1.7x"
FITTED, HELD = slice(6000, 6050), slice(7000, 7200)  # questions of each source
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
WAYS: tuple[tuple[Score, str], ...] = (
    ("probe", "last"),
    ("probes", "last"),
    ("probe", "zero"),
    ("probes", "zero"),
)


def kept_by_layer(
    model: Any, tokenizer: Any, task: Task, fitted: Examples, held: Examples
) -> list[dict[str, float]]:
    """By layer, for each share of the tokens: how often both ends of the answer are in it."""
    until = tokenizer.sep_token_id
    protection = Protection((until,), until, "last")
    segments = has_segments(model.config)

    def batches(questions: Examples) -> list[dict[str, Tensor]]:
        features = encode(
            tokenizer, task, questions, tasks.RUNS["squad"].max_length, segments=segments
        )
        result = in_batches(features, Collate(tokenizer))
        return [{k: v for k, v in batch.items() if k != "labels"} for _, batch in result]

    probes = fit_probes(model, task, batches(fitted), protection=protection)
    record = Record(range(sizes_of(model).layers - 1), protection=protection)
    hits: list[dict[float, list[bool]]] = [{share: [] for share in SHARES} for _ in probes]
    attach_policy(model, record)
    with torch.inference_mode():
        for batch in batches(held):
            logits = task_outputs(model, task, batch)[0]  # (B, S, 2)
            tokens = record.tokens
            assert tokens is not None
            free = (tokens.alive & ~tokens.protected)[..., None]
            ends = logits.masked_fill(~free, -torch.inf).argmax(1)  # (B, 2)
            for layer, (state, probe) in enumerate(zip(record.values, probes, strict=True)):
                place = ranks(order(state @ probe, tokens)).gather(1, ends).amax(1)  # (B,)
                for share, hit in hits[layer].items():
                    hit += (place < share * tokens.n).tolist()
    detach(model)
    return [{f"{share:g}": float(np.mean(hit)) for share, hit in one.items()} for one in hits]


def main() -> None:
    run = tasks.RUNS["squad"]
    dense = tasks.dense_model("squad", run, *run.sets())
    kind = make_task("answer", {})
    fitted, held = (sets.together(tasks.shifts(which)) for which in (FITTED, HELD))
    model, tokenizer = load_model(dense, kind, held), load_tokenizer(dense)
    result: dict[str, Any] = {
        "budget": BUDGET,
        "seed": tasks.SEED,
        "answer_kept_by_layer": kept_by_layer(model, tokenizer, kind, fitted, held),
        "ways": [],
    }
    sets.say(str(result["answer_kept_by_layer"]))
    source = {"train": tasks.rows("answer", fitted), "test": tasks.rows("answer", held)}
    for score, dropped in WAYS:
        bundle = prune(
            dense,
            Data(source, max_length=run.max_length),
            BUDGET,
            task=make_task("answer", {"dropped": dropped}),
            method=Calibrate(),
            score=score,
            training=Training(0, 0, seed=tasks.SEED),
        )
        report, plan = bundle.report, bundle.plan
        assert plan is not None
        kept = ("examples", "dense", "pruned", "difference", "agreement", "budget")
        steps = [[step.layer, str(step.keep)] for step in plan.steps]
        way = {"score": score, "dropped": dropped, "steps": steps}
        result["ways"].append(way | {key: report[key] for key in kept})
        gap = report["difference"]["f1"]["value"]
        sets.say(f"{score}, {dropped}: {gap:+.4f}, agreement {report['agreement']:.3f}, {steps}")
        result["environment"] = environment()
        OUT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
