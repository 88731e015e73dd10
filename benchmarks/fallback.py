"""Points lost at equal total cost, with and without a safety net; rankings by rescoring.

    python benchmarks/fallback.py imdb-minilm 20news-minilm trecqa
    python benchmarks/fallback.py imdb-minilm --seeds 1 --texts 300     # a look, not stored

The bundles are those of accuracy.py and tasks.py, in the cache directory; nothing is trained.
Without the net: the bundle at 3x. With it: the bundle at 5x and its dense model, plan and threshold
chosen on texts that neither model learned from and that are not reported, so that both together
take a third of the dense FLOPs. For IMDB those are training reviews that are left. 20News leaves
none: a seeded fifth of the test posts chooses, the others are reported. TREC-QA: the best k of a
question's documents are scored again by dense; k is the largest that 3x in all pays for, by the
bundle at 5x if there is one, else by the deepest. One JSON a run in results/fallback.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import accuracy
import sets
import tasks
from dense import CACHE
from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import reduction
from toprune.pruning.attach import attach, detach
from toprune.report.environment import environment
from toprune.tasks import Task
from toprune.tasks.base import Outputs
from toprune.tasks.fallback import choose, counted, fallback_report
from toprune.tasks.intervals import paired, with_intervals
from toprune.tasks.rank import ranking
from toprune.training.batches import Collate
from toprune.training.evaluation import collect_outputs, load_outputs
from toprune.training.features import encode_for, rows_of
from toprune.training.safety_net import Calibration, plans_between

RESULTS = Path(__file__).parent / "results" / "fallback"
TOTAL, DEEPER, REQUESTED = Budget("3x"), "5x", 0.99
CALIBRATED = 0.2  # share of the test posts that choose, where no others are left


def left_reviews() -> tuple[Examples, Examples]:
    """(texts that choose, reported): training reviews that no model learned from."""
    every = sets.train_set("imdb")
    order = np.random.default_rng(0).permutation(len(every))
    left = order[accuracy.REVIEWS + accuracy.UNLABELLED_REVIEWS :]
    return every.take(left), accuracy.reviews().reported


def some_posts() -> tuple[Examples, Examples]:
    """(texts that choose, reported): parts of the test set."""
    test = sets.report_sets("20news")["test"]
    order = np.random.default_rng(0).permutation(len(test))
    first, rest = np.split(order, [round(CALIBRATED * len(test))])
    return test.take(np.sort(first)), test.take(np.sort(rest))


CHOOSING = {"imdb": left_reviews, "20news": some_posts}
NAMES = ["imdb-minilm", "imdb-gte", "20news-minilm", "20news-gte", "trecqa"]


def known_outputs(name: str, seed: int, examples: Examples) -> Outputs | None:
    """The dense model's outputs that accuracy.py has stored, if it has read all these texts."""
    stored = CACHE / "known" / f"{name}-{seed}" / "dense.npz"
    if not stored.exists():
        return None
    read = accuracy.SUBJECTS[name.partition("-")[0]].sets().reported.texts
    known = dict(zip(read, load_outputs(stored), strict=True))
    has_all = all(text in known for text in examples.texts)
    return [known[text] for text in examples.texts] if has_all else None


class Model:
    """A bundle that reads examples."""

    def __init__(self, folder: Path, task: Task | None = None):
        self.bundle = Bundle.load(folder)
        self.task = task or self.bundle.task
        self.limit = self.bundle.report["max_length"]

    def features(self, examples: Examples) -> list[dict[str, Any]]:
        unlabelled = replace(examples, labels=None)
        bundle = self.bundle
        return encode_for(bundle.model, bundle.tokenizer, self.task, unlabelled, self.limit)

    def outputs(self, features: Sequence[dict[str, Any]], plan: Any, label: str) -> Outputs:
        bundle = self.bundle
        if plan is not None:
            attach(bundle.model, plan)
        try:
            return collect_outputs(
                bundle.model, self.task, features, Collate(bundle.tokenizer), label
            )
        finally:
            detach(bundle.model)


def compare(
    task: Task, dense: Outputs, pruned: Outputs, rows: Any, examples: Examples
) -> dict[str, Any]:
    """Metrics of a model, and its difference to dense."""
    before, after = (task.statistics(x, rows, examples) for x in (dense, pruned))
    return {
        "metrics": with_intervals(task, after),
        "difference": paired(task, before, after),
        "agreement": task.agreement(dense, pruned, rows, examples),
    }


