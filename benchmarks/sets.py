"""The benchmark sets by path, as examples: official files of ../shared/data, none of it committed.

Model selection uses a split of train (`--select` in results.py); what is reported is dev, and test
where it is labelled.
"""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data import Examples

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MAX_LENGTH = {"mrpc": 128, "rte": 256, "cola": 64, "stsb": 64, "imdb": 256, "20news": 512}
TASK = {name: "regress" if name == "stsb" else "classify" for name in MAX_LENGTH}
METRIC = {
    "mrpc": "accuracy",
    "rte": "accuracy",
    "cola": "matthews",
    "stsb": "pearson",
    "imdb": "accuracy",
    "20news": "accuracy",
}

HELD_OUT = 0.2  # share of train on which recipes are tried
GLUE = {"mrpc": "MRPC", "rte": "RTE", "cola": "CoLA", "stsb": "STS-B"}


def say(text: str) -> None:
    print(text, flush=True)


def rows(examples: Examples) -> list[dict[str, Any]]:
    """Examples as rows of the public interface."""
    found: list[dict[str, Any]] = [{"text": text} for text in examples.texts]
    for row, pair in zip(found, examples.pairs or [], strict=False):
        row["text_pair"] = pair
    for row, label in zip(found, examples.labels or [], strict=True):
        row["label"] = label
    return found


def train_set(name: str, rows: int | None = None, seed: int = 0) -> Examples:
    """The training set, or a seeded subset of it."""
    examples = _read(name, "train")
    if rows is None or rows >= len(examples):
        return examples
    return examples.take(np.random.default_rng(seed).permutation(len(examples))[:rows])


def report_sets(name: str, rows: int | None = None) -> dict[str, Examples]:
    """What is reported, by its name: dev, test, or both where both have labels."""
    parts = {"mrpc": ("dev", "test"), "stsb": ("dev", "test")}.get(
        name, ("test",) if name in ("imdb", "20news") else ("dev",)
    )
    found = {part: _read(name, part) for part in parts}
    if rows is not None:
        rng = np.random.default_rng(0)
        found = {p: e.take(rng.permutation(len(e))[:rows]) for p, e in found.items()}
    return found


def _read(name: str, part: str) -> Examples:
    if name in ("imdb", "20news"):
        return _jsonl(DATA / name / f"{part}.jsonl.gz")
    folder = DATA / "glue" / GLUE[name]
    rows = list(_tsv(folder / f"{part}.tsv"))
    if name == "cola":
        return Examples([r[3] for r in rows], None, [int(r[1]) for r in rows])
    head, rows = rows[0], rows[1:]
    at = {column: i for i, column in enumerate(head)}
    if name == "mrpc":
        label = at.get("Quality", at.get("\ufeffQuality", 0))
        return Examples([r[3] for r in rows], [r[4] for r in rows], [int(r[label]) for r in rows])
    a, b = at["sentence1"], at["sentence2"]
    texts, pairs = [r[a] for r in rows], [r[b] for r in rows]
    if name == "stsb":
        return Examples(texts, pairs, [float(r[at["score"]]) for r in rows])
    return Examples(texts, pairs, [int(r[at["label"]] == "not_entailment") for r in rows])


def _tsv(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _jsonl(path: Path) -> Examples:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    names = sorted({str(r["label"]) for r in rows})
    ids = {name: i for i, name in enumerate(names)}
    return Examples([r["text"] for r in rows], None, [ids[str(r["label"])] for r in rows])
