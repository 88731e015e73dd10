"""Fine-tune the embedded MiniLM on the benchmark tasks: the dense models that results.py prunes.

    python benchmarks/dense.py mrpc rte cola stsb imdb

Models go to the cache directory (they are not committed). One recipe a task, fixed beforehand: no
number of the reported sets chose anything here. `--select` trains on 80 % of train: the dense model
with which `results.py --select` tries recipes on the rest.
"""

import argparse
import os
from pathlib import Path

import sets
from toprune.api import Data, finetune
from toprune.cli.demo import model_directory
from toprune.data.splits import split_validation
from toprune.training.settings import Training

CACHE = Path(os.environ.get("TOPRUNE_BENCH_CACHE", Path.home() / ".cache" / "toprune-bench"))
EPOCHS = {"mrpc": 4, "rte": 5, "cola": 4, "stsb": 4, "imdb": 2}
ROWS = {"imdb": 2000}  # a seeded subset of train that fits two cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(EPOCHS))
    parser.add_argument("--select", action="store_true")
    args = parser.parse_args()
    for name in args.tasks:
        out = CACHE / "dense" / (name + "-select" * args.select)
        if out.exists():
            continue
        train_set = sets.train_set(name, ROWS.get(name))
        if args.select:
            train_set, _ = split_validation(train_set, sets.HELD_OUT, seed=0)
        training = Training(
            soft_epochs=0, hard_epochs=EPOCHS[name], lr=1e-4, label_weight=1.0, bf16=False
        )
        source = {
            "train": sets.rows(train_set),
            "test": sets.rows(sets.report_sets(name, 1000)["dev" if name in sets.GLUE else "test"]),
        }
        data = Data(source, max_length=sets.MAX_LENGTH[name])
        report = finetune(
            model_directory(), data, task=sets.TASK[name], out=out, training=training, resume=True
        )
        sets.say(f"{name}: {report['metrics']}")


if __name__ == "__main__":
    main()
