"""A directory with all that the docs name: tiny models under the names of real ones, tiny data.

Commands of README.md and docs/ are run there word by word, so what they mention must be there
(test_docs.py). A hub id is a directory of that name: transformers takes it for one.
"""

import csv
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from support.models import SIZES, make_tokenizer

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.1,
}
Row = dict[str, Any]
ROWS = 24


def furnish(place: Path) -> None:
    _models(place)
    _texts(place, np.random.default_rng(0))
    _images(place, np.random.default_rng(1))
    shutil.copytree(ROOT / "examples", place / "examples")
    sweeps = (ROOT / "docs" / "how-to" / "sweeps.md").read_text(encoding="utf-8")
    (place / "grid.toml").write_text(sweeps.split("```toml\n")[1].split("```")[0])


def _models(place: Path) -> None:
    tokenizer = make_tokenizer()
    config = BertConfig(**SIZES | SMALL, vocab_size=len(tokenizer), pad_token_id=1)
    torch.manual_seed(0)
    encoder = BertModel(config)
    config.num_labels = 1
    ranker = BertForSequenceClassification(config)
    for model, name in (
        (encoder, "microsoft/MiniLM-L12-H384-uncased"),
        (encoder, "sentence-transformers/all-MiniLM-L6-v2"),
        (encoder, "your-encoder"),
        (ranker, "cross-encoder/ms-marco-MiniLM-L6-v2"),
        (ranker, "dense-ranker"),
    ):
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)


def _texts(place: Path, rng: np.random.Generator) -> None:
    def text(least: int = 10, most: int = 30) -> str:
        return " ".join(f"w{i}" for i in rng.integers(0, 60, rng.integers(least, most)))

    def pick(*values: Any) -> list[Any]:
        return [values[i % len(values)] for i in range(ROWS)]  # every class in every split

    kinds = pick("billing", "bug", "praise")
    for name in ("tickets.csv", "tickets-june.csv"):
        _csv(place / name, ({"text": text(), "label": kind} for kind in kinds))
    _csv(place / "raw.csv", ({"text": text()} for _ in range(ROWS)))
    _csv(place / "texts.csv", ({"text": text()} for _ in range(ROWS)))
    for name in ("lines.txt", "benign.txt"):
        (place / name).write_text("\n".join(text() for _ in range(5)))
    verdicts = pick("thumbs up", "thumbs down")
    reviews = [{"review": text(), "verdict": one} for one in verdicts]
    for name in ("reviews.csv", "reviews/train.csv", "reviews/test.csv"):
        _csv(place / name, reviews)
    _csv(place / "messy.csv", [*reviews, {"review": "", "verdict": "thumbs up"}])
    _csv(place / "essays.csv", ({"text": text(), "score": many} for many in pick(1, 2.5, 4)))
    topics = pick(["tax", "law"], ["law"], ["sport"], [])
    _jsonl(place / "topics.jsonl", ({"text": text(), "labels": labels} for labels in topics))
    _jsonl(place / "long.jsonl", ({"text": text(80, 150), "label": kind} for kind in kinds))
    _jsonl(
        place / "pairs.jsonl",
        (
            {"query": f"w{q} w{q + 9}", "document": text(), "label": int(d == q % 4)}
            for q in range(20)
            for d in range(4)
        ),
    )
    _jsonl(place / "qa.jsonl", (_question(text(20, 30), i) for i in range(ROWS)))
    _jsonl(place / "names.jsonl", (_sentence(text().split()) for _ in range(ROWS)))
    scored = [{"sentence1": text(), "sentence2": text(), "score": x} for x in pick(0, 0.4, 1)]
    _jsonl(place / "sts.jsonl", scored)
    for name in ("train", "dev"):
        rows = [(label, 1, 2, text(), text()) for label in pick(0, 1)]
        lines = [
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            *("\t".join(map(str, r)) for r in rows),
        ]
        _write(place / f"glue/MRPC/{name}.tsv", lines)
    _csv(place / "served.csv", ({"review": text(20, 40)} for _ in range(ROWS)))


def _question(context: str, at: int) -> Row:
    """Every third has no answer."""
    words = context.split()
    answers = {"text": [words[5]], "answer_start": [len(" ".join(words[:5])) + 1]}
    none: Row = {"text": [], "answer_start": []}
    question = f"{words[4]} w1"
    return {"question": question, "context": context, "answers": answers if at % 3 else none}


def _sentence(words: Sequence[str]) -> Row:
    tags = ["B-PER" if word < "w2" else "B-LOC" if word > "w5" else "O" for word in words]
    return {"tokens": words, "tags": tags}


def _images(place: Path, rng: np.random.Generator) -> None:
    config = ViTConfig(**SMALL, image_size=16, patch_size=4)
    config.id2label = {0: "rose", 1: "tulip"}
    config.label2id = {"rose": 0, "tulip": 1}
    ViTForImageClassification(config).save_pretrained(place / "vit-flowers")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(place / "vit-flowers")
    paths = [f"flowers/{kind}/{i}.jpg" for kind in ("rose", "tulip") for i in range(12)]
    for path in (*paths, "photos/17.jpg"):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(place / path)


def _csv(path: Path, rows: Iterable[Row]) -> None:
    rows = list(rows)
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def _jsonl(path: Path, rows: Iterable[Row]) -> None:
    _write(path, [json.dumps(row) for row in rows])


def _write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
