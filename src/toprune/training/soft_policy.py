"""The policy of a forward pass while a selector is being learned.

The same layer body as in execution, with soft key weights in place of yes or no. Rows whose weight
is exactly zero are gathered out: nobody attends to them and nobody reads them, so the gradients
are those of the masked pass, at a fraction of the cost.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from toprune.plan.plan import ONCE, Score
from toprune.pruning.policies import UNPROTECTED, Drop, Policy, Protection
from toprune.pruning.tokens import Tokens, by_probe, gather_alive, order, ranks
from toprune.training.ranking_losses import Ranking


@dataclass
class Scored:
    """Scores that a layer gave, for the ranking distillation."""

    log_scores: Tensor  # (B, K)
    tokens: Tokens


class Learn(Policy):
    """Let a method's selector weigh tokens. `probes` (L - 1, D) for the probe score."""

    def __init__(
        self,
        selector: Any,
        score: Score,
        *,
        probes: Tensor | None,
        protection: Protection = UNPROTECTED,
        distilled: frozenset[int] = frozenset(),
    ):
        self.selector, self.score, self.probes = selector, score, probes
        self.protection, self.distilled = protection, distilled
        self.seen: dict[int, Scored] = {}

    def begin(self) -> None:
        self.selector.sample()
        self.seen = {}

    def scored(self, layer: int) -> bool:
        used = layer in self.distilled or self.selector.opens(layer)
        return self.score == "received" and used

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        opens = self.selector.opens(layer)
        if tokens.rank is None and (opens or layer in self.distilled):
            scores = self._scores(layer, state, received)
            if layer in self.distilled:
                self.seen[layer] = Scored(scores, tokens)
        else:
            scores = None
        if not opens:
            return None
        if tokens.rank is None:
            assert scores is not None
            tokens = replace(tokens, rank=ranks(order(scores, tokens)))
        weight = self.selector.weights(layer, scores, tokens, state)
        if tokens.weight is not None:
            weight = weight * tokens.weight
        alive = tokens.alive & (weight > 0)
        tokens = replace(tokens, weight=weight, alive=alive, full=False)
        if self.score not in ONCE:
            tokens = replace(tokens, rank=None)  # ranked anew at every step
        return Drop(*gather_alive(tokens))

    def _scores(self, layer: int, state: Tensor, received: Tensor | None) -> Tensor:
        if self.probes is not None:
            return by_probe(state, self.probes[layer])
        assert received is not None
        return received.clamp_min(1e-9).log()

    def rank_loss(self, loss: Ranking, teacher: Tensor) -> Tensor:
        """Mean over the layers that gave scores; teacher (B, S, 1 or L - 1) by original place."""
        terms = []
        for layer, seen in self.seen.items():
            column = layer if teacher.shape[-1] > 1 else 0
            target = teacher[..., column].gather(1, seen.tokens.index)
            live = seen.tokens.alive & ~seen.tokens.protected
            terms.append(loss(seen.log_scores, target, live))
        return torch.stack(terms).mean() if terms else teacher.new_zeros(())
