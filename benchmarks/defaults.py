"""Which options of `prune` should be the default? Candidates, judged on held-out training texts.

    python benchmarks/defaults.py mrpc stsb trecqa imdb --seeds 0 1    # what is not there yet
    python benchmarks/defaults.py mrpc --candidates probe probes --budget 3x

Nothing of a reported set is read: dense models, texts to prune with and texts to judge on all come
from the training splits, and no two of these share a text, except that pairs (MRPC, STS-B) are too
few to keep those of the fine-tuning out of the pruning. Candidates that begin with "more" have
further unlabelled pairs of other sets beside them. One JSON a run in results/defaults; dense models
and bundles go to the cache directory.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import accuracy
import sets
import toprune
from candidates import sentences
from dense import CACHE
from tasks import rows, shifts
from toprune.cli.demo import model_directory
from toprune.data.examples import Examples
from toprune.report.environment import environment

RESULTS = Path(__file__).parent / "results" / "defaults"
SPLIT_SEED = 0  # one split for all candidates and seeds


@dataclass(frozen=True)
class Candidate:
    """Options of `prune`."""

    score: Any
    settings: Mapping[str, Any] = field(default_factory=dict)  # of Training
    more: bool = False  # with further unlabelled texts


STATES = {"token_states": True}
CANDIDATES = {
    "probe": Candidate("probe"),
    "probes": Candidate("probes"),
    "probe-states": Candidate("probe", STATES),
    "probes-states": Candidate("probes", STATES),
    "received": Candidate("received"),
    "more-probe": Candidate("probe", more=True),
    "more-probe-states": Candidate("probe", STATES, more=True),
    "more-probes": Candidate("probes", more=True),
    "more-probes-states": Candidate("probes", STATES, more=True),
    "more-probes-states-lr2": Candidate("probes", STATES | {"lr": 2e-4}, more=True),
    "more-received-states": Candidate("received", STATES, more=True),
}


@dataclass(frozen=True)
class Parts:
    """The texts of one task."""

    fine_tuning: Examples
    pruning: Examples  # labels are not read
    judged: Examples
    more: Examples | None = None  # further texts, without labels


@dataclass(frozen=True)
class Subject:
    """One task and how its dense model is made."""

    task: str
    parts: Callable[[], Parts]
    max_length: int
    dense_epochs: float
    soft_epochs: float
    hard_epochs: float
    more_epochs: tuple[float, float] = (0.25, 2.75)  # soft and hard, with further texts
    batch_size: int = 32
    protect_first: bool | None = None
    dense: str | None = None  # the dense model of accuracy.py that serves here, too


def pairs(name: str, *others: tuple[str, int]) -> Parts:
    """Seven tenths to fine-tune and to prune with, the rest to judge on; pairs of other sets."""
    every = sets.train_set(name)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(every))
    cut = len(every) * 7 // 10
    train, judged = every.take(np.sort(order[:cut])), every.take(np.sort(order[cut:]))
    return Parts(train, train, judged, sets.other_pairs(others, apart_from=judged))


def reviews() -> Parts:
    """The training reviews of accuracy.py; the 4,000 that it leaves are judged on."""
    every, used = sets.train_set("imdb"), accuracy.reviews()
    order = np.random.default_rng(0).permutation(len(every))
    judged = order[accuracy.REVIEWS + accuracy.UNLABELLED_REVIEWS :]
    return Parts(used.fine_tuning, used.pruning, every.take(judged))


def questions() -> Parts:
    """Sentences of SQuAD's training sources: does the sentence answer the question?"""
    return Parts(
        sentences(sets.together(shifts(slice(1500)))),
        sentences(sets.together(shifts(slice(1500, 3500)))),
        sentences(sets.together(shifts(slice(4000, 4300)))),
    )


