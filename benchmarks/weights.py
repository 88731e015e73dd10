"""Fewer weights, fewer tokens, and one after the other, on MRPC.

    python benchmarks/weights.py                   # everything that is not there yet
    python benchmarks/weights.py cofi-2x top-4x    # these

CoFi and layer dropping at 2x, each alone and followed by `top` on what it left, to 4x in all; and
`top` alone at 2x and 4x. Two epochs, one seed; the dense model is that of results.py. A chain is
trained twice, and its second teacher is the model that the first stage left; what is reported is
against the dense model that it began with. Nothing was chosen by these texts. Bundles go to the
cache directory, one JSON a run to results/weights.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sets
from dense import CACHE
from toprune.api import Data, prune
from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.pruning.attach import attach
from toprune.report.environment import environment
from toprune.tasks.intervals import paired, with_intervals
from toprune.training.batches import Collate
from toprune.training.evaluation import collect_outputs
from toprune.training.features import encode, rows_of
from toprune.training.settings import Training

RESULTS = Path(__file__).parent / "results" / "weights"
BUNDLES = CACHE / "weights"
TASK = "mrpc"
TEXTS = {"mrpc": (1200, 500)}  # of train, and of each part that is reported
TRAINING = Training(soft_epochs=1, hard_epochs=1, bf16=False)


@dataclass(frozen=True)
class Run:
    method: str
    total: float  # reduction of real FLOPs against the dense model
    after: str | None = None  # the run that it goes on from


RUNS = {
    "cofi-2x": Run("cofi", 2),
    "drop_layers-2x": Run("drop_layers", 2),
    "top-2x": Run("top", 2),
    "top-4x": Run("top", 4),
    "cofi-2x-top-4x": Run("top", 4, after="cofi-2x"),
    "drop_layers-2x-top-4x": Run("top", 4, after="drop_layers-2x"),
}


def do(name: str, train: Examples, reported: Examples) -> dict[str, Any]:
    """Prune as the run says, on top of the one before it if there is one."""
    path = RESULTS / f"{TASK}-{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    run = RUNS[name]
    before = None if run.after is None else do(run.after, train, reported)
    done = {"unpadded": 1.0, "padded": None} if before is None else before["executed"]
    dense, out = CACHE / "dense" / TASK, BUNDLES / name
    started = time.time()
    report = prune(
        dense if run.after is None else BUNDLES / run.after,
        Data(
            {"train": sets.rows(train), "test": sets.rows(reported)},
            max_length=sets.MAX_LENGTH[TASK],
        ),
        f"{run.total / done['unpadded']:.4f}x",
        method=run.method,
        out=out,
        training=TRAINING,
        resume=True,
        overwrite=True,
    ).report
    met = report["budget"]["executed"]
    found = {
        "name": name,
        "stages": ([] if before is None else before["stages"])
        + [{"method": run.method} | {key: report[key] for key in ("budget", "kept_per_layer")}],
        "asked": run.total,
        "executed": {
            "unpadded": done["unpadded"] * met["unpadded"],
            "padded": met["padded"] if before is None else done["padded"] * met["unpadded"],
        },
        "kept": report.get("kept") or (before or {}).get("kept"),  # of the weights
        "examples": len(reported),
        "trained_on": len(train),
        "training": TRAINING.settings(),
        "seed": TRAINING.seed,
        "minutes": (time.time() - started) / 60,
        "environment": environment(),
    } | compared(dense, out, reported)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    gap = found["difference"][sets.METRIC[TASK]]
    sets.say(
        f"{name}: {found['executed']['unpadded']:.2f}x, {100 * gap['value']:+.1f} points "
        f"[{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
    )
    return found


def compared(dense: Path, pruned: Path, reported: Examples) -> dict[str, Any]:
    """The first model and the last one, on the same texts."""
    task, judged = Bundle.load(dense).task, list[np.ndarray]()
    for folder in (dense, pruned):
        bundle = Bundle.load(folder)
        features = encode(bundle.tokenizer, task, reported, sets.MAX_LENGTH[TASK])
        model = bundle.model if bundle.plan is None else attach(bundle.model, bundle.plan)
        said = collect_outputs(
            model, task, features, Collate(bundle.tokenizer), f"asking {folder.name}"
        )
        judged.append(task.statistics(said, rows_of(features), reported))
    one, other = judged
    return {
        "dense": with_intervals(task, one),
        "pruned": with_intervals(task, other),
        "difference": paired(task, one, other),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(RUNS))
    names = parser.parse_args().names or list(RUNS)
    if odd := [name for name in names if name not in RUNS]:
        parser.error(f"no such run: {', '.join(odd)}; there are: {', '.join(RUNS)}")
    train, shown = TEXTS[TASK]
    reported = sets.together(sets.report_sets(TASK, shown).values())
    for name in names:
        do(name, sets.train_set(TASK, train), reported)


if __name__ == "__main__":
    main()
