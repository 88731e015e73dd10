"""Prune the dense models of dense.py and write one JSON a run: the numbers of the README table.

    python benchmarks/results.py mrpc --budget 67% --score probe --seed 0
    python benchmarks/results.py --all          # everything that is not there yet, cheapest first

One recipe for all (`Training`), the last epoch, no choice by the reported sets. With
`--select` a run reports on texts of train that neither model was trained on (IMDB) or that are held
out of pruning (others): the place to try recipes.
"""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sets
from dense import CACHE
from toprune.data.examples import Examples
from toprune.data.splits import split_validation
from toprune.methods.top import Top
from toprune.models.families import sizes_of
from toprune.models.load import load_model, load_tokenizer
from toprune.plan.budget import Budget
from toprune.plan.cost import reduction
from toprune.plan.plan import Score
from toprune.pruning.attach import attach, detach
from toprune.report.environment import environment
from toprune.tasks import Task, make_task
from toprune.tasks.intervals import paired, with_intervals
from toprune.training.batches import Collate
from toprune.training.evaluation import collect_outputs
from toprune.training.features import encode, lengths, rows_of
from toprune.training.job import Job, settings_of
from toprune.training.settings import Training
from toprune.training.stages import run

Answers = dict[str, list[np.ndarray]]  # by set, of each of its texts (C,)
RESULTS = Path(__file__).parent / "results" / "core"
IMDB_TEST = 5000
TEXTS = {"imdb": 4000}  # to distil on, no labels needed: the dense model's 2,000 and as many more
TRAINING = {"soft_epochs": 1.0, "hard_epochs": 4.0, "bf16": False}
FEWER_EPOCHS = {"imdb": {"soft_epochs": 0.25, "hard_epochs": 1.5}}  # what two cores can bear


@dataclass(frozen=True)
class Spec:
    """One run."""

    task: str
    budget: str
    score: Score
    seed: int = 0
    variant: str = "default"  # of VARIANTS

    @property
    def name(self) -> str:
        return f"{self.task}-{self.budget.rstrip('%')}-{self.score}-{self.variant}-{self.seed}"


# the paper's ablations, and what else was tried; each changes the method or the training
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "no-gates": ({"gates": False}, {}),
    "distill-none": ({"distill": "none"}, {}),
    "distill-mse": ({"distill": "mse"}, {}),
    "distill-ce": ({"distill": "ce"}, {}),
    "lagrangian": ({"constraint": "lagrangian"}, {}),
    "untrained": ({}, {"soft_epochs": 0, "hard_epochs": 0}),
    "calibrated": ({}, {"soft_epochs": 0}),
}


def everything() -> list[Spec]:
    """The runs of issue 2, in the order in which they are worth having."""
    pairs = [("mrpc", "50%"), ("mrpc", "67%"), ("imdb", "67%"), ("imdb", "80%")]
    scores: tuple[Score, ...] = ("probe", "received")
    others = [(task, budget) for task in ("rte", "cola", "stsb") for budget in ("50%", "67%")]
    specs = [Spec(t, b, s) for s in scores for t, b in pairs]
    specs += [Spec(t, b, s) for t, b in others for s in scores]
    specs += [Spec(t, b, "probe", seed) for seed in (1, 2) for t, b in pairs]
    ablations = ("no-gates", "distill-none", "distill-mse", "distill-ce")
    specs += [Spec(t, "67%", "received", 0, v) for v in ablations for t in ("mrpc", "rte")]
    specs += [Spec(t, b, "received", seed) for seed in (1, 2) for t, b in pairs]
    return specs


