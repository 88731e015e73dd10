"""What the dense model and the files of a bundle give for the same examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data.examples import Examples
from toprune.data.recipes import Preset
from toprune.errors import UserError
from toprune.io.progress import bar
from toprune.run import manifest
from toprune.run.engines import Runtime
from toprune.run.manifest import Precision
from toprune.run.runner import Runner
from toprune.tasks import Task
from toprune.tasks.base import by_text
from toprune.tasks.side_by_side import SideBySide

Read = Callable[[Examples], tuple[list[np.ndarray], list[Any]]]  # outputs, and the rows they are of


@dataclass(frozen=True)
class Answers:
    """Outputs of one model for the texts of some examples."""

    task: Task
    outputs: Sequence[np.ndarray]
    rows: Sequence[Any]
    tokens: np.ndarray  # (texts,): how many the model read, over all windows

    @classmethod
    def of(cls, task: Task, outputs: Sequence[np.ndarray], rows: Sequence[Any]) -> "Answers":
        """Join the windows of each text, unless the head answers by token: two models may read a
        long text in different windows."""
        tokens = np.bincount([row.text for row in rows], [len(row) for row in rows])
        if task.BY_TOKEN:
            return cls(task, outputs, rows, tokens)
        first = {row.text: row for row in reversed(rows)}
        joined = by_text(outputs, rows, len(first))
        return cls(task, list(joined), [first[i] for i in range(len(first))], tokens)

    def take(self, texts: Sequence[int]) -> "Answers":
        """The answers to these texts, counted as the model read them."""
        place = {int(text): i for i, text in enumerate(texts)}
        chosen = [i for i, row in enumerate(self.rows) if row.text in place]
        chosen.sort(key=lambda i: place[self.rows[i].text])
        rows = [replace(self.rows[i], text=place[self.rows[i].text]) for i in chosen]
        return Answers(self.task, [self.outputs[i] for i in chosen], rows, self.tokens[[*place]])


@dataclass(frozen=True)
class Contender:
    """A model that answers examples."""

    task: Task
    max_length: int  # tokens of a text
    read: Read

    def answer(self, examples: Examples) -> Answers:
        outputs, rows = self.read(examples)
        return Answers.of(self.task, outputs, rows)


def open_file(
    folder: Path, precision: Precision, *, threads: int, runtime: Runtime = "onnx"
) -> Contender:
    """One exported file of a bundle, as a Runner runs it."""
    runner = Runner(folder, precision=precision, runtime=runtime, threads=threads)

    def read(examples: Examples) -> tuple[list[np.ndarray], list[Any]]:
        texts = examples.inputs(runner.task.READS)
        outputs: list[np.ndarray] = []
        rows: list[Any] = []
        with bar(f"reading with {precision}", len(texts)) as advance:
            for row, output in runner.read(texts):
                advance(row.text + 1 - (rows[-1].text + 1 if rows else 0))
                rows.append(row)
                outputs.append(output)
        return outputs, rows

    return Contender(runner.task, runner.max_length, read)


def is_exported(model: str | Path) -> bool:
    """Whether this is a directory whose ONNX file runs without torch."""
    return (Path(model) / manifest.PLACE).is_file()


def open_dense(
    model: str | Path,
    bundle: manifest.Manifest,
    examples: Examples,
    preset: Preset | None,
    *,
    max_length: int | None,
    threads: int,
) -> Contender:
    """The model that a bundle is compared with.

    Args:
        model: an exported directory, whose fp32 file is run; or any model directory or hub id,
            which torch runs.
        bundle: the manifest of the bundle.
        examples: what both read.
        preset: the bundle's.
        max_length: tokens that the model reads of a text; None: as its directory has it.
        threads: of the exported file.
    """
    if is_exported(model):
        dense = manifest.Manifest.load(model)
        if (dense.task, dense.labels) != (bundle.task, bundle.labels):
            raise UserError(
                f"{model} is for the task {dense.task} or for other classes than the bundle, which "
                f"is for {bundle.task}; name the model that was pruned with --dense"
            )
        if max_length is not None:
            raise UserError(f"{model} is exported, which fixes its length; leave --max-length out")
        return open_file(Path(model), "fp32", threads=threads)
    if (Path(model) / "plan.json").is_file():
        raise UserError(f"{model} has a plan; run 'toprune export {model}' to compare with it")
    from toprune.request import resolve_reference
    from toprune.training.features import rows_of

    request = resolve_reference(model, bundle.build_task(), examples, preset, max_length)

    def read(some: Examples) -> tuple[list[np.ndarray], list[Any]]:
        features = request.encode(some)
        return request.outputs(features, "reading with dense"), rows_of(features)

    return Contender(request.task, request.limit, read)


def side_by_side(
    dense: Answers, pruned: Answers, examples: Examples, names: Sequence[str] | None
) -> SideBySide:
    """Both models' answers to the same examples, as tasks compare them."""
    if [len(row) for row in dense.rows] != [len(row) for row in pruned.rows] and (
        pruned.task.BY_TOKEN
    ):
        raise UserError(
            "the dense and the pruned model read long texts in different windows; give the pruned "
            "model's length to the dense one with --max-length"
        )
    tasks, outputs = (dense.task, pruned.task), (dense.outputs, pruned.outputs)
    return SideBySide(tasks, outputs, pruned.rows, examples, names)


def text_numbers(examples: Examples, chosen: np.ndarray, task: Task) -> list[int]:
    """The texts of some examples, counted as a model reads them (`Examples.inputs`)."""
    both = examples.pairs is not None and task.READS.alone
    return [*chosen.tolist(), *((chosen + len(examples)).tolist() if both else ())]


def tokens_of(examples: Examples, answers: Answers) -> np.ndarray:
    """(N,): how many tokens a model read of each example.

    Examples that belong together (`Reads.together`), such as the documents of a query, get the mean
    over them, because a metric takes them as one.
    """
    reads = answers.task.READS
    tokens = answers.tokens[: len(examples)]
    if len(answers.tokens) > len(examples):  # both texts of a pair, read alone
        tokens = tokens + answers.tokens[len(examples) :]
    if reads.together is None:
        return tokens
    groups: Any = getattr(examples, reads.together)
    ids = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    at = np.array([ids[group] for group in groups])
    return (np.bincount(at, tokens) / np.bincount(at))[at]
