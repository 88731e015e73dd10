from typing import Any

import pandas as pd
import pytest

from toprune.data.examples import load
from toprune.errors import UserError
from toprune.tasks import TASKS
from toprune.tasks.classify import Classify
from toprune.tasks.tags import Tags

ROWS = [
    {"text": 'He said "no", twice', "label": 0},
    {"text": "null", "label": 1},
    {"text": "007", "label": 1},
]


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
def test_bad_rows_are_named_or_left_out(task: str):
    rows, good, notes = BAD[task]
    bad = len(rows) - len(good)
    with pytest.raises(UserError) as error:
        load(rows, reads=TASKS[task].READS)
    start, end = ("1 bad row", "correct it") if bad == 1 else (f"{bad} bad rows", "correct them")
    assert str(error.value).startswith(f"{start}: {notes}; {end}, or leave")
    assert str(error.value).endswith("--skip-bad-rows")
    with pytest.warns(UserWarning, match="left out") as warned:
        sets = load(rows, reads=TASKS[task].READS, skip_bad_rows=True)
    message = f"{bad} of {len(rows)} rows of the train set are bad and left out: {notes}"
    assert [str(w.message) for w in warned] == [message]
    # The classes, too, are those of the good rows alone.
    assert sets == load([rows[row] for row in good], reads=TASKS[task].READS)


def test_bad_rows_of_several_sets():
    sets = {"train": [*ROWS, {"text": "a"}], "test": [{"text": "", "label": 1}, *ROWS]}
    message = "2 bad rows: no label in row 4 of the train set; column 'text' is empty in row 1 of "
    with pytest.raises(UserError, match=f"{message}the test set"):
        load(sets, reads=Classify.READS)
    with pytest.warns(UserWarning, match="1 of 4 rows") as warned:
        sets = load(sets, reads=Classify.READS, skip_bad_rows=True)
    assert len(warned) == 2
    assert {len(examples) for examples in sets.values()} == {3}


def test_a_set_of_bad_rows_alone_is_refused():
    rows = [{"tokens": ["a", "b"], "tags": ["x"]}, {"tokens": ["a", "b"], "tags": ["y"]}]
    with pytest.raises(UserError, match="no row of the train set is left: 2 words but 1 tags"):
        load(rows, reads=Tags.READS, skip_bad_rows=True)


def test_columns_of_another_task_are_refused_in_any_case():
    rows = [{"text": "a", "label": 0.5}, {"text": "b", "label": 1}]
    with pytest.raises(UserError, match="task regress"):
        load(rows, reads=Classify.READS, skip_bad_rows=True)
