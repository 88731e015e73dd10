from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.data.columns import Columns
from toprune.data.examples import Examples, load
from toprune.errors import UserError
from toprune.tasks import TASKS
from toprune.tasks.answer import Answer
from toprune.tasks.classify import Classify
from toprune.tasks.embed import Embed
from toprune.tasks.multilabel import Multilabel
from toprune.tasks.rank import Rank
from toprune.tasks.tags import Tags

ABC = ["a", "b", "c"]
ROWS = [
    {"text": 'He said "no", twice', "label": 0},
    {"text": "null", "label": 1},
    {"text": "007", "label": 1},
]


def dataset(rows: list[dict[str, Any]], classes: list[str] | None = None) -> datasets.Dataset:
    hub_set = datasets.Dataset.from_list(rows)
    return hub_set.cast_column("label", datasets.ClassLabel(names=classes)) if classes else hub_set


def labels(cells: list[Any], task: str = "classify", **options: Any) -> Examples:
    rows = [{"text": f"w{i}", "label": cell} for i, cell in enumerate(cells)]
    return load(rows, reads=TASKS[task].READS, **options)["train"]


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
    found = load(rows, reads=Classify.READS)
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
    hub_set = dataset(ROWS, ["no", "yes"])
    assert load(hub_set, reads=Classify.READS, label_names=["Yes", "No"])["train"].labels == [
        1,
        0,
        0,
    ]
    # Other words for the same ids: the ids are all that can be meant.
    assert load(hub_set, reads=Classify.READS, label_names=["NEG", "POS"])["train"].labels == [
        0,
        1,
        1,
    ]
    assert load(hub_set, reads=Classify.READS, label_names=["NEG", "POS"])["train"].label_names == [
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
    found = load(sets, reads=TASKS[task].READS)
    assert found["train"].labels == [0, 1, 1]
    assert found["test"].labels is None
    assert labels([nothing, nothing], task=task) == Examples(["w0", "w1"])


@pytest.mark.parametrize(
    ("task", "cells", "message"),
    [
        (
            "classify",
            [0, None, 1, float("nan")],
            "2 bad rows: no label in rows 2, 4 of the train set; correct them",
        ),
        ("classify", ["a", "", "b"], "no label in row 2"),
        ("classify", ["1", "NaN", "2"], "no label in row 2"),
        ("regress", [0.5, float("nan")], "no label in row 2"),
        ("classify", [0, 1, -1], "label -1 in row 3 of the train set.*count from 0"),
        ("classify", [0.5, 1.0], "label 0.5 is not a class.*task regress"),
        ("classify", ["0.5", "3"], "label '0.5' is not a class.*task regress"),
        ("classify", [0, "b"], "label 'b' in row 2 of the train set is not a class"),
        ("classify", ["a", ["b"]], "is not a class"),
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
            reads=Classify.READS,
        )


# Several labels of one text


LISTS = [["b", "a"], [], ["c"]]
IDS = [[0, 1], [], [2]]


@pytest.mark.parametrize(
    "cells",
    [
        LISTS,
        [np.array(cell, dtype=object) for cell in LISTS],
        ["b|a", "", "c"],
        ["b; a", " ", "c;"],
        ["b,a", "", "c"],
    ],
)
def test_lists_of_names(cells: list):
    found = labels(cells, task="multilabel")
    assert found.labels == IDS
    assert found.label_names == ["a", "b", "c"]


@pytest.mark.parametrize("cells", [[[1, 0], [], [2]], ["1|0", "", "2"], [[0, 1, 0], [], ["2"]]])
def test_lists_of_ids(cells: list):
    found = labels(cells, task="multilabel")
    assert (found.labels, found.label_names) == (IDS, None)


def test_a_name_may_hold_the_separators_after_the_first():
    found = labels(["a, b|c", "c", "d; e"], task="multilabel")
    assert found.label_names == ["a, b", "c", "d; e"]


def test_one_place_for_each_class():
    assert labels([[1, 1, 0], [0.0, 0.0, 0.0], [0, 0, 1]], task="multilabel").labels == IDS


def test_one_column_for_each_class():
    rows = [
        {"text": "u", "a": 1, "b": "1", "c": 0},
        {"text": "v", "a": "false", "b": 0.0, "c": False},
        {"text": "w", "a": 0, "b": "0", "c": True},
    ]
    columns = Columns(label="a, b,c")
    found = load(rows, reads=Multilabel.READS, columns=columns)["train"]
    assert (found.labels, found.label_names) == (IDS, ["a", "b", "c"])
    named: Any = {"columns": columns, "label_names": ["C", "B", "A"]}
    turned = load(rows, reads=Multilabel.READS, **named)["train"]
    assert (turned.labels, turned.label_names) == ([[1, 2], [], [0]], ["C", "B", "A"])
    rows[1]["b"] = "maybe"
    with pytest.raises(UserError, match="no 0 or 1 of 'b' in row 2 of the train set"):
        load(rows, reads=Multilabel.READS, columns=columns)
    with pytest.raises(UserError, match="no column 'd'; columns here: text, a, b, c"):
        load(rows, reads=Multilabel.READS, columns=Columns(label="a,d"))


def test_columns_for_classes_without_a_header(tmp_path: Path):
    (tmp_path / "set.csv").write_text("u,1,0\nv,1,1\n")
    found = load(tmp_path / "set.csv", reads=Multilabel.READS, columns=Columns("0", label="1,2"))
    assert found["train"].labels == [[0], [0, 1]]


def test_class_names_inside_lists(tmp_path: Path):
    hub_set = datasets.Dataset.from_list(
        [{"text": "u", "labels": [1, 0]}, {"text": "v", "labels": []}]
    )
    hub_set = hub_set.cast_column("labels", datasets.List(datasets.ClassLabel(names=["no", "yes"])))
    hub_set.to_parquet(tmp_path / "set.parquet")
    for source in (hub_set, tmp_path / "set.parquet"):
        found = load(source, reads=Multilabel.READS)["train"]
        assert (found.labels, found.label_names) == ([[0, 1], []], ["no", "yes"])
        turned = load(source, reads=Multilabel.READS, label_names=["YES", "NO"])["train"]
        assert turned.labels == [[0, 1], []]


def test_unlabelled_lists():
    sets = {
        "train": [{"text": "u", "labels": ["a"]}, {"text": "v", "labels": ["b"]}],
        "test": [{"text": "w", "labels": None}],
    }
    assert load(sets, reads=Multilabel.READS)["test"] == Examples(["w"], label_names=["a", "b"])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([["a"], None, ["b"]], "no label in row 2"),
        ([["a"], ["b", None]], "no label in row 2"),
        ([[0], [1, -2]], "label -2 in row 2"),
        ([[0.5], [1]], "label 0.5 is not a class"),
        ([["a"], ["a"]], "every label of the train set is a"),
        ([["a", "b"], ["b", "a"]], "every label of the train set is a, b"),
        ([[], []], "every label of the train set is none"),
    ],
)
def test_bad_lists(cells: list, message: str):
    with pytest.raises(UserError, match=message):
        labels(cells, task="multilabel")


