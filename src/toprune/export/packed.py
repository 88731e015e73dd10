"""A plan executed on packed rows, in torch operations that trace to a small ONNX graph.

The live tokens of all examples lie one after the other, (N, D) with N the sum of their counts: the
linear layers never see padding, and one graph serves any batch. Padding exists only inside
attention, where `Layout.at` lifts packed rows to (B, K) places and `Layout.live` takes them back.

Nothing here looks at a value: no `int()`, no `bool()`, no branch on data. What `execution.Run`
decides while it runs, the graph must be able to decide later; tests check that both agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from toprune.export.layout import Layout, up_to
from toprune.models.families import Family, Layer, Projection
from toprune.plan.cost import Sizes
from toprune.plan.plan import ATTENDED, DENOMINATOR, ONCE, Plan, Step
from toprune.pruning.attention import rotate, share_heads
from toprune.pruning.predictor import predictors_of
from toprune.pruning.tokens import by_place


@dataclass
class PackedRun:
    """The state of one forward pass, in place of `execution.Run` while a graph is traced."""

    family: Family
    base: Any
    sizes: Sizes
    plan: Plan
    calls: int = 0
    keep: Tensor | None = None  # (steps,) thousandths, where they are an input of the graph

    def __post_init__(self) -> None:
        layers: Sequence[Layer] = self.family.layers(self.base)
        self.last = len(layers) - 1
        self.restores = self.plan.restore != "none"
        self.width, self.size = self.plan.width, self.sizes.head_size
        self.heads = [layer.heads for layer in self.sizes.by_layer]  # by depth
        projections: dict[Layer, tuple[nn.Linear, nn.Linear, nn.Linear]] = {}  # a shared layer once
        for layer in layers:
            if layer not in projections:
                q, k, v = self.family.projections(layer)
                scale = self.family.scale(layer, self.size)
                projections[layer] = (_scaled(q, scale), _scaled(k), _scaled(v))
        self.projections = list(projections.values())
        with torch.no_grad():  # here, outside the trace: constants of the graph
            self.tables: dict[Layer, Any] = {}
            for layer in projections:  # layers with equal tables share a constant: runtimes gain
                table = self.family.tables(self.base, layer)
                equal = (other for other in self.tables.values() if _same(other, table))
                self.tables[layer] = next(equal, table)
        self.queries = [projections[layer][0] for layer in layers]
        self.keys = [projections[layer][1] for layer in layers]
        self.values = [projections[layer][2] for layer in layers]
        self.steps = {step.layer: step for step in self.plan.steps}
        self.predictors = predictors_of(self.base)
        self.probes = {i: torch.tensor(probe) for i, probe in self.plan.probes.items()}  # (D,)

    def begin(self, input_ids: Tensor, mask: Tensor) -> None:
        """Start a pass over a batch; mask (B, S) is 1 for tokens, 0 for padding."""
        self.n = mask.sum(1)  # (B,)
        self.layout = Layout.of(self.n)
        self.shape, self.alive = mask.shape, mask
        # (N,) the place in the padded batch (B * S), which may be wider than its longest text
        self.index = mask.view(-1).nonzero().view(-1)
        self.protected: Tensor | None = None  # (N,)
        if self.plan.protect:
            ids = input_ids.view(-1)[self.index]
            self.protected = (ids.unsqueeze(1) == torch.tensor(self.plan.protect)).any(1)
        if self.plan.protect_until is not None:
            ends = (input_ids == self.plan.protect_until).long()
            first = (ends.cumsum(1) == ends).view(-1)[self.index]  # no end before this token
            self.protected = first if self.protected is None else self.protected | first
        place = torch.arange(self.shape[1]).expand(self.shape)
        self.positions = place.reshape(-1)[self.index]  # (N,) the original position
        self.sorted = False  # by a ranking that stays
        self.total: Tensor | None = None  # (N,) attention received so far, where that is the score
        self.left: list[tuple[Tensor, Tensor]] = []  # (states, index) before each drop
        # where tokens that have left may return: the last states (N, D) of all tokens, the numbers
        # of those that go on, and the layout, index, positions and protection of all
        self.everyone: tuple[Tensor, Tensor, Layout, Tensor, Tensor, Tensor | None] | None = None

    def layer(self, module: Layer, i: int, hidden: Tensor) -> Tensor:
        """Compute one layer on packed rows (N, D). The first layer gets the padded batch (B, S, D);
        the last one returns the row that the head reads, (B, 1, D), or all that is left, (N, D)."""
        x = hidden.reshape(-1, self.width)[self.index] if i == 0 else hidden
        if i == self.last and not self.restores:
            return self._head_row(module, i, x).unsqueeze(1)
        step = self.steps.get(i)
        if step is not None and self._drops_nothing(step):
            step = None
        if step is not None and self.plan.restore == "last":
            return self._drop_after(module, i, x, step)
        if step is None:
            state = self._attend(module, i, x)
        elif self.plan.score == "pooled":
            state = self._merge(self._attend(module, i, x), step)
        elif self.plan.score in ATTENDED:
            state = self._drop_by_attention(module, i, x, step)
        elif self.sorted:
            state = self._drop_the_end(module, i, x, step)
        elif self.plan.returns:
            state = self._choose_again(module, i, x, step)
        else:
            state = self._drop_by_state(module, i, x, step)
        return self.family.feed_forward(module, state)

    def _drops_nothing(self, step: Step) -> bool:
        """Whether a step keeps the share that the step before left, and so the same tokens."""
        steps, at = self.plan.steps, self.plan.steps.index(step)
        varies = self.keep is not None or step.threshold is not None or self.plan.returns
        return at > 0 and not varies and step.keep == steps[at - 1].keep

    def convolve(self, module: Any, embeddings: Tensor, states: Tensor) -> Tensor:
        """Add the convolution beside the first layer, for tokens that stay and that have left."""
        convolution = self.family.convolution
        assert convolution is not None
        part = convolution.part(module, embeddings, self.alive).reshape(-1, self.width)
        self.left = [(convolution.blend(module, x, part[at]), at) for x, at in self.left]
        return convolution.blend(module, states, part[self.index])

    def finish(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (B, S, D): put every token back at its place with its last state, or zeros."""
        batch, length = self.shape
        buffer = hidden.new_zeros(batch * length, hidden.shape[-1])
        for states, index in self.left:
            buffer = buffer.index_put((index,), self.family.final_norm(self.base, states))
        return buffer.index_put((self.index,), hidden).unflatten(0, (batch, length))

    # The ways through a layer. Each takes rows (N, D) and returns states after attention (N', D).

    def _attend(self, module: Layer, i: int, x: Tensor) -> Tensor:
        p = self._probabilities(module, i, x)
        if self.plan.score == "accumulated" and i < max(self.steps, default=-1):
            self._received(p)
        return self._after(module, i, p @ self._value(module, i, x), self.layout, x)

    def _head_row(self, module: Layer, i: int, x: Tensor) -> Tensor:
        """(B, D): only the first token of each example attends; exact, and almost free."""
        first = x[self.layout.first]
        normed = self.family.before_attention(module, first)
        q = self._heads(self.queries[i], normed).unsqueeze(2)  # (B, H, 1, d)
        positions = self._positions()
        if self.family.rotary is not None:
            q = rotate(q, *self.family.rotary(self.base, module, positions[:, :1]))
        k = self._key(module, i, x)
        p = self._softmax(module, q, k, self.layout, positions[:, :1], positions)
        context = (p @ self._value(module, i, x)).reshape(-1, self.heads[i] * self.size)
        state = self.family.after_attention(module, context, first)
        return self.family.feed_forward(module, state)

    def _drop_by_attention(self, module: Layer, i: int, x: Tensor, step: Step) -> Tensor:
        """Early drop: only the surviving queries meet the values."""
        p, v = self._probabilities(module, i, x), self._value(module, i, x)
        layout, scores = self.layout, self._received(p)
        new = Layout.of(self._counts(step, scores))
        kept = self._rank(scores, new)  # (B, K')
        count = self.heads[i]
        heads = torch.arange(p.shape[0] * count).view(-1, count, 1)  # (B, H, 1)
        rows = heads * layout.size + kept.unsqueeze(1)  # (B, H, K')
        context = p.flatten(0, 2)[rows] @ v
        x = self._move(x, layout.first.unsqueeze(1) + kept, new)
        return self._after(module, i, context, new, x)

    def _drop_by_state(self, module: Layer, i: int, x: Tensor, step: Step) -> Tensor:
        """Drop by a score of the states after attention. If that ranking stays, the rows are sorted
        now, and every later step keeps the first ones."""
        state = self._attend(module, i, x)
        layout, scores = self.layout, self._state_scores(state, i)
        new = Layout.of(self._counts(step, scores))
        self.sorted = self.plan.score in ONCE
        return self._move(state, layout.first.unsqueeze(1) + self._rank(scores, new), new)

    def _choose_again(self, module: Layer, i: int, x: Tensor, step: Step) -> Tensor:
        """Choose among all tokens of the texts, each with the state after its last attention."""
        state = self._attend(module, i, x)
        if self.everyone is not None:
            states, numbers, self.layout, self.index, self.positions, self.protected = self.everyone
            state = states.index_put((numbers,), state)
        everyone = self.layout, self.index, self.positions, self.protected
        scores = self._state_scores(state, i)
        new = Layout.of(self._counts(step, scores))
        rows = self.layout.first.unsqueeze(1) + self._rank(scores, new)
        self.everyone = state, rows.reshape(-1)[new.live], *everyone
        return self._move(state, rows, new)

    def _drop_the_end(self, module: Layer, i: int, x: Tensor, step: Step) -> Tensor:
        """Rows are sorted, so it is known before attention which stay: the others are only keys and
        values."""
        old, new, k_positions = self.layout, Layout.of(self._counts(step)), self._positions()
        k, v = self._key(module, i, x), self._value(module, i, x)
        x = self._move(x, old.at[:, : new.size], new)
        q = self._query(module, i, x)
        p = self._softmax(module, q, k, old, self._positions(), k_positions)
        return self._after(module, i, p @ v, new, x)

    def _drop_after(self, module: Layer, i: int, x: Tensor, step: Step) -> Tensor:
        """For heads that read every token: drop after the FFN, and keep the states of all."""
        p = self._probabilities(module, i, x)
        state = self._after(module, i, p @ self._value(module, i, x), self.layout, x)
        states = self.family.feed_forward(module, state)
        self.left.append((states, self.index))
        old = self.layout
        if self.plan.score == "pooled":
            return self._merge(states, step)
        if self.sorted:
            new = Layout.of(self._counts(step))
            return self._move(states, old.at[:, : new.size], new)
        self.sorted = self.plan.score in ONCE
        attended = self.plan.score in ATTENDED
        scores = self._received(p) if attended else self._state_scores(state, i)
        new = Layout.of(self._counts(step, scores))
        return self._move(states, old.first.unsqueeze(1) + self._rank(scores, new), new)

    def _merge(self, x: Tensor, step: Step) -> Tensor:
        """Merge neighbours into their mean, as `tokens.groups` does; rows (N, D) to (N', D)."""
        old, new = self.layout, Layout.of(self._counts(step))
        numbers = torch.arange(old.k.shape[0]).unsqueeze(1).expand(old.alive.shape)
        example = numbers.reshape(-1)[old.live]  # (N,)
        held = up_to(x.shape[0]) == old.first[example]
        if self.protected is not None:
            held = held | self.protected
        ahead, alone = self._count_before(held, example)
        number, many = self._count_before(~held, example)
        runs, size = (new.k - alone)[example], many.clamp_min(1)[example]  # (N,)

        def run(number: Tensor) -> Tensor:
            return torch.div(number * runs, size, rounding_mode="trunc")

        rows = new.live.shape[0]
        place = new.first[example] + torch.where(held, ahead, alone[example] + run(number))
        at = torch.where(held | (runs > 0), place, rows)  # (N,) the new row; past the last: nowhere
        begins = (number == 0) | (run(number) > run(number - 1))
        chosen = (held | (begins & (runs > 0))).nonzero().view(-1)  # the first row of each group
        packed = torch.zeros_like(new.live).index_put((at[chosen],), chosen)
        sums = x.new_zeros(rows + 1, x.shape[1])
        sums = sums.scatter_add(0, at.unsqueeze(1).expand(x.shape), x)[:-1]
        share = x.new_zeros(rows + 1).scatter_add(0, at, torch.ones_like(x[:, 0]))[:-1]
        self._relabel(packed, new)
        return sums / share.unsqueeze(1)

    def _count_before(self, flags: Tensor, example: Tensor) -> tuple[Tensor, Tensor]:
        """Count flagged rows: (N,) before each row in its example, and (B,) in each example."""
        until = flags.long().cumsum(0)
        ends = torch.cat([torch.zeros_like(until[:1]), until])
        start, end = ends[self.layout.first], ends[self.layout.first + self.layout.k]
        return ends[:-1] - start[example], end - start

    # The parts of a layer.

    def _heads(self, projection: nn.Linear, x: Tensor) -> Tensor:
        """(N, H, d). The number of heads comes from the module: from a tensor's shape it would be
        five more nodes in the graph, three times a layer."""
        return projection(x).view(-1, projection.out_features // self.size, self.size)

    def _lift(self, module: Layer, projection: nn.Linear, x: Tensor) -> Tensor:
        """(B, H, K, d). The norm before the projections is traced three times; runtimes compute
        equal nodes once. Places come first in memory, (K, B, H, d): so ONNX Runtime's products
        read the heads where they are, and the permutation copies nothing."""
        normed = self.family.before_attention(module, x)
        return self._heads(projection, normed)[self.layout.at.t()].permute(1, 2, 0, 3)

    def _rotated(self, module: Layer, x: Tensor) -> Tensor:
        if self.family.rotary is None:
            return x
        return rotate(x, *self.family.rotary(self.base, module, self._positions()))

    def _positions(self) -> Tensor:
        """(B, K): the original position of every place."""
        return self.positions[self.layout.at]

    def _query(self, module: Layer, i: int, x: Tensor) -> Tensor:
        return self._rotated(module, self._lift(module, self.queries[i], x))

    def _key(self, module: Layer, i: int, x: Tensor) -> Tensor:
        k = self._rotated(module, self._lift(module, self.keys[i], x))
        return share_heads(k, self.heads[i])

    def _value(self, module: Layer, i: int, x: Tensor) -> Tensor:
        return share_heads(self._lift(module, self.values[i], x), self.heads[i])

    def _softmax(
        self,
        module: Layer,
        q: Tensor,
        k: Tensor,
        k_layout: Layout,
        q_positions: Tensor,
        k_positions: Tensor,
    ) -> Tensor:
        logits = q @ k.transpose(-1, -2)  # (B, H, Q, K)
        bias: Tensor | None = None
        if self.family.bias is not None:
            bias = self.family.bias(self.tables[module], module, q, k, q_positions, k_positions)
        return (logits + (k_layout.bias if bias is None else bias + k_layout.bias)).softmax(-1)

    def _probabilities(self, module: Layer, i: int, x: Tensor) -> Tensor:
        q, k, positions = self._query(module, i, x), self._key(module, i, x), self._positions()
        return self._softmax(module, q, k, self.layout, positions, positions)

    def _after(self, module: Layer, i: int, context: Tensor, layout: Layout, x: Tensor) -> Tensor:
        """Pack the context (B, H, K, d) of the rows of `layout`, project it and add it to x."""
        rows = context.transpose(1, 2).reshape(-1, self.heads[i] * self.size)[layout.live]
        return self.family.after_attention(module, rows, x)

    def _received(self, p: Tensor) -> Tensor:
        """(B, K): attention received from live queries, summed over queries and averaged over
        heads, in this layer or in all layers so far."""
        layout = self.layout
        live = layout.alive.to(p.dtype).unsqueeze(1).unsqueeze(1)  # (B, 1, 1, Q)
        received = (live @ p).mean((1, 2))
        if self.plan.score == "received":
            return received
        packed = received.view(-1)[layout.live]  # (N,)
        self.total = packed if self.total is None else self.total + packed
        return self.total[layout.at]

    def _state_scores(self, state: Tensor, i: int) -> Tensor:
        """(B, K): scores that need no attention probabilities."""
        if self.plan.score == "random":
            return by_place(self._positions())
        if self.plan.score == "predicted":
            return self.predictors[i].odds(state)[self.layout.at]
        # Not a matrix product: with a vector it is slow, and int8 would round it.
        return (state * self.probes[i]).sum(1)[self.layout.at]

    def _rank(self, scores: Tensor, new: Layout) -> Tensor:
        """The numbers of the best rows, (B, K') in the places of `new`, from best to worst, as
        `tokens.order` returns them; equal scores keep their order, as ONNX guarantees for TopK."""
        key, layout = scores, self.layout
        if self.protected is not None:
            top = torch.finfo(key.dtype).max
            key = torch.where(self.protected[layout.at], top, key)
        key = torch.where(layout.alive, key, -torch.inf)
        key = torch.where(up_to(layout.size) == 0, torch.inf, key)
        count: Any = new.size  # a tensor, so that the graph computes it
        return key.topk(count, dim=1).indices

    def _counts(self, step: Step, scores: Tensor | None = None) -> Tensor:
        """(B,): how many rows stay: ceil(keep * n) in integers, within the plan's limits. A step
        with a threshold keeps at most the rows whose score (B, K) reaches it; there, attention
        received counts by its mean over queries, not by its sum."""
        part: Any = step.keep.numerator
        whole = step.keep.denominator
        if self.keep is not None:
            part, whole = self.keep[self.plan.steps.index(step)], DENOMINATOR
        k = torch.div(self.n * part + (whole - 1), whole, rounding_mode="trunc")
        k, layout = k.clamp_min(self.plan.min_tokens), self.layout
        if self.protected is not None:
            held = self.protected[layout.at] & layout.alive
            others = held.sum(1) + (~held[:, 0]).long()  # the first token stays, protected or not
            k = torch.maximum(k, others)
        k = torch.minimum(k, layout.k)  # an adaptive step may have left fewer rows already
        if step.threshold is None:
            return k
        assert scores is not None
        if self.plan.score in ATTENDED:
            scores = scores / layout.k.unsqueeze(1).to(scores.dtype)
        high = (scores >= step.threshold) | (up_to(layout.size) == 0)
        if self.protected is not None:
            high = high | self.protected[layout.at]
        enough = (high & layout.alive).sum(1).clamp_min(self.plan.min_tokens)
        return torch.minimum(k, enough)

    def _move(self, x: Tensor, rows: Tensor, new: Layout) -> Tensor:
        """Take the packed rows (B, K') for which `new` has places, and go on with them."""
        packed = rows.reshape(-1)[new.live]
        self._relabel(packed, new)
        return x[packed]

    def _relabel(self, packed: Tensor, new: Layout) -> None:
        """Let the rows from here on be the tokens of the rows `packed`."""
        if self.protected is not None:
            self.protected = self.protected[packed]
        if self.total is not None:
            self.total = self.total[packed]
        self.index, self.positions = self.index[packed], self.positions[packed]
        self.layout = new


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


def _scaled(stock: Projection, scale: float = 1.0) -> nn.Linear:
    """Copy a projection to a separate layer, even where the model fuses three. The scale of the
    logits goes into the projection of the queries."""
    weight, bias = stock.weight, stock.bias
    copy = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    copy.weight.data = weight.detach() * scale
    if bias is not None:
        copy.bias.data = bias.detach() * scale
    return copy
