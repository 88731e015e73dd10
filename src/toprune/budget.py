"""What the user asks for (a budget) and what it is asked over (the lengths of the user's data)."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from toprune.errors import UserError

_ASKED = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*(x|%|ms|s)", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """How many times fewer real FLOPs (never against padded inputs), and the user's own words."""

    reduction: float
    asked: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reduction) and self.reduction > 1):
            raise UserError(
                f"budget {self.asked!r} is not one; ask for a FLOPs reduction above one like 4x, "
                "or for the share of FLOPs to remove like 65% (above 0%, below 100%)"
            )

    @classmethod
    def parse(cls, asked: "str | Budget") -> "Budget":
        """Read `4x` (a reduction) or `65%` (a share removed: the papers' "FLOPs sparsity")."""
        if isinstance(asked, Budget):
            return asked
        match = _ASKED.fullmatch(str(asked).strip())
        if match is None:
            return cls(math.nan, str(asked))  # refused on construction, like every other non-budget
        number, unit = float(match[1]), match[2].lower()
        if unit in ("ms", "s"):
            raise UserError(
                f"budget {asked!r}: latency budgets are not there yet; "
                "ask for a FLOPs reduction like 4x or 65%"
            )
        if unit == "x":
            return cls(number, asked)
        return cls(math.inf if number == 100 else 100 / (100 - number), asked)

    @property
    def sparsity(self) -> float:
        """Share of the dense model's FLOPs that must go."""
        return 1 - 1 / self.reduction


@dataclass(frozen=True)
class Lengths:
    """Histogram of live tokens per example, special tokens included: sorted (n, how many).

    Exact, without bins: an encoder reads at most a few hundred distinct lengths, and `ceil(r * n)`
    makes neighbouring lengths cost differently.
    """

    counts: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.counts:
            raise UserError("no lengths to work with; give at least one example")
        if any(n < 1 or many < 1 for n, many in self.counts):
            raise UserError("every length and its count must be at least 1; remove empty texts")
        if any(a >= b for (a, _), (b, _) in pairwise(self.counts)):
            raise UserError("lengths must be sorted and distinct; build them with Lengths.of(...)")

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Self:
        """Count the lengths of a data set, one number per example."""
        return cls(tuple(sorted(Counter(int(n) for n in lengths).items())))

    def moment(self, power: int) -> int:
        """Sum of n**power over all examples, as an exact integer."""
        return sum(many * n**power for n, many in self.counts)

    @property
    def total(self) -> int:
        """Number of examples."""
        return self.moment(0)

    @property
    def mean(self) -> float:
        return self.moment(1) / self.total

    @property
    def max(self) -> int:
        return self.counts[-1][0]

    def quantile(self, q: float) -> int:
        """Smallest length that at least a share q of the examples do not exceed."""
        if not 0 <= q <= 1:
            raise UserError(f"a quantile lies between 0 and 1, not {q}")
        seen = 0
        for n, many in self.counts:
            seen += many
            if seen >= q * self.total:
                return n
        return self.max

    def to_json(self) -> dict[str, int]:
        """A plain dict `{"53": 12, ...}`; keys are strings because JSON has no others."""
        return {str(n): many for n, many in self.counts}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        try:
            return cls(tuple(sorted((int(n), int(many)) for n, many in data.items())))
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError('lengths must be an object like {"53": 12} of whole numbers') from error
