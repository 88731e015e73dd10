"""Compare the outputs of an ONNX file with torch over batches and lengths, before it is published.

Rounding can order two tokens differently whose scores are almost equal; then both runs are right,
and differ. So a batch in which a step had to choose between such tokens proves nothing, and is
drawn again; every batch that counts must agree. A batch for which torch itself gives other outputs
in float64 proves nothing either: for some random texts a layer norm amplifies rounding.
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
from toprune.models.device import CPU, placed
from toprune.models.families import family_named, image_shape
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attach_policy, detach
from toprune.pruning.policies import Drop, Follow
from toprune.pruning.predictor import predictors_of
from toprune.pruning.tokens import Tokens, order, take

TOLERANCE = 1e-4  # absolute for logits up to 1, relative for larger ones
CLOSE = 1e-4  # in units of the scores' spread within a text: closer scores may change places
PROTECTED_SHARE = 0.1  # of random tokens that are ids which the plan treats specially
DRAWS = 20  # attempts for each batch, until no choice in it is close

Engine = Callable[[dict[str, np.ndarray]], np.ndarray]
Case = tuple[list[int], int]  # lengths, padded to


class _Watched(Follow):
    """Follow a plan and record how close its closest choice was."""

    def begin(self) -> None:
        super().begin()
        self.gap = float("inf")
        self.ranked: Tensor | None = None  # (B, K) scores from best to worst
        self.threshold: float | None = None  # of the current step

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        scores, threshold = super().scores(layer, state, received, tokens), self.threshold
        comparable = scores
        if self.plan.score == "predicted":  # odds: a certain token would dwarf all other gaps
            comparable, threshold = scores.log(), None if threshold is None else math.log(threshold)
        free = comparable.masked_fill(~tokens.alive, torch.nan)
        spread = (free - free.nanmean(1, keepdim=True)).square().nanmean(1, keepdim=True)
        unit = spread.sqrt().clamp_min(1e-12)
        self.ranked = take(comparable / unit, order(scores, tokens))
        if threshold is not None:
            near = ((comparable - threshold) / unit).abs().masked_fill(~tokens.alive, torch.inf)
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
    redrawn: int  # batches with too close a choice, or with amplified rounding

    @property
    def difference(self) -> float:
        return self.worst * TOLERANCE


def cases_of(config: Any, max_length: int) -> list[Case]:
    """Return the batches to try: texts of many lengths, or different numbers of images."""
    if family_named(config).images:
        return [([max_length] * batch, max_length) for batch in (1, 2, 5)]
    return shapes(max_length)


def shapes(max_length: int) -> list[Case]:
    """Return batches of single, equal and mixed, odd and even lengths, with and without padding."""
    top = max_length
    single = sorted({n for n in (1, 2, 3, 7, 16, 33, top // 2 | 1, top - 1, top) if 1 <= n <= top})
    mixed = [n for n in (top, max(1, top // 3), 5, 1) if n <= top]
    middle = max(1, min(17, top))
    return [
        *(([n], n) for n in single),
        ([middle], top),
        ([middle] * 3, middle),
        ([middle] * 3, min(middle + 4, top)),
        (mixed, top),
        (mixed[::-1], top),
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
    """Refuse an engine whose outputs differ from those of a model under a plan, on the CPU.

    Args:
        model: the torch model; it is left as it was, and where it was.
        plan: to attach to it.
        engine: runs the ONNX file: inputs by name -> outputs.
        max_length: the longest text to try.
        names: of the inputs; by default all that the model takes.
        outputs: names of the outputs.
        seed: of the random tokens.
        cases: batches to try; by default `cases_of`.

    Returns:
        How many batches were compared, and the largest difference.
    """
    cases = cases or cases_of(model.config, max_length)
    with placed(model, CPU):
        return _compare(model, plan, engine, cases, names, outputs, seed)


def _compare(
    model: Any,
    plan: Plan,
    engine: Engine,
    cases: list[Case],
    names: Sequence[str] | None,
    outputs: Sequence[str],
    seed: int,
) -> Parity:
    rng = np.random.default_rng(seed)
    worst, redrawn = 0.0, 0
    for lengths, padded in cases:
        alive = _alive(lengths, padded)
        for left in reversed(range(DRAWS)):
            feeds, expected, again = _clear_case(model, plan, rng, lengths, padded, names, outputs)
            redrawn += again
            actual = engine(feeds)
            if actual.shape != expected.shape or not np.isfinite(actual).all():
                finite = np.isfinite(actual).all()
                problem = f"outputs of shape {actual.shape}" if finite else "NaN"
                raise UserError(f"the ONNX file gives {problem} for lengths {lengths}; not written")
            off, row = _difference(actual, expected, alive)
            if off <= 1 and not _other_answer(actual, expected, alive, outputs):
                worst = max(worst, off)
                break
            exact = _float64_outputs(model, plan, feeds, outputs)
            if not left or _difference(exact, expected, alive)[0] < 0.5:
                raise UserError(
                    f"the ONNX file differs from torch by {off * TOLERANCE:.1e} for a text of "
                    f"{lengths[row]} tokens (batch of lengths {lengths}, padded to {padded}); "
                    "not written; please report this"
                )
            redrawn += 1
    return Parity(len(cases), worst, redrawn)


def _difference(actual: np.ndarray, expected: np.ndarray, alive: np.ndarray) -> tuple[float, int]:
    """(largest difference in units of TOLERANCE, the example that has it)"""
    examples, actual, expected = _lines(actual, expected, alive)  # (lines,), (lines, C) twice
    off = np.abs(actual - expected) / _scale(expected) / TOLERANCE
    return float(off.max()), int(examples[off.max(1).argmax()])


def _float64_outputs(
    model: Any, plan: Plan, feeds: dict[str, np.ndarray], outputs: Sequence[str]
) -> np.ndarray:
    """Compute the outputs in float64, with a copy of the model."""
    double = copy.deepcopy(model).double().eval()
    attach(double, plan)
    inputs = {name: torch.from_numpy(x) for name, x in feeds.items()}
    if INPUT in inputs:
        inputs[INPUT] = inputs[INPUT].double()
    with torch.inference_mode():
        return _joined(double(**inputs), outputs)


def _joined(out: Any, outputs: Sequence[str]) -> np.ndarray:
    """One array; two outputs are two columns."""
    parts = [getattr(out, name).numpy(force=True) for name in outputs]
    return parts[0] if len(parts) == 1 else np.stack(parts, -1)


def _lines(
    actual: np.ndarray, expected: np.ndarray, alive: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(example of each line, actual, expected): a line for each example, or for each live token if
    the head has an output for each; nobody reads the outputs for padding."""
    if expected.ndim == 3 and expected.shape[1] == alive.shape[1]:
        return np.nonzero(alive)[0], actual[alive], expected[alive]
    count = len(expected)
    return np.arange(count), actual.reshape(count, -1), expected.reshape(count, -1)


