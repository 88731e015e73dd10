"""The benchmark sets by path, as examples: official files of ../shared/data, none of it committed.

Model selection uses a split of train (`--select` in results.py); what is reported is dev, and test
where it is labelled.
"""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data import glue
from toprune.data.examples import Examples
from toprune.data.sets import load_preset
from toprune.tasks import TASKS

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
GLUE = {name: glue.GLUE[name] for name in ("mrpc", "rte", "cola", "stsb")}
MAX_LENGTH = {name: task.max_length for name, task in GLUE.items()} | {"imdb": 256, "20news": 512}
TASK = {name: GLUE[name].task if name in GLUE else "classify" for name in MAX_LENGTH}
METRIC = {
    "mrpc": "accuracy",
    "rte": "accuracy",
    "cola": "matthews",
    "stsb": "pearson",
    "imdb": "accuracy",
    "20news": "accuracy",
}

HELD_OUT = 0.2  # share of train on which recipes are tried


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


def together(parts: Iterable[Examples]) -> Examples:
    """Sets of one task as one."""
    found = list(parts)
    first = found[0]
    return Examples(
        texts=[text for e in found for text in e.texts],
        pairs=None if first.pairs is None else [pair for e in found for pair in e.pairs or []],
        labels=None if first.labels is None else [x for e in found for x in e.labels or []],
        label_names=first.label_names,
    )


def train_set(name: str, rows: int | None = None, seed: int = 0) -> Examples:
    """The training set, or a seeded subset of it."""
    examples = _read(name, "train")
    if rows is None or rows >= len(examples):
        return examples
    return examples.take(np.random.default_rng(seed).permutation(len(examples))[:rows])


def other_pairs(wanted: Iterable[tuple[str, int]], *, apart_from: Examples) -> Examples:
    """Unlabelled pairs of other training sets to prune with, so many of each; no sentence of the
    set that is reported or judged on is among them."""
    kept = {*apart_from.texts, *(apart_from.pairs or [])}
    texts: list[str] = []
    pairs: list[str] = []
    for name, count in wanted:
        examples = _read(name, "train")
        order = np.random.default_rng(0).permutation(len(examples))
        for i in order[:count]:
            first, second = examples.texts[i], (examples.pairs or [])[i]
            if not {first, second} & kept:
                texts.append(first)
                pairs.append(second)
    return Examples(texts, pairs)


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
    if name == "snli":
        with gzip.open(DATA / name / f"{part}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return Examples([r["sentence1"] for r in rows], [r["sentence2"] for r in rows])
    if name not in GLUE:
        return _jsonl(DATA / name / f"{part}.jsonl.gz")
    return next(iter(read_glue(name, part).values()))


def read_glue(name: str, part: str | None = None) -> dict[str, Examples]:
    """The sets of a GLUE task's official files."""
    preset = glue.GLUE[name]
    return load_preset(preset, DATA / "glue", reads=TASKS[preset.task].READS, split=part)


def _jsonl(path: Path) -> Examples:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    names = sorted({str(r["label"]) for r in rows})
    ids = {name: i for i, name in enumerate(names)}
    return Examples([r["text"] for r in rows], None, [ids[str(r["label"])] for r in rows])
