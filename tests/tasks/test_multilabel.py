import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, f1_score
from transformers import BertConfig

from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.tasks.multilabel import Multilabel
from toprune.tasks.tokenize import Row

NONE: Any = None  # this task reads no mask
ROW = Row(np.zeros(3, np.int64), None)


def rows(*texts: int) -> list[Row]:
    return [Row(np.zeros(3, np.int64), None, text=text) for text in texts]


def examples(labels: Any, names: list[str] | None = None) -> Examples:
    return Examples([f"w{i}" for i in range(len(labels or [0]))], labels=labels, label_names=names)


def head(**fields: Any) -> BertConfig:
    return BertConfig(**fields)


def statistics_of(task: Multilabel, logits: np.ndarray, labels: list[list[int]]) -> np.ndarray:
    return task.statistics(list(logits), rows(*range(len(labels))), examples(labels))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 30), st.integers(1, 5), st.data())
def test_metrics_equal_scikit_learn(count: int, classes: int, data: st.DataObject):
    # Classes that nobody wants or chooses, and texts without labels, are among these.
    drawn = data.draw(arrays(bool, (2, count, classes)))
    wanted, chosen = drawn
    logits = np.where(chosen, 1.0, -1.0).astype(np.float32)
    stats = statistics_of(Multilabel(), logits, [np.flatnonzero(row).tolist() for row in wanted])
    assert stats.shape == (count, 3 * classes + 1)
    found = Multilabel().metrics(stats)
    assert list(found) == list(Multilabel.METRICS)
    # scikit-learn would make two classes of one column, so it gets the labels to look at.
    one: dict[str, Any] = {"labels": None if classes > 1 else [1], "zero_division": 0}
    for average in ("micro", "macro"):
        expected = f1_score(wanted.astype(int), chosen.astype(int), average=average, **one)
        assert found[f"f1_{average}"] == pytest.approx(expected)
    assert found["exact"] == pytest.approx(accuracy_score(wanted.astype(int), chosen.astype(int)))


def test_metrics_of_resampled_texts():
    stats = statistics_of(Multilabel(), np.array([[1.0, -1.0], [1.0, -1.0]]), [[0], [1]])
    assert Multilabel().metrics(stats)["exact"] == 0.5
    drawn = Multilabel().metrics(stats[[0, 0, 0, 1]])
    assert drawn == {"f1_micro": 3 / 4, "f1_macro": pytest.approx(3 / 7), "exact": 3 / 4}


def test_counts_do_not_overflow_their_small_type():
    stats = statistics_of(Multilabel(), np.ones((1000, 1), np.float32), [[0]] * 1000)
    assert stats.itemsize == 1
    assert Multilabel().metrics(stats) == {"f1_micro": 1, "f1_macro": 1, "exact": 1}


def test_no_labels_at_all():
    stats = statistics_of(Multilabel(), np.full((3, 2), -1.0), [[], [], []])
    assert Multilabel().metrics(stats) == {"f1_micro": 0, "f1_macro": 0, "exact": 1}


def test_a_class_has_its_own_threshold():
    task = Multilabel(thresholds=(0.9, 0.5, 0.1))
    logits = [np.array([2.0, 0.0, -2.0]), np.array([2.3, -0.1, -2.3])]  # sigmoid(2.2) is 0.9
    found = task.predictions(logits, rows(0, 1), ["a", "b"], ("x", "y", "z"))
    assert [answer["labels"] for answer in found] == [["y", "z"], ["x"]]


def test_a_probability_at_the_threshold_is_enough():
    found = Multilabel().predictions([np.zeros(2)], rows(0), ["a"], None)
    assert found[0]["labels"] == [0, 1]


def test_answers():
    logits = [np.array([-800.0, 0.5]), np.array([-1.0, -2.0])]
    named = Multilabel().predictions(logits, rows(0, 1), ["a", "b"], ("sad", "glad"))
    assert [answer["labels"] for answer in named] == [["glad"], []]
    assert named[0]["scores"] == {"sad": 0, "glad": pytest.approx(1 / (1 + np.exp(-0.5)))}
    assert json.loads(json.dumps(named)) == named
    plain = Multilabel().predictions(logits, rows(0, 1), ["a", "b"], None)
    assert plain[0]["labels"] == [1]
    assert list(plain[0]["scores"]) == [0, 1]
    json.dumps(plain)


def test_windows_of_a_text_are_averaged():
    logits = [np.array([3.0, -1.0]), np.array([-1.0, -1.0]), np.array([-1.0, 1.0])]
    windows = rows(0, 0, 1)
    task = Multilabel(stride=2)
    found = task.predictions(logits, windows, ["long", "short"], None)
    assert [answer["labels"] for answer in found] == [[0], [1]]
    assert task.metrics(task.statistics(logits, windows, examples([[0], [1]])))["exact"] == 1
    assert task.agreement(logits, logits, windows, examples([[0], [1]])) == 1


def test_agreement_is_the_share_of_texts_with_the_same_labels():
    one = [np.array([1.0, 1.0]), np.array([1.0, -1.0])]
    other = [np.array([2.0, 3.0]), np.array([1.0, 1.0])]
    texts = Examples(["w0", "w1"])
    assert Multilabel().agreement(one, other, rows(0, 1), texts) == 0.5
    strict = Multilabel(thresholds=(0.5, 0.8))  # 1.0 is a probability of 0.73
    assert strict.agreement(one, other, rows(0, 1), texts) == 0.5
    assert strict.agreement(one[1:], other[1:], rows(0), Examples(["w"])) == 1