def _scale(expected: np.ndarray) -> np.ndarray:
    return np.maximum(1.0, np.abs(expected).max(1, keepdims=True))


def _other_answer(
    actual: np.ndarray, expected: np.ndarray, alive: np.ndarray, outputs: Sequence[str]
) -> bool:
    """Is another class the best, or another token the best start or end of an answer?"""
    if outputs[0] == "logits":
        _, actual, expected = _lines(actual, expected, alive)
        return _other_best(actual, expected)
    if len(outputs) == 1:  # vectors have no best
        return False
    return any(
        _other_best(actual[b, live].T, expected[b, live].T) for b, live in enumerate(alive)
    )  # (2, n) each: starts and ends


def _other_best(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Does the best differ in a line whose two best are further apart than rounding?"""
    if expected.shape[1] < 2:
        return False
    best = np.sort(expected, 1)
    clear = best[:, -1] - best[:, -2] > 2 * TOLERANCE * _scale(expected)[:, 0]
    return bool(((actual.argmax(1) != expected.argmax(1)) & clear).any())


def _clear_case(
    model: Any,
    plan: Plan,
    rng: np.random.Generator,
    lengths: Sequence[int],
    padded: int,
    names: Sequence[str] | None,
    outputs: Sequence[str],
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """(inputs, torch's outputs, how many draws were discarded)"""
    watched = _Watched(plan, predictors=predictors_of(model))
    training = model.training
    attach_policy(model.eval(), watched)
    try:
        for discarded in range(DRAWS):
            feeds = draw(model.config, rng, lengths, padded, names, protected_ids(plan))
            with torch.inference_mode():
                out = model(**{name: torch.from_numpy(x) for name, x in feeds.items()})
            if watched.gap > CLOSE:
                return feeds, _joined(out, outputs), discarded
    finally:
        detach(model).train(training)
    raise UserError(
        f"the plan's scores are almost equal for all tokens: in {DRAWS} random batches of lengths "
        f"{list(lengths)} a choice was within rounding; prune the model again"
    )


def protected_ids(plan: Plan) -> list[int]:
    """Return the token ids that the plan treats specially."""
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
    special: Sequence[int] = (),
) -> dict[str, np.ndarray]:
    """Draw random tokens, or pixels.

    Args:
        config: of the model.
        rng: draws them.
        lengths: of each text.
        padded: length of the batch.
        names: of the inputs; by default all that the model takes.
        special: token ids that make up a tenth of the tokens, because random texts over a real
            vocabulary hardly contain them.

    Returns:
        Inputs by name.
    """
    if family_named(config).images:
        shape = (len(lengths), *image_shape(config))
        return {INPUT: rng.normal(size=shape).astype(np.float32)}
    size = (len(lengths), padded)
    alive = _alive(lengths, padded)
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    ids = rng.integers(0, config.vocab_size, size)
    if special:
        ids = np.where(rng.random(size) < PROTECTED_SHARE, rng.choice(special, size), ids)
    ids[ids == pad] = (pad + 1) % config.vocab_size  # RoBERTa derives positions from it
    feeds = {"input_ids": np.where(alive, ids, pad), "attention_mask": alive.astype(np.int64)}
    if "token_type_ids" in (names or input_names(config)):
        half = np.arange(padded) > np.array(lengths)[:, None] // 2
        feeds["token_type_ids"] = (half & alive & (config.type_vocab_size > 1)).astype(np.int64)
    return feeds