# Tags


def tags(cells: list[Any], words: Any = None, **options: Any) -> Examples:
    words = words or [["a", "b"], ["c"]]
    rows = [{"tokens": w, "tags": cell} for w, cell in zip(words, cells, strict=True)]
    return load(rows, reads=Tags.READS, **options)["train"]


@pytest.mark.parametrize("cells", [[["O", "B-X"], ["I-X"]], ["O  B-X", "I-X"]])
@pytest.mark.parametrize("words", [[["a", "b"], ["c"]], ["a b", "c "]])
def test_words_and_tags(cells: list, words: list):
    expected = Examples([["a", "b"], ["c"]], None, [[2, 0], [1]], ["B-X", "I-X", "O"])
    assert tags(cells, words) == expected


def test_tags_of_the_model():
    names = ["O", "B-X", "I-X"]
    assert tags([["O", "B-X"], ["I-X"]], label_names=names).labels == [[0, 1], [2]]
    assert tags([[0, 1], [2]], label_names=names).label_names == names
    with pytest.raises(UserError, match=r"label 'B-Y' in row 2.*not a class of the model"):
        tags([["O", "B-X"], ["B-Y"]], label_names=names)


def test_tag_names_inside_lists():
    hub_set = datasets.Dataset.from_list([{"tokens": ["a", "b"], "ner_tags": [0, 1]}])
    hub_set = hub_set.cast_column(
        "ner_tags", datasets.List(datasets.ClassLabel(names=["O", "B-X"]))
    )
    assert load(hub_set, reads=Tags.READS)["train"].label_names == ["O", "B-X"]
    assert load(hub_set, reads=Tags.READS, label_names=["B-X", "O"])["train"].labels == [[1, 0]]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([["O"], ["B"]], "1 bad row: 2 words but 1 tags in row 1 of the train set"),
        ([["O", None], ["B"]], "no label in row 1"),
        ([["O", "O"], ["O"]], "every label of the train set is O"),
        ([[0, 0.5], [1]], "label 0.5 is not a class"),
    ],
)
def test_bad_tags(cells: list, message: str):
    with pytest.raises(UserError, match=message):
        tags(cells)


# Numbers


@pytest.mark.parametrize("task", ["rank", "embed"])
def test_numbers_of_pairs(task: str):
    rows = [{"query": "q", "document": d, "label": c} for d, c in (("a", "1"), ("b", 0.5))]
    found = load(rows, reads=TASKS[task].READS)["train"]
    assert found == Examples(["q", "q"], ["a", "b"], [1.0, 0.5])


