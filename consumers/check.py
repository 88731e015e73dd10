"""Check that a toprune bundle runs in other programs. Nothing here imports toprune.

    .venv-consumers/bin/python consumers/check.py FOLDER

FOLDER comes from consumers/make_bundle.py: bundles, and for each of them texts and the expected
logits, vectors or spans. The exit code is 1 if a program differs by more than 1e-4. Programs open a
bundle like any model directory: they get no file names and no lengths.
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

# Pyright sees our environment, which has no optimum: it wants transformers 4.
from optimum.onnxruntime import (  # pyright: ignore[reportMissingImports]
    ORTModelForQuestionAnswering,
    ORTModelForSequenceClassification,
)
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

TOLERANCE = 1e-4
BATCH = 8
PACKAGES = ("transformers", "optimum-onnx", "sentence-transformers", "onnxruntime", "torch")

Texts = list[str] | list[list[str]]  # a pair is a list of two
Program = Callable[[Path, Texts], np.ndarray]  # (N, C): a row for each text, or for each token


def sequence_logits(out: Any, mask: torch.Tensor) -> torch.Tensor:
    return out.logits  # (B, C)


def span_logits(out: Any, mask: torch.Tensor) -> torch.Tensor:
    """(live tokens, 2): the logits of padding mean nothing."""
    return torch.stack([out.start_logits, out.end_logits], -1)[mask.bool()]


def forward(
    model: Any, folder: Path, texts: Texts, batch_size: int = BATCH, read: Any = sequence_logits
) -> np.ndarray:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        feeds = tokenizer(batch, truncation=True, padding=True, return_tensors="pt")
        with torch.inference_mode():
            rows.append(read(model(**feeds), feeds["attention_mask"]).numpy())
    return np.concatenate(rows)


def optimum(folder: Path, texts: Texts) -> np.ndarray:
    """In padded batches of mixed lengths."""
    return forward(ORTModelForSequenceClassification.from_pretrained(folder), folder, texts)


def optimum_singly(folder: Path, texts: Texts) -> np.ndarray:
    return forward(ORTModelForSequenceClassification.from_pretrained(folder), folder, texts, 1)


def text_classification(folder: Path, texts: Texts) -> np.ndarray:
    classify: Any = pipeline(
        "text-classification",
        model=ORTModelForSequenceClassification.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    inputs = [t if isinstance(t, str) else {"text": t[0], "text_pair": t[1]} for t in texts]
    how = {"batch_size": BATCH, "truncation": True, "top_k": None, "function_to_apply": "none"}
    answers = classify(inputs, **how)
    ids = classify.model.config.label2id
    return np.array(
        [[x["score"] for x in sorted(row, key=lambda x: ids[x["label"]])] for row in answers]
    )


def stock(folder: Path, texts: Texts) -> np.ndarray:
    """The weights in plain transformers, which keeps every token."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    return forward(model, folder, texts)


def cross_encoder(folder: Path, texts: Texts, backend: Any = "torch") -> np.ndarray:
    """For pairs only."""
    model = CrossEncoder(str(folder), backend=backend, activation_fn=torch.nn.Identity())
    return model.predict(texts, batch_size=BATCH).reshape(len(texts), -1)


def cross_encoder_onnx(folder: Path, texts: Texts) -> np.ndarray:
    return cross_encoder(folder, texts, "onnx")


def sentence_transformer(folder: Path, texts: Texts, backend: Any = "torch") -> np.ndarray:
    """Pooled and normalised by the files of the bundle."""
    return SentenceTransformer(str(folder), backend=backend).encode(texts, batch_size=BATCH)


def sentence_transformer_onnx(folder: Path, texts: Texts) -> np.ndarray:
    return sentence_transformer(folder, texts, "onnx")


def optimum_answer(folder: Path, texts: Texts) -> np.ndarray:
    model = ORTModelForQuestionAnswering.from_pretrained(folder)
    return forward(model, folder, texts, read=span_logits)


def question_answering(folder: Path, texts: Texts) -> np.ndarray:
    """Start and end of each answer, in characters, and its score. As in `Runner`, an answer has up
    to 30 tokens and need not consist of whole words."""
    make: Any = pipeline  # transformers 5, which pyright reads, has no such task
    answer = make(
        "question-answering",
        model=ORTModelForQuestionAnswering.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    how = {"max_answer_len": 30, "align_to_words": False}
    answers = [answer(question=question, context=context, **how) for question, context in texts]
    return np.array([[one["start"], one["end"], one["score"]] for one in answers])


def stock_answer(folder: Path, texts: Texts) -> np.ndarray:
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    return forward(model, folder, texts, read=span_logits)


SEQUENCE: dict[str, tuple[Program, str]] = {
    "ORTModelForSequenceClassification": (optimum, "pruned"),
    "ORTModelForSequenceClassification, one by one": (optimum_singly, "pruned"),
    'pipeline("text-classification")': (text_classification, "pruned"),
    "AutoModelForSequenceClassification (dense)": (stock, "dense"),
}
PROGRAMS: dict[str, dict[str, tuple[Program, str]]] = {
    "classify": SEQUENCE,
    "dial": SEQUENCE,  # its graph has an input with a default, which no program feeds
    "rank": SEQUENCE
    | {
        'CrossEncoder(backend="onnx")': (cross_encoder_onnx, "pruned"),
        "CrossEncoder (dense)": (cross_encoder, "dense"),
    },
    "embed": {
        'SentenceTransformer(backend="onnx")': (sentence_transformer_onnx, "pruned"),
        "SentenceTransformer (dense)": (sentence_transformer, "dense"),
    },
    "answer": {
        "ORTModelForQuestionAnswering": (optimum_answer, "pruned"),
        'pipeline("question-answering")': (question_answering, "spans"),
        "AutoModelForQuestionAnswering (dense)": (stock_answer, "dense"),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if find_spec("toprune") is not None:
        sys.exit("toprune is installed here; run this in an environment without it")
    sys.stdout.write(", ".join(f"{name} {version(name)}" for name in PACKAGES) + "\n")
    failures = 0
    for path in sorted(folder.glob("*.json")):
        expected = json.loads(path.read_text(encoding="utf-8"))
        texts = expected["texts"]
        gap = np.abs(np.subtract(expected["pruned"], expected["dense"])).max()
        sys.stdout.write(f"\n{path.stem}: pruned and dense differ by {gap:.2g}\n")
        for name, (program, reference) in PROGRAMS[path.stem].items():
            outputs = program(path.with_suffix(""), texts)
            error = np.abs(outputs - np.array(expected[reference])).max()
            is_right = error <= TOLERANCE  # false for NaN
            failures += not is_right
            verdict = "ok" if is_right else "WRONG"
            sys.stdout.write(f"  {verdict:5}  {name:46} {error:.1e} off over {len(texts)} texts\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
