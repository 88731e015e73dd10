"""SQuAD v2.0 in one folder, as `toprune reproduce table3 --task squad` reads it.

    python benchmarks/squad_v2.py OUT                   # OUT/train.jsonl and OUT/validation.jsonl
    python benchmarks/squad_v2.py OUT --dense MODEL     # and a reader, fine-tuned on all of them

The official training file is not at hand. Training questions are those of three other sources, each
once more without an answer, in turn by one of three ways: the paragraph of the same article that
shares most words with the question, but not the answer; the same paragraph without the answer's
sentence; or a name or number of the question replaced by another one of the paragraph. These are
made, not asked by people, and easier than the official ones. Half of all, as in the official dev
set. Validation is the half of that set that is at hand; nothing of it is trained on.

The reader is for `toprune reproduce table3 --task squad --model MODEL`: what `reproduce` fine-tunes
by itself sees a fifth of the questions, three times, and learns too little. A run that was stopped
goes on.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import sets
from candidates import SENTENCE
from tasks import SEED, questions, shifts
from toprune.api import Data, finetune
from toprune.cli.demo import model_directory
from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.reproduce.sample import as_rows
from toprune.tasks.answer import Answer
from toprune.training.settings import Training

COLUMNS = Columns("question", "context", "answers")
WORD = re.compile(r"\w+")
NAME = re.compile(r"(?<!^)\b(?:[A-Z][a-z]+(?: [A-Z][a-z]+)*)\b")  # not the first word of a text
NUMBER = re.compile(r"\b\d[\d,.]*\b")
# The recipe of the reader of SQuAD v1.1 (tasks.py).
READER = Training(0, 1, lr=2e-4, batch_size=16, label_weight=1.0, dropout=False, seed=SEED)
LEAST_SENTENCES = 3  # of a paragraph that loses the one with the answer


def with_unanswerable(examples: Examples, seed: int) -> Examples:
    """Every answered question, and where it can be made, the same one without an answer."""
    contexts, labels, articles = examples.pairs, examples.labels, examples.articles
    assert contexts is not None
    assert labels is not None
    assert articles is not None
    paragraphs: dict[Any, dict[str, None]] = defaultdict(dict)
    for article, context in zip(articles, contexts, strict=True):
        paragraphs[article][context] = None
    rng = np.random.default_rng(seed)
    made: list[tuple[str, str, Any]] = []
    for row in rng.permutation(len(examples)):
        question, context = examples.texts[row], contexts[row]
        answers = [text for text, _ in labels[row]]
        if not answers:
            continue
        for turn in range(3):
            asked, given = question, context
            match (len(made) + turn) % 3:
                case 0:
                    given = similar_paragraph(question, context, answers, paragraphs[articles[row]])
                case 1:
                    given = without_sentence(context, answers)
                case _:
                    asked = other_name(question, context, answers, rng)
            if asked and given:
                made.append((asked, given, articles[row]))
                break
    return replace(
        examples,
        texts=[*examples.texts, *(question for question, _, _ in made)],
        pairs=[*contexts, *(context for _, context, _ in made)],
        labels=[*labels, *([] for _ in made)],
        articles=[*articles, *(article for _, _, article in made)],
    )


@cache  # an article of the reviews has 2,000 paragraphs
def words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text.casefold()))


def holds(text: str, answers: Sequence[str]) -> bool:
    folded = text.casefold()
    return any(answer.casefold() in folded for answer in answers)


def similar_paragraph(
    question: str, context: str, answers: Sequence[str], paragraphs: dict[str, None]
) -> str | None:
    """The other paragraph without an answer that has most of the question's words."""
    asked = words(question)
    nearest = sorted(paragraphs, key=lambda one: -len(asked & words(one)))
    return next((one for one in nearest if one != context and not holds(one, answers)), None)


def without_sentence(context: str, answers: Sequence[str]) -> str | None:
    """The paragraph without the sentences that hold an answer, where enough is left."""
    sentences = [found.group() for found in SENTENCE.finditer(context)]
    left = [one for one in sentences if not holds(one, answers)]
    text = " ".join(left)
    if len(left) + 1 < max(len(sentences), LEAST_SENTENCES) or holds(text, answers):
        return None
    return text


def other_name(
    question: str, context: str, answers: Sequence[str], rng: np.random.Generator
) -> str | None:
    """The question with a name or a number of the paragraph in place of another one."""
    answers_text = " ".join(answers)
    for form in (NAME, NUMBER):
        found = list(form.finditer(question))
        others = [
            one
            for one in sorted(set(form.findall(context)))
            if one not in question and not holds(one, answers) and not holds(answers_text, [one])
        ]
        if found and others:
            one = found[rng.integers(len(found))]
            other = others[rng.integers(len(others))]
            return question[: one.start()] + other + question[one.end() :]
    return None


def write(examples: Examples, path: Path) -> None:
    rows = as_rows(examples, COLUMNS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sets.say(f"{path}: {len(rows)} questions")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--dense", type=Path, metavar="MODEL", help="directory of the reader")
    args = parser.parse_args()
    write_folder(args.out)
    if args.dense is not None:
        report = finetune(
            model_directory(),
            Data(str(args.out), max_length=384),
            task=Answer(no_answer=True),
            out=args.dense,
            training=READER,
            resume=True,
        )
        sets.say(f"{args.dense}: {report['metrics']}")


def write_folder(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    train = [with_unanswerable(part, SEED) for part in shifts(slice(None))]
    write(sets.together(train), out / "train.jsonl")
    write(questions("half-dev-v2.0")[0], out / "validation.jsonl")


if __name__ == "__main__":
    main()
