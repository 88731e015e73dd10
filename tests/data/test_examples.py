from typing import Any

import numpy as np
import pytest

from toprune.data.examples import Examples, load, read_texts
from toprune.errors import UserError
from toprune.tasks.classify import Classify
from toprune.tasks.embed import Embed
from toprune.tasks.rank import Rank
from toprune.tasks.tags import Tags

ROWS = [
    {"text": 'He said "no", twice', "label": 0},
    {"text": "null", "label": 1},
    {"text": "007", "label": 1},
]


# Sets


def test_text_column_missing_in_one_set():
    sets = {"train": ROWS, "test": [{"body": "a", "label": 0}]}
    with pytest.raises(UserError, match="the test set has no column 'text'; columns there: body"):
        load(sets, reads=Classify.READS)


def test_labels_may_be_missing():
    texts = [{"text": "a"}, {"text": "b"}]
    assert load(texts, reads=Classify.READS)["train"] == Examples(["a", "b"])
    sets = load({"train": ROWS, "test": texts}, reads=Classify.READS)
    assert sets["train"].labels == [0, 1, 1]
    assert sets["test"].labels is None


# Texts


def test_numbers_are_texts():
    rows = [{"text": 7, "label": 0}, {"text": 1.5, "label": 1}]
    examples = load(rows, reads=Classify.READS)["train"]
    assert examples.texts == ["7", "1.5"]


def test_lists_are_not_texts():
    with pytest.raises(UserError, match="holds a list in row 1, not a text"):
        load([{"text": ["a", "b"], "label": 0}], reads=Classify.READS)


@pytest.mark.parametrize("nothing", [None, [], ["", " "], "  "])
def test_empty_lists_of_words(nothing: Any):
    rows = [{"tokens": ["a", ""], "tags": ["O", "B"]}, {"tokens": nothing, "tags": []}]
    with pytest.raises(UserError, match="column 'tokens' is empty in row 2"):
        load(rows, reads=Tags.READS)


def test_texts_alone():
    rows = [{"query": "q", "document": "d", "label": 1}]
    assert read_texts(rows, reads=Rank.READS) == [("q", "d")]
    rows = [{"sentence1": "a", "sentence2": "b"}, {"sentence1": "c", "sentence2": "d"}]
    # both texts of a pair are read alone
    assert read_texts(rows, reads=Embed.READS) == ["a", "c", "b", "d"]
    assert read_texts([{"tokens": ["a", 7], "tags": "broken"}], reads=Tags.READS) == [["a", "7"]]
    rows = [{"text": "a"}, {"text": None}]
    with pytest.warns(UserWarning, match="1 of 2 rows of the train set"):
        assert read_texts(rows, reads=Classify.READS, skip_bad_rows=True) == ["a"]


# Examples


def test_take():
    examples = Examples(["a", "b", "c"], ["x", "y", "z"], [0, 1, 2], ["p", "q", "r"])
    assert examples.take(np.array([2, 0])) == Examples(
        ["c", "a"], ["z", "x"], [2, 0], ["p", "q", "r"]
    )
    assert Examples(["a", "b"]).take([1]) == Examples(["b"])
    assert len(examples) == 3
    tagged = Examples([["a"], ["b", "c"]], labels=[[0], [1, 0]], label_names=["O", "B"])
    assert tagged.take([1]) == Examples([["b", "c"]], labels=[[1, 0]], label_names=["O", "B"])
    questions = Examples(["q", "r"], ["c", "d"], [[("c", 0)], []], articles=["x", "y"])
    assert questions.take([1]) == Examples(["r"], ["d"], [[]], articles=["y"])
