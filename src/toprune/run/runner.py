"""Texts in, logits out: a bundle's ONNX file with everything that must be right around it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from toprune.errors import UserError
from toprune.plan import Plan
from toprune.run.engines import Engine, OnnxRuntime, OpenVino
from toprune.run.sheet import GRAPHS, Precision, Sheet
from toprune.run.texts import Row, Text, Texts
from toprune.tasks import TASKS, regress

WINDOW = 2048  # texts that are read ahead and sorted by length: all that is ever in memory
PADDED = 2  # a batch, padding included, is at most so many times its token budget


class Runner:
    """Runs an exported bundle with onnxruntime, tokenizers and numpy: no torch in the process.

    One Runner serves any number of threads. `threads` are those of one call (None: every core);
    who calls from many threads at a time is best served with threads=1. `batch_tokens` counts live
    tokens: the graph's linear layers do not see padding.
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
        self.sheet = Sheet.load(bundle)
        limit = self.sheet.max_length
        if max_length is not None and not 1 <= max_length <= limit:
            raise UserError(
                f"a maximum length of {max_length} is not in 1 to {limit}, what the file was "
                "exported and checked for; use less, or export anew"
            )
        graph = GRAPHS[precision]
        self.sheet.verify(bundle, graph)
        self.plan = Plan.load(bundle / "plan.json")
        self.batch_tokens = batch_tokens
        self._texts = Texts(
            bundle / "tokenizer.json",
            max_length=max_length or limit,
            inputs=self.sheet.inputs,
            pad_token_id=self.sheet.pad_token_id,
        )
        self._engine = _engine(runtime, bundle / graph, threads, providers)
        self.outputs = self._check_engine(bundle / graph)

    def __call__(self, texts: Iterable[Text]) -> np.ndarray:
        """(N, C) logits, in the order of the texts; a pair is a tuple."""
        none = np.zeros((0, self.outputs), np.float32)
        return np.concatenate([none, *self._windows(_iterate(texts))])

    def predict(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
        """A label and its probability for each text, or a value where the task is regression."""
        return self.answers(self(texts))

    def stream(self, texts: Iterable[Text]) -> Iterator[np.ndarray]:
        """The logits (C,) of each text, in order; reads at most a window ahead, so that memory does
        not grow with the number of texts."""
        windows = self._windows(_iterate(texts))
        return (row for window in windows for row in window)

    def answers(self, logits: np.ndarray) -> list[dict[str, Any]]:
        """What logits (N, C) mean. A label is a name, or the class id if the head has no names."""
        task, names = TASKS[self.sheet.task], self.sheet.labels
        chosen = task.predict(logits)  # (N,)
        if task is regress:
            return [{"value": float(value)} for value in chosen]
        weights = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float64)
        scores = weights.max(-1) / weights.sum(-1)  # (N,): softmax of the chosen class
        return [
            {"label": int(i) if names is None else names[i], "score": float(score)}
            for i, score in zip(chosen, scores, strict=True)
        ]

    def _windows(self, texts: Iterator[Any]) -> Iterator[np.ndarray]:
        first = 0
        while window := list(islice(texts, WINDOW)):
            yield self._logits(self._texts.encode(window, first), first)
            first += len(window)

    def _logits(self, rows: list[Row], first: int) -> np.ndarray:
        """(n, C) of one window."""
        logits = np.empty((len(rows), self.outputs), np.float32)
        for chosen in batches([len(row) for row in rows], self.batch_tokens):
            answer = self._engine.run(self._texts.batch([rows[i] for i in chosen]))
            if answer.shape != (len(chosen), self.outputs):  # numpy would stretch it
                raise UserError(f"the graph gives logits of shape {answer.shape}; export anew")
            logits[chosen] = answer
        bad = np.flatnonzero(~np.isfinite(logits).all(-1))
        if len(bad):
            raise UserError(
                f"the model's answer to texts[{first + bad[0]}] is not a number (NaN or infinite); "
                "check the weights, or try the other precision"
            )
        return logits

    def _check_engine(self, path: Path) -> int:
        """The graph must be of this plan and of this sheet; gives the number of its outputs."""
        engine, labels = self._engine, self.sheet.labels
        if engine.plan is None or Plan.from_json(engine.plan) != self.plan:
            raise UserError(
                f"{path} was exported with another plan than plan.json; "
                "copy the bundle again or export anew"
            )
        if sorted(engine.inputs) != sorted(self.sheet.inputs):
            raise UserError(
                f"{path} has the inputs {', '.join(engine.inputs)}, the sheet says "
                f"{', '.join(self.sheet.inputs)}; export anew"
            )
        told = len(labels) if labels else 1 if self.sheet.task == regress.NAME else None
        outputs = engine.outputs or told
        if outputs is None or told not in (None, outputs):
            raise UserError(f"{path} has {engine.outputs} outputs, the sheet {told}; export anew")
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


def _iterate(texts: Iterable[Text]) -> Iterator[Any]:
    if isinstance(texts, str | bytes):  # else it would be run letter by letter
        raise UserError('give a list of texts, not one: run(["a text"])')
    return iter(texts)
