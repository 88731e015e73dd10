"""Every method under one recipe: `toprune compare` on seeded subsets of MRPC and of IMDB.

    python benchmarks/methods.py mrpc           # trainings; what is there is not done again
    python benchmarks/methods.py mrpc --time    # on a quiet machine

The dense models are those of results.py. Two epochs for each method, one seed, so small differences
mean nothing: the intervals are those of the reported texts alone. Nothing was chosen by these
texts. JSON, table and chart go to results/compare.
"""

import argparse
import shutil
from pathlib import Path

import sets
from dense import CACHE
from toprune.api import Data
from toprune.compare.comparison import compare
from toprune.training.settings import Training

RESULTS = Path(__file__).parent / "results" / "compare"
METHODS = (
    "top",
    "top:received",
    "power_bert",
    "ltp",
    "lat",
    "spatten",
    "transkimmer",
    "tr_bert",
    "calibrate",
    "random",
    "truncate",
    "pool",
    "drop_layers",
    "cofi",
)
TEXTS = {"mrpc": (1200, 500), "imdb": (600, 500)}  # of train, and of each part that is reported
BUDGETS = ("2x", "3x")
TRAINING = Training(soft_epochs=1, hard_epochs=1, bf16=False)


def run(name: str, *, timed: bool) -> None:
    train, shown = TEXTS[name]
    reported = sets.together(sets.report_sets(name, shown).values())
    source = {"train": sets.rows(sets.train_set(name, train)), "test": sets.rows(reported)}
    out = CACHE / "compare" / name
    compare(
        CACHE / "dense" / name,
        Data(source, max_length=sets.MAX_LENGTH[name]),
        METHODS,
        BUDGETS,
        out=out,
        training=TRAINING,
        timed=timed,
        say=sets.say,
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    for path in out.glob("compare*"):
        if path.suffix != ".html":  # the page is made of the same numbers
            shutil.copy(path, RESULTS / path.name.replace("compare", name, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=TEXTS)
    parser.add_argument("--time", action="store_true", help="and export and time every bundle")
    args = parser.parse_args()
    for name in args.names:
        run(name, timed=args.time)


if __name__ == "__main__":
    main()
