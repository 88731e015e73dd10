"""The one layer body that every family and every policy shares: attend, score, drop, feed forward.

Letters: B batch, S padded length, K rows at hand, k rows kept, D width.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from toprune.models.families import Family
from toprune.plan.cost import Sizes
from toprune.pruning.attention import attend, merge_heads, rotate, share_heads, split_heads
from toprune.pruning.policies import Drop, Policy
from toprune.pruning.tokens import Tokens, merge, restore, start, take


@dataclass
class Run:
    """The state of one attached model.

    It has a slot for each layer, not one current value, so that gradient checkpointing may run a
    layer again.
    """

    family: Family
    base: Any  # the base model whose layers these are
    sizes: Sizes
    policy: Policy
    calls: int = 0  # of layers in this pass: the depth, where one module is layer after layer
    tokens: list[Tokens | None] = field(default_factory=list)  # that enter layer i
    left: list[tuple[Tensor, Tokens] | None] = field(default_factory=list)  # (states, before drop)

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts afresh: states of the last pass may be part of a graph, which cannot be
        copied."""
        return vars(self) | {"tokens": [], "left": []}

    @property
    def last(self) -> int:
        return self.sizes.layers - 1

    @property
    def restores(self) -> bool:
        """The head reads every row: the last layer is computed in full."""
        return self.policy.protection.restore != "none"

    @property
    def entered(self) -> list[Tokens]:
        """The tokens that entered each layer of the last pass."""
        return [tokens for tokens in self.tokens[: self.last + 1] if tokens is not None]

    def begin(self, input_ids: Tensor | None, mask: Tensor) -> None:
        """Start a pass over a batch; mask (B, S) is 1 for tokens, 0 for padding."""
        self.policy.begin()
        protected = self.policy.protection.mask(input_ids)
        self.tokens = [start(mask, protected)] + [None] * (self.last + 1)
        self.left = [None] * (self.last + 1)

    def layer(self, module: Any, i: int, hidden: Tensor) -> Tensor:
        """Compute one layer on its live tokens. hidden (B, K, D)"""
        tokens = self.tokens[i]
        assert tokens is not None, "layer called outside the model's forward"
        if i == self.last and not self.restores:  # only the head's row: exact, and almost free
            state, _ = self._attention(module, hidden[:, :1], hidden, tokens, scored=False)
            first = replace(tokens, index=tokens.index[:, :1], alive=tokens.alive[:, :1])
            self.tokens[i + 1] = first
            return self.family.feed_forward(module, state)
        scored = self.policy.scored(i)
        state, received = self._attention(module, hidden, hidden, tokens, scored=scored)
        drop = self.policy.decide(i, state, received, tokens)
        self.tokens[i + 1] = tokens if drop is None else drop.tokens
        if self.policy.protection.restore != "last":
            return self.family.feed_forward(module, _apply(drop, state))
        states = self.family.feed_forward(module, state)
        if drop is not None and (drop.rows is not None or drop.tokens.alive is not tokens.alive):
            self.left[i] = (states, tokens)
        return _apply(drop, states)

    def _attention(
        self, module: Any, queries: Tensor, states: Tensor, tokens: Tokens, *, scored: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(state after attention (B, Q, D) of the first Q rows, attention received (B, K))"""
        family, size = self.family, self.sizes.head_size
        project_q, project_k, project_v = family.projections(module)
        k_input = family.before_attention(module, states)
        q_input = k_input if queries is states else family.before_attention(module, queries)
        q, scale = split_heads(project_q(q_input), size), family.scale(module, size)
        k, v = split_heads(project_k(k_input), size), split_heads(project_v(k_input), size)
        k_positions = tokens.index
        q_positions = k_positions[:, : queries.shape[1]]
        if family.rotary is not None:
            q = rotate(q, *family.rotary(self.base, module, q_positions))
            k = rotate(k, *family.rotary(self.base, module, k_positions))
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        bias = None
        if family.bias is not None:
            tables = family.tables(self.base, module)
            bias = family.bias(tables, module, q * scale, k, q_positions, k_positions)
        context, received = attend(
            q,
            k,
            v,
            tokens,
            scale=scale,
            position_bias=bias,
            dropout=family.dropout(module) if module.training else 0.0,
            scored=scored,
        )
        return family.after_attention(module, merge_heads(context), queries), received

    def convolve(self, module: Any, embeddings: Tensor, states: Tensor) -> Tensor:
        """Add a convolution over all `embeddings` (B, S, D) to the first layer's states (B, K, D),
        and to the states of tokens that have left there."""
        first, second = self.tokens[0], self.tokens[1]
        assert first is not None
        assert second is not None
        convolution = self.family.convolution
        assert convolution is not None
        part = convolution.part(module, embeddings, first.alive)
        if self.left[0] is not None:
            self.left[0] = (convolution.blend(module, self.left[0][0], part), first)
        return convolution.blend(module, states, take(part, second.index))

    def finish(self, hidden: Tensor) -> Tensor:
        """Put every token back at its place (B, S, D) with its last state, or zeros, for heads that
        read all."""
        first, final = self.tokens[0], self.tokens[self.last + 1]
        assert first is not None
        assert final is not None
        buffer = hidden.new_zeros(*first.index.shape, hidden.shape[-1])
        if self.policy.protection.restore == "zero" and final.weight is not None:
            hidden = hidden * final.weight[..., None]  # tokens about to leave count for less
        for left in self.left:
            if left is not None:
                states, tokens = left
                buffer = restore(buffer, self.family.final_norm(self.base, states), tokens)
        return restore(buffer, hidden, final)


def _apply(drop: Drop | None, states: Tensor) -> Tensor:
    """(B, K, D) -> (B, k, D)"""
    if drop is None:
        return states
    if drop.states is not None:
        return drop.states
    if drop.place is not None:
        return merge(states, drop.place, drop.tokens.alive.shape[1])
    kept = states if drop.rows is None else take(states, drop.rows)
    return kept if drop.scale is None else kept * drop.scale.unsqueeze(-1)
