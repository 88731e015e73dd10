"""What every task must have, and the two that judge a text by one class or one number."""

import inspect
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, rankdata, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import BertConfig

from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.models.heads import HEADS
from toprune.tasks import (
    TASKS,
    Classify,
    Embed,
    Multilabel,
    Regress,
    Task,
    make_task,
    settings_of,
    task_for,
)
from toprune.tasks.base import by_text
from toprune.tasks.classify import class_names
from toprune.tasks.regress import ranks
from toprune.tasks.tokenize import Row

classify, regress = Classify(), Regress()
MASK = torch.ones(5, 7)  # of the texts; heads that read one token do not look at it


def examples(labels: list[int] | list[float] | None, names: list[str] | None = None) -> Examples:
    return Examples([f"w{i}" for i in range(len(labels or [0]))], labels=labels, label_names=names)


def head(**fields: Any) -> BertConfig:
    return BertConfig(**fields)


def one_hot(classes: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes]


def rows_of(*texts: int) -> list[Row]:
    """Rows that are windows of these texts."""
    return [Row(np.zeros(3, np.int64), None, text) for text in texts]


def measured(task: Any, outputs: np.ndarray, labels: Any) -> dict[str, float]:
    """As a report does, with one row for each text."""
    rows = rows_of(*range(len(labels)))
    return task.metrics(task.statistics(list(outputs), rows, examples(list(labels))))


MEMBERS = {
    name: member
    for name, member in vars(Task).items()
    if inspect.isfunction(member) and not name.startswith("_")
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_have_the_same_members(name: str):
    task = make_task(name)
    assert name == task.NAME
    assert len(set(task.METRICS)) == len(task.METRICS) > 0
    assert task.HEAD in HEADS
    assert task.OUTPUTS
    assert isinstance(task.reads_all, bool)
    assert {"statistics", "metrics", "margin", "predictions"} <= MEMBERS.keys()
    for member, declared in MEMBERS.items():  # the same arguments, by the same names
        found = inspect.signature(getattr(TASKS[name], member))
        assert list(found.parameters) == list(inspect.signature(declared).parameters), member


@pytest.mark.parametrize("name", TASKS)
def test_settings_go_to_json_and_back(name: str):
    task = make_task(name)
    stored = json.loads(json.dumps(settings_of(task)))
    assert make_task(name, stored) == task
    assert make_task(name, {}) == task
    assert hash(make_task(name, stored)) == hash(task)  # frozen: it never changes


def test_settings_are_those_of_the_task():
    assert settings_of(Classify(stride=7)) == {"stride": 7}
    assert make_task("classify", {"stride": 7}) == Classify(stride=7)
    assert settings_of(regress) == {}
    several = {"classes": 2, "thresholds": [0.5, 0.25], "stride": None}
    assert settings_of(make_task("multilabel", several)) == several


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("guess", {}, "task 'guess' is not known; use one of: classify, regress"),
        ("classify", {"colour": 3}, r"no such setting \(colour\); it has: stride"),
        ("regress", {"stride": 3}, r"no such setting \(stride\); it has: none"),
        ("classify", {"stride": -1}, "overlap by -1 tokens; use 0 or more"),
        ("classify", {"stride": 1.5}, "overlap by 1.5 tokens; use 0 or more"),
        ("classify", {"stride": "7"}, "overlap by 7 tokens; use 0 or more"),
    ],
)
def test_bad_settings(name: str, settings: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        make_task(name, settings)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"architectures": ["BertForQuestionAnswering"]}, "answer"),
        ({"architectures": ["RobertaForTokenClassification"], "num_labels": 9}, "tokens"),
        ({"architectures": ["ElectraModel"]}, "embed"),
        ({"problem_type": "multi_label_classification", "num_labels": 3}, "multilabel"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 1}, "regress"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 3}, "classify"),
        ({"num_labels": 3}, "classify"),
    ],
)
def test_a_head_tells_its_task(fields: dict[str, Any], name: str):
    assert name == task_for({}, head(**fields)).NAME


