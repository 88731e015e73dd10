"""SQuAD's files, v1.1 and v2.0: articles of paragraphs of questions, in one nested JSON.

`examples.load` reads them like any other source; this module holds what only they need.
"""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data import formats
from toprune.data.examples import Examples, load
from toprune.data.files import read_json
from toprune.data.labels import Span
from toprune.data.reads import Reads
from toprune.errors import UserError


def is_squad(path: str | Path) -> bool:
    """Is a file (.json or .json.gz) in SQuAD's form? Its content decides, not its name."""
    path = Path(path)
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    return is_json and path.is_file() and formats.is_squad(read_json(path))


def read_squad(path: str | Path, *, reads: Reads, skip_bad_rows: bool = False) -> Examples:
    """Read the questions of one file, with the articles that their contexts are from.

    reads: what the task that answers questions reads (`Answer.READS`).
    """
    if not is_squad(path):
        raise UserError(
            f'{path} is not a SQuAD file; give JSON like {{"data": [{{"paragraphs": [...]}}]}}'
        )
    return load(Path(path), reads=reads, skip_bad_rows=skip_bad_rows)["train"]


def unanswerable(examples: Examples, share: float, seed: int) -> Examples:
    """Add a share of the answered questions once more, without an answer.

    SQuAD v2.0 has questions that their paragraph does not answer. Where such training data are not
    available, these replace them: a question goes with another paragraph of the same article, in
    which none of its answers occurs. They are easier than v2.0's, which people wrote to look
    answerable.

    Args:
        share: of the answered questions, in (0, 1]; 0.5 makes a third of all, as in v2.0.
    """
    if not 0 < share <= 1:
        raise UserError(f"a share of {share} unanswerable questions is not in (0, 1]; try 0.5")
    contexts, labels, articles = examples.pairs, examples.labels, examples.articles
    if contexts is None or labels is None or articles is None:
        raise UserError(
            "unanswerable questions are made from labelled ones whose articles are known; give a "
            "SQuAD file, or a column named article"
        )
    paragraphs: dict[Any, dict[str, str]] = defaultdict(dict)  # by article; folded by text
    for article, context in zip(articles, contexts, strict=True):
        paragraphs[article][context] = context.casefold()
    answered = [row for row, answers in enumerate(labels) if answers]
    wanted = round(share * len(answered))
    rng = np.random.default_rng(seed)
    rows: list[int] = []
    others: list[str] = []
    for row in rng.permutation(answered):
        if len(rows) == wanted:
            break
        other = _without_answer(paragraphs[articles[row]], contexts[row], labels[row], rng)
        if other is not None:
            rows.append(int(row))
            others.append(other)
    if len(rows) < wanted:
        warnings.warn(
            f"only {len(rows)} unanswerable questions instead of {wanted}: the articles of the "
            "others have no second paragraph without the answer",
            stacklevel=2,
        )
    return replace(
        examples,
        texts=[*examples.texts, *(examples.texts[row] for row in rows)],
        pairs=[*contexts, *others],
        labels=[*labels, *([] for _ in rows)],
        articles=[*articles, *(articles[row] for row in rows)],
    )


def _without_answer(
    paragraphs: Mapping[str, str], context: str, answers: Sequence[Span], rng: np.random.Generator
) -> str | None:
    """A paragraph other than the context in which no answer occurs, in upper or lower case."""
    contexts = list(paragraphs)
    texts = [text.casefold() for text, _ in answers]
    for i in rng.permutation(len(contexts)):
        folded = paragraphs[contexts[i]]
        if contexts[i] != context and not any(text in folded for text in texts):
            return contexts[i]
    return None
