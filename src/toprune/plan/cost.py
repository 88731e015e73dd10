"""What a plan costs: multiply-accumulates (MACs) of the matrix products that toprune executes.

Schedules and masks ask a `Cost`: `Sizes` counts MACs, a `Curve` (`curve.py`) gives milliseconds.

One formula serves exact counts, whole histograms and the differentiable expectation. It is
quadratic in the tokens T of a layer, so the sums of T and T^2 over the examples are enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from toprune.errors import UserError
from toprune.plan.budget import Lengths
from toprune.plan.plan import Plan, Restore, Score

Number = Any  # int, float, numpy array or torch tensor: anything with + and *


class Cost(Protocol):
    """What a budget limits. All costs add up over layers, and no tokens cost nothing."""

    @property
    def layers(self) -> int: ...

    def total(
        self,
        tokens: Sequence[Number],
        squares: Sequence[Number],
        *,
        examples: Number,
        restore: Restore,
    ) -> Number:
        """Sum the cost of all layers; the arguments are those of `total_macs`."""
        ...

    def ranking(
        self, score: Score, tokens: Sequence[Number], predictor: int | None = None
    ) -> Number:
        """Sum the cost of the steps of a plan, beside the layers.

        Args:
            score: how tokens are ranked.
            tokens: (steps,) the tokens that reach each step.
            predictor: inner width of the networks that score tokens.
        """
        ...


@dataclass(frozen=True)
class Sizes:
    """The numbers of an architecture that its cost depends on, and that cost in MACs."""

    layers: int
    width: int
    heads: int
    inner: int
    head_width: int | None = None  # None: width / heads
    key_heads: int | None = None  # fewer than heads where several queries share a key
    gated: bool = False  # the FFN has a third matrix, which gates the first
    relative: int = 0  # positions that every query is multiplied with (disentangled attention)
    relative_keys: int = 0  # positions that every key is multiplied with
    entry: int = 0  # MACs of a token before the layers: embedding projections, convolutions
    free: int = 0  # tokens of an example without `entry`: [CLS] of an image
    slim: tuple[tuple[int, int], ...] | None = None  # heads and inner of each layer, if they differ

    @property
    def head_size(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        """Width of all keys of a token."""
        return (self.key_heads or self.heads) * self.head_size

    @property
    def feed_forward(self) -> int:
        """MACs of a token in the FFN."""
        return (3 if self.gated else 2) * self.width * self.inner

    @property
    def by_layer(self) -> "list[Sizes]":
        """The sizes of each layer."""
        if self.slim is None:
            return [self] * self.layers
        common = replace(self, head_width=self.head_size, slim=None)
        return [replace(common, heads=heads, inner=inner) for heads, inner in self.slim]

    def total(
        self,
        tokens: Sequence[Number],
        squares: Sequence[Number],
        *,
        examples: Number,
        restore: Restore,
    ) -> Number:
        return total_macs(self, tokens, squares, examples=examples, restore=restore)

    def ranking(
        self, score: Score, tokens: Sequence[Number], predictor: int | None = None
    ) -> Number:
        """A single probe reads each token once; one of several probes and a predictor read every
        token that is left at their layer."""
        if score == "probe":
            return self.width * tokens[0] if tokens else 0
        per_token = self.width if score == "probes" else 0
        if predictor is not None:
            per_token = (self.width + 1) * predictor  # to its inner width, then to one number
        return per_token * sum(tokens)

    def of_layers(self, kept: Sequence[int]) -> "Sizes":
        """Return the sizes of a model that has only the layers `kept`."""
        slim = None if self.slim is None else tuple(self.slim[i] for i in kept)
        return replace(self, layers=len(kept), slim=slim)


@dataclass(frozen=True)
class Reduction:
    """Dense cost over pruned cost, counted in several ways; never print one without its name."""

    unpadded: float  # the real one: the same inputs, without padding
    padded: float  # dense inputs padded to the maximum length
    paper: float  # unpadded, but counted by ToP eq. 4
    paper_padded: float  # by ToP eq. 4, dense inputs padded: the definition in the paper
    authors_padded: float  # the same as ToP's code counts it: what the paper prints


class LayerMacs(NamedTuple):
    """MACs of a token in one layer."""

    query: Number  # as a query, with its output projection
    key: Number  # as a key and a value
    pair: Number  # for each token that it attends to
    feed_forward: Number


def layer_macs(sizes: Sizes) -> LayerMacs:
    """Count the MACs of a token in one layer of these sizes."""
    return LayerMacs(
        query=(2 * sizes.width + sizes.relative) * sizes.query_width,
        key=2 * sizes.width * sizes.key_width + sizes.relative_keys * sizes.query_width,
        pair=2 * sizes.query_width,
        feed_forward=sizes.feed_forward,
    )


def total_macs(
    sizes: Sizes,
    tokens: Sequence[Number],
    squares: Sequence[Number],
    *,
    examples: Number,
    restore: Restore,
) -> Number:
    """Count the MACs of all examples; the result is linear in all three sums.

    A head that reads one row lets us drop before the FFN, and needs queries, output projection and
    FFN of the last layer for that row only; keys and values are needed for all. A head that reads
    every row has no short last layer. If dropped rows come back with their last state, each needs
    its FFN and is dropped after it.

    Args:
        sizes: of the model.
        tokens: (L,) the sum over the examples of the tokens T that enter each layer.
        squares: (L,) the sum of T^2.
        examples: number of examples.
        restore: what the head gets for dropped tokens.
    """
    *layers, last = map(layer_macs, sizes.by_layer)
    fed = tokens[:-1] if restore == "last" else tokens[1:]
    before = sizes.entry * (tokens[0] - sizes.free * examples) + sum(
        (macs.query + macs.key) * t + macs.pair * t2 + macs.feed_forward * u
        for macs, t, t2, u in zip(layers, tokens[:-1], squares[:-1], fed, strict=True)
    )
    t, t2 = tokens[-1], squares[-1]
    if restore == "none":
        return (
            before
            + last.key * t
            + last.query * examples
            + last.pair * t
            + last.feed_forward * examples
        )
    return before + (last.query + last.key) * t + last.pair * t2 + last.feed_forward * t


def example_cost(cost: Cost, entering: Sequence[int], restore: Restore) -> Number:
    """Sum the cost of one example with `entering[i]` tokens in layer i, without ranking them."""
    return cost.total(entering, [t * t for t in entering], examples=1, restore=restore)


def step_cost(cost: Cost, plan: Plan, tokens: Sequence[Number]) -> Number:
    """Sum the cost of a plan's steps where `tokens` enter each layer. Where tokens may return, all
    of them are scored at every step."""
    reaching = [tokens[0 if plan.returns else step.layer] for step in plan.steps]
    return cost.ranking(plan.score, reaching, plan.predictor)


def plan_cost(cost: Cost, plan: Plan, lengths: Lengths) -> Number:
    """Sum the cost of all examples under a plan."""
    return sum(
        count * example_cost(cost, entering, plan.restore) + count * step_cost(cost, plan, entering)
        for n, held, count in lengths.rows
        for entering in [plan.lengths(n, held)]
    )


def dense_cost(cost: Cost, lengths: Lengths, restore: Restore) -> Number:
    """Sum the cost of all examples in the dense model."""
    return sum(
        count * example_cost(cost, [n] * cost.layers, restore) for n, count in lengths.counts
    )


def dense_macs(sizes: Sizes, n: int, restore: Restore = "none") -> int:
    """Count the MACs of one example of n tokens without steps; the last layer is short here too."""
    return example_cost(sizes, [n] * sizes.layers, restore)


def executed_macs(sizes: Sizes, plan: Plan, n: int, held: int = 0) -> int:
    """Count the MACs of one example of n tokens, `held` of them protected, exactly as they run."""
    entering = plan.lengths(n, held)
    return example_cost(sizes, entering, plan.restore) + step_cost(sizes, plan, entering)


def equation_4(
    sizes: Sizes, tokens: Sequence[Number], squares: Sequence[Number], fed: Sequence[Number]
) -> Number:
    """Count as ToP eq. 4 does: with softmax, and a whole last layer.

    Args:
        sizes: of the model.
        tokens, squares: (L,) as in `total_macs`.
        fed: (L,) the sum of the tokens in each FFN.
    """
    return sum(
        2 * layer.width * (layer.query_width + layer.key_width) * t
        + (2 * layer.query_width + layer.heads) * t2
        + layer.feed_forward * u
        for layer, t, t2, u in zip(sizes.by_layer, tokens, squares, fed, strict=True)
    )


def paper_macs(sizes: Sizes, entering: Sequence[int]) -> int:
    """Count one example by ToP eq. 4: all tokens that enter a layer pass through its FFN."""
    return equation_4(sizes, entering, [t * t for t in entering], entering)


def authors_macs(sizes: Sizes, entering: Sequence[int]) -> int:
    """Count one example as ToP's code: tokens that leave after a layer do not reach its FFN."""
    return equation_4(sizes, entering, [t * t for t in entering], after_attention(entering))


