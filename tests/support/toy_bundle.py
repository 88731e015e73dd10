"""A bundle whose graph is arithmetic: every mistake around it (padding, order, segments) shows.

A live token gives position * (table[id] + segment_table[segment]), padding gives WASTE, and a head
that reads the first token gets the sum of the live ones: small integers, so that float32 is exact
and answers can be compared bit by bit.
"""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.models import SEGMENTED, SPECIAL, WORDS, make_tokenizer
from toprune.plan.plan import Plan, Step
from toprune.run.manifest import Manifest
from toprune.tasks import Task, make_task, settings_of

PLAN = Plan("bert", 4, 8, "received", (Step(0, Fraction(1, 2)),), provenance={"seed": 3})
MAX_LENGTH = 24
LABELS = ("no", "yes", "maybe")
WASTE = 5000.0  # the output of the graph for padding, where it answers by token
OUTPUTS = {"regress": 1, "rank": 1, "answer": 2}  # of the others: 3


def tables(outputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = (len(SPECIAL + WORDS), outputs), (2, outputs)
    words, segments = (rng.integers(-9, 10, shape).astype(np.float32) for shape in shapes)
    return words, segments


def write_graph(
    path: Path,
    *,
    segments: bool = True,
    outputs: int = 3,
    seed: int = 0,
    plan: str | None = PLAN.to_json(),
    fill: float | None = None,
    word_table: np.ndarray | None = None,
    task: Task | None = None,
) -> onnx.ModelProto:
    """fill: every number of the word table, for answers that are none (NaN). word_table: in place
    of random numbers, a row of outputs for each id."""
    task = task or make_task("classify")
    words, kinds = tables(outputs, seed)
    if fill is not None:
        words[:] = fill
    if word_table is not None:
        words[:] = word_table
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in names
    ]
    shape: list[Any] = ["batch", "length"] if task.reads_all else ["batch"]
    shape += [1] if task.HEAD == "encoder" and not task.reads_all else []  # the first token alone
    shape += [] if task.HEAD == "answer" else [outputs]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in task.OUTPUTS]
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["states"]),  # (B, S, C)
        helper.make_node("Cast", ["attention_mask"], ["live"], to=TensorProto.FLOAT),
        helper.make_node("CumSum", ["live", "axis"], ["place"]),  # (B, S)
        helper.make_node("Mul", ["place", "live"], ["weights"]),
        helper.make_node("Unsqueeze", ["weights", "last"], ["columns"]),  # (B, S, 1)
        helper.make_node("Mul", ["summed", "columns"], ["weighed"]),
    ]
    nodes += _head(task)
    if segments:
        nodes[1:1] = [
            helper.make_node("Gather", ["kinds", "token_type_ids"], ["sides"]),
            helper.make_node("Add", ["states", "sides"], ["summed"]),
        ]
    else:
        nodes.insert(1, helper.make_node("Identity", ["states"], ["summed"]))
    constants = {"words": words, "axis": np.array(1)}
    constants |= {"axes": np.array([1]), "last": np.array([2]), "none": np.array([0])}
    constants |= {
        "one": np.array(1, np.float32),
        "waste": np.array(WASTE, np.float32),
        "both": np.array([1, 1]),
    }
    if segments:
        constants["kinds"] = kinds
    graph = helper.make_graph(
        nodes,
        "toy",
        inputs,
        results,
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    if plan is not None:
        helper.set_model_props(model, {"toprune.plan": plan})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return model


def _head(task: Task) -> list[onnx.NodeProto]:
    """From `weighed` (B, S, C) to the outputs."""
    if task.reads_all:
        nodes = [
            helper.make_node("Sub", ["one", "live"], ["dead"]),
            helper.make_node("Mul", ["dead", "waste"], ["wasted"]),
            helper.make_node("Unsqueeze", ["wasted", "last"], ["padding"]),
            helper.make_node("Add", ["weighed", "padding"], ["all"]),
        ]
        if task.HEAD != "answer":
            return [*nodes, helper.make_node("Identity", ["all"], list(task.OUTPUTS))]
        parts = ["starts", "ends"]
        nodes.append(helper.make_node("Split", ["all", "both"], parts, axis=2))
        return nodes + [
            helper.make_node("Squeeze", [part, "last"], [name])
            for part, name in zip(parts, task.OUTPUTS, strict=True)
        ]
    if task.HEAD == "encoder":
        return [helper.make_node("Slice", ["weighed", "none", "axes", "axes"], list(task.OUTPUTS))]
    return [helper.make_node("ReduceSum", ["weighed", "axes"], list(task.OUTPUTS), keepdims=0)]


def make_bundle(
    folder: Path,
    *,
    family: str = "bert",
    task: str | Task = "classify",
    labels: Sequence[str] | None = LABELS,
    int8_table: np.ndarray | None = None,
    **graph: Any,
) -> Path:
    """Everything that a Runner needs, and weights that it does not."""
    task = make_task(task) if isinstance(task, str) else task
    folder.mkdir(parents=True, exist_ok=True)
    graph.setdefault("segments", family in SEGMENTED)
    graph.setdefault("outputs", OUTPUTS.get(task.NAME, 3))
    graph["task"] = task
    write_graph(folder / "onnx/model.onnx", **graph)
    graph["seed"] = 1
    if int8_table is not None:
        graph["word_table"] = int8_table
    write_graph(folder / "onnx/model_int8.onnx", **graph)
    PLAN.save(folder / "plan.json")
    make_tokenizer(family).backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    write_manifest(folder, family=family, task=task, labels=labels)
    return folder


def write_manifest(
    folder: Path,
    *,
    family: str = "bert",
    task: str | Task = "classify",
    labels: Sequence[str] | None = LABELS,
) -> None:
    """Sign the bundle as it is now: what a clumsy or a bad exporter could do, too."""
    task = make_task(task) if isinstance(task, str) else task
    segments = ("token_type_ids",) if family in SEGMENTED else ()
    manifest = Manifest.of(
        folder,
        folder / "onnx",
        task=task.NAME,
        settings=settings_of(task),
        max_length=MAX_LENGTH,
        inputs=("input_ids", "attention_mask", *segments),
        pad_token_id=1,
        labels=tuple(labels) if labels is not None and task.HAS_LABEL_NAMES else None,
        checked={"batches": 3},
        environment={"machine": "a desk"},
    )
    (folder / "onnx" / "export.json").write_text(manifest.to_json())


def expected(
    texts: Sequence[Any],
    *,
    family: str = "bert",
    outputs: int = 3,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
) -> np.ndarray:
    """(N, C): row by row, encoded by transformers and added up by numpy."""
    tokenizer = make_tokenizer(family)
    answers = []
    for text in texts:
        sides: Sequence[Any] = [text] if isinstance(text, str) else text
        row = tokenizer(*sides, truncation=True, max_length=max_length)
        answers.append(token_outputs(row, outputs=outputs, seed=seed).sum(0))
    return np.array(answers, np.float32).reshape(-1, outputs)


def token_outputs(row: Any, *, outputs: int = 3, seed: int = 0) -> np.ndarray:
    """(n, C): what the graph says to each token of a row of transformers."""
    words, kinds = tables(outputs, seed)
    states = words[row["input_ids"]]
    if "token_type_ids" in row:
        states = states + kinds[row["token_type_ids"]]
    return np.arange(1, len(states) + 1, dtype=np.float32)[:, None] * states


def mixed_texts(count: int, seed: int = 0) -> list[Any]:
    """Texts and pairs from one word to more than fit."""
    rng = np.random.default_rng(seed)

    def text() -> str:
        return " ".join(f"w{i}" for i in rng.integers(0, 60, rng.integers(1, MAX_LENGTH + 8)))

    return [text() if rng.random() < 0.6 else (text(), text()) for _ in range(count)]
