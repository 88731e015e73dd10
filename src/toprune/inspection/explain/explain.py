"""Finds which tokens of a text leave in which layer, with what score, and whether it matters.

The bundle's torch model runs with its plan attached, under a policy that records every decision.
Then the same text is read with every token kept: by the same weights, or by the original dense
model if it is given.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from toprune.bundle.bundle import Bundle
from toprune.data.cells import as_words
from toprune.data.images import Images
from toprune.errors import UserError
from toprune.inspection.explain.explanation import Explained, Explanation, Ranking, Token, Window
from toprune.io.devices import Device
from toprune.io.progress import bar
from toprune.models.families import has_segments, max_positions
from toprune.models.heads import task_outputs
from toprune.plan.budget import Budget
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attach_policy, attached, detach
from toprune.pruning.execution import Run
from toprune.pruning.policies import Drop, Follow
from toprune.pruning.predictor import predictors_of
from toprune.pruning.tokens import Tokens, order, ranks
from toprune.tasks import Task
from toprune.tasks.classify import class_names
from toprune.tasks.tokenize import Row, Texts
from toprune.training.evaluation import check_finite

FEW = 16  # rows that are read without a progress bar
SAME_WEIGHTS = "the same weights with every token kept"


def explain(
    bundle: str | Path,
    texts: Sequence[Any],
    *,
    dense: str | Path | None = None,
    budget: str | Budget | None = None,
    device: Device = "auto",
) -> Explained:
    """Find what becomes of every token of each text.

    Args:
        bundle: the directory that `prune` wrote.
        texts: a pair is a tuple; for the task tokens, a list of words or words with blanks between.
        dense: the directory of the original model, to predict beside the pruned one. Without it
            the pruned model's own weights do that, with every token kept.
        budget: of a bundle with a dial; None: its default.
        device: what runs the models; "auto": a GPU if there is one.
    """
    loaded = Bundle.load(bundle, device=device).at(budget)
    return explain_loaded(loaded, str(bundle), texts, dense=dense, device=device)


def explain_loaded(
    bundle: Bundle,
    name: str,
    texts: Sequence[Any],
    *,
    dense: str | Path | None = None,
    device: Device = "cpu",
) -> Explained:
    """`explain` for a loaded bundle, which is called `name` in the result."""
    plan = check_plan(bundle, name)
    if bundle.task.READS.words:
        texts = [as_words(text) for text in texts]
    reading = Reading(bundle, texts)
    windows, pruned_outputs = _run_pruned(bundle, plan, reading)
    original, dense_reading = bundle, reading
    if dense is not None or bundle.dense is not None:
        original = bundle.dense
        if dense is not None:
            original = Bundle.load(dense, bundle.task.NAME, device=device)
        assert original is not None
        dense_reading = Reading(original, texts)
    dense_outputs = [
        _outputs(original.model, original.task, batch)
        for batch in dense_reading.batches("reading with every token")
    ]
    pruned_answers = _answers(bundle, pruned_outputs, reading)
    dense_answers = _answers(original, dense_outputs, dense_reading)
    fell: list[bool | None] = [None] * len(texts)
    if bundle.fallback is not None:
        below = bundle.fallback.below(bundle.task, pruned_outputs, reading.rows, len(texts))
        fell = list(below.tolist())
    explanations = [
        Explanation(
            parts=_parts(text),
            windows=tuple(w for w, row in zip(windows, reading.rows, strict=True) if row.text == i),
            pruned=pruned_answers[i],
            dense=dense_answers[i],
            cosine=_cosine(pruned_answers[i], dense_answers[i]),
            fell=fell[i],
        )
        for i, text in enumerate(texts)
    ]
    return Explained(
        bundle=name,
        task=bundle.task.NAME,
        layers=plan.n_layers,
        score=plan.score,
        drops=tuple(step.layer for step in plan.steps),
        dense=_dense_name(bundle, dense),
        texts=tuple(explanations),
    )


def _dense_name(bundle: Bundle, dense: str | Path | None) -> str:
    if dense is not None:
        return f"the model in {dense}"
    return SAME_WEIGHTS if bundle.dense is None else "the dense model of the bundle"


def check_plan(bundle: Bundle, folder: str | Path) -> Plan:
    """The plan of a bundle; refuses a dense model."""
    if bundle.plan is None:
        raise UserError(
            f"{folder} has no plan.json, so it drops no tokens; give a directory that "
            "toprune prune wrote"
        )
    return bundle.plan


class Reading:
    """Texts as a bundle reads them, with the name and the characters of every token."""

    def __init__(self, bundle: Bundle, texts: Sequence[Any]):
        if isinstance(bundle.tokenizer, Images):
            raise UserError("explain shows the tokens of texts, but this is a model of images")
        tokenizer, config = bundle.tokenizer, bundle.model.config
        inputs, most = ["input_ids", "attention_mask"], max_positions(config)
        if has_segments(config) and "token_type_ids" in tokenizer.model_input_names:
            inputs.append("token_type_ids")
        self._reader = _RecordingTexts(
            Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
            bundle.task,
            max_length=min(most, bundle.report.get("max_length") or most),
            inputs=inputs,
            pad_token_id=tokenizer.pad_token_id or 0,
            side=tokenizer.truncation_side,
        )
        self.texts = texts
        self.rows: list[Row] = self._reader.encode(texts)
        self.encodings = self._reader.encodings  # of each row

    def batches(self, label: str) -> Iterator[dict[str, Tensor]]:
        """Batches of one row, so that nothing is padded, under a progress bar with this label."""
        progress = bar(label, len(self.rows)) if len(self.rows) > FEW else nullcontext()
        with progress as advance:
            for row in self.rows:
                batch = self._reader.batch([row])
                yield {name: torch.from_numpy(x) for name, x in batch.items()}  # (1, n)
                if advance is not None:
                    advance()


class _RecordingTexts(Texts):
    """Also keeps the tokenizer's encoding of every row: the names and characters of tokens."""

    def __init__(self, tokenizer: Tokenizer, task: Task, **settings: Any):
        super().__init__(tokenizer, task, **settings)
        self.encodings: list[Encoding] = []

    def _encode(self, chunk: Sequence[Any]) -> list[Encoding]:
        if self._words or self._stride is not None:
            return super()._encode(chunk)
        return self._tokenizer.encode_batch(chunk)  # the fast way loses the offsets

    def _row(self, encoding: Encoding, text: int, starts: dict[int, Any]) -> Row:
        if len(encoding.tokens) != len(encoding.ids):
            raise UserError(
                "tokenizer.json has special tokens without names; use the file that was saved with "
                "the model"
            )
        self.encodings.append(encoding)
        return super()._row(encoding, text, starts)


