"""One truth, many executions, for any model and task: masked == gathered == alone == ONNX, and the
int8 file runs. What is not about one family or one task alone."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toprune import Runner
from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.export.export import export
from toprune.models.families import has_segments, sizes_of
from toprune.models.heads import restore_of
from toprune.plan.plan import Plan, Score, Step
from toprune.pruning.attach import attach, detach
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
)
from toprune.training.batches import Collate
from toprune.training.evaluation import collect_outputs
from toprune.training.features import encode, rows_of

LIMIT = 24
STEPS = (Step(0, Fraction(7, 10)), Step(2, Fraction(4, 10)))
TASKS: dict[str, tuple[Task, int]] = {  # with the outputs of the head
    "classify": (Classify(), 3),
    "windows": (Classify(stride=4), 3),
    "regress": (Regress(), 1),
    "multilabel": (Multilabel(classes=3), 3),
    "rank": (Rank(), 1),
    "answer": (Answer(stride=4), 2),
    "answer zero": (Answer(stride=4, dropped="zero"), 2),
    "tokens": (Tags(stride=0), 3),
    "embed mean": (Embed(pooling="mean"), 2),
    "embed restored": (Embed(pooling="mean", dropped="last"), 2),
    "embed cls": (Embed(pooling="cls"), 2),
}


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


def make_plan(model: Any, task: Task, score: Score, steps: tuple[Step, ...] = STEPS) -> Plan:
    sizes = sizes_of(model)
    many = {"probe": 1, "probes": len(steps)}.get(score)
    probe = None if many is None else np.random.default_rng(1).normal(size=many * sizes.width)
    first: dict[str, Any] = {"protect": (2,), "protect_until": 2} if task.HEAD == "answer" else {}
    return Plan(
        model.config.model_type,
        sizes.layers,
        sizes.width,
        score,
        steps,
        probe=None if probe is None else tuple(probe.tolist()),
        restore=restore_of(task, model.config),
        **first,
    )


def worst(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    gaps = [np.abs(a - b).max() / max(1, np.abs(b).max()) for a, b in zip(one, other, strict=True)]
    return float(max(gaps))


def check_executions(
    model: Any, tokenizer: Any, task: Task, score: Score, folder: Path, count: int = 12
) -> None:
    """From texts to answers: torch in its three ways, the exported file in the Runner, int8."""
    examples = make_examples(task, count)
    features = encode(tokenizer, task, examples, LIMIT, segments=has_segments(model.config))
    collate = Collate(tokenizer)
    plan = make_plan(model, task, score)
    outputs_by = {}
    for gather in (True, False):
        attach(model, plan, gather=gather)
        outputs_by[gather] = collect_outputs(model, task, features, collate)
    attach(model, plan)
    alone = [collect_outputs(model, task, [feature], collate)[0] for feature in features]
    detach(model)
    assert worst(outputs_by[False], outputs_by[True]) < 2e-4
    assert worst(alone, outputs_by[True]) < 2e-4
    report = {"task": task.NAME, "task_settings": settings_of(task), "max_length": LIMIT}
    Bundle(model, tokenizer, plan, report).save(folder)
    export(folder, int8=True)
    run = Runner(folder, threads=1)
    pairs = list(run.read(examples.inputs(task.READS)))
    assert [row.ids.tolist() for row, _ in pairs] == [f["input_ids"] for f in features]
    assert [row.text for row, _ in pairs] == [row.text for row in rows_of(features)]
    assert worst([output for _, output in pairs], outputs_by[True]) < 5e-4
    small = Runner(folder, precision="int8", threads=1)
    answers = small.predict(examples.inputs(task.READS))
    assert len(answers) == len(examples.inputs(task.READS))
    json.dumps(answers)
    metrics = task.metrics(task.statistics([o for _, o in pairs], [r for r, _ in pairs], examples))
    wanted = task.metrics(task.statistics(outputs_by[True], rows_of(features), examples))
    assert metrics == pytest.approx(wanted, abs=1e-3)
