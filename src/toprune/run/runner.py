"""Texts or images in, answers out: a bundle's ONNX file and all that must be right around it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from toprune.errors import UserError
from toprune.plan.plan import Plan
from toprune.run.engines import Engine, OnnxRuntime, OpenVino
from toprune.run.manifest import GRAPHS, Manifest, Precision
from toprune.run.reader import Given, Reader, open_reader
from toprune.tasks.base import by_text
from toprune.tasks.embed import unit
from toprune.tasks.pool import pool
from toprune.tasks.tokenize import Row

AHEAD = 2048  # texts that are read ahead and sorted by length: all that is ever in memory,
AHEAD_SIZE = 1 << 23  # or fewer, when these are so many characters, or bytes of pixels
PADDED = 2  # a batch, padding included, is at most so many times its token budget


class Runner:
    """Runs an exported bundle with onnxruntime, tokenizers and numpy: no torch in the process.

    One Runner serves any number of threads. `threads` are those of one call (None: every core);
    who calls from many threads at a time is best served with threads=1. `batch_tokens` counts live
    tokens: the graph's linear layers do not see padding.

    A bundle for images takes these where texts are spoken of: paths, Pillow images, or arrays
    (height, width, 3) of uint8.
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        precision: Precision = "fp32",
        threads: int | None = None,
        runtime: Literal["onnx", "openvino"] = "onnx",
        providers: Sequence[str] | None = None,
        max_length: int | None = None,
        batch_tokens: int = 2048,
    ):
        bundle = Path(bundle)
        if precision not in GRAPHS:
            raise UserError(f"precision {precision!r} is not known; use {' or '.join(GRAPHS)}")
        if batch_tokens < 1 or (threads is not None and threads < 1):
            raise UserError("threads and batch_tokens must be 1 or more")
        self.manifest = Manifest.load(bundle)
        limit = self.manifest.max_length
        if max_length is not None and not 1 <= max_length <= limit:
            raise UserError(
                f"a maximum length of {max_length} is not in 1 to {limit}, what the file was "
                "exported and checked for; use less, or export anew"
            )
        graph = GRAPHS[precision]
        self.manifest.verify(bundle, graph)
        self.plan = Plan.load(bundle / "plan.json")
        self.batch_tokens, self.max_length = batch_tokens, max_length or limit
        self.task = self.manifest.build_task()
        self._reader: Reader = open_reader(bundle, self.manifest, self.max_length)
        self._engine = _engine(runtime, bundle / graph, threads, providers)
        self.outputs = self._check_engine(bundle / graph)

    def __call__(self, texts: Iterable[Given]) -> Any:
        """(N, C) logits, or vectors, in the order of the texts; a pair is a tuple. Where the head
        answers by token, a list with an array (n, C) for each row that was read."""
        if self._by_token:
            return [one for _, _, outputs in self._stretches(_iterate(texts)) for one in outputs]
        none = np.zeros((0, self.outputs), np.float32)
        return np.concatenate([none, *self._vectors(_iterate(texts))])

    def predict(self, texts: Iterable[Given]) -> list[dict[str, Any]]:
        """What the task asks of each text: `label` and `score`, `value`, `labels`, `answer`, `tags`
        or `vector`. A label is a name, or the class id if the head has no names."""
        return list(self.predictions(texts))

    def predictions(self, texts: Iterable[Given], *, first: int = 0) -> Iterator[dict[str, Any]]:
        """The same one by one, in order; reads only so far ahead that memory does not grow with
        the number of texts. first: texts that came before these, for errors that name one."""
        for given, rows, outputs in self._stretches(_iterate(texts), first):
            yield from self.task.predictions(outputs, rows, given, self.manifest.labels)

    def stream(self, texts: Iterable[Given]) -> Iterator[np.ndarray]:
        """The logits (C,) of each text, or its vector, one by one, as `predictions`."""
        if self._by_token:
            raise UserError(f"the task {self.task.NAME} answers by token; use predictions(texts)")
        return (row for part in self._vectors(_iterate(texts)) for row in part)

    def read(self, texts: Iterable[Given]) -> Iterator[tuple[Row, np.ndarray]]:
        """Every row that the model reads and what it says to it, (C,) or (n, C): for metrics."""
        first = 0
        for given, rows, outputs in self._stretches(_iterate(texts)):
            for row, output in zip(rows, outputs, strict=True):
                yield replace(row, text=first + row.text), output
            first += len(given)

    def _vectors(self, texts: Iterator[Any]) -> Iterator[np.ndarray]:
        """(n, C) of each stretch of texts."""
        for given, rows, outputs in self._stretches(texts):
            found = by_text(outputs, rows, len(given))
            yield unit(found) if getattr(self.task, "normalize", False) else found

    def _stretches(
        self, texts: Iterator[Any], first: int = 0
    ) -> Iterator[tuple[list[Any], list[Row], list[np.ndarray]]]:
        """Texts, their rows and what the model says to each, some at a time."""
        while given := some(texts):
            rows = self._reader.encode(given, first)
            yield given, rows, self._answers(rows, first)
            first += len(given)

    def _answers(self, rows: list[Row], first: int) -> list[np.ndarray]:
        """(C,) of each row, or (n, C) where the head answers by token."""
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        for chosen in batches([len(row) for row in rows], self.batch_tokens):
            feeds = self._reader.batch([rows[i] for i in chosen])
            answer = self._engine.run(feeds)
            self._check_shape(answer, (len(chosen), max(len(rows[i]) for i in chosen)))
            if self.task.HEAD == "encoder":
                settings: Any = self.task
                answer = pool(answer, feeds["attention_mask"], settings.pooling)
            for i, one in zip(chosen, answer, strict=True):
                found[i] = one[: len(rows[i])] if self._by_token else one
                if not np.isfinite(found[i]).all():
                    raise UserError(
                        f"the model's answer to texts[{first + rows[i].text}] is not a number (NaN "
                        "or infinite); check the weights, or try the other precision"
                    )
        return found

    @property
    def _by_token(self) -> bool:
        return self.task.reads_all and self.task.HEAD != "encoder"

    def _check_shape(self, answer: np.ndarray, shape: tuple[int, ...]) -> None:
        batch, length = shape
        wanted: tuple[int, ...] = (batch, self.outputs)
        if self.task.reads_all:
            wanted = (batch, length, self.outputs)
        elif self.task.HEAD == "encoder":
            wanted = (batch, 1, self.outputs)
        if answer.shape != wanted:  # numpy would stretch it
            raise UserError(f"the graph gives an answer of shape {answer.shape}; export anew")

    def _check_engine(self, path: Path) -> int:
        """The graph must be of this plan and of this manifest; gives the number of its outputs."""
        engine, labels = self._engine, self.manifest.labels
        if engine.plan is None or Plan.from_json(engine.plan) != self.plan:
            raise UserError(
                f"{path} was exported with another plan than plan.json; "
                "copy the bundle again or export anew"
            )
        if sorted(engine.inputs) != sorted(self.manifest.inputs):
            raise UserError(
                f"{path} has the inputs {', '.join(engine.inputs)}, the manifest says "
                f"{', '.join(self.manifest.inputs)}; export anew"
            )
        if engine.names != self.task.OUTPUTS:
            raise UserError(
                f"{path} has the outputs {', '.join(engine.names)}, the task "
                f"{', '.join(self.task.OUTPUTS)}; export anew"
            )
        told = len(labels) if labels else 1 if self.task.NAME in ("regress", "rank") else None
        outputs = engine.outputs or told
        if outputs is None or told not in (None, outputs):
            raise UserError(
                f"{path} has {engine.outputs} outputs, the manifest {told}; export anew"
            )
        return outputs


