"""The pipelines of transformers over a bundle's ONNX file: the same calls, the same dictionaries.

`pipeline("text-classification", model="pruned/")` needs neither torch nor transformers. Question
answering is here, too; transformers 5 no longer has it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from toprune.errors import UserError
from toprune.integrations.calls import (
    as_list,
    by_text,
    identity,
    open_bundle,
    refuse,
    sigmoid,
    softmax,
)
from toprune.integrations.entities import STRATEGIES, entities, tokens_of
from toprune.run.dial import Asked
from toprune.run.encoded import Encoded
from toprune.run.manifest import Precision
from toprune.run.runner import Runner
from toprune.tasks.tokenize import Row, spaced, word_places

FUNCTIONS = {"sigmoid": sigmoid, "softmax": softmax, "none": identity}
ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}


def pipeline(
    task: str | None = None,
    model: str | Path | None = None,
    *,
    device: Any = None,
    backend: str = "onnx",
    precision: Precision = "fp32",
    threads: int | None = None,
    max_length: int | None = None,
    budget: Asked = None,
    **options: Any,
) -> "Pipeline":
    """Open a bundle as a pipeline.

    Args:
        task: "text-classification", "question-answering", "token-classification" or
            "feature-extraction"; None: the one for the bundle's task.
        model: the bundle's directory, exported.
        device: "cpu", -1 or None.
        backend: "onnx" or "openvino".
        precision, threads, max_length, budget: as for `Runner`.
        options: of every call, such as `top_k` or `aggregation_strategy`.
    """
    if model is None:
        raise UserError('name the bundle: pipeline("text-classification", model="pruned/")')
    run = open_bundle(
        model,
        precision=precision,
        backend=backend,
        threads=threads,
        max_length=max_length,
        budget=budget,
        device=None if device == -1 else device,
    )
    own = _own_task(run)
    asked = own if task is None else ALIASES.get(task, task)
    if asked not in PIPELINES:
        raise UserError(f"there is no pipeline {task!r} here; use one of {', '.join(PIPELINES)}")
    if asked != own:
        raise UserError(f"a bundle of the task {run.task.NAME} is for the pipeline {own!r}")
    return PIPELINES[asked](run, Path(model), options)


class Pipeline:
    """A pipeline over a bundle. Inputs are one text or a list; so are the results."""

    OPTIONS: ClassVar[tuple[str, ...]] = ()  # that a call may have, beside those of all pipelines

    def __init__(self, run: Runner, bundle: Path, options: dict[str, Any]):
        self.runner, self._bundle = run, bundle
        self._defaults = self._known(options)
        self.labels = run.manifest.labels or tuple(f"LABEL_{i}" for i in range(run.outputs))

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        """Answer inputs.

        Args:
            inputs: one input, or several in a list.
            options: those of transformers. `batch_size` limits the texts of a call; the answers do
                not depend on it, nor on `padding`. Long texts are cut or read in windows, as the
                bundle has it, so `truncation=False` is refused.
        """
        if inputs is None:
            raise UserError("give a text or a list of texts")
        options = self._defaults | self._known(options)
        is_single = isinstance(inputs, str | dict)
        answers = self._answers([inputs] if is_single else as_list(inputs), options)
        return answers[0] if is_single else answers

    def _answers(self, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
        raise NotImplementedError

    def _known(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that this pipeline has; refuses the others, if they ask for something."""
        names = {"batch_size", "padding", "truncation", *self.OPTIONS}
        others = {name: value for name, value in options.items() if name not in names}
        refuse(type(self).__name__, others)
        if options.get("truncation") is False:
            raise UserError(f"{type(self).__name__} always cuts long texts; leave truncation out")
        return {name: value for name, value in options.items() if name in names}

    def _rows(
        self, texts: list[Any], options: dict[str, Any]
    ) -> Iterator[tuple[list[Row], list[np.ndarray]]]:
        """Rows and outputs (n, C) of each text, for heads that answer by token."""
        size = options.get("batch_size") or len(texts) or 1
        for start in range(0, len(texts), size):
            chunk = texts[start : start + size]
            rows: list[list[Row]] = [[] for _ in chunk]
            outputs: list[list[np.ndarray]] = [[] for _ in chunk]
            for row, output in self.runner.read(chunk):
                rows[row.text].append(row)
                outputs[row.text].append(output)
            yield from zip(rows, outputs, strict=True)