def test_a_report_tells_the_task_and_its_settings():
    report = {"task": "embed", "task_settings": {"pooling": "cls"}}
    assert task_for(report, head()) == Embed(pooling="cls")
    assert task_for({"task": "regress"}, head(num_labels=3)) == regress


def test_what_is_read_of_examples():
    single, pairs = Examples(["a", "b"]), Examples(["a", "b"], pairs=["c", "d"])
    assert single.inputs(classify.READS) == ["a", "b"]
    assert pairs.inputs(classify.READS) == [("a", "c"), ("b", "d")]
    assert pairs.inputs(Embed().READS) == ["a", "b", "c", "d"]


def test_windows_of_a_text_count_alike():
    outputs = [np.array([i, 2.0 * i], np.float32) for i in (1, 2, 4, 9, 7)]
    found = by_text(outputs, rows_of(0, 0, 1, 2, 1), 3)
    assert found.tolist() == [[1.5, 3.0], [5.5, 11.0], [9.0, 18.0]]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(by_text(outputs, rows_of(*range(5)), 5), np.stack(outputs))
    assert len(by_text([], [], 0)) == 0


def test_windows_count_as_one_text():
    """Two windows are weakly for yes, one is strongly for no."""
    outputs = [np.array(x, np.float32) for x in ([0, 1], [0, 1], [5, 0], [0, 2])]
    rows, labels = rows_of(0, 0, 0, 1), examples([0, 1])
    assert classify.metrics(classify.statistics(outputs, rows, labels))["accuracy"] == 1
    predictions = classify.predictions(outputs, rows, ["long", "short"], ("no", "yes"))
    assert [answer["label"] for answer in predictions] == ["no", "yes"]
    other = [np.zeros(2), np.zeros(2), np.array([0, 1]), np.array([0, 1])]
    assert classify.agreement(outputs, other, rows, labels) == 0.5
    (value,) = regress.predictions(
        [np.array([1.0]), np.array([4.0])], rows_of(0, 0), ["long"], None
    )
    assert value == {"value": 2.5}


@pytest.mark.filterwarnings("ignore:A single label was found")
@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.data())
def test_classify_metrics_equal_scikit_learn(count: int, data: st.DataObject):
    classes = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(classes, classes), min_size=1, max_size=40))
    labels, guesses = (list(side) for side in zip(*pairs, strict=True))
    found = measured(classify, one_hot(guesses, count), labels)
    f1: dict[str, Any] = {"average": "binary" if count == 2 else "macro", "zero_division": 0}
    assert list(found) == list(classify.METRICS)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, guesses))
    assert found["f1"] == pytest.approx(f1_score(labels, guesses, **f1))
    assert found["matthews"] == pytest.approx(matthews_corrcoef(labels, guesses), abs=1e-12)


@pytest.mark.parametrize("guess", [0, 1])
def test_matthews_of_constant_predictions_is_zero(guess: int):
    found = measured(classify, one_hot([guess] * 4, 2), [0, 1, 1, 0])
    assert found["matthews"] == 0
    assert found["accuracy"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_regress_metrics_equal_scipy(seed: int):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 11, 50) / 2  # ties, as in STS-B
    logits = (labels + rng.normal(0, 1, 50)).astype(np.float32)[:, None]
    found = measured(regress, logits, labels)
    assert list(found) == list(regress.METRICS)
    assert found["pearson"] == pytest.approx(pearsonr(logits[:, 0], labels)[0])
    assert found["spearman"] == pytest.approx(spearmanr(logits[:, 0], labels)[0])


def test_regress_metrics_of_constant_predictions_are_zero():
    constant = np.full((3, 1), 0.3, np.float32)
    assert measured(regress, constant, [1.0, 2.0, 4.0]) == {"pearson": 0, "spearman": 0}


