"""The budget that the user requests, and the lengths of the texts that it is meant for."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Self, get_args

from toprune.errors import UserError

Precision = Literal["fp32", "int8"]
Count = Literal["executed", "paper", "authors"]  # how FLOPs are counted, see `plan/counts.py`

MEDIAN, HIGH = 0.5, 0.95  # quantiles of the lengths that a budget in milliseconds may be for
_BUDGET = re.compile(r"(?:(p95|p50)\s*:\s*)?(-?[0-9]+(?:\.[0-9]+)?)\s*(x|%|ms|s)", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """How much cheaper the pruned model must be.

    A budget in milliseconds becomes a reduction when the time of the dense model is known
    (`against`): how many times less time the pruned model takes. Time grows with the length, so the
    median time over the texts is the time at their median length: the budget is for that length.

    A budget in the words of a paper compares with padded inputs; when the lengths are known, it
    becomes a reduction against the same inputs without padding (`unpadded`).

    Args:
        asked: the request as the user wrote it: `4x` is a FLOPs reduction on inputs without
            padding; `65%` is the share of FLOPs to remove, which papers call "FLOPs sparsity";
            `12ms` is the time of one text at the median length, `p95:30ms` at the 95th percentile.
        reduction: how many times cheaper, above one; by default what `asked` says, and NaN for a
            time before `against`. With a number of its own, `asked` is only a name for messages.
        threads: of the model, for a budget in milliseconds.
        precision: of the model's file, for a budget in milliseconds.
        count: how FLOPs are counted: as they are executed, without padding; by equation 4 of the
            ToP paper or as its authors' code does, both against inputs padded to the maximum.
        padding: what the padding alone costs, as a factor; above one after `unpadded`.
    """

    asked: str
    reduction: float = math.nan
    threads: int = 1
    precision: Precision = "fp32"
    count: Count = "executed"
    padding: float = 1.0
    milliseconds: float | None = field(default=None, init=False)
    quantile: float = field(default=MEDIAN, init=False)

    def __post_init__(self) -> None:
        match = _BUDGET.fullmatch(str(self.asked).strip())
        at, number, unit = match.groups() if match else (None, "nan", "x")
        value, unit = float(number), unit.lower()
        if self.count not in get_args(Count):
            raise UserError(f"count {self.count!r} must be one of {', '.join(get_args(Count))}")
        if unit in ("ms", "s"):
            object.__setattr__(self, "milliseconds", value * (1000 if unit == "s" else 1))
            object.__setattr__(self, "quantile", HIGH if (at or "").lower() == "p95" else MEDIAN)
            self._check_time()
            return
        if math.isnan(self.reduction) and at is None:
            share = 0.0 if value == 100 else 100 / (100 - value)
            object.__setattr__(self, "reduction", value if unit == "x" else share)
        if not (math.isfinite(self.reduction) and self.reduction > 1):
            raise UserError(
                f"budget {self.asked!r} is not valid; give a FLOPs reduction above one like 4x, "
                "the share of FLOPs to remove like 65% (above 0%, below 100%), or the time of a "
                "text like 12ms or p95:30ms"
            )
        if (self.threads, self.precision) != (1, "fp32"):
            raise UserError(
                f"budget {self.asked}: threads and precision are for a budget in milliseconds"
            )

    def _check_time(self) -> None:
        assert self.milliseconds is not None
        if not (math.isfinite(self.milliseconds) and self.milliseconds > 0):
            raise UserError(f"budget {self.asked!r} is not valid; a time like 12ms is above zero")
        if self.count != "executed":
            raise UserError(f"budget {self.asked}: a count is for a budget in FLOPs, like 8.1x")
        if self.threads < 1:
            raise UserError(f"threads must be 1 or more, not {self.threads}")
        if self.precision not in get_args(Precision):
            raise UserError(f"precision {self.precision!r} must be fp32 or int8")

    @classmethod
    def parse(cls, asked: "str | Budget") -> "Budget":
        """Read a budget; a Budget is returned as it is."""
        return asked if isinstance(asked, Budget) else cls(asked)

    @property
    def sparsity(self) -> float:
        """Share of the dense model's cost to remove."""
        return 1 - 1 / self.reduction

    def against(self, dense: float) -> "Budget":
        """Return this budget in milliseconds as a reduction of the dense model's time.

        Args:
            dense: milliseconds that the dense model takes at the budget's length.
        """
        assert self.milliseconds is not None
        if dense <= self.milliseconds:
            raise UserError(
                f"budget {self.asked}: the dense model takes {dense:.2f} ms here already; "
                "ask for less than that"
            )
        return replace(self, reduction=dense / self.milliseconds)

    def unpadded(self, padding: float) -> "Budget":
        """Return this budget against padded inputs as a reduction of the same inputs without.

        Args:
            padding: what all inputs cost padded over what they cost without padding.
        """
        if self.reduction <= padding:
            raise UserError(
                f"budget {self.asked}, counted by the {self.count}: {padding:.2f}x of it is the "
                "padding alone, which no model has to compute; ask for more than that"
            )
        return replace(self, reduction=self.reduction / padding, padding=padding)

    def amount(self, reduction: float) -> str:
        """Describe a reduction in the unit of the budget."""
        if self.milliseconds is None:
            return f"{reduction:.2f}x"
        return f"{self.milliseconds * self.reduction / reduction:.2f} ms"

    def limit(self, most: float) -> str:
        """Describe the largest possible reduction in the unit of the budget."""
        if self.milliseconds is None:
            return f"{math.floor(most * self.padding * 100) / 100:.2f}x at most"
        least = self.milliseconds * self.reduction / most
        return f"{math.ceil(least * 100) / 100:.2f} ms at least"


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

    def at(self, q: float) -> Self:
        """Return one example: as long as a quantile, with the mean of protected tokens there."""
        n = self.quantile(q)
        same = [(held, count) for length, held, count in self.rows if length == n]
        held = sum(held * count for held, count in same) / sum(count for _, count in same)
        return type(self)(((n, round(held), 1),))

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
