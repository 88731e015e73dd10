"""Texts or images in, answers out: a bundle's ONNX file and all that must be right around it."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from toprune.errors import UserError
from toprune.plan.plan import Plan
from toprune.run.dial import Asked, Settings
from toprune.run.encoded import Encoded, encode, read_rows
from toprune.run.engines import Runtime, open_engine, providers_on
from toprune.run.fallback import (
    Counter,
    SafetyNet,
    check_partner,
    dense_precision,
    has_dense,
    has_fallback,
    read_fallback,
)
from toprune.run.manifest import GRAPHS, Manifest, Precision
from toprune.run.reader import Reader, open_reader
from toprune.tasks.fallback import DENSE, Fallback
from toprune.tasks.tokenize import Row, Text

AHEAD = 2048  # texts that are read ahead and sorted by length: all that is ever in memory,
AHEAD_SIZE = 1 << 23  # or fewer, when these are so many characters, or bytes of pixels
PADDED = 2  # a batch, padding included, is at most so many times its token budget

# A text, or an image: a path, the bytes of a file, Pillow's, or (height, width, 3) of uint8.
Input = Text | Any


class Runner:
    """Runs an exported bundle with onnxruntime, tokenizers and numpy: no torch in the process.

    Any number of threads may use one Runner. A bundle for images takes images wherever a method
    takes texts: paths, Pillow images, or arrays (height, width, 3) of uint8.
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        precision: Precision = "fp32",
        threads: int | None = None,
        runtime: Runtime = "onnx",
        providers: Sequence[str] | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        max_length: int | None = None,
        batch_tokens: int = 2048,
        dense: str | Path | None = None,
        fallback: bool = True,
        budget: Asked = None,
    ):
        """Load a bundle and check that its files belong together.

        Args:
            bundle: the directory that `prune` wrote and `export` completed.
            precision: "fp32", or "int8" if the bundle was exported with it.
            threads: threads of one call; None: one for each core. Use 1 if many threads call.
            runtime: what executes the graph; "openvino" has an int8 file of its own, if exported.
            providers: execution providers of onnxruntime; None: those of the device.
            device: "cuda" for a GPU; it needs onnxruntime-gpu.
            max_length: tokens of a text, at most the bundle's own limit, which is the default.
            batch_tokens: live tokens per batch; the graph's linear layers skip the padding.
            dense: the directory of the dense model, exported too, for `rank` to rescore with; None:
                the one in the bundle, if there is one.
            fallback: load the dense model of a bundle that has one. In a bundle with a fallback, it
                answers the texts that the pruned model is not sure of.
            budget: of a bundle with a dial, any within its range; None: the bundle's default.
        """
        bundle = Path(bundle)
        if precision not in GRAPHS:
            raise UserError(f"precision {precision!r} is not known; use {' or '.join(GRAPHS)}")
        if batch_tokens < 1 or (threads is not None and threads < 1):
            raise UserError("threads and batch_tokens must be 1 or more")
        self.manifest = Manifest.load(bundle)
        limit = self.manifest.max_length
        if max_length is not None and not 1 <= max_length <= limit:
            raise UserError(
                f"a maximum length of {max_length} is not in 1 to {limit}, the range that the "
                "export checked; use less, or export the bundle again"
            )
        graph = self.manifest.graph(precision, runtime)
        self.manifest.verify(bundle, graph)
        self.plan = Plan.load(bundle / "plan.json")
        self.batch_tokens, self.max_length = batch_tokens, max_length or limit
        self.task = self.manifest.build_task()
        self._reader: Reader = open_reader(bundle, self.manifest, self.max_length)
        if providers is None and device != "cpu":
            providers = providers_on(device)
        self._engine = open_engine(runtime, bundle / graph, threads, providers)
        self.outputs = self._check_engine(bundle / graph)
        self._counter = Counter()
        self._settings = Settings(bundle, self.manifest, self.plan, self._engine)
        self.plan, self._keep = self._settings.turn(budget)
        self._dense: Runner | None = None
        self.net: SafetyNet | None = None
        how: Any = {"threads": threads, "runtime": runtime, "providers": providers}
        how |= {"batch_tokens": batch_tokens, "fallback": False}
        if dense is None and fallback and has_fallback(bundle, self.manifest):
            chosen = read_fallback(bundle, self.manifest)
            partner = Manifest.load(bundle / DENSE)
            check_partner(bundle, self.manifest, partner)
            how["precision"] = dense_precision(partner, precision, runtime)
            net = Runner(bundle / DENSE, max_length=max_length, **how)
            self.net = SafetyNet(chosen, self.task, partner, net._outputs)
        elif dense is None and fallback and self.task.RANKS and has_dense(bundle, self.manifest):
            dense = bundle / DENSE
        if dense is not None:
            self._dense = Runner(dense, **how)
            if self._dense.task.NAME != self.task.NAME:
                raise UserError(
                    f"the dense model {dense} is for the task {self._dense.task.NAME}, the bundle "
                    f"for {self.task.NAME}; give the model that was pruned"
                )

    def at(self, budget: Asked) -> "Runner":
        """Return a Runner of the same loaded file at another budget of its dial; None: this one."""
        if budget is None:
            return self
        other = copy(self)
        other.plan, other._keep = self._settings.turn(budget)
        return other

    def __call__(self, texts: Iterable[Input], *, budget: Asked = None) -> Any:
        """Run the model on texts.

        Args:
            texts: texts, or pairs of texts as tuples.
            budget: of this call, see `at`; the other methods have it, too.

        Returns:
            Logits or vectors (N, C) in the order of the texts. If the head answers by token, a list
            with an array (n, C) for each row that the model read.
        """
        run = self.at(budget)
        if self.task.BY_TOKEN:
            return [row for _, _, outputs, _ in run._chunks(_iterate(texts)) for row in outputs]
        none = np.zeros((0, self.outputs), np.float32)
        return np.concatenate([none, *run._by_text(_iterate(texts))])

    def predict(self, texts: Iterable[Input], *, budget: Asked = None) -> list[dict[str, Any]]:
        """Answer texts as the task does.

        Args:
            texts: texts, or pairs of texts as tuples.

        Returns:
            One dict per text, with `label` and `score`, `value`, `labels`, `answer`, `tags` or
            `vector`. A label is a name, or the class id if the head has no names. In a bundle with
            a fallback, also `fallback`: whether the dense model gave the answer.
        """
        return list(self.at(budget).predictions(texts))

    def predictions(
        self, texts: Iterable[Input], *, first: int = 0, budget: Asked = None
    ) -> Iterator[dict[str, Any]]:
        """Answer texts one by one, in memory that does not grow with their number.

        Args:
            texts: texts, or pairs of texts as tuples; they are read only a little ahead.
            first: number of the first text, for errors that name one.

        Returns:
            The answers of `predict`, in the order of the texts.
        """
        return (answer for answer, _ in self.at(budget).answers(texts, first=first))

    def encode(self, texts: Iterable[Input]) -> list[Encoded]:
        """Tokenize texts that run later; every method takes the results in place of texts."""
        return encode(self._reader, list(_iterate(texts)))

    def answers(
        self, texts: Iterable[Input], *, first: int = 0
    ) -> Iterator[tuple[dict[str, Any], np.ndarray | None]]:
        """Do the same as `predictions`, with the logits or the vector (C,) of each text beside its
        answer; None if the head answers by token."""
        for chunk, rows, outputs, fell in self._chunks(_iterate(texts), first):
            answers = self.task.predictions(outputs, rows, chunk, self.manifest.labels)
            if fell is not None:
                pairs = zip(answers, fell.tolist(), strict=True)
                answers = [answer | {"fallback": by_dense} for answer, by_dense in pairs]
            logits: Iterable[np.ndarray | None] = [None] * len(chunk)
            if not self.task.BY_TOKEN:
                logits = self.task.by_text(outputs, rows, len(chunk))
            yield from zip(answers, logits, strict=True)

    def rank(
        self, query: str, documents: Iterable[str], *, rescore: int = 0, budget: Asked = None
    ) -> list[dict[str, Any]]:
        """Order documents by how well they answer a query.

        Args:
            query: the first text of every pair.
            documents: the second texts.
            rescore: so many of the best documents are scored again by the dense model. They stay
                above the others; scores of two models are never compared.

        Returns:
            One dict per document, best first: `document`, its number from 0; `score`; and
            `rescored`, whether the score is the dense model's. Equal scores keep their order.
        """
        if not self.task.RANKS:
            raise UserError(f"the task {self.task.NAME} orders no documents; use predict(texts)")
        if rescore < 0 or (rescore and self._dense is None):
            raise UserError(
                f"rescore={rescore} needs 0 or more documents and a dense model; open the bundle "
                'with Runner("pruned/", dense="dense/")'
            )
        pairs = [(query, document) for document in _iterate(documents)]
        ordered = self.at(budget)._ordered(pairs, range(len(pairs)))
        if not rescore or self._dense is None:
            return ordered
        best = self._dense._ordered(pairs, sorted(one["document"] for one in ordered[:rescore]))
        return [one | {"rescored": True} for one in best] + ordered[rescore:]

    def _ordered(
        self, pairs: Sequence[tuple[str, str]], chosen: Sequence[int]
    ) -> list[dict[str, Any]]:
        """The chosen pairs, best first: by logits, because high scores may round to one number."""
        logits: list[float] = []
        scores: list[float] = []
        for chunk, rows, outputs, _ in self._chunks(iter([pairs[i] for i in chosen])):
            logits += self.task.by_text(outputs, rows, len(chunk))[:, 0].tolist()
            scores += [one["score"] for one in self.task.predictions(outputs, rows, chunk, None)]
        order = sorted(range(len(chosen)), key=lambda i: -logits[i])
        return [{"document": chosen[i], "score": scores[i], "rescored": False} for i in order]

    def stream(self, texts: Iterable[Input], *, budget: Asked = None) -> Iterator[np.ndarray]:
        """Run the model on texts one by one, in memory that does not grow with their number.

        Args:
            texts: texts, or pairs of texts as tuples; they are read only a little ahead.

        Returns:
            The logits or the vector (C,) of each text, in order.
        """
        if self.task.BY_TOKEN:
            raise UserError(f"the task {self.task.NAME} answers by token; use predictions(texts)")
        return (row for part in self.at(budget)._by_text(_iterate(texts)) for row in part)

    def read(self, texts: Iterable[Input]) -> Iterator[tuple[Row, np.ndarray]]:
        """Run the model on texts, for metrics.

        Args:
            texts: texts, or pairs of texts as tuples.

        Returns:
            Every row that the model reads, with its output (C,) or (n, C). A long text may have
            several rows.
        """
        first = 0
        for chunk, rows, outputs, _ in self._chunks(_iterate(texts)):
            for row, output in zip(rows, outputs, strict=True):
                yield replace(row, text=first + row.text), output
            first += len(chunk)

    @property
    def fallback(self) -> Fallback | None:
        """The fallback that is in use."""
        return None if self.net is None else self.net.fallback

    def stats(self) -> dict[str, Any]:
        """How many `texts` were read since the bundle was opened, how many of these the dense model
        answered (`fallbacks`), and their `share`."""
        return self._counter.stats()

    def _by_text(self, texts: Iterator[Any]) -> Iterator[np.ndarray]:
        """(n, C) for each chunk of texts."""
        for chunk, rows, outputs, _ in self._chunks(texts):
            yield self.task.by_text(outputs, rows, len(chunk))

    def _chunks(
        self, texts: Iterator[Any], first: int = 0
    ) -> Iterator[tuple[list[Any], list[Row], list[np.ndarray], np.ndarray | None]]:
        """Texts, their rows, the output of each row, and which texts fell back, where there is a
        fallback; a chunk at a time."""
        while chunk := take_chunk(texts):
            plain, rows = read_rows(self._reader, chunk, first)
            outputs, fell = self._outputs(rows, first), None
            if self.net is not None:
                fell = self.net.catch(outputs, rows, len(chunk), first)
            self._counter.add(len(chunk), 0 if fell is None else int(fell.sum()))
            yield plain, rows, outputs, fell
            first += len(chunk)

    def _outputs(self, rows: list[Row], first: int) -> list[np.ndarray]:
        """(C,) for each row, or (n, C) if the head answers by token."""
        outputs: list[np.ndarray] = [np.empty(0)] * len(rows)
        for chosen in batches([len(row) for row in rows], self.batch_tokens):
            feeds = self._reader.batch([rows[i] for i in chosen])
            output = self._engine.run(feeds | self._keep)
            self._check_shape(output, len(chosen), max(len(rows[i]) for i in chosen))
            if self.task.POOLS:
                output = self.task.pool(output, feeds["attention_mask"])
            for i, row_output in zip(chosen, output, strict=True):
                outputs[i] = row_output[: len(rows[i])] if self.task.BY_TOKEN else row_output
                if not np.isfinite(outputs[i]).all():
                    raise UserError(
                        f"the model's answer to texts[{first + rows[i].text}] is not a number (NaN "
                        "or infinite); check the weights, or try the other precision"
                    )
        return outputs

    def _check_shape(self, output: np.ndarray, batch: int, length: int) -> None:
        if self.task.reads_all:
            expected = batch, length, self.outputs
        else:
            expected = (batch, 1, self.outputs) if self.task.POOLS else (batch, self.outputs)
        if output.shape != expected:  # numpy would broadcast it
            raise UserError(
                f"the graph gives an answer of shape {output.shape}; export the bundle again"
            )

    def _check_engine(self, path: Path) -> int:
        """Check that the graph fits the plan and the manifest; returns its number of outputs."""
        engine, labels = self._engine, self.manifest.labels
        if engine.plan is None or Plan.from_json(engine.plan) != self.plan:
            raise UserError(
                f"{path} was exported with another plan than plan.json; "
                "copy the bundle again or export it again"
            )
        if sorted(engine.inputs) != sorted(self.manifest.inputs):
            raise UserError(
                f"{path} has the inputs {', '.join(engine.inputs)}, the manifest has "
                f"{', '.join(self.manifest.inputs)}; export the bundle again"
            )
        if engine.names != self.task.OUTPUTS:
            raise UserError(
                f"{path} has the outputs {', '.join(engine.names)}, the task has "
                f"{', '.join(self.task.OUTPUTS)}; export the bundle again"
            )
        expected = len(labels) if labels else self.task.NUM_OUTPUTS
        outputs = engine.outputs or expected
        if outputs is None or expected not in (None, outputs):
            raise UserError(
                f"{path} has {engine.outputs} outputs, the manifest has {expected}; "
                "export the bundle again"
            )
        return outputs


