"""SQuAD v2.0 in one folder, as `toprune reproduce table3 --task squad` reads it.

    python benchmarks/squad_v2.py OUT        # OUT/train.jsonl and OUT/validation.jsonl

The official training file is not at hand. Training questions are those of three other sources, half
of them also with another paragraph of the same article, which does not hold the answer. These are
made, not asked by people, and easier than the official ones. Validation is the half of the official
dev set that is at hand; nothing of it is trained on.
"""

import argparse
import json
from pathlib import Path

import sets
from tasks import SEED, questions, shifts
from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.data.squad import unanswerable
from toprune.reproduce.sample import as_rows

COLUMNS = Columns("question", "context", "answers")
SHARE = 0.5  # unanswerable questions for each answered one, as in v2.0


def write(examples: Examples, path: Path) -> None:
    rows = as_rows(examples, COLUMNS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sets.say(f"{path}: {len(rows)} questions")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    train = [unanswerable(part, SHARE, SEED) for part in shifts(slice(None))]
    write(sets.together(train), out / "train.jsonl")
    write(questions("half-dev-v2.0")[0], out / "validation.jsonl")


if __name__ == "__main__":
    main()
