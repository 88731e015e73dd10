"""One bundle for several budgets, against a bundle for each of them.

    python benchmarks/dial.py mrpc imdb --bf16              # one dial for 2x, 3x and 5x
    python benchmarks/dial.py mrpc imdb --bf16 --separate   # one training for each budget

Dense models, texts and recipes are those of accuracy.py; the method is `top`. A separate run that
results/accuracy has for the same dense model is not trained again. One JSON a run goes to
results/dial. A run that was stopped goes on.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import accuracy
import sets
from accuracy import SUBJECTS, dense_model
from dense import CACHE
from tasks import rows
from toprune.api import Data, prune
from toprune.bundle.bundle import Bundle
from toprune.plan.dial import Dial
from toprune.report.environment import environment
from toprune.training.turns import MORE_STEPS, RUNGS, rung

RESULTS = Path(__file__).parent / "results" / "dial"
MODEL = "minilm"
BUDGETS = ("2x", "3x", "5x")
BACKWARD = 2  # a backward pass costs as much as two forward passes
MEASURED = ("asked", "executed", "agreement", "pruned", "difference")


def measure(task: str, budgets: list[str], seed: int, *, bf16: bool) -> None:
    """Prune one model for these budgets, and write what came out."""
    kind = "dial" if len(budgets) > 1 else f"separate-{budgets[0]}"
    path = RESULTS / f"{task}-{kind}-{seed}.json"
    if path.exists():
        return
    subject, name = SUBJECTS[task], f"{task}-{MODEL}"
    chosen = subject.sets()
    model = dense_model(name, chosen, bf16=bf16)
    source = {
        "train": rows(subject.task, replace(chosen.pruning, labels=None)),
        "test": rows(subject.task, chosen.reported),
    }
    out, start = CACHE / "dial" / path.stem, time.perf_counter()
    bundle = prune(
        model,
        Data(source, max_length=subject.max_length),
        ",".join(budgets),
        task=subject.task,
        out=out,
        method="top",
        training=replace(subject.pruning, bf16=bf16, seed=seed),
        known=CACHE / "known" / f"{name}-{seed}",
        resume=True,
        overwrite=True,
    )
    minutes = (time.perf_counter() - start) / 60
    report = bundle.report
    alone = report | {"asked": budgets[0], "executed": report["budget"]["executed"]}
    measured = report.get("dial") or [{key: alone[key] for key in MEASURED}]
    result = {
        "task": task,
        "name": name,
        "seed": seed,
        "kind": kind,
        "examples": report["examples"],
        "dense": report["dense"],
        "budgets": measured,
        "soft_passes": soft_passes(report),
        "passes": soft_passes(report) + hard_passes(bundle, len(chosen.pruning)),
        "minutes": round(minutes, 1),
        "pruned_with": len(chosen.pruning),
        "training": report["provenance"]["settings"]["training"],
        "environment": environment(),
    }
    _write(path, result)


def reused(task: str, budget: str, seed: int) -> bool:
    """Take a run of results/accuracy that had the same recipe and the same dense model."""
    path = RESULTS / f"{task}-separate-{budget}-{seed}.json"
    known = accuracy.RESULTS / f"{task}-{MODEL}-{budget}-top-{seed}.json"
    if path.exists() or not known.exists():
        return path.exists()
    run, dials = json.loads(known.read_text()), RESULTS / f"{task}-dial-{seed}.json"
    if not dials.exists():
        return False
    dial = json.loads(dials.read_text())
    if run["dense"] != dial["dense"] or run["training"] != dial["training"]:
        return False
    row = run | {"asked": budget, "executed": run["budget"]["executed"]}
    result = {key: dial[key] for key in ("task", "name", "seed", "examples", "dense")} | {
        "kind": f"separate-{budget}",
        "budgets": [{key: row[key] for key in MEASURED}],
        "passes": dial["soft_passes"]  # its own log is not at hand; the stage is the same
        + _hard_passes(run["training"], 1 / row["executed"]["unpadded"], 1.0),
        "minutes": run["minutes"],
        "pruned_with": run["pruned_with"],
        "training": run["training"],
        "environment": run["environment"],
    }
    _write(path, result)
    return True


def soft_passes(report: dict[str, Any]) -> float:
    """What the training cost before its hard stage, in forward passes of the dense model over all
    training texts: the dense model's outputs, and the soft stage by the sparsity in its log."""
    kept = [1 - line["sparsity"] for line in report["log"] if "sparsity" in line]
    epochs = report["provenance"]["settings"]["training"]["soft_epochs"]
    return 1 + epochs * (1 + BACKWARD) * float(np.mean(kept or [0.0]))


def hard_passes(bundle: Bundle, texts: int) -> float:
    """The same for the hard stage."""
    training = bundle.report["provenance"]["settings"]["training"]
    if bundle.dial is None:
        executed = bundle.report["budget"]["executed"]["unpadded"]
        return _hard_passes(training, 1 / executed, 1.0)
    steps = round(MORE_STEPS * training["hard_epochs"] * texts / training["batch_size"])
    return _hard_passes(training, _mean_share(bundle.dial, training["seed"], steps), MORE_STEPS)


def _hard_passes(training: dict[str, Any], share: float, more: float) -> float:
    """The student at this share of the dense cost; beside it runs the dense model, whose states of
    the kept tokens it learns."""
    beside = 0 if training["token_states"] is False else 1
    return more * training["hard_epochs"] * (beside + (1 + BACKWARD) * share)


def _mean_share(dial: Dial, seed: int, steps: int) -> float:
    """The mean share of the dense cost over the steps of a hard stage, whose plans take turns."""
    first, last = (dial.stops[i].budget.reduction for i in (0, -1))
    shares = 1 / np.geomspace(first, last, RUNGS)
    return float(np.mean([shares[rung(seed, step)] for step in range(steps)]))


def _write(path: Path, result: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    for row in result["budgets"]:
        metric, gap = next(iter(row["difference"].items()))
        sets.say(
            f"{path.stem} at {row['asked']}: {metric} {100 * gap['value']:+.2f} "
            f"({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f}), "
            f"agreement {row['agreement']:.4f}, {result['minutes']:.1f} min"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(SUBJECTS), metavar="task")
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    parser.add_argument("--separate", action="store_true", help="a training for each budget")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--bf16", action="store_true", help="train with products in bfloat16")
    args = parser.parse_args()
    for seed in args.seeds:
        for task in args.tasks:
            if not args.separate:
                measure(task, args.budgets, seed, bf16=args.bf16)
                continue
            for budget in args.budgets:
                if not reused(task, budget, seed):
                    measure(task, [budget], seed, bf16=args.bf16)


if __name__ == "__main__":
    main()
