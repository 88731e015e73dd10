"""What a task reads from a table: its columns by their usual names, and what their cells hold.

Every task has one `Reads`, in its own file in `tasks/`; nothing in `data/` knows a task by name.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

LabelType = Literal["class", "number", "classes", "tags", "answers"]

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
IMAGES = ("image", "img", "picture", "file", "path", "file_name", "filename")


@dataclass(frozen=True)
class Reads:
    """The columns and cells of one task.

    Usual names are ordered, likeliest first. Pairs are tried before single texts: QNLI has
    `question` and `sentence`, and needs both.

    | label_type | a label                                                                      |
    |------------|------------------------------------------------------------------------------|
    | class      | class: a name, or a number from 0                                            |
    | number     | real number, at least `least`                                                |
    | classes    | list of classes; text with one of `|`, `;`, `,` between them; or the names   |
    |            | of columns with 0 and 1: a,b,c                                               |
    | tags       | one tag for each word; a list, or a text with blanks between the tags        |
    | answers    | `{"text": [...], "answer_start": [...]}`, or the text alone, with or without |
    |            | a column answer_start; empty: no answer                                      |
    """

    description: str  # a sentence for error messages: who reads which columns
    texts: tuple[str, ...]  # usual names of the text column
    labels: tuple[str, ...]  # usual names of the label column
    pairs: tuple[tuple[str, str], ...] = ()  # usual names of (text, pair); empty: no pair is read
    label_type: LabelType = "class"
    least: float = -math.inf  # the least number that a label can be
    text_role: str = "text"  # what the text is, for error messages
    pair_roles: tuple[str, str] | None = None  # of a required pair; None: it is optional
    words: bool = False  # a text is a list of words
    together: Literal["texts", "pairs"] | None = None  # rows that share it stay in one set
    alone: bool = False  # both texts of a pair are read alone; the label compares them
    articles: bool = False  # an optional column names the article that a pair comes from


def of_images(reads: Reads) -> Reads:
    """What is read where images are in the place of texts."""
    return replace(
        reads,
        description="an image model reads an image (--text) and its label (--label)",
        texts=IMAGES,
        pairs=(),
        text_role="image",
        pair_roles=None,
    )