def test_relevance_is_not_below_zero():
    rows = [{"query": "q", "document": "d", "label": c} for c in (1, -2)]
    with pytest.raises(UserError, match="label -2 in row 2 of the train set is below 0"):
        load(rows, reads=Rank.READS)
    assert load(rows, reads=Embed.READS)["train"].labels == [1.0, -2.0]


# Answers

CONTEXT = "Within Rome, in 64 AD, it burned in July."


def answers(cells: list[Any], **others: list[Any]) -> Examples:
    rows = [
        {"question": f"q{i}", "context": CONTEXT, "answers": cell}
        | {name: column[i] for name, column in others.items()}
        for i, cell in enumerate(cells)
    ]
    return load(rows, reads=Answer.READS)["train"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ({"text": ["Rome"], "answer_start": [7]}, [("Rome", 7)]),
        ({"text": "Rome", "answer_start": 7}, [("Rome", 7)]),
        ({"text": np.array(["Rome"]), "answer_start": np.array([7])}, [("Rome", 7)]),
        ({"text": ["Rome", "in"], "answer_start": [7, 13]}, [("Rome", 7), ("in", 13)]),
        ([{"text": "in", "answer_start": 33}], [("in", 33)]),
        ({"text": ["in"]}, [("in", 13)]),  # not the one in "Within"
        (["Rom", "July"], [("Rom", 7), ("July", 36)]),
        (" July ", [("July", 36)]),
        (64, [("64", 16)]),
        ({"text": [], "answer_start": []}, []),
        ([], []),
        ("", []),
        (None, []),
        ({"text": ["Rome"], "answer_start": [8]}, [("Rome", 7)]),  # as in some of SQuAD's rows
        ({"text": ["Rome"], "answer_start": ["5"]}, [("Rome", 7)]),
    ],
)
def test_answers(cell: Any, expected: list):
    assert answers([cell, "Rome"]).labels == [expected, [("Rome", 7)]]


def test_a_column_of_starts():
    assert answers(["in", "in"], answer_start=[33, ""]).labels == [[("in", 33)], [("in", 13)]]
    assert answers(["in", "in"], answers_start=["33", None]).labels == [[("in", 33)], [("in", 13)]]


@pytest.mark.parametrize("yes", [True, "True", 1, "1"])
def test_impossible_questions(yes: Any):
    assert answers(["Rome", "in"], is_impossible=[False, yes]).labels == [[("Rome", 7)], []]
    assert answers([None, None], is_impossible=[yes, yes]).labels == [[], []]


def test_questions_without_answers_are_unlabelled():
    assert answers([None, None]).labels is None


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("Troy", "1 bad row: the answer 'Troy' in row 2 of the train set is not in its context"),
        ({"text": ["Rome"], "answer_start": [0]}, "'Rome' in row 2 .* does not begin at its start"),
        ({"text": ["Rome"], "answer_start": [-1]}, "does not begin at its start"),
        ({"text": ["Rome"], "answer_start": ["x"]}, "does not begin at its start"),
        ({"text": ["Rome"], "answer_start": [10**9]}, "does not begin at its start"),
        ({"text": ["a", "b"], "answer_start": [1]}, "row 2 of the train set has no answers that"),
        ({"words": ["a"]}, "no answers that can be read"),
        ([[1]], "no answers that can be read"),
    ],
)
def test_bad_answers(cell: Any, message: str):
    with pytest.raises(UserError, match=message):
        answers(["Rome", cell])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.data())
def test_spans_that_are_there_are_found(context: str, data: st.DataObject):
    start = data.draw(st.integers(0, len(context)))
    text = context[start : data.draw(st.integers(start, len(context)))]
    if not text.strip():
        return
    rows: list[dict[str, Any]] = [{"question": "q", "context": context, "answers": text}]
    labels = load(rows, reads=Answer.READS)["train"].labels
    assert labels is not None
    ((found, place),) = labels[0]
    assert found == text.strip()
    assert context.startswith(found, place)
    rows[0]["answer_start"] = start
    assert load(rows, reads=Answer.READS)["train"].labels == [[(text, start)]]


def test_classes_of_the_data_may_be_some_of_the_models():
    """A set with two of three classes: by name, not by its own numbers."""
    rows = [{"text": "w1", "b": 1, "a": 0}, {"text": "w2", "b": 0, "a": 1}]
    columns = Columns("text", None, "b,a")
    found = load(rows, reads=Multilabel.READS, columns=columns, label_names=ABC)
    assert found["train"].labels == [[1], [0]]
    with pytest.raises(UserError, match="d are none of the model's"):
        load(
            [row | {"d": 1} for row in rows],
            reads=Multilabel.READS,
            columns=Columns("text", None, "b,d"),
            label_names=ABC,
        )
