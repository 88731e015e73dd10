"""Which columns of a table a task reads: as named, or guessed by the usual names.

| task       | --text   | --pair   | --label                                                       |
|------------|----------|----------|---------------------------------------------------------------|
| classify   | text     | optional | class: a name, or a number from 0                             |
| regress    | text     | optional | number                                                        |
| multilabel | text     | optional | list of classes; text with one of `|`, `;`, `,` between them; |
|            |          |          | or the names of columns with 0 and 1: a,b,c                   |
| rank       | query    | document | relevance, 0 or more                                          |
| answer     | question | context  | `{"text": [...], "answer_start": [...]}`, or the text alone,  |
|            |          |          | with or without a column answer_start; empty: no answer       |
| tokens     | words    |          | tags; both as lists, or as texts with blanks between          |
| embed      | text     | optional | similarity of the pair                                        |
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from toprune.data.files import Table
from toprune.errors import UserError


@dataclass(frozen=True)
class Reads:
    """What a task reads, in words for people, and the usual names of such columns, likeliest first.

    Pairs are tried before single texts: QNLI has `question` and `sentence`, and needs both.
    """

    what: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    roles: tuple[str, str | None] = ("text", None)  # what the text is, and a pair that must be


TEXT_PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
)
TEXTS = ("text", "sentence", "sentence1", "premise", "question", "review", "content", "query")
LABELS = ("label", "labels", "score", "target", "class", "gold_label")
QUERIES = ("query", "question", "text", "sentence1")
DOCUMENTS = ("document", "passage", "doc", "text", "context", "answer", "sentence", "text_pair")
READS = {
    "classify": Reads(
        "a text (--text), or two (--pair), and a class (--label)", TEXTS, LABELS, TEXT_PAIRS
    ),
    "regress": Reads(
        "a text (--text), or two (--pair), and a number (--label)", TEXTS, LABELS, TEXT_PAIRS
    ),
    "multilabel": Reads(
        "a text (--text), or two (--pair), and a list of classes (--label)",
        TEXTS,
        ("labels", "label", "classes", "tags", "topics", "target"),
        TEXT_PAIRS,
    ),
    "rank": Reads(
        "a query (--text), a document (--pair) and a relevance (--label)",
        QUERIES,
        ("label", "relevance", "score", "grade", "labels", "rating", "target"),
        tuple((a, b) for a in QUERIES for b in (*DOCUMENTS, "sentence2") if a != b),
        ("query", "document"),
    ),
    "answer": Reads(
        "a question (--text), a context (--pair) and answers (--label)",
        ("question", "query"),
        ("answers", "answer", "answer_text"),
        tuple(
            (a, b)
            for a in ("question", "query")
            for b in ("context", "passage", "paragraph", "document", "text")
        ),
        ("question", "context"),
    ),
    "tokens": Reads(
        "a list of words (--text) and a list of tags (--label)",
        ("tokens", "words", "text", "sentence"),
        ("ner_tags", "tags", "labels", "label"),
        roles=("list of words", None),
    ),
    "embed": Reads(
        "a text (--text), or two (--pair) and their similarity (--label)",
        TEXTS,
        ("score", "similarity", "similarity_score", "label", "labels"),
        (*TEXT_PAIRS, ("anchor", "positive")),
    ),
}
IMAGES = ("image", "img", "picture", "file", "path", "file_name", "filename")


def of_images(reads: Reads) -> Reads:
    """What the task reads where an image is in the place of the text."""
    what = "an image (--text) and its label (--label)"
    return Reads(what, IMAGES, reads.labels, roles=("image", None))


@dataclass(frozen=True)
class Columns:
    """Which columns to read. None is guessed; who names the text must name the pair too (where the
    task has to have one, it is guessed).

    Numbers ("3") name the columns, from zero, of a CSV or TSV file without a header. Several label
    columns ("a,b,c") are one class each, 0 or 1, of the task multilabel.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    images: bool = False  # the text is an image: a path, a file in a cell, or pixels

    @property
    def are_numbers(self) -> bool:
        named = [name for name in (self.text, self.pair, self.label) if name]
        return bool(named) and all(part.isdecimal() for n in named for part in n.split(","))


def present_in(tables: Mapping[str, Table]) -> list[str]:
    """The columns of all sets."""
    present = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    if not present:
        raise UserError("the source is empty; give at least two examples")
    return present


def choose_columns(columns: Columns, present: Sequence[str], task: str = "classify") -> Columns:
    """Fill in the guesses from the names that are present, and check the names that are given."""
    reads = of_images(READS[task]) if columns.images else READS[task]
    by_word = {name.strip().lower(): name for name in reversed(present)}
    text, pair, label = columns.text, columns.pair, columns.label
    if text is None and pair is None:
        text, pair = next(
            ((by_word[a], by_word[b]) for a, b in reads.pairs if a in by_word and b in by_word),
            (None, None),
        )
    text = text or _guess(reads.texts, by_word, taken=(pair, label))
    role, second = reads.roles
    if second:
        pair = pair or _guess([b for _, b in reads.pairs], by_word, taken=(text, label))
    label = label or _guess(reads.labels, by_word, taken=(text, pair))
    listed = ", ".join(present)
    missing = role if text is None else second if pair is None else None
    if missing:
        raise UserError(
            f"which column is the {missing}? Name it: the task {task} reads {reads.what}; "
            f"columns here: {listed}"
        )
    if (task == "tokens" or columns.images) and pair:
        raise UserError(f"the task tokens reads {reads.what}; leave --pair out")
    if task == "embed" and pair is None:
        if columns.label:
            raise UserError(f"the task embed reads {reads.what}; name the second text, too")
        label = None
    labels = label_columns(label, present) if task == "multilabel" else [label]
    for wanted in filter(None, (text, pair, *labels)):
        if wanted not in present:
            raise UserError(f"no column {wanted!r}; columns here: {listed}")
    return replace(columns, text=text, pair=pair, label=label)


def _guess(
    words: Sequence[str], by_word: Mapping[str, str], taken: tuple[str | None, ...]
) -> str | None:
    return next((by_word[w] for w in words if w in by_word and by_word[w] not in taken), None)


def label_columns(label: str | None, present: Iterable[str]) -> list[str]:
    """The column, or the columns that a name like "a,b,c" stands for."""
    if label is None or label in present:
        return [label] if label else []
    return [part.strip() for part in label.split(",")]
