from typing import Any

import datasets
import numpy as np
import pytest

from toprune.data import Examples, load
from toprune.errors import UserError

ROWS = [
    {"text": 'He said "no", twice', "label": 0},
    {"text": "null", "label": 1},
    {"text": "007", "label": 1},
]


def dataset(rows: list[dict[str, Any]], classes: list[str] | None = None) -> datasets.Dataset:
    made = datasets.Dataset.from_list(rows)
    return made.cast_column("label", datasets.ClassLabel(names=classes)) if classes else made


def labels(cells: list[Any], task: str = "classify", **options: Any) -> Examples:
    rows = [{"text": f"w{i}", "label": cell} for i, cell in enumerate(cells)]
    return load(rows, task=task, **options)["train"]


@pytest.mark.parametrize(
    "cells",
    [
        [0, 2, 1],
        ["0", " 2", "1"],
        [0.0, 2.0, 1.0],
        ["0.0", "2.0", "1.0"],
        list(np.array([0, 2, 1])),
    ],
)
def test_whole_numbers_are_class_ids(cells: list):
    found = labels(cells)
    assert found.labels == [0, 2, 1]
    assert all(type(label) is int for label in found.labels or [])
    assert found.label_names is None


def test_booleans_are_class_ids():
    assert labels([False, True]).labels == [0, 1]


def test_names_are_sorted_over_all_sets():
    rows = {
        name: [{"text": "a", "label": c} for c in cs]
        for name, cs in {"train": "cb", "test": "ab"}.items()
    }
    found = load(rows, task="classify")
    assert found["train"].labels == [2, 1]
    assert found["test"].labels == [0, 1]
    assert found["test"].label_names == found["train"].label_names == ["a", "b", "c"]


def test_names_of_the_model_win():
    model = ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]
    found = labels(["neutral", "contradiction"], label_names=model)
    assert found.labels == [1, 2]
    assert found.label_names == model
    assert labels(["3", "5"], label_names=["5", "3"]).labels == [1, 0]
    assert labels([0, 2], label_names=model).labels == [0, 2]
    with pytest.raises(UserError, match=r"label 'maybe' in row 2.*ENTAILMENT, NEUTRAL, CONTRA"):
        labels(["neutral", "maybe"], label_names=model)


def test_names_of_the_data_set_are_matched_with_the_model():
    made = dataset(ROWS, ["no", "yes"])
    assert load(made, task="classify", label_names=["Yes", "No"])["train"].labels == [1, 0, 0]
    # Other words for the same ids: the ids are all that can be meant.
    assert load(made, task="classify", label_names=["NEG", "POS"])["train"].labels == [0, 1, 1]
    assert load(made, task="classify", label_names=["NEG", "POS"])["train"].label_names == [
        "NEG",
        "POS",
    ]


def test_case_matters_when_names_differ_in_nothing_else():
    assert labels(["US", "us"]).label_names == ["US", "us"]
    assert labels(["US", "us"]).labels == [0, 1]


def test_numbers_for_regression():
    assert labels(["0.5", 2, "3"], task="regress").labels == [0.5, 2.0, 3.0]


@pytest.mark.parametrize("nothing", [-1, -1.0, "-1", None, "", float("nan")])
@pytest.mark.parametrize("task", ["classify", "regress"])
def test_a_set_without_any_label_is_unlabelled(task: str, nothing: Any):
    sets = {"train": ROWS, "test": [{"text": "a", "label": nothing}] * 2}
    found = load(sets, task=task)
    assert found["train"].labels == [0, 1, 1]
    assert found["test"].labels is None
    assert labels([nothing, nothing], task=task) == Examples(["w0", "w1"])


@pytest.mark.parametrize(
    ("task", "cells", "message"),
    [
        ("classify", [0, None, 1, float("nan")], "no label in rows 2, 4; add it"),
        ("classify", ["a", "", "b"], "no label in row 2"),
        ("classify", ["1", "NaN", "2"], "no label in row 2"),
        ("regress", [0.5, float("nan")], "no label in row 2"),
        ("classify", [0, 1, -1], "label -1 in row 3 of the train set.*count from 0"),
        ("classify", [0.5, 1.0], "label 0.5 is not a class.*task regress"),
        ("classify", ["0.5", "3"], "label '0.5' is not a class.*task regress"),
        ("classify", [0, "b"], "label 'b' is not a class"),
        ("classify", [[0], [1]], "is not a class"),
        ("regress", ["1", "high"], "label 'high' in row 2.*not a number.*task classify"),
        ("regress", [1.0, float("inf")], "label inf in row 2"),
        ("classify", [1, 1, 1], "every label of the train set is 1"),
        ("classify", ["a", "a"], "every label of the train set is a"),
        ("regress", [2.5, 2.5], "every label of the train set is 2.5"),
    ],
)
def test_bad_labels(task: str, cells: list, message: str):
    with pytest.raises(UserError, match=message):
        labels(cells, task=task)


def test_class_label_with_gaps_is_refused():
    with pytest.raises(UserError, match="label -1 in row 2"):
        load(
            dataset([*ROWS[:1], {"text": "a", "label": -1}, *ROWS[1:]], ["no", "yes"]),
            task="classify",
        )