def classified(name: str, seed: int, texts: int | None) -> dict[str, Any]:
    """The net for classes, beside the bundle that has the whole budget without one."""
    choosing, reported = CHOOSING[name.partition("-")[0]]()
    if texts is not None:
        choosing, reported = choosing.take(range(texts)), reported.take(range(texts))
    dense = Model(CACHE / "dense" / name)
    alone = Model(CACHE / "accuracy" / f"{name}-3x-top-{seed}")
    deep = Model(CACHE / "accuracy" / f"{name}-{DEEPER}-top-{seed}")
    task, plan, sizes = deep.task, deep.bundle.plan, sizes_of(deep.bundle.model)
    assert plan is not None
    lengths = Lengths.from_json(deep.bundle.report["lengths"])  # which the budget is for
    features = deep.features(choosing)
    known = known_outputs(name, seed, choosing) or dense.outputs(features, None, "dense, choosing")
    calibration = Calibration(choosing.inputs(task.READS), features, known)
    plans = plans_between(sizes, plan, lengths, TOTAL)
    candidates = [
        calibration.candidate(
            deep.bundle.model,
            deep.bundle.tokenizer,
            task,
            one,
            1 / reduction(sizes, one, lengths).unpadded,
        )
        for one in plans
    ]
    weights = calibration.weights(sizes, plan.restore)
    number, fallback = choose(candidates, weights, REQUESTED, 1 / TOTAL.reduction)
    sets.say(fallback.describe())

    tests = deep.features(reported)
    rows = rows_of(tests)
    before = known_outputs(name, seed, reported) or dense.outputs(tests, None, "dense")
    pruned = deep.outputs(tests, plans[number], "pruned")
    fell = fallback.below(task, pruned, rows, len(reported))
    net = [d if fell[row.text] else p for d, p, row in zip(before, pruned, rows, strict=True)]
    costs = Calibration(reported.inputs(task.READS), tests, before).weights(sizes, plan.restore)
    total = 1 / reduction(sizes, plans[number], Lengths.of(map(len, rows))).unpadded
    total += float(costs[fell].sum() / costs.sum())
    return {
        "task": task.NAME,
        "dense": with_intervals(task, task.statistics(before, rows, reported)),
        "without": compare(
            task, before, alone.outputs(tests, alone.bundle.plan, "without"), rows, reported
        )
        | {"reduction": alone.bundle.report["budget"]["executed"]["unpadded"]},
        "with": compare(task, before, net, rows, reported)
        | counted(int(fell.sum()), len(reported))
        | {"reduction": 1 / total},
        "fallback": fallback_report(fallback, candidates, number, weights),
        "chosen_on": len(choosing),
        "examples": len(reported),
    }


def ranked(name: str, seed: int, texts: int | None) -> dict[str, Any]:
    """Rescoring: all documents by the pruned model, the best of each question by dense, too."""
    reported = tasks.RUNS[name].sets()[1]
    if texts is not None:
        reported = reported.take(range(texts))
    dense = Model(CACHE / "dense" / f"task-{name}")
    folders = {budget: CACHE / "tasks" / f"{name}-{budget}" for budget in ("5x", "3x")}
    found = {budget: Model(path) for budget, path in folders.items() if path.exists()}
    budget, deep = next(iter(found.items()))
    task, plan, sizes = deep.task, deep.bundle.plan, sizes_of(deep.bundle.model)
    assert plan is not None
    tests = deep.features(reported)
    rows = rows_of(tests)
    before, pruned = dense.outputs(tests, None, "dense"), deep.outputs(tests, plan, "pruned")
    costs = Calibration(reported.inputs(task.READS), tests, before).weights(sizes, plan.restore)
    own = 1 / deep.bundle.report["budget"]["executed"]["unpadded"]
    orders = [order for _, order in ranking(np.array(pruned)[:, 0], reported.texts)]
    best, total = 0, own
    for k in range(1, max(map(len, orders)) + 1):
        more = own + sum(costs[order[:k]].sum() for order in orders) / costs.sum()
        if more > 1 / TOTAL.reduction:
            break
        best, total = k, more
    scores = [np.array(one) for one in pruned]
    top = 1 + max(float(one[0]) for one in (*before, *pruned)) - min(float(o[0]) for o in before)
    for order in orders:  # rescored documents stay above the others
        for i in order[:best]:
            scores[i] = before[i] + top
    result = {
        "task": task.NAME,
        "dense": with_intervals(task, task.statistics(before, rows, reported)),
        "with": compare(task, before, scores, rows, reported) | {"reduction": 1 / total},
        "pruned_at": budget,
        "rescored": best,
        "documents": float(np.mean([len(order) for order in orders])),
        "examples": len(reported),
    }
    if "3x" in found:
        alone = found["3x"]
        outputs = alone.outputs(tests, alone.bundle.plan, "without")
        executed = alone.bundle.report["budget"]["executed"]["unpadded"]
        result["without"] = compare(task, before, outputs, rows, reported) | {"reduction": executed}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="name", help=", ".join(NAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--texts", type=int, help="only so many; the result is not stored")
    args = parser.parse_args()
    for name in args.names:
        for seed in args.seeds:
            path = RESULTS / f"{name}-{seed}.json"
            if path.exists():
                continue
            measure: Callable[..., dict[str, Any]] = ranked if name == "trecqa" else classified
            result = measure(name, seed, args.texts)
            result |= {"name": name, "seed": seed, "environment": environment()}
            for side in ("without", "with"):
                if side in result:
                    metric, gap = next(iter(result[side]["difference"].items()))
                    sets.say(
                        f"{name}, {side} net, {result[side]['reduction']:.2f}x in all: {metric} "
                        f"{100 * gap['value']:+.2f} ({100 * gap['low']:+.1f} to "
                        f"{100 * gap['high']:+.1f})"
                    )
            if args.texts is None:
                RESULTS.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
