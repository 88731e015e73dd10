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
    """Histogram of live tokens n per example, special tokens included, and of how many of them are
    held (protected, so that no plan drops them; 0: nobody asked): sorted (n, held, how many).

    Exact, without bins: an encoder reads at most a few hundred distinct lengths, and `ceil(r * n)`
    makes neighbouring lengths cost differently. Jointly, because what a plan keeps of an example is
    at least what is held in it: a long query before a short document leaves little to drop.
    """

    rows: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise UserError("no lengths to work with; give at least one example")
        if any(n < 1 or many < 1 for n, _, many in self.rows):
            raise UserError("every length and its count must be at least 1; remove empty texts")
        if any(not 0 <= held <= n for n, held, _ in self.rows):
            raise UserError("of a text, 0 to all tokens can be held; count them with held_tokens")
        if any(a[:2] >= b[:2] for a, b in pairwise(self.rows)):
            raise UserError("lengths must be sorted and distinct; build them with Lengths.of(...)")

    @classmethod
    def of(cls, lengths: Iterable[int], held: Iterable[int] | None = None) -> Self:
        """Count the lengths of a data set, one number per example, and beside it the number of its
        tokens that always stay (`plan.held_tokens`), if the plan protects any."""
        ns = [int(n) for n in lengths]
        always = [0] * len(ns) if held is None else [int(h) for h in held]
        pairs = Counter(zip(ns, always, strict=True))
        return cls(tuple((n, h, many) for (n, h), many in sorted(pairs.items())))

    def cut(self, most: int) -> Self:
        """Of the same texts, cut to so many tokens."""
        pairs = Counter[tuple[int, int]]()
        for n, held, many in self.rows:
            pairs[min(n, most), min(held, most)] += many
        return type(self)(tuple((n, h, many) for (n, h), many in sorted(pairs.items())))

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Sorted (n, how many), whatever is held."""
        found: Counter[int] = Counter()
        for n, _, many in self.rows:
            found[n] += many
        return tuple(found.items())

    def moment(self, power: int) -> int:
        """Sum of n**power over all examples, as an exact integer."""
        return sum(many * n**power for n, _, many in self.rows)

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
        """A plain dict `{"53": 12, ...}`; keys are strings because JSON has no others. Where tokens
        are held, so many of 53: `{"53/7": 12, ...}`."""
        return {f"{n}/{held}" if held else str(n): many for n, held, many in self.rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        try:
            cells = ((key.partition("/"), many) for key, many in data.items())
            rows = ((int(n), int(held if slash else 0), int(m)) for (n, slash, held), m in cells)
            return cls(tuple(sorted(rows)))
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError('lengths must be an object like {"53": 12} of whole numbers') from error
