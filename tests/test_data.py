from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.data import Columns, Examples, load, split_validation
from toprune.errors import UserError

ROWS = [
    {"text": 'He said "no", twice', "label": 0},
    {"text": "null", "label": 1},
    {"text": "007", "label": 1},
]


# Columns


@pytest.mark.parametrize(
    ("others", "text", "pair", "label"),
    [
        ("idx", "sentence", None, "label"),
        ("", "Text", None, "Label"),
        ("title", "content", None, "labels"),
        ("", "review", None, "score"),
        ("", "sentence1", "sentence2", "label"),
        ("", "premise", "hypothesis", "gold_label"),
        ("", "question", "sentence", "label"),
        ("", "question1", "question2", "class"),
        ("", "query", "document", "target"),
        ("sentence score", "text", "text_pair", "label"),
    ],
)
def test_guessed_columns(others: str, text: str, pair: str | None, label: str):
    words = {name: name for name in [*others.split(), text, *filter(None, [pair])]}
    found = load([words | {label: i} for i in (0, 1)], task="classify")["train"]
    assert found.texts == [text, text]
    assert found.pairs == (pair and [pair, pair])
    assert found.labels == [0, 1]


def test_named_columns():
    row = {"sentence1": "a", "sentence2": "b", "other": "c", "label": 0, "stars": 3}
    rows = [row, row | {"label": 1, "stars": 4}]
    named = load(rows, task="classify", columns=Columns("sentence1", label="stars"))["train"]
    assert named == Examples(["a", "a"], labels=[3, 4])  # a named text has no guessed pair
    pair = load(rows, task="classify", columns=Columns(pair="sentence2"))
    assert pair["train"] == Examples(["a", "a"], ["b", "b"], [0, 1])
    with pytest.raises(UserError, match="no column 'stras'; columns here: sentence1, sentence2"):
        load(rows, task="classify", columns=Columns(label="stras"))


def test_no_text_column():
    with pytest.raises(UserError, match=r"which column is the text.*columns here: body, label"):
        load([{"body": "a", "label": 0}], task="classify")


def test_text_column_missing_in_one_set():
    sets = {"train": ROWS, "test": [{"body": "a", "label": 0}]}
    with pytest.raises(UserError, match="the test set has no column 'text'; columns there: body"):
        load(sets, task="classify")


def test_labels_may_be_missing():
    texts = [{"text": "a"}, {"text": "b"}]
    assert load(texts, task="classify")["train"] == Examples(["a", "b"])
    found = load({"train": ROWS, "test": texts}, task="classify")
    assert found["train"].labels == [0, 1, 1]
    assert found["test"].labels is None


# Texts


def test_numbers_are_texts():
    found = load([{"text": 7, "label": 0}, {"text": 1.5, "label": 1}], task="classify")["train"]
    assert found.texts == ["7", "1.5"]


@pytest.mark.parametrize("nothing", [None, "", " \n", float("nan")])
def test_empty_texts_are_named(nothing: Any):
    cells = ["a", nothing, nothing, "b", nothing, nothing]
    rows = [{"text": cell, "label": i} for i, cell in enumerate(cells)]
    message = "column 'text' of the train set is empty in rows 2, 3, 5 and 1 more; drop the rows"
    for source in (rows, pd.DataFrame(rows)):
        with pytest.raises(UserError, match=message):
            load(source, task="classify")


def test_lists_are_not_texts():
    with pytest.raises(UserError, match="holds a list in row 1, not a text"):
        load([{"text": ["a", "b"], "label": 0}], task="classify")


# Examples


def test_take():
    examples = Examples(["a", "b", "c"], ["x", "y", "z"], [0, 1, 2], ["p", "q", "r"])
    assert examples.take(np.array([2, 0])) == Examples(
        ["c", "a"], ["z", "x"], [2, 0], ["p", "q", "r"]
    )
    assert Examples(["a", "b"]).take([1]) == Examples(["b"])
    assert len(examples) == 3


def numbered(cells: list[int] | list[float] | None, count: int = 0) -> Examples:
    return Examples([str(i) for i in range(count or len(cells or []))], labels=cells)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=200),
    st.floats(0.05, 0.5),
    st.integers(0, 2**32 - 1),
)
def test_split_is_seeded_stratified_and_whole(cells: list[int], share: float, seed: int):
    counts = Counter(cells)
    if max(counts.values()) == 1:
        return
    examples = numbered(cells)
    train, validation = split_validation(examples, share, seed)
    assert sorted(train.texts + validation.texts) == sorted(examples.texts)
    assert split_validation(examples, share, seed) == (train, validation)
    assert set(train.labels or []) == set(cells)
    pool = sum(count for count in counts.values() if count > 1)
    taken = Counter(validation.labels)
    for label, count in counts.items():
        fair = len(validation) * count / pool if count > 1 else 0
        assert abs(taken[label] - fair) < 1 or (count == 1 and taken[label] == 0)


def test_split_sizes_and_seeds():
    examples = numbered([0] * 90 + [1] * 10)
    train, validation = split_validation(examples, 0.2, seed=1)
    assert Counter(validation.labels) == {0: 18, 1: 2}
    assert validation != split_validation(examples, 0.2, seed=2)[1]
    assert len(train) == 80


@pytest.mark.parametrize("cells", [None, [i / 7 for i in range(50)]])
def test_split_without_classes(cells: list[float] | None):
    examples = numbered(cells, 50)
    train, validation = split_validation(examples, 0.1, seed=3)
    assert (len(train), len(validation)) == (45, 5)
    assert validation != split_validation(examples, 0.1, seed=4)[1]


@pytest.mark.parametrize("share", [0, -0.1, 0.6, 1])
def test_split_share(share: float):
    with pytest.raises(UserError, match="validation share"):
        split_validation(numbered([0, 1, 0, 1]), share, seed=0)


@pytest.mark.parametrize("cells", [[0], [0, 1, 2]])
def test_split_of_too_few(cells: list[int]):
    with pytest.raises(UserError, match="too few examples"):
        split_validation(numbered(cells), 0.2, seed=0)