SUBJECTS = {
    "mrpc": Subject(
        "classify", lambda: pairs("mrpc", ("stsb", 5749), ("snli", 10_000)), 128, 4, 1, 4
    ),
    "stsb": Subject(
        "regress", lambda: pairs("stsb", ("mrpc", 3668), ("snli", 20_000)), 128, 4, 1, 4
    ),
    "trecqa": Subject("rank", questions, 128, 1, 0.25, 1, protect_first=False),
    "imdb": Subject("classify", reviews, 256, 2, 0.25, 1.75, batch_size=16, dense="imdb-minilm"),
}


def dense_model(name: str, subject: Subject, parts: Parts, *, bf16: bool) -> Path:
    if subject.dense is not None:
        return accuracy.dense_model(subject.dense, accuracy.reviews(), bf16=bf16)
    out = CACHE / "dense" / f"defaults-{name}"
    if not out.exists():
        source = {
            "train": rows(subject.task, parts.fine_tuning),
            "test": rows(subject.task, parts.judged),
        }
        training = toprune.Training(
            0, subject.dense_epochs, lr=1e-4, label_weight=1.0, dropout=False, bf16=bf16
        )
        report = toprune.finetune(
            model_directory(),
            toprune.Data(source, max_length=subject.max_length),
            task=subject.task,
            out=out,
            training=training,
            resume=True,
        )
        sets.say(f"{name}, dense: {report['metrics']}")
    return out


def measure(name: str, candidate: str, budget: str, seed: int, *, bf16: bool) -> None:
    path = RESULTS / f"{name}-{budget}-{candidate}-{seed}.json"
    if path.exists():
        return
    subject = SUBJECTS[name]
    parts = subject.parts()
    model = dense_model(name, subject, parts, bf16=bf16)
    options = CANDIDATES[candidate]
    soft, hard = subject.soft_epochs, subject.hard_epochs
    texts = replace(parts.pruning, labels=None)
    if options.more:
        if parts.more is None:
            raise SystemExit(f"{name} has no further texts for {candidate}")
        (soft, hard), texts = subject.more_epochs, sets.together([texts, parts.more])
    training = toprune.Training(
        soft, hard, batch_size=subject.batch_size, bf16=bf16, seed=seed, **options.settings
    )
    source = {
        "train": rows(subject.task, texts),
        "test": rows(subject.task, parts.judged),
    }
    out, start = CACHE / "defaults" / path.stem, time.perf_counter()
    bundle = toprune.prune(
        model,
        toprune.Data(source, max_length=subject.max_length),
        budget,
        task=subject.task,
        out=out,
        score=options.score,
        training=training,
        protect_first=subject.protect_first,
        known=CACHE / "known" / f"defaults-{name}-{seed}{'-more' * options.more}",
        resume=True,
        overwrite=True,
    )
    report, plan = bundle.report, bundle.plan
    keys = ("task", "budget", "examples", "agreement", "dense", "pruned", "difference")
    result = {key: report[key] for key in keys} | {
        "name": name,
        "candidate": candidate,
        "score": options.score,
        "seed": seed,
        "steps": [[step.layer, str(step.keep)] for step in plan.steps] if plan else [],
        "fine_tuned_on": len(parts.fine_tuning),
        "pruned_with": len(texts),
        "training": training.settings(),
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "environment": environment(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    shutil.rmtree(out)
    metric, gap = next(iter(report["difference"].items()))
    sets.say(
        f"{path.stem}: {metric} {100 * gap['value']:+.2f} ({100 * gap['low']:+.1f} to "
        f"{100 * gap['high']:+.1f}), agreement {report['agreement']:.4f}, {result['minutes']} min"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=list(SUBJECTS))
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES)[:4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--budget", default="3x")
    parser.add_argument("--bf16", action="store_true", help="train with products in bfloat16")
    args = parser.parse_args()
    for seed in args.seeds:
        for name in args.names:
            for candidate in args.candidates:
                measure(name, candidate, args.budget, seed, bf16=args.bf16)


if __name__ == "__main__":
    main()