class Recorder(Follow):
    """Follows a plan and records the scores that rank tokens, and which tokens are merged."""

    def __init__(self, plan: Plan, model: Any):
        super().__init__(plan, predictors=predictors_of(model))
        self.ranked: list[tuple[int, Tokens, Tensor]] = []  # layer, tokens, scores (B, K)
        self.merged: list[tuple[int, Tokens, Drop]] = []  # layer, tokens, where they went

    def begin(self) -> None:
        super().begin()
        self.ranked, self.merged = [], []

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        scores = super().scores(layer, state, received, tokens)
        self.ranked.append((layer, tokens, scores))
        return scores

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        drop = super().decide(layer, state, received, tokens)
        if drop is not None and drop.place is not None:
            self.merged.append((layer, tokens, drop))
        return drop


def attach_recorder(model: Any, plan: Plan) -> Recorder:
    """Attach the plan with a policy that records what it does; `detach` ends it."""
    attach(model.eval(), plan)  # refuses a plan that does not fit
    recorder = Recorder(plan, model)
    attach_policy(model, recorder)
    return recorder


def _run_pruned(
    bundle: Bundle, plan: Plan, reading: Reading
) -> tuple[list[Window], list[np.ndarray]]:
    recorder = attach_recorder(bundle.model, plan)
    windows: list[Window] = []
    outputs: list[np.ndarray] = []
    try:
        batches = reading.batches("reading with the plan")
        for batch, row, encoding in zip(batches, reading.rows, reading.encodings, strict=True):
            outputs.append(_outputs(bundle.model, bundle.task, batch))
            run = attached(bundle.model)
            assert run is not None
            words = reading.texts[row.text] if bundle.task.READS.words else None
            windows.append(_window(run, recorder, encoding, words))
    finally:
        detach(bundle.model)
    return windows, outputs


def _window(run: Run, recorder: Recorder, encoding: Encoding, words: list[str] | None) -> Window:
    """What a pass over one row did."""
    alive = [tokens.index[0][tokens.alive[0]].tolist() for tokens in run.entered]
    last = {i: layer for layer, indices in enumerate(alive) for i in indices}
    rankings: dict[int, list[Ranking]] = {i: [] for i in last}
    for layer, tokens, scores in recorder.ranked:
        indices, row_scores = tokens.index[0].tolist(), scores[0].tolist()
        row_ranks = ranks(order(scores, tokens))[0].tolist()
        for i, score, rank in zip(indices, row_scores, row_ranks, strict=True):
            rankings[i].append(Ranking(layer, score, rank))
    into: dict[int, int] = {}
    for _, tokens, drop in recorder.merged:
        assert drop.place is not None
        kept = drop.tokens.index[0].tolist()
        for i, place in zip(tokens.index[0].tolist(), drop.place[0].tolist(), strict=True):
            if place < len(kept) and kept[place] != i:  # else it is kept itself, or dropped
                into[i] = kept[place]
    protected = run.entered[0].protected[0].tolist()
    tokens = (
        replace(
            token,
            last=last[i],
            protected=protected[i],
            rankings=tuple(rankings[i]),
            into=into.get(i),
        )
        for i, token in enumerate(_tokens(encoding, words))
    )
    return Window(tuple(tokens), tuple(map(len, alive)))


def _tokens(encoding: Encoding, words: list[str] | None) -> list[Token]:
    """The tokens of a row by name and place. words: of a text that is a list of them; the
    tokenizer counts characters from the start of each word."""
    begins = np.cumsum([0, *(len(word) + 1 for word in words or ())])
    tokens: list[Token] = []
    for name, (start, end), part, word in zip(
        encoding.tokens, encoding.offsets, encoding.sequence_ids, encoding.word_ids, strict=True
    ):
        shift = int(begins[word]) if words is not None and word is not None else 0
        tokens.append(Token(name, part, start + shift, end + shift, last=0, protected=False))
    return tokens


def _outputs(model: Any, task: Task, batch: dict[str, Tensor]) -> np.ndarray:
    """(C,), or (n, C) where the head answers by token."""
    with torch.inference_mode():
        logits = task_outputs(model.eval(), task, batch)[0][0].numpy(force=True)
    return check_finite(logits, "the text")


def _answers(bundle: Bundle, outputs: list[np.ndarray], reading: Reading) -> list[dict[str, Any]]:
    names = class_names(bundle.model.config)
    labels = None if names is None else tuple(names)
    return bundle.task.predictions(outputs, reading.rows, reading.texts, labels)


def _parts(text: Any) -> tuple[str, ...]:
    if isinstance(text, list):
        return (" ".join(text),)
    return text if isinstance(text, tuple) else (text,)


def _cosine(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    if "vector" not in one:
        return None
    a, b = np.array(one["vector"]), np.array(other["vector"])
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
