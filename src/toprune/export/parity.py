"""Is the file the model? Its logits against torch over batches and lengths, before it is published.

Two roundings can order two tokens differently whose scores are all but equal; then both runs are
right and differ. So a batch in which some step had to choose between such tokens proves nothing
and is drawn anew; every batch that counts must agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.attachment import Drop, Follow, attach_policy, detach
from toprune.errors import UserError
from toprune.export.graph import input_names
from toprune.plan import Plan
from toprune.tokens import Tokens, order, take

TOLERANCE = 1e-4  # of logits up to 1; of larger ones, that share
CLOSE = 1e-4  # of a score's spread within its text: nearer ones may change places
DRAWS = 20  # of a batch, until no choice in it was close

Engine = Callable[[dict[str, np.ndarray]], np.ndarray]
Case = tuple[list[int], int]  # lengths, padded to


class _Watched(Follow):
    """Follows a plan and remembers how close its closest choice was."""

    def begin(self) -> None:
        super().begin()
        self.gap = float("inf")
        self.ranked: Tensor | None = None  # (B, K) scores from best to worst

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if layer in self.steps and not (self.ranked is not None and self.probe is not None):
            scores = self.scores(state, received)
            free = scores.masked_fill(~tokens.alive, torch.nan)
            spread = (free - free.nanmean(1, keepdim=True)).square().nanmean(1, keepdim=True)
            rows = order(scores, tokens)
            self.ranked = take(scores / spread.sqrt().clamp_min(1e-12), rows)
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
    redrawn: int  # batches with a choice too close to call

    @property
    def difference(self) -> float:
        return self.worst * TOLERANCE


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
    seed: int = 0,
    cases: list[Case] | None = None,
) -> Parity:
    """Refuse an engine that does not give the logits of `model` under `plan`, and say where."""
    rng = np.random.default_rng(seed)
    cases = cases or shapes(max_length)
    worst, redrawn = 0.0, 0
    for lengths, padded in cases:
        feeds, wanted, again = _clear_case(model, plan, rng, lengths, padded, names)
        redrawn += again
        found = engine(feeds)
        if found.shape != wanted.shape or not np.isfinite(found).all():
            story = "NaN" if not np.isfinite(found).all() else f"logits of shape {found.shape}"
            raise UserError(f"the ONNX file gives {story} for lengths {lengths}; not written")
        scale = np.maximum(1.0, np.abs(wanted).max(1, keepdims=True))
        off = np.abs(found - wanted) / scale / TOLERANCE  # (B, C)
        worst = max(worst, float(off.max()))
        if off.max() > 1 or _other_class(found, wanted, scale):
            row = int(off.max(1).argmax())
            raise UserError(
                f"the ONNX file differs from torch by {float(off.max()) * TOLERANCE:.1e} for a "
                f"text of {lengths[row]} tokens (batch of lengths {lengths}, padded to {padded}); "
                "not written; please report this"
            )
    return Parity(len(cases), worst, redrawn)


def _other_class(found: np.ndarray, wanted: np.ndarray, scale: np.ndarray) -> bool:
    """Another answer, where the two best logits are further apart than rounding."""
    if wanted.shape[1] < 2:
        return False
    best = np.sort(wanted, 1)
    clear = best[:, -1] - best[:, -2] > 2 * TOLERANCE * scale[:, 0]
    return bool(((found.argmax(1) != wanted.argmax(1)) & clear).any())


def _clear_case(
    model: Any,
    plan: Plan,
    rng: np.random.Generator,
    lengths: Sequence[int],
    padded: int,
    names: Sequence[str] | None,
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """(inputs, torch's logits, draws that were thrown away)"""
    watched = _Watched(plan)
    training = model.training
    attach_policy(model.eval(), watched)
    try:
        for thrown in range(DRAWS):
            feeds = draw(model.config, rng, lengths, padded, names)
            with torch.inference_mode():
                given = {name: torch.from_numpy(x) for name, x in feeds.items()}
                logits = model(**given).logits.numpy(force=True)
            if watched.gap > CLOSE:
                return feeds, logits, thrown
    finally:
        detach(model).train(training)
    raise UserError(
        f"the plan's scores hardly tell tokens apart: in {DRAWS} random batches of lengths "
        f"{list(lengths)} some choice was within rounding; prune anew"
    )


def draw(
    config: Any,
    rng: np.random.Generator,
    lengths: Sequence[int],
    padded: int,
    names: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Random tokens; the inputs in `names`, or all that the model takes."""
    size = (len(lengths), padded)
    alive = np.arange(padded) < np.array(lengths)[:, None]
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    ids = rng.integers(0, config.vocab_size, size)
    ids[ids == pad] = (pad + 1) % config.vocab_size  # RoBERTa counts positions by it
    feeds = {"input_ids": np.where(alive, ids, pad), "attention_mask": alive.astype(np.int64)}
    if "token_type_ids" in (names or input_names(config)):
        half = np.arange(padded) > np.array(lengths)[:, None] // 2
        feeds["token_type_ids"] = (half & alive & (config.type_vocab_size > 1)).astype(np.int64)
    return feeds
