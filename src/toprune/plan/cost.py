"""What a plan costs: multiply-accumulates (MACs) of the matrix products that toprune executes.

One formula serves exact counts, whole histograms and the differentiable expectation. It is
quadratic in the tokens T of a layer, so the sums of T and T^2 over the examples say everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toprune.errors import UserError
from toprune.plan.budget import Lengths
from toprune.plan.plan import Plan, Restore

Number = Any  # int, float, numpy array or torch tensor: whatever knows + and *


@dataclass(frozen=True)
class Sizes:
    """The numbers of an architecture that decide its cost (d = width, d' = inner)."""

    layers: int
    width: int
    heads: int
    inner: int
    head_width: int | None = None  # width / heads, unless the architecture says otherwise
    key_heads: int | None = None  # fewer than heads where several queries share a key
    gated: bool = False  # the FFN has a third matrix, which gates the first
    relative: int = 0  # positions that every query is multiplied with (disentangled)
    relative_keys: int = 0  # and every key
    entry: int = 0  # MACs of a token before any may leave: embedding projections, convolutions
    free: int = 0  # tokens of an example that come in without these: [CLS] of an image
    slim: tuple[tuple[int, int], ...] | None = None  # heads and inner of each layer, if they differ

    @property
    def head_size(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def attended(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_size

    @property
    def keyed(self) -> int:
        """Width of all keys of a token."""
        return (self.key_heads or self.heads) * self.head_size

    @property
    def feed(self) -> int:
        """MACs of a token's FFN."""
        return (3 if self.gated else 2) * self.width * self.inner

    @property
    def each(self) -> "list[Sizes]":
        """Layer by layer."""
        if self.slim is None:
            return [self] * self.layers
        alike = replace(self, head_width=self.head_size, slim=None)
        return [replace(alike, heads=heads, inner=inner) for heads, inner in self.slim]

    def of_layers(self, kept: Sequence[int]) -> "Sizes":
        """Without the other layers."""
        slim = None if self.slim is None else tuple(self.slim[i] for i in kept)
        return replace(self, layers=len(kept), slim=slim)


@dataclass(frozen=True)
class Reduction:
    """Dense cost over pruned cost by three yardsticks; never print one without its name."""

    unpadded: float  # the real one: the same inputs, without padding
    padded: float  # the papers' one: dense inputs padded to the maximum length
    paper: float  # unpadded, but counted by ToP eq. 4


class LayerMacs(NamedTuple):
    """What a token costs in one layer."""

    asked: Number  # as query, with its output projection
    read: Number  # as key and value
    mix: Number  # in a pair
    feed: Number  # in the FFN


def _layer_macs(sizes: Sizes) -> LayerMacs:
    return LayerMacs(
        asked=(2 * sizes.width + sizes.relative) * sizes.attended,
        read=2 * sizes.width * sizes.keyed + sizes.relative_keys * sizes.attended,
        mix=2 * sizes.attended,
        feed=sizes.feed,
    )


def total_macs(
    sizes: Sizes,
    tokens: Sequence[Number],
    squares: Sequence[Number],
    *,
    examples: Number,
    restore: Restore,
) -> Number:
    """MACs from the sums over the examples of T and T^2 that enter each layer.

    Linear in all three sums. A head that reads one row lets us drop before the FFN, and needs
    queries, output projection and FFN of the last layer for that row only; keys and values are
    needed for all. A head that reads every row has no short last layer; where dropped rows come
    back with their last state, each needs its FFN and is dropped after it.
    """
    *layers, (asked, read, mix, feed) = map(_layer_macs, sizes.each)
    fed = tokens[:-1] if restore == "last" else tokens[1:]
    whole = sizes.entry * (tokens[0] - sizes.free * examples) + sum(
        (own.asked + own.read) * t + own.mix * t2 + own.feed * u
        for own, t, t2, u in zip(layers, tokens[:-1], squares[:-1], fed, strict=True)
    )
    t, t2 = tokens[-1], squares[-1]
    if restore == "none":
        return whole + read * t + asked * examples + mix * t + feed * examples
    return whole + (asked + read) * t + mix * t2 + feed * t


def example_macs(sizes: Sizes, entering: list[int], restore: Restore) -> int:
    """MACs of one example with `entering[i]` tokens in layer i, but for what ranks them."""
    squares = [t * t for t in entering]
    return total_macs(sizes, entering, squares, examples=1, restore=restore)


def score_macs(sizes: Sizes, plan: Plan, tokens: Sequence[Number]) -> Number:
    """What ranking costs beside the layers that `tokens` enter: a probe reads each token once, one
    of several and a predictor every token that is left at its layer."""
    if plan.score == "probe" and plan.steps:
        return sizes.width * tokens[0]
    own = sizes.width if plan.score == "probes" else 0
    if plan.predictor is not None:
        own = (sizes.width + 1) * plan.predictor  # to its inner width, and from there to one
    return own * sum(tokens[step.layer] for step in plan.steps)


def dense_macs(sizes: Sizes, n: int, restore: Restore = "none") -> int:
    """MACs of one example of n tokens without steps. Dense gets the short last layer too."""
    return example_macs(sizes, [n] * sizes.layers, restore)


def executed_macs(sizes: Sizes, plan: Plan, n: int, held: int = 0) -> int:
    """MACs of one example of n tokens, `held` of them protected, under the plan, exactly as run."""
    entering = plan.lengths(n, held)
    return example_macs(sizes, entering, plan.restore) + score_macs(sizes, plan, entering)


def paper_macs(sizes: Sizes, entering: Sequence[int]) -> int:
    """ToP eq. 4: softmax counted, FFN on all tokens that enter the layer, last layer whole."""
    return sum(
        (2 * own.width * (own.attended + own.keyed) + own.feed) * t
        + (2 * own.attended + own.heads) * t * t
        for own, t in zip(sizes.each, entering, strict=True)
    )


def reduction(
    sizes: Sizes,
    plan: Plan,
    lengths: Lengths,
    *,
    max_length: int | None = None,
    cut: int | None = None,
    before: Sizes | None = None,
) -> Reduction:
    """Ratios of sums over the histogram (what a server pays), not means of ratios.

    `max_length` is what inputs would be padded to; the longest example unless given. `cut`: texts
    lose what is beyond so many tokens before the pruned model reads them. `before`: the dense
    model's sizes, if the pruned one has others.
    """
    stock = before or sizes
    read = lengths if cut is None else lengths.cut(cut)
    longest = lengths.max if max_length is None else max_length
    if longest < lengths.max:
        raise UserError(
            f"max_length {longest} is below the longest example ({lengths.max}); raise it"
        )
    executed = sum(many * executed_macs(sizes, plan, n, h) for n, h, many in read.rows)
    dense = sum(many * dense_macs(stock, n, plan.restore) for n, many in lengths.counts)
    paper = sum(many * paper_macs(sizes, plan.lengths(n, h)) for n, h, many in read.rows)
    paper_dense = sum(many * paper_macs(stock, [n] * stock.layers) for n, many in lengths.counts)
    return Reduction(
        unpadded=dense / executed,
        padded=lengths.total * dense_macs(stock, longest, plan.restore) / executed,
        paper=paper_dense / paper,
    )


def measured_reduction(
    sizes: Sizes, plan: Plan, entering: NDArray[np.int64], *, max_length: int
) -> Reduction:
    """As `reduction`, of an adaptive plan: from the tokens (N, L) that entered each layer of each
    example, because a length alone does not tell them."""
    n, count, restore = entering[:, 0], len(entering), plan.restore

    def macs(tokens: NDArray[np.int64]) -> int:
        sums, squares = tokens.sum(0).tolist(), (tokens**2).sum(0).tolist()
        return total_macs(sizes, sums, squares, examples=count, restore=restore)

    dense = macs(np.repeat(n[:, None], sizes.layers, 1))
    paper = sum(paper_macs(sizes, [int(m)] * sizes.layers) for m in n)
    executed = macs(entering) + score_macs(sizes, plan, entering.sum(0).tolist())
    return Reduction(
        unpadded=dense / executed,
        padded=count * dense_macs(sizes, max_length, restore) / executed,
        paper=paper / sum(paper_macs(sizes, row) for row in entering.tolist()),
    )


def expected_share(
    sizes: Sizes,
    ratios: Number,  # (L-1,) a list of floats or a tensor
    lengths: Lengths,
    restore: Restore = "none",
) -> Number:
    """Expected executed over dense cost; `ratios[i]` is the share of n that enters layer i+1.

    Tokens are real numbers here (T = R * n, no ceil, nothing held), so gradients reach the ratios.
    Protected tokens and the probe's 0.01 % are left to `repair`, which counts them.
    """
    if len(ratios) != sizes.layers - 1:
        raise ValueError(
            f"{len(ratios)} ratios for {sizes.layers} layers; give one less than layers"
        )
    mean, square = (lengths.moment(power) / lengths.total for power in (1, 2))
    shares = [1.0, *ratios]
    tokens, squares = [r * mean for r in shares], [r * r * square for r in shares]
    expected = total_macs(sizes, tokens, squares, examples=1, restore=restore)
    all_tokens, all_squares = [mean] * sizes.layers, [square] * sizes.layers
    return expected / total_macs(sizes, all_tokens, all_squares, examples=1, restore=restore)