def after_attention(tokens: Sequence[Number]) -> list[Number]:
    """The tokens in each FFN, where they leave before it; the last layer keeps all of its own."""
    return [*tokens[1:], tokens[-1]]


def reduction(
    sizes: Sizes,
    plan: Plan,
    lengths: Lengths,
    *,
    max_length: int | None = None,
    cut: int | None = None,
    before: Sizes | None = None,
) -> Reduction:
    """Divide the dense cost of all examples by their pruned cost: what a server pays.

    Args:
        sizes: of the pruned model.
        plan: of the pruned model.
        lengths: of the examples.
        max_length: length to which inputs would be padded; None: the longest example.
        cut: number of tokens to which texts are truncated for the pruned model.
        before: sizes of the dense model, if they differ.
    """
    stock = before or sizes
    read = lengths if cut is None else lengths.cut(cut)
    longest = lengths.max if max_length is None else max_length
    if longest < lengths.max:
        raise UserError(
            f"max_length {longest} is below the longest example ({lengths.max}); raise it"
        )
    executed = plan_cost(sizes, plan, read)
    dense = dense_cost(stock, lengths, plan.restore)
    rows = [(plan.lengths(n, held), count) for n, held, count in read.rows]
    paper, authors = (
        sum(count * macs(sizes, entering) for entering, count in rows)
        for macs in (paper_macs, authors_macs)
    )
    paper_dense = sum(count * paper_macs(stock, [n] * stock.layers) for n, count in lengths.counts)
    paper_padded = lengths.total * paper_macs(stock, [longest] * stock.layers)
    return Reduction(
        unpadded=dense / executed,
        padded=lengths.total * dense_macs(stock, longest, plan.restore) / executed,
        paper=paper_dense / paper,
        paper_padded=paper_padded / paper,
        authors_padded=paper_padded / authors,
    )


