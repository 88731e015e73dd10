"""Bundles of the embedded MiniLM at 3x, and beside each what toprune itself answers.

    python consumers/make_bundle.py OUT               # OUT/classify and OUT/rank
    python consumers/make_bundle.py OUT classify      # one of them

The head is random, the plan a geometric one and nothing is trained: answers of no worth, but they
depend on every token that stays. OUT/classify.json and OUT/rank.json hold texts,
the logits of the bundle's Runner (`pruned`) and of the stock model on the same weights (`dense`).
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast
from transformers.utils import logging

from toprune import Budget, Bundle, Runner
from toprune.batching import in_batches
from toprune.data import Examples
from toprune.demo import model_directory
from toprune.encode import Collate, encode, lengths
from toprune.evaluation import logits_of
from toprune.export import export
from toprune.families import family_of, sizes_of
from toprune.methods.top import probe_of
from toprune.models import load_tokenizer
from toprune.probe import fit_probes
from toprune.schedule import geometric

SEED, BUDGET, FIRST, MAX_LENGTH = 0, "3x", 0, 256
FITTED, ASKED = 64, 24  # texts that the plan is made from, and those that all must agree on
WORDS = (
    *("a", "the", "of", "and", "to", "in", "is", "was", "it", "that", "film", "story", "river"),
    *("winter", "market", "engine", "doctor", "garden", "teacher", "answer", "question", "price"),
    *("never", "always", "slowly", "bright", "broken", "quiet", "wonderful", "disappointing"),
    *("photosynthesis", "Zürich", "naïve", "2024", "3.5", "don't", "e-mail", "東京"),
    *(",", ".", ";", "!", "(", ")"),
)


@dataclass(frozen=True)
class Kind:
    """A head and what it is asked: two named classes of a text, or the rank of a pair."""

    task: str
    outputs: int
    pair: bool


KINDS = {
    "classify": Kind("classify", outputs=2, pair=False),
    "rank": Kind("regress", outputs=1, pair=True),
}


def draw(rng: np.random.Generator, shortest: int, longest: int) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(shortest, longest + 1)))


def examples(kind: Kind, count: int, longest: int, seed: int) -> Examples:
    """Texts of one word to `longest`, or pairs of a short and a long one."""
    rng = np.random.default_rng(seed)
    texts = [draw(rng, 1, 12 if kind.pair else longest) for _ in range(count)]
    return Examples(texts, [draw(rng, 1, longest) for _ in texts] if kind.pair else None)


def dense_model(kind: Kind) -> Any:
    torch.manual_seed(SEED)
    head: dict[str, Any] = {"num_labels": kind.outputs}
    if kind.outputs > 1:
        head |= {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = AutoModelForSequenceClassification.from_pretrained(str(model_directory()), **head)
    # the usual 0.02 gives logits near zero, which agree whatever the encoder says
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    return model


def tokenizer_of(kind: Kind) -> Any:
    """For pairs one of no class of its own, as tokenizers made by hand are: transformers 5 saves it
    under a name that 4 does not know."""
    own = load_tokenizer(model_directory())
    if not kind.pair:
        return own
    return PreTrainedTokenizerFast(
        tokenizer_object=own.backend_tokenizer,
        model_input_names=own.model_input_names,
        **own.special_tokens_map,
    )


def make(folder: Path, kind: Kind) -> None:
    """A bundle with a step in each of five layers, exported in both precisions."""
    model, tokenizer = dense_model(kind), tokenizer_of(kind)
    features = encode(tokenizer, examples(kind, FITTED, longest=150, seed=SEED), MAX_LENGTH)
    batches = [batch for _, batch in in_batches(features, Collate(tokenizer))]
    plan = geometric(
        sizes_of(model),
        lengths(features),
        Budget.parse(BUDGET),
        family=family_of(model).name,
        first=FIRST,
        score="probe",
        probe=probe_of(fit_probes(model, batches), FIRST),
    )
    report = {"task": kind.task, "max_length": MAX_LENGTH}
    Bundle(model, tokenizer, plan, report).save(folder)
    export(folder, int8=True)


def answers(folder: Path, kind: Kind) -> dict[str, Any]:
    """Some of the texts are longer than the bundle takes: others must cut them where we do."""
    asked = examples(kind, ASKED, longest=2 * MAX_LENGTH, seed=SEED + 1)
    texts = list(zip(asked.texts, asked.pairs, strict=True)) if asked.pairs else asked.texts
    bundle = Bundle.load(folder)
    features = encode(bundle.tokenizer, asked, MAX_LENGTH)
    dense = logits_of(bundle.model, features, Collate(bundle.tokenizer))
    return {"texts": texts, "pruned": Runner(folder)(texts).tolist(), "dense": dense.tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="classify|rank")
    args = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # that the head is new is what we want
    for name in args.kinds:
        make(args.out / name, KINDS[name])
        told = json.dumps(answers(args.out / name, KINDS[name]), ensure_ascii=False, indent=1)
        (args.out / f"{name}.json").write_text(told + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
