"""The ladder: does a pruned large model beat its smaller sibling at equal CPU time?

    python benchmarks/ladder.py imdb mrpc     # on a quiet machine, after accuracy.py

gte-small (12 layers) against MiniLM (6 layers), both 384 wide, dense and pruned, fp32 and int8.
Metrics are those of the whole reported set: of pruned files from results/accuracy, of dense files
measured here. All files of a task take turns on the same texts, one text a call, one thread. Writes
results/ladder/<task>.json.
"""

import argparse
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sets
from accuracy import MODELS, SUBJECTS
from accuracy import RESULTS as PRUNED
from dense import CACHE
from tasks import rows
from toprune.export.export import export
from toprune.report.environment import environment
from toprune.run.engines import OnnxRuntime
from toprune.run.evaluate import evaluate
from toprune.run.manifest import GRAPHS, Manifest
from toprune.run.reader import open_reader
from toprune.run.runner import Runner
from toprune.run.timing import interleave, pinned

RESULTS = Path(__file__).parent / "results" / "ladder"
TIMED = 32  # reported texts, from the shortest to the longest
ROUNDS, SECONDS = 15, 240.0
SEEDS = range(10)  # of pruned models: the first that is in the cache


def bundles(task: str) -> dict[tuple[str, str, str], Path]:
    """Directories with ONNX files by model, method and budget."""
    result: dict[tuple[str, str, str], Path] = {}
    for model in MODELS:
        name = f"{task}-{model}"
        dense, place = CACHE / "dense" / name, CACHE / "ladder" / name
        if not dense.exists():
            continue
        if not place.exists():
            shutil.copytree(dense, place)
            export(place, int8=True)
        result[model, "dense", "1x"] = place
        for budget in SUBJECTS[task].budgets[model]:
            for method in SUBJECTS[task].methods:
                runs = [CACHE / "accuracy" / f"{name}-{budget}-{method}-{s}" for s in SEEDS]
                exported = [bundle for bundle in runs if (bundle / GRAPHS["int8"]).exists()]
                if exported:
                    result[model, method, budget] = exported[0]
    return result


def feeds(bundle: Path, texts: list[Any]) -> list[dict[str, Any]]:
    """Inputs of one call for every text."""
    reader = open_reader(bundle, Manifest.load(bundle))
    encoded = sorted(reader.encode(texts), key=len)
    picks = np.linspace(0, len(encoded) - 1, TIMED).round().astype(int)
    return [reader.batch([encoded[i]]) for i in picks]


def call(engine: OnnxRuntime, inputs: list[dict[str, Any]]) -> None:
    for feed in inputs:
        engine.run(feed)


def climb(task: str) -> None:
    subject, found = SUBJECTS[task], bundles(task)
    reported = subject.sets().reported
    source = {"test": rows(subject.task, reported)}
    texts: list[Any] = reported.texts
    if reported.pairs is not None:
        texts = list(zip(reported.texts, reported.pairs, strict=True))
    points: list[dict[str, Any]] = [
        {
            "model": model,
            "method": method,
            "budget": budget,
            "precision": precision,
            "bundle": bundle,
        }
        for (model, method, budget), bundle in found.items()
        for precision in GRAPHS
    ]
    for point in points:
        bundle, precision = point["bundle"], point["precision"]
        if point["method"] == "dense":
            point["metrics"] = evaluate(Runner(bundle, precision=precision), source)["metrics"]
            point["commit"] = None
            continue
        run = json.loads((PRUNED / f"{bundle.name}.json").read_text())
        point["metrics"] = run["pruned" if precision == "fp32" else "int8"]
        point["commit"] = run["environment"]["commit"]  # of the code that pruned it
    with pinned(1):
        runs = {
            str(i): partial(
                call,
                OnnxRuntime(point["bundle"] / GRAPHS[point["precision"]], threads=1),
                feeds(point["bundle"], texts),
            )
            for i, point in enumerate(points)
        }
        times = interleave(runs, rounds=ROUNDS, seconds=SECONDS)
    for i, point in enumerate(points):
        milliseconds = 1000 * times[str(i)] / TIMED
        point["ms"] = float(np.median(milliseconds))
        low, high = np.quantile(milliseconds, (0.25, 0.75))
        point["ms_quartiles"] = [float(low), float(high)]
        point["bundle"] = point["bundle"].name
    made = {
        "task": task,
        "metric": sets.METRIC[task],
        "examples": len(reported),
        "max_length": subject.max_length,
        "timed_texts": TIMED,
        "rounds": len(times["0"]),
        "threads": 1,
        "points": points,
        "environment": environment(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{task}.json").write_text(json.dumps(made, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(SUBJECTS))
    for task in parser.parse_args().tasks:
        climb(task)


if __name__ == "__main__":
    main()
