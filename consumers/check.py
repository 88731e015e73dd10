"""Does a toprune bundle run in other people's programs? Nothing here knows of toprune.

    .venv-consumers/bin/python consumers/check.py FOLDER

FOLDER is what consumers/make_bundle.py wrote elsewhere: bundles, and for each the texts and logits
that are to come out. Exits with 1 if a program's logits are off by more than 1e-4. Programs read
the bundle as they read any model directory: no file name is given, nothing is said of lengths.
"""

import argparse
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optimum.onnxruntime import ORTModelForSequenceClassification
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

TOLERANCE = 1e-4
BATCH = 8
PACKAGES = ("transformers", "optimum-onnx", "sentence-transformers", "onnxruntime", "torch")

Texts = list[str] | list[list[str]]  # a pair is a list of two
Program = Callable[[Path, Texts], np.ndarray]  # (N, C) logits


def forward(model: Any, folder: Path, texts: Texts, batch_size: int) -> np.ndarray:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for start in range(0, len(texts), batch_size):
        some = texts[start : start + batch_size]
        feeds = tokenizer(some, truncation=True, padding=True, return_tensors="pt")
        with torch.inference_mode():
            rows.append(model(**feeds).logits.numpy())
    return np.concatenate(rows)


def optimum(folder: Path, texts: Texts) -> np.ndarray:
    """In padded batches of mixed lengths."""
    return forward(ORTModelForSequenceClassification.from_pretrained(folder), folder, texts, BATCH)


def optimum_singly(folder: Path, texts: Texts) -> np.ndarray:
    return forward(ORTModelForSequenceClassification.from_pretrained(folder), folder, texts, 1)


def text_classification(folder: Path, texts: Texts) -> np.ndarray:
    classify = pipeline(
        "text-classification",
        model=ORTModelForSequenceClassification.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    asked = [t if isinstance(t, str) else {"text": t[0], "text_pair": t[1]} for t in texts]
    told = classify(asked, batch_size=BATCH, truncation=True, top_k=None, function_to_apply="none")
    ids = classify.model.config.label2id
    return np.array(
        [[x["score"] for x in sorted(row, key=lambda x: ids[x["label"]])] for row in told]
    )


def cross_encoder(folder: Path, texts: Texts) -> np.ndarray:
    """For pairs only: it takes no single texts."""
    model = CrossEncoder(str(folder), backend="onnx", activation_fn=torch.nn.Identity())
    return model.predict(texts, batch_size=BATCH).reshape(len(texts), -1)


def stock(folder: Path, texts: Texts) -> np.ndarray:
    """The weights in transformers itself, which knows no plan and keeps every token."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    return forward(model, folder, texts, BATCH)


PROGRAMS: dict[str, tuple[Program, str]] = {
    "ORTModelForSequenceClassification": (optimum, "pruned"),
    "ORTModelForSequenceClassification, one by one": (optimum_singly, "pruned"),
    'pipeline("text-classification")': (text_classification, "pruned"),
    'CrossEncoder(backend="onnx")': (cross_encoder, "pruned"),
    "AutoModelForSequenceClassification (dense)": (stock, "dense"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if find_spec("toprune") is not None:
        sys.exit("toprune is installed here: this is not somebody else's environment")
    sys.stdout.write(", ".join(f"{name} {version(name)}" for name in PACKAGES) + "\n")
    wrong = 0
    for answers in sorted(folder.glob("*.json")):
        expected = json.loads(answers.read_text(encoding="utf-8"))
        between = np.abs(np.subtract(expected["pruned"], expected["dense"])).max()
        sys.stdout.write(f"\n{answers.stem}: pruned and dense logits differ by {between:.2g}\n")
        for name, (program, kind) in PROGRAMS.items():
            if program is cross_encoder and isinstance(expected["texts"][0], str):
                continue
            found = program(answers.with_suffix(""), expected["texts"])
            off = np.abs(found - np.array(expected[kind])).max()
            wrong += not off <= TOLERANCE  # NaN is wrong, too
            verdict = "ok" if off <= TOLERANCE else "WRONG"
            sys.stdout.write(f"  {verdict:5}  {name:46} {off:.1e} off over {len(found)} texts\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
