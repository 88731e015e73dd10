from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.data.examples import Examples, load, read_texts
from toprune.data.splits import split_validation
from toprune.errors import UserError
from toprune.tasks import TASKS
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
    found = load({"train": ROWS, "test": texts}, reads=Classify.READS)
    assert found["train"].labels == [0, 1, 1]
    assert found["test"].labels is None


# Texts


def test_numbers_are_texts():
    rows = [{"text": 7, "label": 0}, {"text": 1.5, "label": 1}]
    found = load(rows, reads=Classify.READS)["train"]
    assert found.texts == ["7", "1.5"]


@pytest.mark.parametrize("nothing", [None, "", " \n", float("nan")])
def test_empty_texts_are_named(nothing: Any):
    cells = ["a", nothing, nothing, "b", nothing, nothing]
    rows = [{"text": cell, "label": i} for i, cell in enumerate(cells)]
    message = (
        "4 bad rows: column 'text' is empty in rows 2, 3, 5 and 1 more of the train set; "
        "correct them, or leave them out: --skip-bad-rows"
    )
    for source in (rows, pd.DataFrame(rows)):
        with pytest.raises(UserError, match=message):
            load(source, reads=Classify.READS)


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
    # each has a vector of its own
    assert read_texts(rows, reads=Embed.READS) == ["a", "c", "b", "d"]
    assert read_texts([{"tokens": ["a", 7], "tags": "broken"}], reads=Tags.READS) == [["a", "7"]]
    rows = [{"text": "a"}, {"text": None}]
    with pytest.warns(UserWarning, match="1 of 2 rows of the train set"):
        assert read_texts(rows, reads=Classify.READS, skip_bad_rows=True) == ["a"]


# Bad rows


CONTEXT = "Rome burned in July."
BAD: dict[str, tuple[list[dict[str, Any]], list[int], str]] = {
    "classify": (
        [
            {"text": "a", "label": 0},
            {"text": "", "label": 5},
            {"text": "b", "label": None},
            {"text": "c", "label": -1},
            {"text": "d", "label": "x"},
            {"text": "e", "label": 1},
        ],
        [0, 5],
        "column 'text' is empty in row 2 of the train set; no label in row 3 of the train set; the "
        "label 'x' in row 5 of the train set is not a class, but the others are whole numbers; the "
        "label -1 in row 4 of the train set is not a class: they count from 0, so renumber them",
    ),
    "multilabel": (
        [
            {"text": "a", "labels": ["x"]},
            {"text": "b", "labels": None},
            {"text": "c", "labels": []},
        ],
        [0, 2],
        "no label in row 2 of the train set",
    ),
    "regress": (
        [{"text": "a", "label": "1"}, {"text": "b", "label": "high"}, {"text": "c", "label": "2"}],
        [0, 2],
        "the label 'high' in row 2 of the train set is not a number (names are for the task "
        "classify)",
    ),
    "rank": (
        [
            {"query": "q", "document": "a", "label": 0},
            {"query": "q", "document": " ", "label": 0},
            {"query": None, "document": "a", "label": 0},
            {"query": "q", "document": "a", "label": -3},
            {"query": "q", "document": "b", "label": 3},
        ],
        [0, 4],
        "column 'query' is empty in row 3 of the train set; column 'document' is empty in row 2 of "
        "the train set; the label -3 in row 4 of the train set is below 0",
    ),
    "answer": (
        [
            {"question": "?", "context": CONTEXT, "answers": {"text": ["J"], "answer_start": [2]}},
            {"question": "?", "context": CONTEXT, "answers": {"text": ["J"], "answer_start": [15]}},
            {"question": "?", "context": CONTEXT, "answers": ["Troy"]},
            {"question": "?", "context": "", "answers": ["Troy"]},
            {"question": "?", "context": CONTEXT, "answers": []},
        ],
        [1, 4],
        "column 'context' is empty in row 4 of the train set; the answer 'Troy' in row 3 of the "
        "train set is not in its context; the answer 'J' in row 1 of the train set does not "
        "begin at its start",
    ),
    "tokens": (
        [
            {"tokens": ["a", "b"], "tags": ["O", "B"]},
            {"tokens": ["a", "b"], "tags": ["Z"]},
            {"tokens": [], "tags": []},
            {"tokens": ["c"], "tags": ["O"]},
        ],
        [0, 3],
        "column 'tokens' is empty in row 3 of the train set; 2 words but 1 tags in row 2 of the "
        "train set",
    ),
}


