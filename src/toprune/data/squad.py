"""SQuAD's files, v1.1 and v2.0: articles of paragraphs of questions, in one nested JSON.

`data.load` reads them like any other source; what is particular to them is here.
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
    """Whether a file (.json or .json.gz) is of SQuAD's form: told by its content, not its name."""
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
    """The examples, and a share of the answered questions once more, without an answer.

    SQuAD v2.0 has questions that their paragraph does not answer; where such training data are not
    at hand, these stand in: a question is asked of another paragraph of the same article, in which
    none of its answers occurs. A share of 0.5 makes a third of all, as in v2.0. They are easier
    than v2.0's, which people wrote to look answerable.
    """
    if not 0 < share <= 1:
        raise UserError(f"a share of {share} unanswerable questions is not in (0, 1]; try 0.5")
    contexts, labels, articles = examples.pairs, examples.labels, examples.articles
    if contexts is None or labels is None or articles is None:
        raise UserError(
            "unanswerable questions are made of labelled ones whose articles are known; give a "
            "SQuAD file, or a column article"
        )
    paragraphs: dict[Any, dict[str, str]] = defaultdict(dict)  # of an article, and as compared
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
        other = _silent(paragraphs[articles[row]], contexts[row], labels[row], rng)
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


def _silent(
    paragraphs: Mapping[str, str], own: str, answers: Sequence[Span], rng: np.random.Generator
) -> str | None:
    """Some paragraph other than its own in which no answer occurs, whatever the case."""
    written = list(paragraphs)
    texts = [text.casefold() for text, _ in answers]
    for i in rng.permutation(len(written)):
        compared = paragraphs[written[i]]
        if written[i] != own and not any(text in compared for text in texts):
            return written[i]
    return None
