"""Is the file the model? Its logits against torch over batches and lengths, before it is published.

Two roundings can order two tokens differently whose scores are all but equal; then both runs are
right and differ. So a batch in which some step had to choose between such tokens proves nothing
and is drawn anew; every batch that counts must agree. Nor does one prove anything to which torch
itself, asked with twice the digits, gives another answer: some random texts come out of a layer
norm as nothing but rounding.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.data.images import INPUT
from toprune.errors import UserError
from toprune.export.graph import input_names
from toprune.models.families import family_named, image_shape
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attach_policy, detach
from toprune.pruning.policies import Drop, Follow
from toprune.pruning.predictor import predictors_of
from toprune.pruning.tokens import Tokens, order, take

TOLERANCE = 1e-4  # of logits up to 1; of larger ones, that share
CLOSE = 1e-4  # of a score's spread within its text: nearer ones may change places
SOWN = 0.1  # of random tokens are ids that the plan protects or protects up to
DRAWS = 20  # of a batch, until no choice in it was close

Engine = Callable[[dict[str, np.ndarray]], np.ndarray]
Case = tuple[list[int], int]  # lengths, padded to


class _Watched(Follow):
    """Follows a plan and remembers how close its closest choice was."""

    def begin(self) -> None:
        super().begin()
        self.gap = float("inf")
        self.ranked: Tensor | None = None  # (B, K) scores from best to worst
        self.threshold: float | None = None  # of the step that is being decided

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        scores, threshold = super().scores(layer, state, received, tokens), self.threshold
        told = scores
        if self.plan.score == "predicted":  # odds: a sure token would dwarf what is between others
            told, threshold = scores.log(), None if threshold is None else math.log(threshold)
        free = told.masked_fill(~tokens.alive, torch.nan)
        spread = (free - free.nanmean(1, keepdim=True)).square().nanmean(1, keepdim=True)
        unit = spread.sqrt().clamp_min(1e-12)
        self.ranked = take(told / unit, order(scores, tokens))
        if threshold is not None:
            near = ((told - threshold) / unit).abs().masked_fill(~tokens.alive, torch.inf)
            self.gap = min(self.gap, float(near.min()))
        return scores

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if layer in self.steps:
            self.threshold = self.steps[layer].threshold
        drop = super().decide(layer, state, received, tokens)
        if drop is not None and self.ranked is not None:
            before, after = tokens.alive.sum(1), drop.tokens.alive.sum(1)
            kept = tokens.protected.sum(1)
            for b in torch.nonzero((after < before) & (after > kept)).flatten().tolist():
                k = int(after[b])
                self.gap = min(self.gap, float(self.ranked[b, k - 1] - self.ranked[b, k]))
        return drop


@dataclass(frozen=True)
class Parity:
    batches: int
    worst: float  # difference of logits, in units of TOLERANCE
    redrawn: int  # batches with a choice too close to call, or that are all rounding

    @property
    def difference(self) -> float:
        return self.worst * TOLERANCE


def cases_of(config: Any, max_length: int) -> list[Case]:
    """What is tried: texts of many lengths, or images, of which there is only a number."""
    if family_named(config).images:
        return [([max_length] * batch, max_length) for batch in (1, 2, 5)]
    return shapes(max_length)


def shapes(max_length: int) -> list[Case]:
    """Single, equal and mixed, odd and even, with padding and without."""
    top = max_length
    single = sorted({n for n in (1, 2, 3, 7, 16, 33, top // 2 | 1, top - 1, top) if 1 <= n <= top})
    some = [n for n in (top, max(1, top // 3), 5, 1) if n <= top]
    middle = max(1, min(17, top))
    return [
        *(([n], n) for n in single),
        ([middle], top),
        ([middle] * 3, middle),
        ([middle] * 3, min(middle + 4, top)),
        (some, top),
        (some[::-1], top),
    ]


def check(
    model: Any,
    plan: Plan,
    engine: Engine,
    max_length: int,
    *,
    names: Sequence[str] | None = None,
    outputs: Sequence[str] = ("logits",),
    seed: int = 0,
    cases: list[Case] | None = None,
) -> Parity:
    """Refuse an engine that does not give the outputs of `model` under `plan`, and say where."""
    rng = np.random.default_rng(seed)
    cases = cases or cases_of(model.config, max_length)
    worst, redrawn = 0.0, 0
    for lengths, padded in cases:
        alive = _alive(lengths, padded)
        for left in reversed(range(DRAWS)):
            feeds, wanted, again = _clear_case(model, plan, rng, lengths, padded, names, outputs)
            redrawn += again
            found = engine(feeds)
            if found.shape != wanted.shape or not np.isfinite(found).all():
                finite = np.isfinite(found).all()
                story = f"an answer of shape {found.shape}" if finite else "NaN"
                raise UserError(f"the ONNX file gives {story} for lengths {lengths}; not written")
            off, row = _off(found, wanted, alive)
            if off <= 1 and not _other_answer(found, wanted, alive, outputs):
                worst = max(worst, off)
                break
            if not left or _off(_exact(model, plan, feeds, outputs), wanted, alive)[0] < 0.5:
                raise UserError(
                    f"the ONNX file differs from torch by {off * TOLERANCE:.1e} for a text of "
                    f"{lengths[row]} tokens (batch of lengths {lengths}, padded to {padded}); "
                    "not written; please report this"
                )
            redrawn += 1
    return Parity(len(cases), worst, redrawn)


def _off(found: np.ndarray, wanted: np.ndarray, alive: np.ndarray) -> tuple[float, int]:
    """(largest difference in units of TOLERANCE, the example that has it)"""
    where, told, right = _lines(found, wanted, alive)  # (lines,), (lines, C) twice
    off = np.abs(told - right) / _scale(right) / TOLERANCE
    return float(off.max()), int(where[off.max(1).argmax()])


def _exact(
    model: Any, plan: Plan, feeds: dict[str, np.ndarray], outputs: Sequence[str]
) -> np.ndarray:
    """The outputs in float64, of a copy that is gone afterwards."""
    double = copy.deepcopy(model).double().eval()
    attach(double, plan)
    given = {name: torch.from_numpy(x) for name, x in feeds.items()}
    if INPUT in given:
        given[INPUT] = given[INPUT].double()
    with torch.inference_mode():
        return _joined(double(**given), outputs)


def _joined(out: Any, outputs: Sequence[str]) -> np.ndarray:
    """One array; two outputs are two columns."""
    parts = [getattr(out, name).numpy(force=True) for name in outputs]
    return parts[0] if len(parts) == 1 else np.stack(parts, -1)


def _lines(
    found: np.ndarray, wanted: np.ndarray, alive: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(example of each line, what was found, what was wanted): a line for each example, or for each
    live token where the head answers by token; what it says to padding nobody reads."""
    if wanted.ndim == 3 and wanted.shape[1] == alive.shape[1]:
        return np.nonzero(alive)[0], found[alive], wanted[alive]
    count = len(wanted)
    return np.arange(count), found.reshape(count, -1), wanted.reshape(count, -1)


