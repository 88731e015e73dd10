"""Every task from data to answers: masked == gathered == alone == ONNX, int8 runs, and the whole
way through prune, export and Runner."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import CONFIGS, FAMILIES, SEGMENTED, make_tokenizer
from toprune import Runner
from toprune.api import Data, evaluate, prune
from toprune.attachment import attach, detach
from toprune.bundle import Bundle
from toprune.data import Examples
from toprune.encode import Collate, encode, rows_of
from toprune.evaluation import answers_of
from toprune.export import export
from toprune.fit import Training
from toprune.heads import HEADS, restore_of
from toprune.plan import Plan, Score, Step
from toprune.run.evaluate import evaluate as evaluate_onnx
from toprune.tasks import (
    Answer,
    Classify,
    Embed,
    Multilabel,
    Rank,
    Regress,
    Tags,
    Task,
    settings_of,
    texts_of,
)

LIMIT = 24
STEPS = (Step(0, Fraction(7, 10)), Step(2, Fraction(4, 10)))
TASKS: dict[str, tuple[Task, int]] = {  # with the outputs of the head
    "classify": (Classify(), 3),
    "windows": (Classify(stride=4), 3),
    "regress": (Regress(), 1),
    "multilabel": (Multilabel(classes=3), 3),
    "rank": (Rank(), 1),
    "answer": (Answer(stride=4), 2),
    "tokens": (Tags(stride=0), 3),
    "embed mean": (Embed(pooling="mean"), 2),
    "embed restored": (Embed(pooling="mean", dropped="last"), 2),
    "embed cls": (Embed(pooling="cls"), 2),
}


@pytest.fixture(autouse=True)
def rough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights of this size are chaotic (see test_export.py)."""
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)


def make_model(task: Task, outputs: int, family: str = "bert") -> Any:
    config = CONFIGS[family](vocab_size=len(make_tokenizer()), num_labels=outputs, pad_token_id=1)
    if isinstance(task, Multilabel):
        config.problem_type = "multi_label_classification"
    torch.manual_seed(0)
    model = HEADS[task.HEAD].from_config(config).eval()
    if task.HEAD == "encoder":
        model.pooler = None
    return model


