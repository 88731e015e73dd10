"""Bundles of the embedded MiniLM at 3x, and beside each what toprune itself answers.

    python consumers/make_bundle.py OUT               # OUT/classify, rank, embed and answer
    python consumers/make_bundle.py OUT rank embed    # some of them

Heads are random, plans are geometric and nothing is trained: answers of no worth, but they depend
on every token that stays. OUT/rank.json holds texts and what `Runner` says to them: of the bundle
(`pruned`) and of the same weights exported with every token (`dense`). Of question answering that
is two logits for each token of all texts in a row, and `spans` are the answers (start, end).
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from toprune import Budget, Bundle, Plan, Runner
from toprune.cli.demo import model_directory
from toprune.data.examples import Examples
from toprune.export.export import export
from toprune.models.families import family_of, sizes_of
from toprune.models.heads import HEADS
from toprune.models.load import load_tokenizer
from toprune.plan.plan import probe_of
from toprune.plan.schedule import geometric
from toprune.tasks import Answer, Classify, Embed, Rank, Task, settings_of
from toprune.training.batches import Collate, in_batches
from toprune.training.features import encode, lengths
from toprune.training.probe import fit_probes

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
    """A head and what it is asked. Texts above MAX_LENGTH others must cut where we do; how they
    weigh the windows of a long context is their own affair, so contexts are short."""

    task: Task
    outputs: int | None = None  # None: no head
    pair: bool = False
    longest: int = 2 * MAX_LENGTH  # words


KINDS = {
    "classify": Kind(Classify(), outputs=2),
    "rank": Kind(Rank(), outputs=1, pair=True),
    "embed": Kind(Embed()),
    "answer": Kind(Answer(), outputs=2, pair=True, longest=100),
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
    head: dict[str, Any] = {} if kind.outputs is None else {"num_labels": kind.outputs}
    if isinstance(kind.task, Classify):
        head |= {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = HEADS[kind.task.HEAD].from_pretrained(str(model_directory()), **head)
    if kind.outputs is None:
        model.pooler = None  # as `read_weights` does
    # the usual 0.02 gives logits near zero, which agree whatever the encoder says
    elif kind.task.HEAD == "answer":
        torch.nn.init.normal_(model.qa_outputs.weight, std=0.2)  # reads states, which are larger
    else:
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


def plan_of(kind: Kind, model: Any, tokenizer: Any) -> Plan:
    """A step in each of five layers."""
    fitted = examples(kind, FITTED, longest=150, seed=SEED)
    features = encode(tokenizer, kind.task, fitted, MAX_LENGTH)
    batches = [batch for _, batch in in_batches(features, Collate(tokenizer))]
    until = tokenizer.sep_token_id if kind.task.KEEPS_FIRST else None
    protect = () if until is None else (until,)
    return geometric(
        sizes_of(model),
        lengths(features, protect, until),
        Budget.parse(BUDGET),
        family=family_of(model).name,
        first=FIRST,
        score="probe",
        probe=probe_of(fit_probes(model, kind.task, batches), "probe", [FIRST]),
        protect=protect,
        protect_until=until,
        restore="last" if kind.task.reads_all else "none",
    )


def make(folder: Path, kind: Kind) -> dict[str, Any]:
    """The bundle, exported in both precisions; returns what it says, and the dense model."""
    model, tokenizer = dense_model(kind), tokenizer_of(kind)
    plan = plan_of(kind, model, tokenizer)
    report = {"task": kind.task.NAME, "task_settings": settings_of(kind.task)}
    report["max_length"] = MAX_LENGTH
    Bundle(model, tokenizer, plan, report).save(folder)
    export(folder, int8=True)
    texts = examples(kind, ASKED, kind.longest, SEED + 1).inputs(kind.task.READS)
    run = Runner(folder)
    said: dict[str, Any] = {"texts": texts, "pruned": rows(run(texts))}
    if isinstance(kind.task, Answer):
        said["spans"] = [[found["start"], found["end"]] for found in run.predict(texts)]
    with TemporaryDirectory() as other:
        Bundle(model, tokenizer, None, report).save(other)
        export(other)
        return said | {"dense": rows(Runner(other)(texts))}


def rows(found: np.ndarray | list[np.ndarray]) -> list[Any]:
    return np.concatenate(found).tolist() if isinstance(found, list) else found.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="|".join(KINDS))
    args = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # that the head is new is what we want
    for name in args.kinds:
        said = make(args.out / name, KINDS[name])
        told = json.dumps(said, ensure_ascii=False, indent=1)
        (args.out / f"{name}.json").write_text(told + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