def batches(lengths: Sequence[int], budget: int) -> Iterator[np.ndarray]:
    """Group rows of similar length into batches.

    Padding costs only inside attention, but there it costs memory by the square of the length: one
    long text among a hundred short ones would take gigabytes, so the padded batch has a limit too.

    Args:
        lengths: tokens of each row.
        budget: live tokens of a batch.

    Returns:
        The row numbers of each batch, the longest rows first.
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


def take_chunk(texts: Iterator[Any]) -> list[Any]:
    """The next texts, few enough for the memory."""
    chunk: list[Any] = []
    size = 0
    for text in texts:
        chunk.append(text)
        parts = text if isinstance(text, tuple | list) else [text]
        size += sum(map(_size, parts))
        if len(chunk) == AHEAD or size >= AHEAD_SIZE:
            break
    return chunk


def _size(part: Any) -> int:
    if isinstance(part, str | bytes):
        return len(part)
    if isinstance(part, np.ndarray):
        return part.nbytes
    width, height = getattr(part, "size", None) or (0, 0)  # of a Pillow image
    return 3 * width * height


def _iterate(texts: Iterable[Input]) -> Iterator[Any]:
    # A single string would be read letter by letter.
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError('give a list of texts, not one: run(["a text"])')
    return iter(texts)
