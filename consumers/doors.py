"""Check the doors into other libraries, in an environment with toprune and without torch.

    .venv-doors/bin/python consumers/doors.py FOLDER

FOLDER comes from consumers/make_bundle.py, whose answers are those of `Runner`. The exit code is 1
if a door gives anything else by more than 1e-4.
"""

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from toprune.integrations.sentence_transformers import CrossEncoder, SentenceTransformer
from toprune.integrations.transformers import pipeline

TOLERANCE = 1e-4
EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGES = ("langchain-core", "langchain-classic", "llama-index-core", "onnxruntime")
ABSENT = ("torch", "transformers", "sentence_transformers")  # they must not be needed

Expected = dict[str, Any]  # a JSON file of make_bundle.py
Check = Callable[[Path, dict[str, Expected]], np.ndarray]  # differences, which should be 0


def cross_encoder(folder: Path, expected: dict[str, Expected]) -> np.ndarray:
    texts, logits = expected["rank"]["texts"], np.array(expected["rank"]["pruned"])[:, 0]
    ranker = CrossEncoder(folder / "rank")
    query = texts[0][0]
    ranked = ranker.rank(query, [document for _, document in texts])
    again = ranker.predict([(query, texts[one["corpus_id"]][1]) for one in ranked])
    return np.concatenate(
        [ranker.predict(texts) - 1 / (1 + np.exp(-logits)), again - [r["score"] for r in ranked]]
    )


def sentence_transformer(folder: Path, expected: dict[str, Expected]) -> np.ndarray:
    vectors = SentenceTransformer(folder / "embed").encode(expected["embed"]["texts"])
    return vectors - np.array(expected["embed"]["pruned"])


def text_classification(folder: Path, expected: dict[str, Expected]) -> np.ndarray:
    how: dict[str, Any] = {"top_k": None, "function_to_apply": "none"}
    answers = pipeline("text-classification", model=folder / "classify", **how)(
        expected["classify"]["texts"]
    )
    scores = [[dict_of(answer)[name] for name in ("no", "yes")] for answer in answers]
    return np.array(scores) - np.array(expected["classify"]["pruned"])


def dict_of(answer: list[dict[str, Any]]) -> dict[str, float]:
    return {one["label"]: one["score"] for one in answer}


def question_answering(folder: Path, expected: dict[str, Expected]) -> np.ndarray:
    """Also compared with transformers 4 by check.py."""
    pairs = [{"question": q, "context": c} for q, c in expected["answer"]["texts"]]
    answers = pipeline("question-answering", model=folder / "answer")(pairs)
    found = [[one["start"], one["end"], one["score"]] for one in answers]
    return np.array(found) - np.array(expected["answer"]["spans"])


def langchain(folder: Path, expected: dict[str, Expected]) -> np.ndarray:
    return search_by("with_langchain.py", folder, expected)


def llama_index(folder: Path, expected: dict[str, Expected]) -> np.ndarray:
    return search_by("with_llama_index.py", folder, expected)


def search_by(script: str, folder: Path, expected: dict[str, Expected]) -> np.ndarray:
    """Run an example, and find the same documents by plain numpy."""
    texts, query = expected["embed"]["texts"], "a question of the doctor"
    search = runpy.run_path(str(EXAMPLES / script))["search"]
    found = search(str(folder / "embed"), str(folder / "rank"), query, texts)
    vectors = np.array(expected["embed"]["pruned"])  # of length one
    near = np.argsort(-(vectors @ SentenceTransformer(folder / "embed").encode(query)))[:20]
    scores = CrossEncoder(folder / "rank").predict([(query, texts[i]) for i in near])
    right = [texts[near[i]] for i in np.argsort(-scores)[:3]]
    return np.array([a != b for a, b in zip(found, right, strict=True)], float)


DOORS: dict[str, Check] = {
    "CrossEncoder": cross_encoder,
    "SentenceTransformer": sentence_transformer,
    'pipeline("text-classification")': text_classification,
    'pipeline("question-answering")': question_answering,
    "LangChain, vectors and reranker": langchain,
    "LlamaIndex, vectors and reranker": llama_index,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    present = [name for name in ABSENT if find_spec(name) is not None]
    if present:
        sys.exit(f"{', '.join(present)} is installed here; run this in an environment without it")
    sys.stdout.write(", ".join(f"{name} {version(name)}" for name in PACKAGES) + "\n\n")
    expected = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    failures = 0
    for name, check in DOORS.items():
        error = np.abs(check(folder, expected)).max()
        is_right = error <= TOLERANCE  # false for NaN
        failures += not is_right
        sys.stdout.write(f"  {'ok' if is_right else 'WRONG':5}  {name:36} {error:.1e} off\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
