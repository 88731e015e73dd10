"""Which tokens of a text left, in which layer and with what score, and whether it mattered.

The bundle's own torch model runs with its plan attached and is watched. Then the same text is read
with every token kept: by the same weights, or by the original dense model where that is given.
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
from toprune.io.progress import bar
from toprune.models.families import has_segments, max_positions
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attach_policy, attached, detach
from toprune.pruning.execution import Run
from toprune.pruning.policies import Drop, Follow
from toprune.pruning.predictor import predictors_of
from toprune.pruning.tokens import Tokens, order, ranks
from toprune.tasks import Task
from toprune.tasks.classify import class_names
from toprune.tasks.tokenize import Row, Texts
from toprune.training.evaluation import finite

SOME = 16  # rows that nobody waits for
SAME_WEIGHTS = "the same weights with every token kept"


def explain(
    bundle: str | Path, texts: Sequence[Any], *, dense: str | Path | None = None
) -> Explained:
    """What became of every token of each text (a pair is a tuple; of the task tokens a list of
    words, or words with blanks between). dense: the directory of the original model, to predict
    beside the pruned one; without it the pruned model's own weights do, with every token kept."""
    return explained(Bundle.load(bundle), str(bundle), texts, dense=dense)


def explained(
    own: Bundle, name: str, texts: Sequence[Any], *, dense: str | Path | None = None
) -> Explained:
    """The same of a bundle that is loaded; it is told of by its name."""
    plan = check_plan(own, name)
    texts = [as_words(text) if own.task.READS.words else text for text in texts]
    reading = Reading(own, texts)
    windows, pruned = _watched(own, plan, reading)
    if dense is None:
        whole, read = own, reading
    else:
        whole = Bundle.load(dense, own.task.NAME)
        read = Reading(whole, texts)
    said = [_outputs(whole.model, whole.task, batch) for batch in read.batches("reading it all")]
    answers = _answers(own, pruned, reading), _answers(whole, said, read)
    found = [
        Explanation(
            parts=_parts(text),
            windows=tuple(w for w, row in zip(windows, reading.rows, strict=True) if row.text == i),
            pruned=one,
            dense=other,
            cosine=_cosine(one, other),
        )
        for i, (text, one, other) in enumerate(zip(texts, *answers, strict=True))
    ]
    return Explained(
        bundle=name,
        task=own.task.NAME,
        layers=plan.n_layers,
        score=plan.score,
        drops=tuple(step.layer for step in plan.steps),
        dense=SAME_WEIGHTS if dense is None else f"the model in {dense}",
        texts=tuple(found),
    )


def check_plan(bundle: Bundle, folder: str | Path) -> Plan:
    if bundle.plan is None:
        raise UserError(f"{folder} has no plan.json: nothing leaves; give what toprune prune wrote")
    return bundle.plan


class Reading:
    """Texts as a bundle reads them, with the spelling of every token."""

    def __init__(self, bundle: Bundle, texts: Sequence[Any]):
        if isinstance(bundle.tokenizer, Images):
            raise UserError("explain shows texts; this is a model of images")
        tokenizer, config = bundle.tokenizer, bundle.model.config
        names, most = ["input_ids", "attention_mask"], max_positions(config)
        if has_segments(config) and "token_type_ids" in tokenizer.model_input_names:
            names.append("token_type_ids")
        self._reader = Spelled(
            Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
            bundle.task,
            max_length=min(most, bundle.report.get("max_length") or most),
            inputs=names,
            pad_token_id=tokenizer.pad_token_id or 0,
            side=tokenizer.truncation_side,
        )
        self.texts = texts
        self.rows: list[Row] = self._reader.encode(texts)
        self.spelled = self._reader.spelled

    def batches(self, label: str) -> Iterator[dict[str, Tensor]]:
        """One row each: nothing is padded, and nobody waits long for a few texts."""
        waits = bar(label, len(self.rows)) if len(self.rows) > SOME else nullcontext()
        with waits as advance:
            for row in self.rows:
                batch = self._reader.batch([row])
                yield {name: torch.from_numpy(x) for name, x in batch.items()}  # (1, n)
                if advance is not None:
                    advance()


class Spelled(Texts):
    """Keeps what the tokenizer says of every row beside its ids: names and characters."""

    def __init__(self, tokenizer: Tokenizer, task: Task, **how: Any):
        super().__init__(tokenizer, task, **how)
        self.spelled: list[Encoding] = []

    def _encode(self, chunk: Sequence[Any]) -> list[Encoding]:
        if self._words or self._stride is not None:
            return super()._encode(chunk)
        return self._tokenizer.encode_batch(chunk)  # the fast way forgets where tokens stand

    def _row(self, encoding: Encoding, text: int, begun: dict[int, Any]) -> Row:
        if len(encoding.tokens) != len(encoding.ids):
            raise UserError("tokenizer.json has special tokens without names; use the model's own")
        self.spelled.append(encoding)
        return super()._row(encoding, text, begun)