def measure(spec: Spec, *, select: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Prune as the spec says and compare with the dense model on the reported texts."""
    job, reported = _job(spec, select=select, settings=settings)
    limit = sets.MAX_LENGTH[spec.task]
    collate = Collate(job.tokenizer)
    texts = {p: encode(job.tokenizer, job.task, e, limit) for p, e in reported.items()}
    before = _dense(spec.task, job, texts, select)
    _borrow(job, spec, select)
    start = time.perf_counter()
    outcome = run(job, resume=True)
    seconds = time.perf_counter() - start
    _lend(job, spec, select)
    attach(job.model, outcome.plan)
    after = {
        part: collect_outputs(job.model, job.task, t, collate, f"pruned on {part}")
        for part, t in texts.items()
    }
    detach(job.model)
    shutil.rmtree(job.work)
    done = reduction(sizes_of(job.model), outcome.plan, job.lengths, max_length=limit)
    return {
        "name": spec.name,
        "spec": vars(spec),
        "settings": settings_of(job),
        "selection": select,
        "executed": vars(done),
        "expected": outcome.expected,
        "steps": [[step.layer, float(step.keep)] for step in outcome.plan.steps],
        "seconds": round(seconds, 1),
        "threads": torch.get_num_threads(),
        "reported": _scores(job.task, reported, texts, before, after),
        "environment": environment(),
    }


def _job(spec: Spec, *, select: bool, settings: dict[str, Any]) -> tuple[Job, dict[str, Examples]]:
    task = make_task(sets.TASK[spec.task])
    train_set = sets.train_set(spec.task, TEXTS.get(spec.task))
    if select:
        train_set, reported = selection(spec.task, train_set)
    else:
        reported = sets.report_sets(spec.task, IMDB_TEST if spec.task == "imdb" else None)
    source = CACHE / "dense" / (spec.task + "-select" * (select and spec.task != "imdb"))
    tokenizer = load_tokenizer(source)
    features = encode(tokenizer, task, train_set, sets.MAX_LENGTH[spec.task])
    change_top, change_training = VARIANTS[spec.variant]
    training: dict[str, Any] = {"seed": spec.seed} | TRAINING
    training |= FEWER_EPOCHS.get(spec.task, {}) | change_training
    top_names, training_names = Top.__dataclass_fields__, Training.__dataclass_fields__
    training |= {k: v for k, v in settings.items() if k in training_names}
    job = Job(
        model=load_model(source, task, train_set),
        tokenizer=tokenizer,
        task=task,
        features=features,
        lengths=lengths(features),
        budget=Budget.parse(spec.budget),
        score=spec.score,
        method=Top(**change_top | {k: v for k, v in settings.items() if k in top_names}),
        training=Training(**training),
        work=CACHE / "work" / (spec.name + "-select" * select),
    )
    return job, reported


def selection(task: str, train_set: Examples) -> tuple[Examples, dict[str, Examples]]:
    if task == "imdb":  # 21,000 reviews of train that nobody has seen
        rest = sets.train_set(task, 25_000).take(
            np.random.default_rng(0).permutation(25_000)[-1500:]
        )
        return train_set, {"select": rest}
    kept, held = split_validation(train_set, sets.HELD_OUT, seed=0)
    return kept, {"select": held}


def _scores(
    task: Task, reported: dict[str, Examples], texts: Any, before: Answers, after: Answers
) -> dict[str, Any]:
    judged = {
        part: [
            task.statistics(outputs[part], rows_of(texts[part]), e) for outputs in (before, after)
        ]
        for part, e in reported.items()
    }
    far = {part: distance(task, after[part], before[part]) for part in reported}
    if len(judged) > 1:
        counts = [len(dense) for dense, _ in judged.values()]
        judged["all"] = [np.concatenate(x) for x in zip(*judged.values(), strict=True)]
        far["all"] = float(np.average(list(far.values()), weights=counts))
    return {
        part: {
            "examples": len(dense),
            "dense": with_intervals(task, dense),
            "pruned": with_intervals(task, pruned),
            "difference": paired(task, dense, pruned),
            "distance": far[part],
        }
        for part, (dense, pruned) in judged.items()
    }


def distance(task: Task, outputs: Sequence[np.ndarray], dense: Sequence[np.ndarray]) -> float:
    """The distillation loss of answers (C,), each of one text."""
    one, other = (torch.from_numpy(np.stack(x)) for x in (outputs, dense))
    return float(task.distill_loss(one, other, torch.ones_like(one)))


def _dense(task: str, job: Job, texts: Any, select: bool) -> Answers:
    """The dense model's logits on the reported sets, once."""
    result: Answers = {}
    for part, features in texts.items():
        path = CACHE / "logits" / f"{task}-{part}-{len(features)}{'-select' * select}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            collate = Collate(job.tokenizer)
            outputs = collect_outputs(job.model, job.task, features, collate, f"dense on {part}")
            np.save(path, np.stack(outputs))
        result[part] = list(np.load(path))
    return result


def _shared(spec: Spec, select: bool) -> Path:
    """Attention needs no seed: its teacher serves every run of a task."""
    seed = spec.seed if spec.score == "probe" else 0
    return CACHE / "teachers" / f"{spec.task}-{spec.score}-{seed}{'-select' * select}"


def _borrow(job: Job, spec: Spec, select: bool) -> None:
    """Probes and teacher do not depend on the budget: take those of an earlier run."""
    if _shared(spec, select).exists() and not job.work.exists():
        shutil.copytree(_shared(spec, select), job.work)


def _lend(job: Job, spec: Spec, select: bool) -> None:
    shared = _shared(spec, select)
    if not shared.exists() and (job.work / "teacher").exists():
        shared.mkdir(parents=True)
        shutil.copytree(job.work / "teacher", shared / "teacher")
        if (job.work / "probes.safetensors").exists():
            shutil.copy(job.work / "probes.safetensors", shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", choices=list(sets.TASK))
    parser.add_argument("--budget", default="67%")
    parser.add_argument("--score", default="probe", choices=["probe", "received"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", default="default", choices=list(VARIANTS))
    parser.add_argument("--select", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], help="name=value of Top or Training")
    parser.add_argument("--tag", default="", help="added to the result's name, with --set")
    parser.add_argument("--all", action="store_true", help="of the given task, or of every one")
    args = parser.parse_args()
    settings = {k: json.loads(v) for k, v in (s.split("=") for s in args.set)}
    one = Spec(args.task or "mrpc", args.budget, args.score, args.seed, args.variant)
    folder = RESULTS.parent / "selection" if args.select else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    for spec in everything() if args.all else [one]:
        path = folder / f"{spec.name}{'-' * bool(args.tag)}{args.tag}.json"
        if path.exists() or not (CACHE / "dense" / spec.task).exists():
            continue
        if args.task and spec.task != args.task:
            continue
        result = measure(spec, select=args.select, settings=settings)
        path.write_text(json.dumps(result, indent=1) + "\n")
        metric = sets.METRIC[spec.task]
        for part, score in result["reported"].items():
            gap = score["difference"][metric]
            was, now = score["dense"][metric]["value"], score["pruned"][metric]["value"]
            sets.say(
                f"{path.stem} {part}: {was:.4f} -> {now:.4f} ({100 * gap['value']:+.2f}, "
                f"p {gap['p']:.2f}) distance {score['distance']:.3f} "
                f"{result['executed']['unpadded']:.3f}x {result['seconds']:.0f} s {result['steps']}"
            )


if __name__ == "__main__":
    main()