def _scale(wanted: np.ndarray) -> np.ndarray:
    return np.maximum(1.0, np.abs(wanted).max(1, keepdims=True))


def _other_answer(
    found: np.ndarray, wanted: np.ndarray, alive: np.ndarray, outputs: Sequence[str]
) -> bool:
    """Is another class the best, or another token the best beginning or end of an answer?"""
    if outputs[0] == "logits":
        _, told, right = _lines(found, wanted, alive)
        return _other_best(told, right)
    if len(outputs) == 1:  # vectors have no best
        return False
    return any(
        _other_best(found[b, live].T, wanted[b, live].T) for b, live in enumerate(alive)
    )  # (2, n) each: beginnings and ends


def _other_best(found: np.ndarray, wanted: np.ndarray) -> bool:
    """In some line, where the two best are further apart than rounding."""
    if wanted.shape[1] < 2:
        return False
    best = np.sort(wanted, 1)
    clear = best[:, -1] - best[:, -2] > 2 * TOLERANCE * _scale(wanted)[:, 0]
    return bool(((found.argmax(1) != wanted.argmax(1)) & clear).any())


def _clear_case(
    model: Any,
    plan: Plan,
    rng: np.random.Generator,
    lengths: Sequence[int],
    padded: int,
    names: Sequence[str] | None,
    outputs: Sequence[str],
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """(inputs, torch's outputs, draws that were thrown away)"""
    watched = _Watched(plan, predictors=predictors_of(model))
    training = model.training
    attach_policy(model.eval(), watched)
    try:
        for thrown in range(DRAWS):
            feeds = draw(model.config, rng, lengths, padded, names, guarded(plan))
            with torch.inference_mode():
                given = {name: torch.from_numpy(x) for name, x in feeds.items()}
                out = model(**given)
            if watched.gap > CLOSE:
                return feeds, _joined(out, outputs), thrown
    finally:
        detach(model).train(training)
    raise UserError(
        f"the plan's scores hardly tell tokens apart: in {DRAWS} random batches of lengths "
        f"{list(lengths)} some choice was within rounding; prune anew"
    )


def guarded(plan: Plan) -> list[int]:
    """The token ids that the plan treats otherwise."""
    return [*plan.protect, *([] if plan.protect_until is None else [plan.protect_until])]


def _alive(lengths: Sequence[int], padded: int) -> np.ndarray:
    """(B, S)"""
    return np.arange(padded) < np.array(lengths)[:, None]


def draw(
    config: Any,
    rng: np.random.Generator,
    lengths: Sequence[int],
    padded: int,
    names: Sequence[str] | None = None,
    sown: Sequence[int] = (),
) -> dict[str, np.ndarray]:
    """Random tokens (or pixels); the inputs in `names`, or all that the model takes. The ids in
    `sown` are one in ten: of a real vocabulary hardly any text would have them by chance."""
    if family_named(config).images:
        shape = (len(lengths), *image_shape(config))
        return {INPUT: rng.normal(size=shape).astype(np.float32)}
    size = (len(lengths), padded)
    alive = _alive(lengths, padded)
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    ids = rng.integers(0, config.vocab_size, size)
    if sown:
        ids = np.where(rng.random(size) < SOWN, rng.choice(sown, size), ids)
    ids[ids == pad] = (pad + 1) % config.vocab_size  # RoBERTa counts positions by it
    feeds = {"input_ids": np.where(alive, ids, pad), "attention_mask": alive.astype(np.int64)}
    if "token_type_ids" in (names or input_names(config)):
        half = np.arange(padded) > np.array(lengths)[:, None] // 2
        feeds["token_type_ids"] = (half & alive & (config.type_vocab_size > 1)).astype(np.int64)
    return feeds
