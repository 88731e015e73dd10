"""Points below dense at a real speed-up: long texts and pairs, with six layers (MiniLM) and twelve
(gte-small).

    python benchmarks/accuracy.py imdb-minilm imdb-gte --bf16            # what is not there yet
    python benchmarks/accuracy.py mrpc-minilm --budgets 3x --seeds 0 1 2 --bf16
    python benchmarks/accuracy.py imdb-minilm --methods top --bf16

Each dense model is made once. It is pruned by `joint`, and long texts by `top`, too, with
unlabelled texts that it was not fine-tuned on. Recipes were chosen on held-out training texts
(defaults.py), nothing by a reported set. Models and bundles go to the
cache directory, one JSON a run to results/accuracy. A run that was stopped goes on.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import sets
from dense import CACHE
from gte_small import gte_small_directory
from tasks import rows
from toprune.api import Data, finetune, prune
from toprune.cli.demo import model_directory
from toprune.data.examples import Examples
from toprune.export.export import export
from toprune.report.environment import environment
from toprune.run.evaluate import evaluate
from toprune.run.runner import Runner
from toprune.training.settings import Training

RESULTS = Path(__file__).parent / "results" / "accuracy"
MODELS = {"minilm": model_directory, "gte": gte_small_directory}
PROVED = 300  # examples on which a dense model is looked at while it is made
REVIEWS = 9000  # IMDB reviews to fine-tune with
UNLABELLED_REVIEWS = 12_000  # others of the training set, to prune with
REPORTED_REVIEWS = 5000  # seeded sample of the test set
LONG_POST = 200  # words


@dataclass(frozen=True)
class Sets:
    fine_tuning: Examples
    pruning: Examples  # labels are not read
    reported: Examples


@dataclass(frozen=True)
class Subject:
    """One task: its texts, and how long each model learns."""

    task: str
    sets: Callable[[], Sets]
    max_length: int
    dense: Training
    pruning: Training
    budgets: dict[str, tuple[str, ...]]  # by model
    methods: tuple[str, ...] = ("joint",)


def reviews() -> Sets:
    every = sets.train_set("imdb")
    order = np.random.default_rng(0).permutation(len(every))
    fine_tuning, pruning, _ = np.split(order, (REVIEWS, REVIEWS + UNLABELLED_REVIEWS))
    return Sets(
        every.take(fine_tuning),
        every.take(pruning),
        sets.report_sets("imdb", REPORTED_REVIEWS)["test"],
    )


def posts() -> Sets:
    """20News has few posts, so that all of them fine-tune. The dense model knows them by heart, so
    the second half of every long one, which it has seen less of, is pruned with, too."""
    every = sets.train_set("20news")
    words = [text.split() for text in every.texts]
    halves = [" ".join(w[len(w) // 2 :]) for w in words if len(w) >= LONG_POST]
    pruning = Examples([*every.texts, *halves])
    return Sets(every, pruning, sets.report_sets("20news")["test"])


def pairs(name: str, *others: tuple[str, int]) -> Sets:
    """The official training pairs to fine-tune with; these and pairs of other sets to prune."""
    own, reported = sets.train_set(name), sets.together(sets.report_sets(name).values())
    more = sets.other_pairs(others, apart_from=reported)
    return Sets(own, sets.together([replace(own, labels=None), more]), reported)


def _dense(epochs: float, **settings: Any) -> Training:
    options = {"lr": 1e-4, "label_weight": 1.0, "dropout": False} | settings
    return Training(soft_epochs=0, hard_epochs=epochs, **options)


PAIRS_PRUNING = Training(soft_epochs=1, hard_epochs=5, token_states=True)
SUBJECTS = {
    "imdb": Subject(
        "classify",
        reviews,
        256,
        _dense(2),
        Training(soft_epochs=0.5, hard_epochs=2, batch_size=16, token_states=True),
        {"minilm": ("3x", "5x"), "gte": ("3x", "5x", "8x")},
        ("top", "joint"),
    ),
    "20news": Subject(
        "classify",
        posts,
        512,
        _dense(3),
        # two thirds of the steps on IMDB, whose texts are half as long
        Training(soft_epochs=0.3, hard_epochs=1, batch_size=16, token_states=True),
        {"minilm": ("3x", "5x"), "gte": ("3x", "5x", "8x")},
        ("top", "joint"),
    ),
    "mrpc": Subject(
        "classify",
        lambda: pairs("mrpc", ("stsb", 5749), ("snli", 10_000)),
        128,
        _dense(4, dropout=True),
        PAIRS_PRUNING,
        {"minilm": ("2x", "3x"), "gte": ("2x", "3x")},
    ),
    "stsb": Subject(
        "regress",
        lambda: pairs("stsb", ("mrpc", 3668), ("snli", 20_000)),
        128,
        _dense(4, dropout=True),
        PAIRS_PRUNING,
        {"minilm": ("2x", "3x"), "gte": ("2x", "3x")},
    ),
}
NAMES = [f"{name}-{model}" for name, subject in SUBJECTS.items() for model in subject.budgets]


def dense_model(name: str, chosen: Sets, *, bf16: bool) -> Path:
    out = CACHE / "dense" / name
    if not out.exists():
        task, _, model = name.partition("-")
        subject = SUBJECTS[task]
        order = np.random.default_rng(0).permutation(len(chosen.reported))  # 20News is sorted
        shown = chosen.reported.take(order[:PROVED])  # looked at, nothing is chosen by it
        source = {
            "train": rows(subject.task, chosen.fine_tuning),
            "test": rows(subject.task, shown),
        }
        report = finetune(
            MODELS[model](),
            Data(source, max_length=subject.max_length),
            task=subject.task,
            out=out,
            training=replace(subject.dense, bf16=bf16),
            resume=True,
        )
        sets.say(f"{name}, dense, {len(shown)} examples: {report['metrics']}")
    return out


def measure(name: str, method: str, budget: str, seed: int, *, bf16: bool) -> None:
    path = RESULTS / f"{name}-{budget}-{method}-{seed}.json"
    if path.exists():
        return
    subject = SUBJECTS[name.partition("-")[0]]
    chosen = subject.sets()
    model = dense_model(name, chosen, bf16=bf16)
    source = {
        "train": rows(subject.task, replace(chosen.pruning, labels=None)),
        "test": rows(subject.task, chosen.reported),
    }
    out, start = CACHE / "accuracy" / path.stem, time.perf_counter()
    bundle = prune(
        model,
        Data(source, max_length=subject.max_length),
        budget,
        task=subject.task,
        out=out,
        method=method,
        training=replace(subject.pruning, bf16=bf16, seed=seed),
        known=CACHE / "known" / f"{name}-{seed}",
        resume=True,
        overwrite=True,
    )
    minutes = (time.perf_counter() - start) / 60
    report, plan = bundle.report, bundle.plan
    assert plan is not None
    export(out, int8=True)
    keys = ("task", "budget", "examples", "agreement", "dense", "pruned", "difference")
    result = {key: report[key] for key in keys} | {
        "name": name,
        "seed": seed,
        "method": method,
        "method_settings": report["provenance"]["settings"]["method_settings"],
        "score": plan.score,
        "steps": [[step.layer, str(step.keep)] for step in plan.steps],
        "fine_tuned_on": len(chosen.fine_tuning),
        "pruned_with": len(chosen.pruning),
        "training": report["provenance"]["settings"]["training"],
        "dense_training": subject.dense.settings() | {"bf16": bf16},
        "int8": evaluate(Runner(out, precision="int8"), {"test": source["test"]})["metrics"],
        "minutes": round(minutes, 1),
        "environment": environment(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    metric, gap = next(iter(report["difference"].items()))
    sets.say(
        f"{path.stem}: {metric} {100 * gap['value']:+.2f} ({100 * gap['low']:+.1f} to "
        f"{100 * gap['high']:+.1f}), agreement {report['agreement']:.4f}, {minutes:.1f} min"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="name", help=", ".join(NAMES))
    parser.add_argument("--budgets", nargs="+", help="only these")
    parser.add_argument("--methods", nargs="+", help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--bf16", action="store_true", help="train with products in bfloat16")
    args = parser.parse_args()
    for seed in args.seeds:
        for name in args.names:
            task, _, model = name.partition("-")
            for method in args.methods or SUBJECTS[task].methods:
                for budget in args.budgets or SUBJECTS[task].budgets[model]:
                    measure(name, method, budget, seed, bf16=args.bf16)


if __name__ == "__main__":
    main()