def make_examples(task: Task, count: int = 40, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)

    def words(low: int, high: int) -> list[str]:
        return [f"w{i}" for i in rng.integers(0, 60, rng.integers(low, high))]

    def texts(low: int = 3, high: int = 40) -> list[str]:
        return [" ".join(words(low, high)) for _ in range(count)]

    if isinstance(task, Classify):
        return Examples(texts(), labels=[i % 3 for i in range(count)])
    if isinstance(task, Regress):
        return Examples(texts(), labels=rng.random(count).tolist())
    if isinstance(task, Multilabel):
        sets = [sorted({i % 3, (i // 3) % 3}) if i % 5 else [] for i in range(count)]
        return Examples(texts(), labels=sets, label_names=["a", "b", "c"])
    if isinstance(task, Rank):
        queries = [f"w{i // 4} w{i // 4 + 7}" for i in range(count)]
        return Examples(queries, texts(), [float(i % 4 == 0) for i in range(count)])
    if isinstance(task, Answer):
        contexts = texts(12)
        spans = [context.split()[5] for context in contexts]
        starts = [len(" ".join(context.split()[:5])) + 1 for context in contexts]
        golds = [[pair] for pair in zip(spans, starts, strict=True)]
        return Examples(texts(2, 5), contexts, golds)
    if isinstance(task, Tags):
        lists: Any = [words(2, 40) for _ in range(count)]
        tags = [[int(word[1:]) % 3 for word in one] for one in lists]
        return Examples(lists, labels=tags, label_names=["O", "B-X", "I-X"])
    return Examples(texts(), texts(), rng.random(count).tolist())


def make_plan(task: Task, score: Score, family: str = "bert") -> Plan:
    probe = tuple(np.random.default_rng(1).normal(size=32).tolist()) if score == "probe" else None
    first = {"protect": (2,), "protect_until": 2} if task.HEAD == "answer" else {}
    return Plan(
        family,
        4,
        32,
        score,
        STEPS,
        probe=probe,
        restore=restore_of(task, CONFIGS[family]()),
        **first,
    )


def worst(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    gaps = [np.abs(a - b).max() / max(1, np.abs(b).max()) for a, b in zip(one, other, strict=True)]
    return float(max(gaps))


@pytest.mark.parametrize(
    ("name", "score", "family"),
    [
        *((name, score, "bert") for name in TASKS for score in ("probe", "received")),
        *(
            (name, "probe", family)
            for name in ("answer", "tokens", "embed mean", "embed cls")
            for family in FAMILIES[1:]
        ),
    ],
)
def test_parity(name: str, score: Score, family: str, tmp_path: Path):
    task, outputs = TASKS[name]
    model, tokenizer = make_model(task, outputs, family), make_tokenizer(family)
    examples = make_examples(task, 12)
    segments = family in SEGMENTED
    features = encode(tokenizer, task, examples, LIMIT, segments=segments)
    collate = Collate(tokenizer)
    plan = make_plan(task, score, family)
    said = {}
    for gather in (True, False):
        attach(model, plan, gather=gather)
        said[gather] = answers_of(model, task, features, collate)
    attach(model, plan)
    alone = [answers_of(model, task, [feature], collate)[0] for feature in features]
    detach(model)
    assert worst(said[False], said[True]) < 2e-4
    assert worst(alone, said[True]) < 2e-4
    told = {"task": task.NAME, "task_settings": settings_of(task), "max_length": LIMIT}
    Bundle(model, tokenizer, plan, told).save(tmp_path / "bundle")
    export(tmp_path / "bundle", int8=True)
    run = Runner(tmp_path / "bundle", threads=1)
    pairs = list(run.read(texts_of(task, examples)))
    assert [row.ids.tolist() for row, _ in pairs] == [f["input_ids"] for f in features]
    assert [row.text for row, _ in pairs] == [row.text for row in rows_of(features)]
    assert worst([output for _, output in pairs], said[True]) < 5e-4
    small = Runner(tmp_path / "bundle", precision="int8", threads=1)
    answers = small.predict(texts_of(task, examples))
    assert len(answers) == len(texts_of(task, examples))
    json.dumps(answers)
    metrics = task.metrics(task.judge([o for _, o in pairs], [r for r, _ in pairs], examples))
    wanted = task.metrics(task.judge(said[True], rows_of(features), examples))
    assert metrics == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("score", ["probe", "received"])
@pytest.mark.parametrize("name", TASKS)
def test_from_data_to_answers(name: str, score: Score, tmp_path: Path):
    task, outputs = TASKS[name]
    dense = tmp_path / "dense"
    make_model(task, outputs).save_pretrained(dense)
    make_tokenizer().save_pretrained(dense)
    rows = as_rows(task, make_examples(task, 48))
    data = Data(rows, max_length=LIMIT)
    bundle = prune(
        str(dense),
        data,
        "1.5x",
        task=task,
        out=tmp_path / "small",
        score=score,
        training=Training(soft_epochs=1, hard_epochs=1, batch_size=16),
    )
    assert bundle.plan is not None
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.02)
    assert bundle.plan.restore == restore_of(task, bundle.model.config)
    assert bundle.task == task
    assert np.isfinite(bundle.report["agreement"])
    export(tmp_path / "small", int8=True)
    run = Runner(tmp_path / "small", threads=1)
    assert run.task == task
    torch_report = evaluate(tmp_path / "small", data)
    onnx_report = evaluate_onnx(run, rows)
    for metric, found in torch_report["metrics"].items():
        assert onnx_report["metrics"][metric]["value"] == pytest.approx(found["value"], abs=2e-2)


def as_rows(task: Task, examples: Examples) -> list[dict[str, Any]]:
    """As a user's own JSON lines would be."""
    rows: list[dict[str, Any]] = []
    for i, text in enumerate(examples.texts):
        pair = None if examples.pairs is None else examples.pairs[i]
        label: Any = None if examples.labels is None else examples.labels[i]
        if isinstance(task, Rank):
            rows.append({"query": text, "document": pair, "label": label})
        elif isinstance(task, Answer):
            answers = {"text": [label[0][0]], "answer_start": [label[0][1]]}
            rows.append({"question": text, "context": pair, "answers": answers})
        elif isinstance(task, Tags):
            names: Any = examples.label_names
            rows.append({"tokens": text, "tags": [names[tag] for tag in label]})
        elif isinstance(task, Multilabel):
            names = examples.label_names
            rows.append({"text": text, "labels": [names[c] for c in label]})
        elif isinstance(task, Embed):
            rows.append({"sentence1": text, "sentence2": pair, "score": label})
        else:
            rows.append({"text": text, "label": label})
    return rows
