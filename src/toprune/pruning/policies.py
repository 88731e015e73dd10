"""Policies decide, in each layer of a forward pass, which tokens leave.

`Follow` executes a plan and `Record` keeps every token and takes notes. The policies that learn a
plan are in `training/soft_policy.py` and in the files of the methods.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from toprune.errors import UserError
from toprune.plan.plan import ONCE, PROBED, Plan, Restore, Step
from toprune.pruning.predictor import Predictor
from toprune.pruning.tokens import (
    Rows,
    Tokens,
    accumulate,
    by_place,
    by_probe,
    groups,
    keep_merged,
    keep_top,
    mask_merged,
    mask_top,
    order,
    ranks,
    restore,
    take,
)


@dataclass(frozen=True)
class Protection:
    """Which tokens always stay, and what the head gets in place of those that leave."""

    protect: tuple[int, ...] = ()  # token ids
    protect_until: int | None = None  # a token id: all up to the first one stay
    restore: Restore = "none"  # for heads that read every token

    @classmethod
    def of(cls, source: Any) -> "Protection":
        """The protection of a `Plan` or a `Job`."""
        return cls(source.protect, source.protect_until, source.restore)

    def mask(self, input_ids: Tensor | None) -> Tensor | None:
        """(B, S): True for protected tokens; None where no token ids are protected."""
        if not self.protect and self.protect_until is None:
            return None
        if input_ids is None:
            raise UserError("a plan that protects token ids needs input_ids, not embeddings")
        ids = torch.tensor(self.protect, dtype=torch.long, device=input_ids.device)
        protected = torch.isin(input_ids, ids)
        if self.protect_until is not None:
            ends = (input_ids == self.protect_until).long()
            protected |= ends.cumsum(1) == ends  # no end before this token
        return protected


UNPROTECTED = Protection()


@dataclass(frozen=True)
class Drop:
    """What a policy decides at a layer."""

    rows: Rows | None  # the rows that stay; None: all of them
    tokens: Tokens  # the tokens of these rows
    scale: Tensor | None = None  # (B, k): their states are multiplied by this
    place: Tensor | None = None  # (B, K): rows are merged; each goes to this one of k, or nowhere
    states: Tensor | None = None  # (B, k, D): go on with these, in place of rows of those at hand


class Policy(Protocol):
    """Decides which tokens leave. Subclass it: `begin` and `scored` have defaults."""

    protection: Protection

    def begin(self) -> None:
        """Called once before the first layer of every forward pass."""

    def scored(self, layer: int) -> bool:
        """Must this layer compute the attention that tokens receive?"""
        return False

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        """Decide which tokens go on after attention of `layer`.

        Args:
            layer: its depth, from 0.
            state: (B, K, D) after attention.
            received: (B, K) attention that each token received, if the layer is `scored`.
            tokens: of these rows.

        Returns:
            The rows that stay; None: all of them, unchanged.
        """
        ...


class Record(Policy):
    """Keep every token, and record one tensor from each of some layers."""

    def __init__(
        self,
        layers: Collection[int],
        read: Callable[[int, Tensor, Tensor | None], Tensor] = lambda _, state, __: state,
        *,
        scored: bool = False,
        protection: Protection = UNPROTECTED,
    ):
        """
        Args:
            layers: those that are recorded. The last layer of a model is one of them only where
                `protection` restores tokens, because all its rows are computed only then.
            read: what to record: (layer, state (B, S, D), received (B, S)) -> a tensor. The
                default records the state.
            scored: whether `read` needs the attention received.
            protection: what counts as protected in `tokens`.
        """
        self.layers, self.read, self.with_scores = layers, read, scored
        self.protection = protection
        self.values: list[Tensor] = []  # of each recorded layer
        self.tokens: Tokens | None = None

    def begin(self) -> None:
        self.values = []

    def scored(self, layer: int) -> bool:
        return self.with_scores and layer in self.layers

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if layer in self.layers:
            self.values.append(self.read(layer, state, received))
        self.tokens = tokens
        return None


class Follow(Policy):
    """Execute a plan: rows are really gone (`gather=True`) or only masked; results are equal."""

    def __init__(
        self,
        plan: Plan,
        *,
        gather: bool = True,
        predictors: Mapping[int, Predictor] | None = None,
    ):
        """predictors: by layer, for a plan that ranks by them."""
        self.plan, self.gather, self.predictors = plan, gather, predictors or {}
        self.protection = Protection.of(plan)
        self.steps = {step.layer: step for step in plan.steps}
        self.final = max(self.steps, default=-1)
        self.probes = {layer: torch.tensor(probe) for layer, probe in plan.probes.items()}  # (D,)
        # scores (B, K) and their tokens, at every ranking of a pass that is trained
        self.rankings: list[tuple[Tensor, Tokens]] = []
        # all tokens with their last states (B, K, D), where those that have left may return
        self.everyone: tuple[Tensor, Tokens] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts afresh, as that of a `Run` does."""
        return vars(self) | {"rankings": [], "everyone": None}

    def begin(self) -> None:
        self.rankings, self.everyone = [], None

    def scored(self, layer: int) -> bool:
        if self.plan.score == "accumulated":
            return layer <= self.final
        return layer in self.steps and self.plan.score == "received"

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        """(B, K): what tokens are ranked by."""
        if self.plan.score == "random":
            return by_place(tokens.index)
        if self.plan.score == "predicted":
            return self.predictors[layer].odds(state)
        if self.plan.score in PROBED:
            return by_probe(state, self.probes[layer])
        scores = tokens.total if self.plan.score == "accumulated" else received
        assert scores is not None
        return scores

    def _count(self, step: Step, tokens: Tokens) -> Tensor:
        """(B,): ceil(keep * n) in integers, within the plan's limits."""
        ratio, protected = step.keep, tokens.protected.sum(1)
        k = (tokens.n * ratio.numerator + ratio.denominator - 1) // ratio.denominator
        alive = tokens.alive.sum(1)  # an adaptive step may have left fewer than this one allows
        return torch.minimum(k.clamp_min(self.plan.min_tokens).maximum(protected), alive)

    def _call_back(self, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        """All tokens with their last states; `state` is that of the tokens at hand."""
        if self.everyone is not None:
            states, all_tokens = self.everyone
            state, tokens = restore(states, state, tokens), all_tokens
        self.everyone = state, tokens
        return state, tokens

    def _merge(self, tokens: Tokens, k: Tensor, size: int) -> Drop:
        place = groups(tokens, k, size)
        if self.gather:
            return Drop(None, keep_merged(tokens, place, k, size), place=place)
        stands, kept = mask_merged(tokens, place, size)
        return Drop(None, kept, place=stands)

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if self.plan.score == "accumulated" and received is not None:
            tokens = accumulate(tokens, received)
        step = self.steps.get(layer)
        if step is None:
            return None if tokens.total is None else Drop(None, tokens)
        if self.plan.returns:
            state, tokens = self._call_back(state, tokens)
        k = self._count(step, tokens)
        if self.plan.score == "pooled":
            return self._merge(tokens, k, int(k.max()))
        once = self.plan.score in ONCE
        if once and tokens.rank is not None:  # ranked at the first step already
            rank, rows = tokens.rank, state.shape[1]
        else:
            scores = self.scores(layer, state, received, tokens)
            if torch.is_grad_enabled():  # for losses that train a ranking
                self.rankings.append((scores, tokens))
            _check_finite(scores, tokens, layer)
            if step.threshold is not None:
                high = tokens.alive & (tokens.protected | (scores >= step.threshold))
                k = torch.minimum(k, high.sum(1).clamp_min(self.plan.min_tokens))
            rows = order(scores, tokens)
            rank = None if self.gather else ranks(rows)
        if not self.gather:
            assert rank is not None
            states = state if self.plan.returns else None
            return Drop(None, mask_top(tokens, rank, k, remember=once), states=states)
        size = int(k.max())
        kept = keep_top(tokens, rows, k, size, remember=once)
        at = size if isinstance(rows, int) else rows[:, :size]
        return Drop(at, kept, states=take(state, at) if self.plan.returns else None)


def _check_finite(scores: Tensor, tokens: Tokens, layer: int) -> None:
    """Refuse to rank by NaN or infinity: torch ranks NaN first, other libraries last, and the
    output may look like any other. In training the loss shows it, and the trainer handles it."""
    if torch.is_grad_enabled():
        return
    if not bool((scores.isfinite() | ~tokens.alive).all()):
        raise UserError(
            f"the scores of tokens at layer {layer + 1} are not numbers (NaN or infinite); "
            "check the weights"
        )