def test_target():
    assert Multilabel(classes=4).target(ROW, [1, 3]) == [0.0, 1.0, 0.0, 1.0]
    assert Multilabel(classes=2).target(ROW, []) == [0.0, 0.0]
    with pytest.raises(UserError, match=r"number of classes is not set"):
        Multilabel().target(ROW, [0])
    for bad in (2, -1):
        with pytest.raises(UserError, match=f"label {bad} is not a class; they go from 0 to 1"):
            Multilabel(classes=2).target(ROW, [bad])


def test_losses():
    student, teacher = torch.randn(5, 3, dtype=torch.double), torch.randn(5, 3, dtype=torch.double)
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0]])
    task = Multilabel(classes=3)
    p, q = teacher.sigmoid(), student.sigmoid()
    expected = -(labels * q.log() + (1 - labels) * (1 - q).log()).mean()
    torch.testing.assert_close(task.label_loss(student, labels, NONE), expected)
    divergence = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    torch.testing.assert_close(task.distill_loss(student, teacher, NONE), divergence)
    assert task.distill_loss(teacher, teacher, NONE).item() == 0


def test_margin_is_the_distance_of_every_class_to_its_own_decision():
    outputs = torch.tensor([[2.0, -3.0], [0.5, 0.0]], requires_grad=True)
    margin = Multilabel().margin(outputs, NONE)
    assert margin.tolist() == [5, 0.5]
    (grad,) = torch.autograd.grad(margin.sum(), outputs)
    assert grad.tolist() == [[1, -1], [1, 0]]
    cut = float(np.log(0.9 / 0.1))
    moved = Multilabel(thresholds=(0.9, 0.5)).margin(outputs, NONE)
    assert moved.tolist() == pytest.approx([cut - 2 + 3, cut - 0.5])


def test_settings_survive_json():
    task = Multilabel(classes=2, thresholds=(0.5, 0.25), stride=16)
    again = Multilabel(**json.loads(json.dumps(asdict(task))))
    assert again == task
    assert hash(again) == hash(task)
    assert Multilabel(**json.loads(json.dumps(asdict(Multilabel())))) == Multilabel()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"thresholds": (0.5, 1.0)}, r"threshold of 1\.0 is not between 0 and 1"),
        ({"thresholds": [0.0]}, "not between 0 and 1"),
        ({"thresholds": (float("nan"),)}, "not between 0 and 1"),
        ({"thresholds": 0.5}, "a number for each class"),
        ({"thresholds": (0.5,), "classes": 2}, "1 thresholds for 2 classes"),
        ({"classes": -1}, "cannot be -1 classes"),
        ({"stride": -1}, "overlap by -1"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        Multilabel(**wrong)


def test_num_outputs():
    assert Multilabel().num_outputs(examples([[0], [], [2, 1]])) == 3
    assert Multilabel().num_outputs(examples([[0]], names=["a", "b"])) == 2
    assert Multilabel(classes=5).num_outputs(examples(None)) == 5
    with pytest.raises(UserError, match="needs labels"):
        Multilabel().num_outputs(examples(None))
    with pytest.raises(UserError, match="no text has a label"):
        Multilabel().num_outputs(examples([[], []]))


def test_heads_that_fit():
    fields = Multilabel().head(examples([[0]]))
    assert fields == {"problem_type": "multi_label_classification"}
    task = Multilabel(classes=3, thresholds=(0.5, 0.4, 0.3))
    task.check_head(head(num_labels=3, **fields), examples([[0, 2], []]))
    Multilabel().check_head(head(num_labels=3), examples(None))  # a head that does not say its kind


@pytest.mark.parametrize(
    ("task", "config", "labels", "message"),
    [
        ({}, {"problem_type": "single_label_classification"}, [[0]], "single_label.*finetune"),
        ({}, {"problem_type": "regression", "num_labels": 1}, [[0]], "regression.*task regress"),
        ({}, {"num_labels": 2}, [[0], [1, 2]], r"up to 2.*2 classes \(0 to 1\)"),
        ({"classes": 3}, {"num_labels": 2}, None, "3 classes.*head has 2; use classes=2"),
        ({"thresholds": (0.5,)}, {"num_labels": 2}, None, "1 thresholds for 2 classes"),
    ],
)
def test_heads_that_do_not_fit(task: dict, config: dict, labels: Any, message: str):
    with pytest.raises(UserError, match=message):
        Multilabel(**task).check_head(head(**config), examples(labels))


def test_classes_in_another_order_do_not_fit():
    config = head(id2label={0: "SAD", 1: "GLAD"}, label2id={"SAD": 0, "GLAD": 1})
    with pytest.raises(UserError, match=r"glad, sad.*SAD, GLAD.*label_names"):
        Multilabel().check_head(config, examples([[0, 1]], names=["glad", "sad"]))


def test_thresholds_of_another_head_are_not_stretched():
    task = Multilabel(thresholds=(0.5,))
    with pytest.raises(UserError, match="1 thresholds for 3 classes"):
        task.predictions([np.zeros(3)], rows(0), ["a"], None)
