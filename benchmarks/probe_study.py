"""How far does the probe go without training? Scores compared on the frozen dense models.

    python benchmarks/probe_study.py mrpc imdb

Every kind of score runs the same two schedules (geometric from layer 0, one cut after layer 0) at
the same budgets; judged on the selection texts of results.py (never on a reported set) by accuracy
and by the distance of the answers from the dense model's. Writes results/probe_study.json.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sets
from dense import CACHE, ROWS
from results import distance, selection
from toprune.models.families import family_of, sizes_of
from toprune.models.load import load_model, load_tokenizer
from toprune.plan.budget import Budget
from toprune.plan.plan import Plan
from toprune.plan.schedule import geometric
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Drop, Follow
from toprune.pruning.tokens import Tokens
from toprune.report.environment import environment
from toprune.tasks import make_task
from toprune.training.batches import Collate, in_batches
from toprune.training.evaluation import collect_outputs
from toprune.training.features import encode, lengths, rows_of
from toprune.training.probe import fit_probes

OUT = Path(__file__).parent / "results" / "probe_study.json"
BUDGETS = {"mrpc": ("50%", "67%"), "imdb": ("67%", "80%")}


class By(Follow):
    """Follow a plan's counts with scores from anywhere, ranked anew at every step."""

    def __init__(self, plan: Plan, score: Callable[[int, Tensor, Tensor | None, Tokens], Tensor]):
        super().__init__(plan)
        self.by = score

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if layer not in self.steps:
            return None
        return super().decide(layer, state, self.by(layer, state, received, tokens), tokens)


def _z(x: Tensor, tokens: Tokens) -> Tensor:
    """Standardised over the live tokens of each text."""
    live = tokens.alive.to(x.dtype)
    mean = (x * live).sum(1, keepdim=True) / live.sum(1, keepdim=True)
    var = ((x - mean).square() * live).sum(1, keepdim=True) / live.sum(1, keepdim=True)
    return (x - mean) / var.clamp_min(1e-12).sqrt()


def scores(probes: Tensor, random: torch.Generator) -> dict[str, Any]:
    """The kinds. All but `probe` rank anew at every step."""

    def attention(_: int, __: Tensor, received: Tensor | None, ___: Tokens) -> Tensor:
        assert received is not None
        return received.clamp_min(1e-9).log()

    return {
        "random": lambda i, s, r, t: torch.rand(s.shape[:2], generator=random),
        "received": attention,
        "probe of each layer": lambda i, s, r, t: s @ probes[i],
        "received + probe of each layer": lambda i, s, r, t: (
            _z(attention(i, s, r, t), t) + _z(s @ probes[i], t)
        ),
    }


def study(task: str) -> list[dict[str, Any]]:
    task_object = make_task(sets.TASK[task])
    train_set, reported = selection(task, sets.train_set(task, ROWS.get(task)))
    source = CACHE / "dense" / (task + "-select" * (task != "imdb"))
    model, tokenizer = load_model(source, task_object, train_set).eval(), load_tokenizer(source)
    limit = sets.MAX_LENGTH[task]
    features = encode(tokenizer, task_object, train_set, limit)
    judges = reported["select"].take(range(700))
    tests = encode(tokenizer, task_object, judges, limit)
    collate = Collate(tokenizer)
    sample = np.random.default_rng(0).permutation(len(features))[:512]
    batches = [
        {k: v for k, v in batch.items() if k != "labels"}
        for _, batch in in_batches([features[i] for i in sample], collate)
    ]
    probes = {n: fit_probes(model, task_object, batches[: n // 32]) for n in (64, 512)}
    dense = collect_outputs(model, task_object, tests, collate, "dense")
    rows: list[dict[str, Any]] = []

    def accuracy(outputs: list[np.ndarray]) -> float:
        return task_object.metrics(task_object.statistics(outputs, rows_of(tests), judges))[
            "accuracy"
        ]

    def note(name: str, shape: str, budget: str, policy: Any) -> None:
        attach_policy(model, policy)
        outputs = collect_outputs(model, task_object, tests, collate, name)
        detach(model)
        rows.append(
            {
                "task": task,
                "score": name,
                "schedule": shape,
                "budget": budget,
                "accuracy": accuracy(outputs),
                "distance": distance(task_object, outputs, dense),
            }
        )

    for budget in BUDGETS[task]:
        for shape, last in (("geometric", None), ("single cut", 0)):
            args = (sizes_of(model), lengths(features), Budget.parse(budget))
            settings = {"family": family_of(model).name, "first": 0, "last": last}
            plain = geometric(*args, **settings, score="received")
            for name, by in scores(probes[512], torch.Generator().manual_seed(0)).items():
                note(name, shape, budget, By(plain, by))
            for n, probe in probes.items():
                plan = geometric(*args, **settings, score="probe", probe=tuple(probe[0].tolist()))
                note(f"probe, {n} texts", shape, budget, Follow(plan))
    rows.append(
        {
            "task": task,
            "score": "dense",
            "accuracy": accuracy(dense),
            "distance": 0.0,
        }
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(BUDGETS))
    args = parser.parse_args()
    rows_found = [row for task in args.tasks for row in study(task)]
    OUT.write_text(json.dumps({"rows": rows_found, "environment": environment()}, indent=1) + "\n")
    for row in rows_found:
        sets.say(json.dumps(row))


if __name__ == "__main__":
    main()
