from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, rankdata, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import BertConfig

from toprune.data import Examples
from toprune.errors import UserError
from toprune.tasks import TASKS, classify, regress

FUNCTIONS = ("num_outputs", "check_head", "predict", "metrics", "distill_loss", "label_loss")


def examples(labels: list[int] | list[float] | None, names: list[str] | None = None) -> Examples:
    return Examples([f"w{i}" for i in range(len(labels or [0]))], labels=labels, label_names=names)


def head(**fields: Any) -> BertConfig:
    return BertConfig(**fields)


def one_hot(classes: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes]


@pytest.mark.parametrize("name", TASKS)
def test_tasks_have_the_same_members(name: str):
    task = TASKS[name]
    assert name == task.NAME
    assert task.METRICS
    assert all(callable(getattr(task, function)) for function in FUNCTIONS)


@pytest.mark.filterwarnings("ignore:A single label was found")
@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.data())
def test_classify_metrics_equal_scikit_learn(count: int, data: st.DataObject):
    classes = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(classes, classes), min_size=1, max_size=40))
    labels, guesses = (list(side) for side in zip(*pairs, strict=True))
    found = classify.metrics(one_hot(guesses, count), np.array(labels))
    f1: dict[str, Any] = {"average": "binary" if count == 2 else "macro", "zero_division": 0}
    assert list(found) == list(classify.METRICS)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, guesses))
    assert found["f1"] == pytest.approx(f1_score(labels, guesses, **f1))
    assert found["matthews"] == pytest.approx(matthews_corrcoef(labels, guesses), abs=1e-12)


@pytest.mark.parametrize("guess", [0, 1])
def test_matthews_of_constant_predictions_is_zero(guess: int):
    found = classify.metrics(one_hot([guess] * 4, 2), np.array([0, 1, 1, 0]))
    assert found["matthews"] == 0
    assert found["accuracy"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_regress_metrics_equal_scipy(seed: int):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 11, 50) / 2  # ties, as in STS-B
    logits = (labels + rng.normal(0, 1, 50)).astype(np.float32)[:, None]
    found = regress.metrics(logits, labels)
    assert list(found) == list(regress.METRICS)
    assert found["pearson"] == pytest.approx(pearsonr(logits[:, 0], labels)[0])
    assert found["spearman"] == pytest.approx(spearmanr(logits[:, 0], labels)[0])


def test_regress_metrics_of_constant_predictions_are_zero():
    constant = np.full((3, 1), 0.3, np.float32)
    assert regress.metrics(constant, np.array([1.0, 2.0, 4.0])) == {"pearson": 0, "spearman": 0}


def test_regress_metrics_do_not_hide_nan():
    found = regress.metrics(np.array([[np.nan], [1.0]]), np.array([1.0, 2.0]))
    assert np.isnan(found["pearson"])
    assert np.isnan(found["spearman"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3) | st.floats(allow_nan=False), min_size=1, max_size=30))
def test_ranks_equal_scipy(values: list[float]):
    array = np.array(values, np.float64)
    np.testing.assert_array_equal(regress._ranks(array), rankdata(array))


def test_predict():
    assert classify.predict(np.array([[0.1, 2.0], [1.0, 0.0]])).tolist() == [1, 0]
    assert regress.predict(np.array([[0.5], [2.0]])).tolist() == [0.5, 2.0]


def test_num_outputs():
    assert classify.num_outputs(examples([0, 2, 1])) == 3
    assert classify.num_outputs(examples([0, 0], names=["a", "b", "c"])) == 3
    assert regress.num_outputs(examples([0.5, 2.0])) == 1
    with pytest.raises(UserError, match="needs labels"):
        classify.num_outputs(examples(None))
    with pytest.raises(UserError, match=r"from 1 to 5.*count from 0"):
        classify.num_outputs(examples([1, 5]))


def test_class_names():
    assert classify.class_names(head(num_labels=3)) is None
    named = head(id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    assert classify.class_names(named) == ["no", "yes"]


def test_heads_that_fit():
    classify.check_head(head(num_labels=3), examples([0, 2]))
    classify.check_head(head(num_labels=3), examples(None))
    regress.check_head(head(num_labels=1), examples([0.5, 2.0]))


@pytest.mark.parametrize(
    ("task", "config", "labels", "message"),
    [
        (classify, {"num_labels": 2}, [0, 2], "labels go up to 2.*2 classes.*finetune"),
        (classify, {"num_labels": 1}, [0, 1], "1 output.*task regress"),
        (classify, {"problem_type": "multi_label_classification"}, [0, 1], "multi_label"),
        (regress, {"num_labels": 2}, [0.5, 2.0], "2 outputs.*task classify"),
    ],
)
def test_heads_that_do_not_fit(task, config: dict, labels: list, message: str):
    with pytest.raises(UserError, match=message):
        task.check_head(head(**config), examples(labels))


def test_classes_in_another_order_do_not_fit():
    config = head(id2label={0: "YES", 1: "NO"}, label2id={"YES": 0, "NO": 1})
    with pytest.raises(UserError, match=r"no, yes.*YES, NO.*label_names"):
        classify.check_head(config, examples([0, 1], names=["no", "yes"]))


def test_classify_distill_loss_is_kl_at_temperature_two():
    student, teacher = torch.randn(5, 3, dtype=torch.double), torch.randn(5, 3, dtype=torch.double)
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    expected = 4 * (p * (p / q).log()).sum(-1).mean()
    torch.testing.assert_close(classify.distill_loss(student, teacher), expected)
    assert classify.distill_loss(teacher, teacher).item() == pytest.approx(0, abs=1e-12)


def test_losses():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    expected = -logits.log_softmax(-1)[[0, 1], [0, 0]].mean()
    torch.testing.assert_close(classify.label_loss(logits, torch.tensor([0, 0])), expected)
    outputs = torch.tensor([[1.0], [2.0]])
    assert regress.label_loss(outputs, torch.tensor([1.0, 4.0])).item() == 2
    assert regress.distill_loss(outputs, outputs + 3).item() == 9
