"""Do the loaders read the official files exactly? Rows against the data's own README, labels
against a plain count in the files (cut, sort, uniq).

    python benchmarks/rows.py       # writes results/rows.json, fails where a number differs
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import sets
from candidates import trecqa
from toprune.data.examples import Examples, load
from toprune.data.squad import read_squad
from toprune.report.environment import environment
from toprune.tasks.answer import Answer
from toprune.tasks.classify import Classify

RESULT = Path(__file__).parent / "results" / "rows.json"
# rows, and of the first class (of answers: questions without one); None: a number is told
GLUE: dict[str, dict[str, tuple[int, int | None]]] = {
    "cola": {"train": (8551, 2528), "validation": (1043, 324)},
    "sst2": {"train": (67349, 29780), "validation": (872, 428)},
    "mrpc": {"train": (3668, 1194), "validation": (408, 129), "test": (1725, 578)},
    "stsb": {"train": (5749, None), "validation": (1500, None), "test": (1379, None)},
    "rte": {"train": (2490, 1249), "validation": (277, 146)},
}
TEXTS: dict[str, dict[str, tuple[int, int]]] = {
    "20news": {"train": (11314, 480), "test": (7532, 319)},
    "imdb": {"train": (25000, 12500), "test": (25000, 12500)},
}
SQUAD = {
    "dev-v1.1": (10565, 0),
    "half-dev-v2.0": (6078, 3168),
    "shifts-nyt": (10056, 0),
    "shifts-reddit": (9767, 0),
    "shifts-new-wiki": (7936, 0),
}
PAIRS = {"train": 4718, "validation": 1148, "test": 1517}


def first_class(examples: Examples) -> int | None:
    """How many have class 0; no answer, where labels are answers; None where they are numbers."""
    labels: list[Any] = examples.labels or []
    if labels and isinstance(labels[0], float):
        return None
    counts = Counter(len(label) == 0 if isinstance(label, list) else label == 0 for label in labels)
    return counts[True]


def main() -> None:
    actual: dict[str, Any] = {}
    wanted: dict[str, Any] = {}

    def note(name: str, examples: Examples, expected: Any) -> None:
        actual[name], wanted[name] = [len(examples), first_class(examples)], list(expected)
        good = actual[name] == wanted[name]
        sets.say(f"{name}: {actual[name]}" + ("" if good else f", but {wanted[name]} is right"))

    for name, parts in GLUE.items():
        for part, examples in sets.read_glue(name).items():
            note(f"{name} {part}", examples, parts[part])
    for name, rows in TEXTS.items():
        for part, expected in rows.items():
            examples = load(sets.DATA / name / f"{part}.jsonl.gz", reads=Classify.READS)["train"]
            note(f"{name} {part}", examples, expected)
    for name, expected in SQUAD.items():
        note(
            name, read_squad(sets.DATA / "squad" / f"{name}.json.gz", reads=Answer.READS), expected
        )
    for part, examples in trecqa().items():
        note(f"trecqa {part}", examples, (PAIRS[part], None))
    RESULT.write_text(
        json.dumps({"rows": actual, "expected": wanted, "environment": environment()}, indent=1)
        + "\n"
    )
    if actual != wanted:
        sys.exit("some numbers differ")


if __name__ == "__main__":
    main()
