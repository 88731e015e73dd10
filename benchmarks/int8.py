"""What the files are worth on a real task: MRPC (dev and test) at 67 %, fp32 and int8, by Runner.

    python benchmarks/int8.py

Prunes the dense model of dense.py with the default recipe, exports, and compares the logits of
three files on the same pairs: pruned fp32, pruned int8 and the dense model's int8, each against the
fp32 file that it was made from.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import sets
from dense import CACHE
from toprune.api import Data, prune
from toprune.export.export import export
from toprune.report.environment import environment
from toprune.run.runner import Runner
from toprune.tasks import make_task
from toprune.tasks.intervals import paired, with_intervals
from toprune.training.settings import Training

RESULT = Path(__file__).parent / "results" / "int8.json"
TASK, BUDGET, SEED = "mrpc", "67%", 0


def main() -> None:
    task, limit = make_task(sets.TASK[TASK]), sets.MAX_LENGTH[TASK]
    reported = sets.report_sets(TASK)
    whole = sets.together(reported.values())
    folder = CACHE / "int8"
    dense, small = folder / "dense", folder / "pruned"
    if not small.exists():
        source = {"train": sets.rows(sets.train_set(TASK)), "test": sets.rows(reported["dev"])}
        data = Data(source, max_length=limit)
        prune(CACHE / "dense" / TASK, data, BUDGET, out=small, training=Training(seed=SEED))
    shutil.rmtree(dense, ignore_errors=True)
    shutil.copytree(CACHE / "dense" / TASK, dense)
    rows: dict[str, Any] = {}
    for name, bundle in {"dense": dense, "pruned": small}.items():
        checked = export(bundle, int8=True)["checked"]
        exact, rounded = (
            list(Runner(bundle, precision=p).read(whole.inputs(task.READS)))
            for p in ("fp32", "int8")
        )
        read = [row for row, _ in exact]
        one, other = ([logits for _, logits in result] for result in (exact, rounded))
        before, after = (task.statistics(logits, read, whole) for logits in (one, other))
        rows[name] = {
            "fp32": with_intervals(task, before),
            "int8": with_intervals(task, after),
            "difference": paired(task, before, after),
            "same_answer": task.agreement(one, other, read, whole),
            "checked": checked,
        }
        gap = rows[name]["difference"]["accuracy"]
        sets.say(f"{name}: int8 minus fp32 {100 * gap['value']:+.2f} points, p {gap['p']:.2f}")
    result = {"task": TASK, "budget": BUDGET, "seed": SEED, "examples": len(whole), "rows": rows}
    RESULT.write_text(json.dumps(result | {"environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
