"""What a text will cost under its plan, before it runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from toprune.plan.cost import Sizes, executed_macs, total_macs
from toprune.plan.plan import Plan, held_tokens

HEAD, INNER = 64, 4  # the usual width of a head, and how much wider the FFN is than the states
KNOWN = 10_000  # lengths whose cost is remembered


class Macs(NamedTuple):
    """Multiply-accumulates of one row."""

    linear: int  # of its own tokens: the exported graph skips the padding
    attention: int  # grows with the longest row of the batch: here padding is computed


class RowCost:
    """Counts the MACs of rows under a plan.

    A bundle does not store every size of its model, so heads and FFN get their usual widths.
    Batches compare rows of one model with each other, and for that the counts are exact enough.
    """

    def __init__(self, plan: Plan):
        self._plan = plan
        heads = max(1, plan.width // HEAD)
        self._sizes = Sizes(plan.n_layers, plan.width, heads, INNER * plan.width)
        self._known: dict[tuple[int, int], Macs] = {}

    def __call__(self, row: Any) -> Macs:
        """Count the MACs of a row of token ids."""
        plan, held = self._plan, 0
        if plan.protect or plan.protect_until is not None:
            held = held_tokens(row.ids.tolist(), plan.protect, plan.protect_until)
        return self.count(len(row), held)

    def count(self, n: int, held: int = 0) -> Macs:
        """Count the MACs of a row of n tokens, `held` of them protected."""
        macs = self._known.get((n, held))
        if macs is None:
            squares = [t * t for t in self._plan.lengths(n, held)]
            zeros = [0] * len(squares)
            attention = total_macs(
                self._sizes, zeros, squares, examples=0, restore=self._plan.restore
            )
            macs = Macs(executed_macs(self._sizes, self._plan, n, held) - attention, attention)
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[n, held] = macs
        return macs


class BatchCost:
    """The cost of a batch while rows are added: its attention is padded to the longest row."""

    def __init__(self) -> None:
        self.rows = self._linear = self._longest = 0

    @property
    def macs(self) -> int:
        return self._linear + self.rows * self._longest

    def with_rows(self, rows: Sequence[Macs]) -> "BatchCost":
        """The cost with these rows in addition."""
        batch = BatchCost()
        batch.rows = self.rows + len(rows)
        batch._linear = self._linear + sum(row.linear for row in rows)
        batch._longest = max([self._longest, *(row.attention for row in rows)])
        return batch
