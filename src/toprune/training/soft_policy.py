"""The policy of a forward pass while a selector is learned.

The layers run as in execution, with soft key weights in place of yes or no. Rows whose weight is
exactly zero are gathered out: no token attends to them and no head reads them, so the gradients are
those of the masked pass, at a fraction of the cost.
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
    """The scores of a layer, for the ranking distillation."""

    log_scores: Tensor  # (B, K)
    tokens: Tokens


class Learn(Policy):
    """Let a method's selector weight tokens."""

    def __init__(
        self,
        selector: Any,
        score: Score,
        *,
        probes: Tensor | None,
        protection: Protection = UNPROTECTED,
        distilled: frozenset[int] = frozenset(),
    ):
        """
        Args:
            selector: draws masks (`sample`), and gives each token its weight in a layer that
                `opens`.
            probes: (L - 1, D), for the probe score.
            distilled: the layers whose ranking is distilled.
        """
        self.selector, self.score, self.probes = selector, score, probes
        self.protection, self.distilled = protection, distilled
        self.rankings: dict[int, Scored] = {}

    def begin(self) -> None:
        self.selector.sample()
        self.rankings = {}

    def scored(self, layer: int) -> bool:
        needed = layer in self.distilled or self.selector.opens(layer)
        return self.score == "received" and needed

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        opens = self.selector.opens(layer)
        if tokens.rank is None and (opens or layer in self.distilled):
            scores = self._scores(layer, state, received)
            if layer in self.distilled:
                self.rankings[layer] = Scored(scores, tokens)
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
            tokens = replace(tokens, rank=None)  # ranked again at every step
        return Drop(*gather_alive(tokens))

    def _scores(self, layer: int, state: Tensor, received: Tensor | None) -> Tensor:
        if self.probes is not None:
            return by_probe(state, self.probes[layer])
        assert received is not None
        return received.clamp_min(1e-9).log()

    def rank_loss(self, loss: Ranking, teacher: Tensor) -> Tensor:
        """Mean loss over the distilled layers; teacher (B, S, 1 or L - 1) by original position."""
        terms = []
        for layer, scored in self.rankings.items():
            column = layer if teacher.shape[-1] > 1 else 0
            target = teacher[..., column].gather(1, scored.tokens.index)
            live = scored.tokens.alive & ~scored.tokens.protected
            terms.append(loss(scored.log_scores, target, live))
        return torch.stack(terms).mean() if terms else teacher.new_zeros(())