def batches(lengths: Sequence[int], budget: int) -> Iterator[np.ndarray]:
    """Row numbers of each batch: like lengths together, the longest first, `budget` live tokens.

    Padding costs only inside attention, but there it costs memory by the square of the length: one
    long text among a hundred short ones would take gigabytes, so the padded batch has a limit too.
    """
    order = np.argsort([-length for length in lengths], kind="stable")
    start = live = 0
    for end, i in enumerate(order):
        live += lengths[i]
        padded = (end + 1 - start) * lengths[order[start]]
        if end > start and (live > budget or padded > PADDED * budget):
            yield order[start:end]
            start, live = end, lengths[i]
    if start < len(order):
        yield order[start:]


def _engine(
    runtime: str, path: Path, threads: int | None, providers: Sequence[str] | None
) -> Engine:
    if runtime == "onnx":
        return OnnxRuntime(path, threads=threads, providers=providers)
    if runtime != "openvino":
        raise UserError(f"runtime {runtime!r} is not known; use onnx or openvino")
    if providers is not None:
        raise UserError("providers belong to the runtime onnx; leave them out with openvino")
    return OpenVino(path, threads=threads)


def some(texts: Iterator[Any]) -> list[Any]:
    """The next texts, few enough for the memory."""
    given: list[Any] = []
    size = 0
    for one in texts:
        given.append(one)
        parts = one if isinstance(one, tuple | list) else [one]
        size += sum(map(_size, parts))
        if len(given) == AHEAD or size >= AHEAD_SIZE:
            break
    return given


def _size(part: Any) -> int:
    if isinstance(part, str | bytes):
        return len(part)
    if isinstance(part, np.ndarray):
        return part.nbytes
    width, height = getattr(part, "size", None) or (0, 0)  # of a Pillow image
    return 3 * width * height


def _iterate(texts: Iterable[Given]) -> Iterator[Any]:
    # else it would be run letter by letter
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError('give a list of texts, not one: run(["a text"])')
    return iter(texts)