@pytest.mark.parametrize("task", BAD)
def test_bad_rows_are_told_or_left_out(task: str):
    rows, good, told = BAD[task]
    bad = len(rows) - len(good)
    with pytest.raises(UserError) as error:
        load(rows, reads=TASKS[task].READS)
    start, end = ("1 bad row", "correct it") if bad == 1 else (f"{bad} bad rows", "correct them")
    assert str(error.value).startswith(f"{start}: {told}; {end}, or leave")
    assert str(error.value).endswith("--skip-bad-rows")
    with pytest.warns(UserWarning, match="left out") as warned:
        found = load(rows, reads=TASKS[task].READS, skip_bad_rows=True)
    said = f"{bad} of {len(rows)} rows of the train set are bad and left out: {told}"
    assert [str(w.message) for w in warned] == [said]
    # The classes, too, are those of the good rows alone.
    assert found == load([rows[row] for row in good], reads=TASKS[task].READS)


def test_bad_rows_of_several_sets():
    sets = {"train": [*ROWS, {"text": "a"}], "test": [{"text": "", "label": 1}, *ROWS]}
    message = "2 bad rows: no label in row 4 of the train set; column 'text' is empty in row 1 of "
    with pytest.raises(UserError, match=f"{message}the test set"):
        load(sets, reads=Classify.READS)
    with pytest.warns(UserWarning, match="1 of 4 rows") as warned:
        found = load(sets, reads=Classify.READS, skip_bad_rows=True)
    assert len(warned) == 2
    assert {len(examples) for examples in found.values()} == {3}


def test_a_set_of_bad_rows_alone_is_refused():
    rows = [{"tokens": ["a", "b"], "tags": ["x"]}, {"tokens": ["a", "b"], "tags": ["y"]}]
    with pytest.raises(UserError, match="no row of the train set is left: 2 words but 1 tags"):
        load(rows, reads=Tags.READS, skip_bad_rows=True)


def test_columns_of_another_task_are_refused_in_any_case():
    rows = [{"text": "a", "label": 0.5}, {"text": "b", "label": 1}]
    with pytest.raises(UserError, match="task regress"):
        load(rows, reads=Classify.READS, skip_bad_rows=True)


# Examples


def test_take():
    examples = Examples(["a", "b", "c"], ["x", "y", "z"], [0, 1, 2], ["p", "q", "r"])
    assert examples.take(np.array([2, 0])) == Examples(
        ["c", "a"], ["z", "x"], [2, 0], ["p", "q", "r"]
    )
    assert Examples(["a", "b"]).take([1]) == Examples(["b"])
    assert len(examples) == 3
    words = Examples([["a"], ["b", "c"]], labels=[[0], [1, 0]], label_names=["O", "B"])
    assert words.take([1]) == Examples([["b", "c"]], labels=[[1, 0]], label_names=["O", "B"])
    asked = Examples(["q", "r"], ["c", "d"], [[("c", 0)], []], articles=["x", "y"])
    assert asked.take([1]) == Examples(["r"], ["d"], [[]], articles=["y"])


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


@pytest.mark.parametrize("task", ["rank", "answer"])
@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(st.integers(0, 9), min_size=2, max_size=60),
    share=st.floats(0.05, 0.5),
    seed=st.integers(0, 2**32 - 1),
)
def test_split_keeps_groups_whole(task: str, groups: list[int], share: float, seed: int):
    rows, names = [str(i) for i in range(len(groups))], [f"g{group}" for group in groups]
    texts, pairs = (names, rows) if task == "rank" else (rows, names)
    examples = Examples(texts, pairs, [0.0] * len(rows))
    if len(set(groups)) == 1:
        with pytest.raises(UserError, match="give a validation set"):
            split_validation(examples, share, seed, reads=TASKS[task].READS)
        return
    parts = split_validation(examples, share, seed, reads=TASKS[task].READS)
    assert parts == split_validation(examples, share, seed, reads=TASKS[task].READS)
    kept, aside = [part.texts if task == "rank" else part.pairs for part in parts]
    assert kept
    assert aside
    assert Counter([*kept, *aside]) == Counter(names)
    assert set(kept).isdisjoint(aside)
    # One group more or less would not have been nearer.
    largest = max(Counter(names).values())
    assert abs(len(aside) - share * len(names)) <= largest


@pytest.mark.parametrize(
    "examples",
    [
        Examples([["a"]] * 20, labels=[[0]] * 20),
        Examples(["a"] * 20, labels=[[0, 1], []] * 10),
        Examples(["a"] * 20, ["b"] * 20, [0.5] * 20),
    ],
)
def test_split_of_the_other_tasks(examples: Examples):
    assert [len(part) for part in split_validation(examples, 0.1, 0, reads=Embed.READS)] == [18, 2]
