"""How FLOPs are counted: as they are executed, by the ToP paper, or by its authors' code.

A paper compares with inputs padded to the maximum, and so do its two counts here. They stand where
the executed MACs stand: a `Cost` that schedules, masks and budgets ask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from toprune.plan.budget import Budget, Count, Lengths
from toprune.plan.cost import Cost, Number, Sizes, after_attention, dense_cost, equation_4
from toprune.plan.plan import Restore, Score

KEYS: dict[Count, str] = {  # of a `Reduction`
    "executed": "unpadded",
    "paper": "paper_padded",
    "authors": "authors_padded",
}
MEANINGS: dict[Count, str] = {
    "executed": "real FLOPs, against unpadded inputs",
    "paper": "FLOPs by equation 4 of the ToP paper, against inputs padded to the maximum",
    "authors": "FLOPs as the code of ToP's authors counts them, against inputs padded to the "
    "maximum",
}


@dataclass(frozen=True)
class Published:
    """The cost of a model in MACs, as a paper counts it. To rank tokens costs nothing there.

    Args:
        sizes: of the model.
        count: `paper`: every token that enters a layer passes through its FFN. `authors`: tokens
            that leave after a layer do not, also where the head reads every token.
    """

    sizes: Sizes
    count: Literal["paper", "authors"]

    @property
    def layers(self) -> int:
        return self.sizes.layers

    def total(
        self,
        tokens: Sequence[Number],
        squares: Sequence[Number],
        *,
        examples: Number,
        restore: Restore,
    ) -> Number:
        fed = tokens if self.count == "paper" else after_attention(tokens)
        return equation_4(self.sizes, tokens, squares, fed)

    def ranking(
        self, score: Score, tokens: Sequence[Number], predictor: int | None = None
    ) -> Number:
        return 0


def counted(sizes: Sizes, count: Count) -> Cost:
    """The cost that a budget with this count limits."""
    return sizes if count == "executed" else Published(sizes, count)


def against_unpadded(budget: Budget, sizes: Sizes, lengths: Lengths, max_length: int) -> Budget:
    """The budget as a reduction against inputs without padding, which training works with.

    Args:
        budget: is returned as it is if it counts what is executed.
        sizes: of the dense model.
        lengths: of the texts that the budget is for.
        max_length: the length to which a paper pads the inputs.
    """
    if budget.count == "executed":
        return budget
    cost = counted(sizes, budget.count)
    longest = Lengths(((max_length, 0, lengths.total),))
    return budget.unpadded(dense_cost(cost, longest, "none") / dense_cost(cost, lengths, "none"))
