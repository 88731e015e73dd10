"""What benign filler does to a pruned model: `toprune stress` on IMDB, at 3x.

    python benchmarks/stress.py                 # a bundle of methods.py --keep, which must be there
    python benchmarks/stress.py top-3x-s0 top-received-3x-s0    # others, too

Reviews of the test set that leave room for as much filler as they are long; plain sentences as
filler; the dense model is the one that the bundle was made from. At 256 tokens the plan keeps 68,
so that floors below that change nothing with filler: higher ones are tried.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import sets
from dense import CACHE
from methods import STEPS
from toprune.inspection.stress.stress import LIMIT, stress
from toprune.report.environment import environment

RESULT = Path(__file__).parent / "results" / "stress.json"
TASK, TEXTS, FLOORS = "imdb", 5000, (64, 96, 128)
BUNDLES = ("top-3x-s0",)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=BUNDLES, help="of the runs of methods.py")
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    (reported,) = sets.report_sets(TASK, TEXTS).values()
    rows = []
    with TemporaryDirectory(prefix="toprune-stress-") as folder:
        data = Path(folder) / "data.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in sets.rows(reported)))
        for name in args.names:
            runs = CACHE / "methods" / f"{TASK}-{STEPS}" / "runs"
            dense = CACHE / "dense" / f"{TASK}-minilm"
            report = stress(runs / name, data, dense=dense, floors=FLOORS, limit=args.limit)
            rows.append(report | {"bundle": name, "dense": f"dense/{dense.name}"})
            sets.say(f"{name}: {report['verdict']}")
            result = {"task": TASK, "rows": rows, "threads": torch.get_num_threads()}
            args.out.write_text(
                json.dumps(result | {"environment": environment()}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
