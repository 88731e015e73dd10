"""The budget that the user requests, and the lengths of the texts that it is meant for."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from toprune.errors import UserError

_BUDGET = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*(x|%|ms|s)", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """How much cheaper the pruned model must be.

    Args:
        reduction: how many times fewer FLOPs, on inputs without padding; above one.
        asked: the request as the user wrote it, for messages and reports.
    """

    reduction: float
    asked: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reduction) and self.reduction > 1):
            raise UserError(
                f"budget {self.asked!r} is not valid; give a FLOPs reduction above one like 4x, "
                "or the share of FLOPs to remove like 65% (above 0%, below 100%)"
            )

    @classmethod
    def parse(cls, asked: "str | Budget") -> "Budget":
        """Read a budget.

        Args:
            asked: `4x` is a reduction; `65%` is the share to remove, which papers call "FLOPs
                sparsity". A Budget is returned as it is.
        """
        if isinstance(asked, Budget):
            return asked
        match = _BUDGET.fullmatch(str(asked).strip())
        if match is None:
            return cls(math.nan, str(asked))  # the constructor refuses it with the right message
        number, unit = float(match[1]), match[2].lower()
        if unit in ("ms", "s"):
            raise UserError(
                f"budget {asked!r}: latency budgets are not supported yet; "
                "give a FLOPs reduction like 4x or 65%"
            )
        if unit == "x":
            return cls(number, asked)
        return cls(math.inf if number == 100 else 100 / (100 - number), asked)

    @property
    def sparsity(self) -> float:
        """Share of the dense model's FLOPs to remove."""
        return 1 - 1 / self.reduction


@dataclass(frozen=True)
class Lengths:
    """Histogram of the lengths of a data set.

    It is exact, without bins: an encoder reads at most a few hundred distinct lengths, and
    `ceil(r * n)` gives neighbouring lengths different costs. It counts lengths and protected tokens
    together, because a plan keeps at least the protected tokens of an example: a long query before
    a short document leaves little to drop.

    Args:
        rows: sorted (n, held, count): so many examples have n live tokens, special tokens included,
            and `held` of these are protected. `held` is 0 if the plan protects none.
    """

    rows: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise UserError("no lengths to work with; give at least one example")
        if any(n < 1 or count < 1 for n, _, count in self.rows):
            raise UserError("every length and its count must be at least 1; remove empty texts")
        if any(not 0 <= held <= n for n, held, _ in self.rows):
            raise UserError("a text holds 0 to all of its tokens; count them with held_tokens")
        if any(a[:2] >= b[:2] for a, b in pairwise(self.rows)):
            raise UserError("lengths must be sorted and distinct; build them with Lengths.of(...)")

    @classmethod
    def of(cls, lengths: Iterable[int], held: Iterable[int] | None = None) -> Self:
        """Count the lengths of a data set.

        Args:
            lengths: number of tokens of each example.
            held: how many of them always stay (`plan.held_tokens`), if the plan protects any.
        """
        sizes = [int(n) for n in lengths]
        protected = [0] * len(sizes) if held is None else [int(h) for h in held]
        return cls._sorted(Counter(zip(sizes, protected, strict=True)))

    @classmethod
    def _sorted(cls, counts: Counter[tuple[int, int]]) -> Self:
        return cls(tuple((n, held, count) for (n, held), count in sorted(counts.items())))

    def cut(self, most: int) -> Self:
        """Return the lengths of the same texts, truncated to `most` tokens."""
        counts = Counter[tuple[int, int]]()
        for n, held, count in self.rows:
            counts[min(n, most), min(held, most)] += count
        return self._sorted(counts)

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Sorted (n, number of examples), without regard to protected tokens."""
        counts = Counter[int]()
        for n, _, count in self.rows:
            counts[n] += count
        return tuple(counts.items())

    def moment(self, power: int) -> int:
        """Sum n**power over all examples, as an exact integer."""
        return sum(count * n**power for n, _, count in self.rows)

    @property
    def total(self) -> int:
        """Number of examples."""
        return self.moment(0)

    @property
    def mean(self) -> float:
        return self.moment(1) / self.total

    @property
    def max(self) -> int:
        return self.rows[-1][0]

    def quantile(self, q: float) -> int:
        """Find the smallest length that at least a share q of the examples do not exceed."""
        if not 0 <= q <= 1:
            raise UserError(f"a quantile lies between 0 and 1, not {q}")
        examples = 0
        for n, count in self.counts:
            examples += count
            if examples >= q * self.total:
                return n
        return self.max

    def to_json(self) -> dict[str, int]:
        """Write `{"53": 12}` for 12 examples of 53 tokens, `{"53/7": 12}` if 7 are protected."""
        return {f"{n}/{held}" if held else str(n): count for n, held, count in self.rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        try:
            cells = ((key.partition("/"), count) for key, count in data.items())
            rows = ((int(n), int(held if slash else 0), int(m)) for (n, slash, held), m in cells)
            return cls(tuple(sorted(rows)))
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError('lengths must be an object like {"53": 12} of whole numbers') from error