def test_regress_metrics_do_not_hide_nan():
    found = measured(regress, np.array([[np.nan], [1.0]]), [1.0, 2.0])
    assert np.isnan(found["pearson"])
    assert np.isnan(found["spearman"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3) | st.floats(allow_nan=False), min_size=1, max_size=30))
def test_ranks_equal_scipy(values: list[float]):
    array = np.array(values, np.float64)
    np.testing.assert_array_equal(ranks(array), rankdata(array))


def test_answers():
    logits = [np.array([0.1, 2.0]), np.array([1.0, 0.0])]
    found = classify.predictions(logits, rows_of(0, 1), ["a", "b"], ("no", "yes"))
    assert [answer["label"] for answer in found] == ["yes", "no"]
    expected = [1 / (1 + np.exp(-1.9)), 1 / (1 + np.exp(-1.0))]
    assert [answer["score"] for answer in found] == pytest.approx(expected)
    found = classify.predictions(logits, rows_of(0, 1), ["a", "b"], None)
    assert [answer["label"] for answer in found] == [1, 0]
    values = [np.array([0.5]), np.array([2.0])]
    assert regress.predictions(values, rows_of(0, 1), ["a", "b"], None) == [
        {"value": 0.5},
        {"value": 2.0},
    ]


def test_agreement():
    one, other = one_hot([0, 1, 1, 0], 3), one_hot([0, 1, 2, 0], 3) * 7
    rows, texts = rows_of(*range(4)), examples([0, 0, 0, 0])
    assert classify.agreement(list(one), list(other), rows, texts) == 0.75
    numbers = np.array([[1.0], [2.0], [4.0], [3.0]])
    assert regress.agreement(list(numbers), list(2 - numbers), rows, texts) == pytest.approx(-1)


def test_margins():
    logits, mask = torch.tensor([[3.0, 1.0, 2.5], [0.0, 0.0, -4.0]]), torch.ones(2, 5)
    assert classify.margin(logits, mask).tolist() == [0.5, 0.0]
    assert regress.margin(logits[:, :1], mask).tolist() == [3.0, 0.0]


def test_a_label_is_its_own_target():
    (row,) = rows_of(0)
    assert classify.target(row, 3) == 3
    assert regress.target(row, 0.5) == 0.5


def test_num_outputs():
    assert classify.num_outputs(examples([0, 2, 1])) == 3
    assert classify.num_outputs(examples([0, 0], names=["a", "b", "c"])) == 3
    assert regress.num_outputs(examples([0.5, 2.0])) == 1
    with pytest.raises(UserError, match="needs labels"):
        classify.num_outputs(examples(None))
    with pytest.raises(UserError, match=r"from 1 to 5.*count from 0"):
        classify.num_outputs(examples([1, 5]))


def test_class_names():
    assert class_names(head(num_labels=3)) is None
    named = head(id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    assert class_names(named) == ["no", "yes"]


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
def test_heads_that_do_not_fit(task: Any, config: dict, labels: list, message: str):
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
    torch.testing.assert_close(classify.distill_loss(student, teacher, MASK), expected)
    assert classify.distill_loss(teacher, teacher, MASK).item() == pytest.approx(0, abs=1e-12)


def test_losses():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    expected = -logits.log_softmax(-1)[[0, 1], [0, 0]].mean()
    torch.testing.assert_close(classify.label_loss(logits, torch.tensor([0, 0]), MASK), expected)
    outputs = torch.tensor([[1.0], [2.0]])
    assert regress.label_loss(outputs, torch.tensor([1.0, 4.0]), MASK).item() == 2
    assert regress.distill_loss(outputs, outputs + 3, MASK).item() == 9


def test_a_stock_multilabel_model_says_how_many_classes_it_has():
    config = head(
        architectures=["BertForSequenceClassification"],
        problem_type="multi_label_classification",
        num_labels=4,
    )
    assert task_for({}, config) == Multilabel(classes=4)
