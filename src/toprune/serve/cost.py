"""What a text will cost under its plan, before it runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from toprune.errors import UserError
from toprune.plan.cost import Sizes, example_cost, step_cost, total_macs
from toprune.plan.plan import Plan, held_tokens
from toprune.run.manifest import PLACE
from toprune.run.runner import Runner

HEAD, INNER = 64, 4  # the usual width of a head, and how much wider the FFN is than the states
KNOWN = 10_000  # lengths whose cost is remembered


class Macs(NamedTuple):
    """Multiply-accumulates of one row."""

    linear: int  # of its own tokens: the exported graph skips the padding
    attention: int  # grows with the longest row of the batch: here padding is computed


Levels = tuple[tuple[Macs, ...], ...]  # of the rows of a text, for each budget


class RowCost:
    """Counts the MACs of rows under a plan, or without one: in the dense model."""

    def __init__(self, plan: Plan, sizes: Sizes | None = None, *, dense: bool = False):
        """Prepare the counts.

        Args:
            plan: of the bundle.
            sizes: of the model that reads the rows; None: an export that stores none, and heads and
                FFN get their usual widths. Batches compare rows of one model with each other, and
                for that such counts are exact enough.
            dense: every token stays.
        """
        if sizes is None:
            sizes = Sizes(plan.n_layers, plan.width, max(1, plan.width // HEAD), INNER * plan.width)
        if not dense and (sizes.layers, sizes.width) != (plan.n_layers, plan.width):
            raise UserError(
                f"the sizes in {PLACE} are those of another model than the plan's; "
                "export the bundle again"
            )
        self._plan, self._sizes, self._is_dense = plan, sizes, dense
        self._known: dict[tuple[int, int], Macs] = {}

    def __call__(self, row: Any) -> Macs:
        """Count the MACs of a row of token ids."""
        plan, held = self._plan, 0
        if not self._is_dense and (plan.protect or plan.protect_until is not None):
            held = held_tokens(row.ids.tolist(), plan.protect, plan.protect_until)
        return self.count(len(row), held)

    def count(self, n: int, held: int = 0) -> Macs:
        """Count the MACs of a row of n tokens, `held` of them protected."""
        macs = self._known.get((n, held))
        if macs is None:
            macs = self._count(n, held)
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[n, held] = macs
        return macs

    def _count(self, n: int, held: int) -> Macs:
        sizes, plan = self._sizes, self._plan
        entering = [n] * sizes.layers if self._is_dense else plan.lengths(n, held)
        squares = [t * t for t in entering]
        attention = total_macs(sizes, [0] * len(squares), squares, examples=0, restore=plan.restore)
        total = example_cost(sizes, entering, plan.restore)
        total += 0 if self._is_dense else step_cost(sizes, plan, entering)
        return Macs(total - attention, attention)


class TextCost:
    """Counts the MACs of texts at each budget of a bundle, the fallback included."""

    def __init__(self, runners: Sequence[Runner]):
        """Take the plans and sizes of the files.

        Args:
            runners: of one bundle, one for each budget.
        """
        first = runners[0]
        self._rows = [RowCost(one.plan, first.manifest.sizes) for one in runners]
        self._unpruned = RowCost(first.plan, first.manifest.sizes, dense=True)
        self._dense: RowCost | None = None
        self._share = 0.0  # of the texts that the dense file answers, too
        if first.net is not None:
            self._dense = RowCost(first.plan, first.net.dense.sizes, dense=True)
            self._share = first.net.fallback.share

    def unpruned(self, tokens: int) -> int:
        """Count the MACs of one row of so many tokens where every token stays."""
        return max(1, BatchCost().with_rows([self._unpruned.count(tokens)]).macs)

    def predict(self, rows: Sequence[Any]) -> Levels:
        """Count the MACs of a text's rows at each budget before it runs.

        With a fallback, the dense file may read the text, too. Nobody knows before it runs, so the
        expected cost is counted: by the share of the texts for which the fallback was chosen.
        """
        return tuple(tuple(self._expected(count, row) for row in rows) for count in self._rows)

    def executed(self, texts: Sequence[Sequence[Any]], fell: Sequence[bool], level: int) -> int:
        """Count the MACs of a batch that ran.

        Args:
            texts: the rows of each text.
            fell: which texts the dense file answered.
            level: number of the budget.
        """
        count = self._rows[level]
        macs = BatchCost().with_rows([count(row) for rows in texts for row in rows]).macs
        if self._dense is not None:
            again = [rows for rows, by_dense in zip(texts, fell, strict=True) if by_dense]
            macs += BatchCost().with_rows([self._dense(row) for rows in again for row in rows]).macs
        return macs

    def _expected(self, count: RowCost, row: Any) -> Macs:
        macs = count(row)
        if self._dense is None:
            return macs
        dense = self._dense(row)
        return Macs(
            macs.linear + round(self._share * dense.linear),
            macs.attention + round(self._share * dense.attention),
        )


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
