"""Write bundles of the embedded MiniLM at 3x, and for each the answers of toprune itself.

    python consumers/make_bundle.py OUT               # OUT/classify, dial, rank, embed, answer
    python consumers/make_bundle.py OUT rank embed    # some of them

Heads are random, plans are geometric and nothing is trained: the answers are useless, but they
depend on every kept token. OUT/rank.json contains texts and the outputs of `Runner`: of the bundle
(`pruned`) and of the same weights exported without a plan (`dense`). For question answering these
are two logits for each token of all texts, and `spans` are the answers of our pipeline (start, end,
score).
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
from toprune.integrations.transformers import pipeline
from toprune.models.families import family_of, sizes_of
from toprune.models.heads import HEADS
from toprune.models.load import load_tokenizer
from toprune.plan.budget import Lengths
from toprune.plan.dial import Dial, Stop
from toprune.plan.plan import probe_of
from toprune.plan.schedule import geometric, repair
from toprune.tasks import Answer, Classify, Embed, Rank, Task, settings_of
from toprune.training.batches import Collate, in_batches
from toprune.training.features import encode, lengths
from toprune.training.probe import fit_probes

SEED, BUDGET, FIRST, MAX_LENGTH = 0, "3x", 0, 256
FITTED, CHECKED = 64, 24  # texts to make the plan from, and texts to compare outputs on
WORDS = (
    *("a", "the", "of", "and", "to", "in", "is", "was", "it", "that", "film", "story", "river"),
    *("winter", "market", "engine", "doctor", "garden", "teacher", "answer", "question", "price"),
    *("never", "always", "slowly", "bright", "broken", "quiet", "wonderful", "disappointing"),
    *("photosynthesis", "Zürich", "naïve", "2024", "3.5", "don't", "e-mail", "東京"),
    *(",", ".", ";", "!", "(", ")"),
)


@dataclass(frozen=True)
class Case:
    """A head and its texts. Other programs must cut texts above MAX_LENGTH as we do; but they weigh
    the windows of a long context in their own way, so contexts are short."""

    task: Task
    outputs: int | None = None  # None: no head
    pair: bool = False
    longest: int = 2 * MAX_LENGTH  # words
    dial: tuple[str, ...] = ()  # further budgets of the same file


CASES = {
    "classify": Case(Classify(), outputs=2),
    "dial": Case(Classify(), outputs=2, dial=("2x", "5x")),
    "rank": Case(Rank(), outputs=1, pair=True),
    "embed": Case(Embed()),
    "answer": Case(Answer(), outputs=2, pair=True, longest=100),
}


def draw(rng: np.random.Generator, shortest: int, longest: int) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(shortest, longest + 1)))


def examples(case: Case, count: int, longest: int, seed: int) -> Examples:
    """Texts of one word to `longest`, or pairs of a short and a long one."""
    rng = np.random.default_rng(seed)
    texts = [draw(rng, 1, 12 if case.pair else longest) for _ in range(count)]
    return Examples(texts, [draw(rng, 1, longest) for _ in texts] if case.pair else None)


def dense_model(case: Case) -> Any:
    torch.manual_seed(SEED)
    head: dict[str, Any] = {} if case.outputs is None else {"num_labels": case.outputs}
    if isinstance(case.task, Classify):
        head |= {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = HEADS[case.task.HEAD].from_pretrained(str(model_directory()), **head)
    if case.outputs is None:
        model.pooler = None  # as `read_weights` does
    # the usual 0.02 gives logits near zero, which agree for any encoder
    elif case.task.HEAD == "answer":
        torch.nn.init.normal_(model.qa_outputs.weight, std=0.2)  # reads states, which are larger
    else:
        torch.nn.init.normal_(model.classifier.weight, std=2.0)
    return model


def tokenizer_of(case: Case) -> Any:
    """For pairs a tokenizer without a special class, like those made by hand: transformers 5 saves
    it under a name that transformers 4 does not know."""
    tokenizer = load_tokenizer(model_directory())
    if not case.pair:
        return tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        model_input_names=tokenizer.model_input_names,
        **tokenizer.special_tokens_map,
    )


def plan_of(case: Case, model: Any, tokenizer: Any) -> tuple[Plan, Lengths]:
    """A step in each of five layers, and the lengths of the texts that it was made from."""
    fitted = examples(case, FITTED, longest=150, seed=SEED)
    features = encode(tokenizer, case.task, fitted, MAX_LENGTH)
    batches = [batch for _, batch in in_batches(features, Collate(tokenizer))]
    until = tokenizer.sep_token_id if case.task.KEEPS_FIRST else None
    protect = () if until is None else (until,)
    histogram = lengths(features, protect, until)
    plan = geometric(
        sizes_of(model),
        histogram,
        Budget.parse(BUDGET),
        family=family_of(model).name,
        first=FIRST,
        score="probe",
        probe=probe_of(fit_probes(model, case.task, batches), "probe", [FIRST]),
        protect=protect,
        protect_until=until,
        restore="last" if case.task.reads_all else "none",
    )
    return plan, histogram


def dial_of(case: Case, model: Any, plan: Plan, histogram: Lengths) -> Dial | None:
    """The plan's shape at all budgets of a case that has several."""
    if not case.dial:
        return None
    sizes = sizes_of(model)
    budgets = sorted(map(Budget.parse, (BUDGET, *case.dial)), key=lambda one: one.reduction)
    stops = (
        Stop.of(one, plan if one.asked == BUDGET else repair(sizes, plan, histogram, one))
        for one in budgets
    )
    return Dial(plan, tuple(stops), sizes, histogram)


def make(folder: Path, case: Case) -> dict[str, Any]:
    """Write the bundle and export it in both precisions; returns texts and expected outputs."""
    model, tokenizer = dense_model(case), tokenizer_of(case)
    plan, histogram = plan_of(case, model, tokenizer)
    report = {"task": case.task.NAME, "task_settings": settings_of(case.task)}
    report["max_length"] = MAX_LENGTH
    dial = dial_of(case, model, plan, histogram)
    Bundle(model, tokenizer, plan, report, dial).save(folder)
    export(folder, int8=True)
    texts = examples(case, CHECKED, case.longest, SEED + 1).inputs(case.task.READS)
    run = Runner(folder)
    outputs: dict[str, Any] = {"texts": texts, "pruned": rows(run(texts))}
    if isinstance(case.task, Answer):
        pairs = [{"question": question, "context": context} for question, context in texts]
        answers = pipeline("question-answering", model=folder)(pairs)
        outputs["spans"] = [[one["start"], one["end"], one["score"]] for one in answers]
    with TemporaryDirectory() as other:
        Bundle(model, tokenizer, None, report).save(other)
        export(other)
        return outputs | {"dense": rows(Runner(other)(texts))}


def rows(logits: np.ndarray | list[np.ndarray]) -> list[Any]:
    return np.concatenate(logits).tolist() if isinstance(logits, list) else logits.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="|".join(CASES))
    args = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the head is new on purpose
    for name in args.cases:
        text = json.dumps(make(args.out / name, CASES[name]), ensure_ascii=False, indent=1)
        (args.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
