"""Every method with the same search: `toprune compare` on MRPC and on IMDB, three seeds.

    python benchmarks/methods.py mrpc imdb --bf16                  # what is not there yet
    python benchmarks/methods.py mrpc --steps 600 --methods top ltp --budgets 3x --seeds 0 --bf16
    python benchmarks/methods.py mrpc --keep --time                # on a quiet machine

Models and texts are those of accuracy.py: dense models that are worth pruning, and unlabelled texts
that most of them were not fine-tuned on. Every method that searches has the same number of steps
for it, from a calibrated start where it has one (`Method.for_comparison`), and all have `AFTER`
times as many steps afterwards; a method without a search has all of these steps for its weights.
TR-BERT's steps are `samples` passes each. Nothing was chosen by the reported texts.

One JSON a run goes to results/methods; the JSON, table and chart of all go to results/compare. A
stopped run goes on. Bundles lose their weights when their run is done, unless --keep.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import sets
from accuracy import SUBJECTS, Subject, dense_model
from dense import CACHE
from tasks import rows
from toprune.api import Data
from toprune.bundle.bundle import read_report
from toprune.compare.comparison import compare
from toprune.compare.runs import WorkItem
from toprune.methods import METHODS as KNOWN
from toprune.report.environment import environment
from toprune.training.settings import Training

HERE = Path(__file__).parent / "results"
RUNS, SUMMARY = HERE / "methods", HERE / "compare"
METHODS = ("top", "top:received", *(name for name in KNOWN if name not in ("top", "joint")))
NAMES = ("mrpc", "imdb")
REPORTED = {"imdb": 2000}  # of accuracy.py's sample: there are many runs to evaluate
BUDGETS, SEEDS = ("2x", "3x", "5x"), (0, 1, 2)
STEPS = 300  # of a search, at least: with 38 most methods had learned nothing
AFTER = 2  # times as many steps train the weights on the plan


def training(subject: Subject, texts: int, steps: int, *, bf16: bool) -> Training:
    batch = subject.pruning.batch_size
    epochs = (1 + AFTER) * steps * batch / texts
    return Training(epochs=epochs, soft_steps=steps, batch_size=batch, bf16=bf16)


def run(args: argparse.Namespace, name: str, seed: int) -> None:
    """All methods and budgets with one seed: they share what the dense model says."""
    subject = SUBJECTS[name]
    chosen = subject.sets()
    reported = chosen.reported.take(range(min(len(chosen.reported), REPORTED.get(name, 10**9))))
    source = {
        "train": rows(subject.task, replace(chosen.pruning, labels=None)),
        "test": rows(subject.task, reported),
    }
    out = CACHE / "methods" / f"{name}-{args.steps}"
    write = partial(record, name, args.steps, out, keep=args.keep)
    report = compare(
        dense_model(f"{name}-minilm", chosen, bf16=args.bf16),
        Data(source, max_length=subject.max_length),
        args.methods,
        args.budgets,
        out=out,
        task=subject.task,
        training=training(subject, len(chosen.pruning), args.steps, bf16=args.bf16),
        seeds=[seed],
        timed=args.time,
        engine=partial(recorded, write),
        say=sets.say,
    )
    for row in report["rows"]:
        write(row)
    if not set(METHODS) <= set(args.methods):
        return  # the chart and the table are of all methods
    SUMMARY.mkdir(parents=True, exist_ok=True)
    for path in out.glob("compare*"):
        if path.suffix != ".html":  # the page is made of the same numbers
            shutil.copy(path, SUMMARY / path.name.replace("compare", name, 1))


def recorded(
    write: Callable[[Mapping[str, Any]], None],
    work: Callable[[WorkItem], dict[str, Any]],
    items: Sequence[WorkItem],
) -> Generator[dict[str, Any]]:
    """An executor that writes the result of a run as soon as it is done."""
    for item in items:
        row = work(item)
        write(row)
        yield row


def record(name: str, steps: int, out: Path, row: Mapping[str, Any], *, keep: bool) -> None:
    """Write the JSON of a run, with the settings and the machine of its own report."""
    method = row["name"].replace(":", "-")
    path = RUNS / f"{name}-{steps}-{method}-{row['budget']}-{row['seed']}.json"
    if not path.exists():
        result = {"dataset": name, "search_steps": steps, **row, "environment": environment()}
        if "bundle" in row:
            made = read_report(out / row["bundle"])["provenance"]
            result["settings"] = made["settings"]
            result["environment"] = {key: made[key] for key in result["environment"]}
        RUNS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    if "bundle" in row and not keep:
        (out / row["bundle"] / "model.safetensors").unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a search, at least {STEPS}")
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--bf16", action="store_true", help="train with products in bfloat16")
    parser.add_argument("--keep", action="store_true", help="keep the weights, for --time")
    parser.add_argument("--time", action="store_true", help="and export and time every bundle")
    args = parser.parse_args()
    if args.steps < STEPS:
        parser.error(f"fewer than {STEPS} steps starve most methods")
    for seed in args.seeds:
        for name in args.names:
            run(args, name, seed)


if __name__ == "__main__":
    main()