class TextClassificationPipeline(Pipeline):
    """`label` and `score`; with `top_k` a list of them, best first."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("top_k", "function_to_apply")

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        """Classify texts, or pairs as {"text": ..., "text_pair": ...}.

        Args:
            inputs: one input, or several in a list.
            options: `top_k`, the number of classes (None: all), and `function_to_apply`: "softmax",
                "sigmoid" or "none"; the default is the task's.
        """
        answer = super().__call__(inputs, **options)
        # As in transformers: one text gives a list, unless the call has a `top_k`.
        return [answer] if isinstance(inputs, str) and "top_k" not in options else answer

    def _answers(self, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
        texts = [_pair(one) for one in inputs]
        logits = by_text(
            self.runner, texts, batch_size=options.get("batch_size"), show_progress_bar=False
        )
        scores = self._apply(options.get("function_to_apply"), logits)
        names = np.array(self.labels, object)
        if "top_k" not in options:
            best = scores.argmax(-1)
            pairs = zip(names[best], scores[np.arange(len(scores)), best], strict=True)
            return [{"label": name, "score": float(score)} for name, score in pairs]
        order = np.argsort(-scores, axis=-1, kind="stable")[:, : options["top_k"]]
        return [
            [{"label": names[i], "score": float(row[i])} for i in chosen]
            for row, chosen in zip(scores, order, strict=True)
        ]

    def _apply(self, function: str | None, logits: np.ndarray) -> np.ndarray:
        if function is None:
            if self.runner.task.RANKS:
                return sigmoid(logits)
            probabilities = self.runner.task.probabilities(logits)
            return logits if probabilities is None else probabilities
        if function not in FUNCTIONS:
            raise UserError(f"function_to_apply={function!r}: use one of {', '.join(FUNCTIONS)}")
        return FUNCTIONS[function](logits)


class QuestionAnsweringPipeline(Pipeline):
    """`score`, `start`, `end` and `answer`, as in transformers 4.

    The bundle's task decides how long an answer may be, and whether there may be none.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("top_k", "handle_impossible_answer")

    def __call__(
        self, inputs: Any = None, *, question: Any = None, context: Any = None, **options: Any
    ) -> Any:
        """Answer questions.

        Args:
            inputs: {"question": ..., "context": ...}, or several in a list.
            question, context: in place of `inputs`: a text, or a list of texts.
            options: `top_k`, which is 1 here, and `handle_impossible_answer`, which must be what
                the bundle's task has.

        Returns:
            A dict for one question, else a list. Without an answer, `answer` is "".
        """
        if inputs is None:
            questions = [question] if isinstance(question, str) else as_list(question or ())
            contexts = [context] if isinstance(context, str) else as_list(context or ())
            if len(contexts) == 1:
                contexts *= len(questions)
            if not questions or len(questions) != len(contexts):
                raise UserError("give a context for every question, or one context for all")
            pairs = zip(questions, contexts, strict=True)
            inputs = [{"question": one, "context": other} for one, other in pairs]
        elif isinstance(inputs, dict):
            inputs = [inputs]
        answers = super().__call__(inputs, **options)
        return answers[0] if len(answers) == 1 else answers

    def _answers(self, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
        task: Any = self.runner.task
        if options.get("top_k", 1) != 1:
            raise UserError("this pipeline gives one answer; leave top_k out")
        if options.get("handle_impossible_answer", task.no_answer) != task.no_answer:
            raise UserError(f"the bundle's task has no_answer={task.no_answer}; prune with another")
        pairs = [_fields(one, "question", "context") for one in inputs]
        answers = []
        for pair, (rows, outputs) in zip(pairs, self._rows(pairs, options), strict=True):
            own = [replace(row, text=0) for row in rows]
            (best,) = task.predictions(outputs, own, [pair], None)
            span = (best["start"], best["end"]) if best["answer"] else None
            start, end = span or (0, 0)
            score = span_score(rows, outputs, span)
            answers.append({"score": score, "start": start, "end": end, "answer": best["answer"]})
        return answers


class TokenClassificationPipeline(Pipeline):
    """`entity` or `entity_group`, `score`, `word`, `start` and `end`.

    toprune trains the first piece of every word only, so "first" is the best strategy.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = (
        *("aggregation_strategy", "ignore_labels", "is_split_into_words", "delimiter"),
    )

    def __init__(self, run: Runner, bundle: Path, options: dict[str, Any]):
        super().__init__(run, bundle, options)
        self._tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))  # Runner checked it
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._by_word = spaced(self._tokenizer)

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        """Find the entities of sentences.

        Args:
            inputs: a sentence, or several in a list; with `is_split_into_words`, lists of words.
            options: `aggregation_strategy` ("none", "simple", "first", "max" or "average"),
                `ignore_labels` (["O"]), `is_split_into_words` and `delimiter` (" ").

        Returns:
            A list of entities for each sentence; for one sentence its list.
        """
        merged = self._defaults | options
        words = inputs if isinstance(inputs, list | tuple) else []
        if merged.get("is_split_into_words") and words and isinstance(words[0], str):
            return super().__call__([inputs], **options)
        return super().__call__(inputs, **options)

    def _answers(self, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
        strategy = str(options.get("aggregation_strategy") or "none").lower()
        if strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UserError(f"aggregation_strategy={strategy!r} is not known; use one of {known}")
        ignored = options.get("ignore_labels")
        ignored = ["O"] if ignored is None else ignored
        in_words = bool(options.get("is_split_into_words"))
        tokenizer = self._by_word if in_words else self._tokenizer
        encodings, sentences, starts = [], [], []
        for i, one in enumerate(inputs):
            self._check(one, i, in_words)
            delimiter = options.get("delimiter") or " "
            sentences.append(delimiter.join(one) if in_words else one)
            starts.append(_starts(one, len(delimiter)) if in_words else None)
            encodings.append(tokenizer.encode(one, is_pretokenized=in_words))
        texts = [self._encoded(encoding, i) for i, encoding in enumerate(encodings)]
        answers = []
        for i, (_, (logits,)) in enumerate(self._rows(texts, options)):
            tokens = tokens_of(tokenizer, encodings[i], logits, sentences[i], starts[i])
            found = entities(tokenizer, tokens, self.labels, strategy)
            key = "entity" if strategy == "none" else "entity_group"
            answers.append([entity for entity in found if entity[key] not in ignored])
        return answers

    def _check(self, one: Any, i: int, in_words: bool) -> None:
        words = one if isinstance(one, list | tuple) else None
        if in_words and not (words and all(isinstance(word, str) for word in words)):
            raise UserError(f"inputs[{i}] is not a list of words; leave is_split_into_words out")
        if not in_words and not isinstance(one, str):
            raise UserError(f"inputs[{i}] is not a sentence; for words use is_split_into_words")

    def _encoded(self, encoding: Any, i: int) -> Encoded:
        limit = self.runner.max_length
        if len(encoding.ids) > limit:
            raise UserError(
                f"inputs[{i}] has {len(encoding.ids)} tokens, the bundle reads {limit} at a time; "
                "split it, or use Runner.predict, which reads long texts in windows"
            )
        ids, types = (np.array(x, np.int64) for x in (encoding.ids, encoding.type_ids))
        segments = types if "token_type_ids" in self.runner.manifest.inputs else None
        return Encoded(encoding.tokens, (Row(ids, segments, 0, word_places(encoding, {})),))


class FeatureExtractionPipeline(Pipeline):
    """[[vector]] of a text: as if it had one token, so that a mean or the first token is the vector
    of the text. States of single tokens would have no meaning, because tokens are dropped."""

    def _answers(self, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
        vectors = by_text(
            self.runner, inputs, batch_size=options.get("batch_size"), show_progress_bar=False
        )
        return vectors[:, None, None].tolist()  # (N, 1, 1, D)


PIPELINES: dict[str, type[Pipeline]] = {
    "text-classification": TextClassificationPipeline,
    "question-answering": QuestionAnsweringPipeline,
    "token-classification": TokenClassificationPipeline,
    "feature-extraction": FeatureExtractionPipeline,
}
# Tasks whose tag on the hub is not the name of their pipeline.
TAGS = {"sentence-similarity": "feature-extraction", "text-ranking": "text-classification"}


def _own_task(run: Runner) -> str:
    if run.manifest.images:
        raise UserError("there is no pipeline for images here; use Runner")
    return TAGS.get(run.task.HUB_TAG, run.task.HUB_TAG)


def span_score(rows: list[Row], outputs: list[np.ndarray], span: tuple[int, int] | None) -> float:
    """The probability that transformers gives an answer: of its start times that of its end.

    Args:
        rows: windows of one question.
        outputs: (n, 2) of each.
        span: first and past-the-end character; None: no answer, which the first token stands for.

    Returns:
        The largest over the windows that hold the span; without an answer, the smallest over all.
    """
    scores = []
    for row, logits in zip(rows, outputs, strict=True):
        assert row.places is not None
        starts, ends = row.places.T
        inside = starts >= 0  # tokens of the context
        inside[0] = True
        shares = softmax(np.where(inside, logits.T, -1e4))  # (2, n)
        if span is None:
            scores.append(float(shares[0, 0] * shares[1, 0]))
            continue
        first = np.flatnonzero((starts >= 0) & (starts <= span[0]) & (span[0] < ends))
        last = np.flatnonzero((starts >= 0) & (starts < span[1]) & (span[1] <= ends))
        if len(first) and len(last):
            scores.append(float(shares[0, first[0]] * shares[1, last[-1]]))
    return min(scores) if span is None else max(scores)


def _pair(one: Any) -> Any:
    """A text, or a pair from {"text": ..., "text_pair": ...}."""
    if not isinstance(one, dict):
        return one
    return one["text"] if set(one) == {"text"} else _fields(one, "text", "text_pair")


def _fields(one: Any, first: str, second: str) -> tuple[str, str]:
    if not isinstance(one, dict) or set(one) != {first, second}:
        raise UserError(f'give {{"{first}": ..., "{second}": ...}}')
    return one[first], one[second]


def _starts(words: Any, gap: int) -> list[int]:
    """Where each word begins in the sentence that joins them."""
    lengths = [len(word) + gap for word in words]
    return [0, *np.cumsum(lengths[:-1]).tolist()]