def measured_reduction(
    sizes: Sizes,
    plan: Plan,
    entering: NDArray[np.int64],
    *,
    max_length: int,
    before: Sizes | None = None,
) -> Reduction:
    """Do the same as `reduction` for an adaptive plan, whose tokens depend on more than the length.

    Args:
        sizes: of the model.
        plan: of the model.
        entering: (N, L) the tokens of each example that entered each layer.
        max_length: length to which inputs would be padded.
        before: sizes of the dense model, if they differ.
    """
    stock, count, restore = before or sizes, len(entering), plan.restore
    whole = np.repeat(entering[:, :1], stock.layers, 1)
    executed = _measured_cost(sizes, plan, entering)
    paper, authors = (
        sum(macs(sizes, row) for row in entering.tolist()) for macs in (paper_macs, authors_macs)
    )
    paper_padded = count * paper_macs(stock, [max_length] * stock.layers)
    return Reduction(
        unpadded=_layers_cost(stock, whole, restore) / executed,
        padded=count * dense_macs(stock, max_length, restore) / executed,
        paper=sum(paper_macs(stock, row) for row in whole.tolist()) / paper,
        paper_padded=paper_padded / paper,
        authors_padded=paper_padded / authors,
    )


def measured_ratio(cost: Cost, plan: Plan, entering: NDArray[np.int64]) -> float:
    """Divide the dense cost of all examples by their pruned cost, both without padding.

    Args:
        cost: what is divided.
        plan: of the model.
        entering: (N, L) the tokens of each example that entered each layer.
    """
    whole = np.repeat(entering[:, :1], cost.layers, 1)
    return _layers_cost(cost, whole, plan.restore) / _measured_cost(cost, plan, entering)


def _measured_cost(cost: Cost, plan: Plan, entering: NDArray[np.int64]) -> Number:
    layers = _layers_cost(cost, entering, plan.restore)
    return layers + step_cost(cost, plan, entering.sum(0).tolist())


def _layers_cost(cost: Cost, entering: NDArray[np.int64], restore: Restore) -> Number:
    sums, squares = entering.sum(0).tolist(), (entering**2).sum(0).tolist()
    return cost.total(sums, squares, examples=len(entering), restore=restore)


def expected_share(
    cost: Cost,
    ratios: Number,  # (L-1,) a list of floats or a tensor
    lengths: Lengths,
    restore: Restore = "none",
) -> Number:
    """Estimate the executed share of the dense cost; `ratios[i]` of n tokens enter layer i+1.

    Tokens are real numbers here (T = R * n, no ceil, none protected), so gradients reach the
    ratios. `repair` counts protected tokens and the probe's 0.01 %.
    """
    if len(ratios) != cost.layers - 1:
        raise ValueError(
            f"{len(ratios)} ratios for {cost.layers} layers; give one less than layers"
        )
    mean, square = (lengths.moment(power) / lengths.total for power in (1, 2))
    shares = [1.0, *ratios]
    tokens, squares = [r * mean for r in shares], [r * r * square for r in shares]
    expected = cost.total(tokens, squares, examples=1, restore=restore)
    all_tokens, all_squares = [mean] * cost.layers, [square] * cost.layers
    return expected / cost.total(all_tokens, all_squares, examples=1, restore=restore)