class Watch(Follow):
    """Follows a plan and remembers what tokens were ranked by, and who was merged with whom."""

    def __init__(self, plan: Plan, model: Any):
        super().__init__(plan, predictors=predictors_of(model))
        self.ranked: list[tuple[int, Tokens, Tensor]] = []  # layer, who, scores (B, K)
        self.merged: list[tuple[int, Tokens, Drop]] = []  # layer, who, and where they went

    def begin(self) -> None:
        super().begin()
        self.ranked, self.merged = [], []

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        found = super().scores(layer, state, received, tokens)
        self.ranked.append((layer, tokens, found))
        return found

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        drop = super().decide(layer, state, received, tokens)
        if drop is not None and drop.place is not None:
            self.merged.append((layer, tokens, drop))
        return drop


def watch(model: Any, plan: Plan) -> Watch:
    """Attach the plan, to be watched; `detach` ends it."""
    attach(model.eval(), plan)  # which refuses a plan that does not fit
    policy = Watch(plan, model)
    attach_policy(model, policy)
    return policy


def _watched(bundle: Bundle, plan: Plan, reading: Reading) -> tuple[list[Window], list[np.ndarray]]:
    policy = watch(bundle.model, plan)
    windows: list[Window] = []
    outputs: list[np.ndarray] = []
    try:
        batches = reading.batches("reading pruned")
        for batch, row, spelled in zip(batches, reading.rows, reading.spelled, strict=True):
            outputs.append(_outputs(bundle.model, bundle.task, batch))
            run = attached(bundle.model)
            assert run is not None
            words = reading.texts[row.text] if bundle.task.READS.words else None
            windows.append(_window(run, policy, spelled, words))
    finally:
        detach(bundle.model)
    return windows, outputs


def _window(run: Run, policy: Watch, spelled: Encoding, words: list[str] | None) -> Window:
    """After a pass over one row."""
    alive = [tokens.index[0][tokens.alive[0]].tolist() for tokens in run.entered]
    last = {i: layer for layer, there in enumerate(alive) for i in there}
    start = run.entered[0]
    rankings: dict[int, list[Ranking]] = {i: [] for i in last}
    for layer, tokens, scores in policy.ranked:
        place = ranks(order(scores, tokens))[0].tolist()
        for i, score, rank in zip(tokens.index[0].tolist(), scores[0].tolist(), place, strict=True):
            rankings[i].append(Ranking(layer, score, rank))
    into: dict[int, int] = {}
    for _, tokens, drop in policy.merged:
        assert drop.place is not None
        stands = drop.tokens.index[0].tolist()
        for i, place in zip(tokens.index[0].tolist(), drop.place[0].tolist(), strict=True):
            if place < len(stands) and stands[place] != i:  # else it stands, or goes nowhere
                into[i] = stands[place]
    held = start.protected[0].tolist()
    tokens = (
        replace(
            token, last=last[i], protected=held[i], rankings=tuple(rankings[i]), into=into.get(i)
        )
        for i, token in enumerate(_spell(spelled, words))
    )
    return Window(tuple(tokens), tuple(map(len, alive)))


def _spell(spelled: Encoding, words: list[str] | None) -> list[Token]:
    """The tokens of a row by name and place. words: of a text that is a list of them, whose
    characters the tokenizer counts anew in each."""
    begins = np.cumsum([0, *(len(word) + 1 for word in words or ())])
    found: list[Token] = []
    for name, (start, end), part, word in zip(
        spelled.tokens, spelled.offsets, spelled.sequence_ids, spelled.word_ids, strict=True
    ):
        more = int(begins[word]) if words is not None and word is not None else 0
        found.append(Token(name, part, start + more, end + more, last=0, protected=False))
    return found


def _outputs(model: Any, task: Task, batch: dict[str, Tensor]) -> np.ndarray:
    """(C,), or (n, C) of a head that answers by token; as attached."""
    with torch.inference_mode():
        said = task_outputs(model.eval(), task, batch)[0][0].numpy(force=True)
    return finite(said, "the text")


def _answers(bundle: Bundle, outputs: list[np.ndarray], read: Reading) -> list[dict[str, Any]]:
    names = class_names(bundle.model.config)
    labels = None if names is None else tuple(names)
    return bundle.task.predictions(outputs, read.rows, read.texts, labels)


def _parts(text: Any) -> tuple[str, ...]:
    if isinstance(text, list):
        return (" ".join(text),)
    return text if isinstance(text, tuple) else (text,)


def _cosine(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    if "vector" not in one:
        return None
    a, b = np.array(one["vector"]), np.array(other["vector"])
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
