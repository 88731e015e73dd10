"""Schedules that meet a budget: repair the ratios of a plan, or start from a plain shape."""

import math
import warnings
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprune.errors import OutOfReach, UserError
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Cost, Sizes, dense_cost, example_cost, step_cost
from toprune.plan.plan import DENOMINATOR, Plan, Restore, Score, Step

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def largest_reduction(
    cost: Cost, lengths: Lengths, first: int, min_tokens: int, restore: Restore, score: Score
) -> float:
    """Compute the reduction if every layer from `first` on keeps as few tokens as a plan can."""

    def executed(n: int, held: int) -> Any:
        least = min(n, max(-(-n // DENOMINATOR), min_tokens, held))
        entering = [n] * (first + 1) + [least] * (cost.layers - first - 1)
        return example_cost(cost, entering, restore) + cost.ranking(score, [n])

    dense = dense_cost(cost, lengths, restore)
    return dense / sum(count * executed(n, held) for n, held, count in lengths.rows)


def repair(
    cost: Cost, plan: Plan, lengths: Lengths, budget: Budget, tolerance: float = 0.01
) -> Plan:
    """Move the ratios of a plan so that the executed reduction is the budget.

    Layers stay, ratios move together as R -> R**c: the share dropped by each step grows or shrinks
    in proportion (in logs), the order stays, and c runs from "keep all" to "keep the minimum".

    Args:
        cost: what the budget limits: the sizes of the model, or its curve.
        plan: its layers and the proportions of its ratios stay.
        lengths: of the texts that the budget is meant for.
        budget: what the plan must cost.
        tolerance: relative difference that is close enough.

    Raises:
        OutOfReach: even the minimum of tokens costs too much.
    """
    shape = np.array([float(step.keep) for step in plan.steps])
    return _meet(cost, plan, shape, lengths, budget, tolerance)


def geometric(
    sizes: Sizes,
    lengths: Lengths,
    budget: Budget,
    *,
    family: str,
    first: int,
    score: Score,
    probe: tuple[float, ...] | None = None,
    min_tokens: int = 2,
    protect: tuple[int, ...] = (),
    protect_until: int | None = None,
    restore: Restore = "none",
    last: int | None = None,
    cost: Cost | None = None,
) -> Plan:
    """Make a plan that drops the same share of the tokens left in each layer.

    Args:
        sizes: of the model.
        lengths: of the texts that the budget is meant for.
        budget: what the plan must cost.
        first: the first layer with a step.
        last: the last layer with a step; None: the last but one of the model. If `last` equals
            `first`, one step drops everything.
        family, score, probe, min_tokens, protect, protect_until, restore: fields of the plan.
        cost: what the budget limits; None: the MACs.

    Raises:
        OutOfReach: even the minimum of tokens costs too much.
    """
    end = sizes.layers - 2 if last is None else last
    if not 0 <= first <= end <= sizes.layers - 2:
        raise UserError(
            f"steps from layer {first} to {end} do not fit a model of {sizes.layers} layers; "
            f"choose them within 0 to {sizes.layers - 2}"
        )
    plan = Plan(
        family=family,
        n_layers=sizes.layers,
        width=sizes.width,
        score=score,
        steps=tuple(Step(layer, Fraction(1)) for layer in range(first, end + 1)),
        probe=probe,
        protect=protect,
        protect_until=protect_until,
        min_tokens=min_tokens,
        restore=restore,
    )
    # any base below one works: the common power finds the right one
    shape = np.exp2(-np.arange(1.0, len(plan.steps) + 1))
    return _meet(cost or sizes, plan, shape, lengths, budget)


def _meet(
    cost: Cost,
    plan: Plan,
    shape: Floats,  # (steps,) ratios before the common power
    lengths: Lengths,
    budget: Budget,
    tolerance: float = 0.01,
) -> Plan:
    """Move the ratios `shape` to the budget; the steps of `plan` only give the layers."""
    notches, tokens, squares = _ladder(lengths, plan.min_tokens)
    fixed, prices = _prices(cost, plan, lengths, tokens, squares)
    dense = dense_cost(cost, lengths, plan.restore)
    reachable = dense / (fixed + prices[:, 0].sum())
    if budget.reduction > reachable * (1 + tolerance):
        raise OutOfReach(
            f"budget {budget.asked} is out of reach: on these lengths this plan's layers reach "
            f"{budget.limit(reachable)}; choose that, or let an earlier layer drop tokens"
        )
    target = dense / budget.reduction - fixed
    close = tolerance / 10 * dense / budget.reduction
    rungs = _refine(_bisect(shape, notches, prices, target), prices, target, close)
    keeps = [Fraction(int(notches[rung]), DENOMINATOR) for rung in rungs]
    steps = tuple(Step(step.layer, keep) for step, keep in zip(plan.steps, keeps, strict=True))
    met = replace(plan, steps=steps)
    executed = dense / (fixed + prices[np.arange(len(rungs)), rungs].sum())
    if abs(executed / budget.reduction - 1) > tolerance:
        warnings.warn(
            f"budget {budget.asked}: the nearest with whole tokens of these lengths is "
            f"{budget.amount(executed)}; more varied lengths or more layers that drop give finer "
            "steps",
            stacklevel=3,
        )
    return met


def _ladder(lengths: Lengths, min_tokens: int) -> tuple[Ints, Ints, Ints]:
    """Find the ratios that differ in effect, and the tokens and squared tokens that they keep.

    Several notches (thousandths) may keep the same counts everywhere; the largest of them is the
    rung. So one rung is the smallest possible move, on one short length as on a wide histogram.
    """
    n, held, count = np.array(lengths.rows, dtype=np.int64).T  # (rows,)
    least = np.minimum(np.maximum(held, min_tokens), n)
    notches = np.arange(1, DENOMINATOR + 1)
    tokens, squares = np.empty_like(notches), np.empty_like(notches)
    for i, notch in enumerate(notches):  # one array of notches * rows may be too large
        kept = np.maximum(-(-notch * n // DENOMINATOR), least)
        tokens[i], squares[i] = kept @ count, kept**2 @ count
    rungs = np.flatnonzero(np.diff(tokens, append=tokens[-1] + 1))  # tokens only grow
    return notches[rungs], tokens[rungs], squares[rungs]


def _prices(
    cost: Cost, plan: Plan, lengths: Lengths, tokens: Ints, squares: Ints
) -> tuple[float, Floats]:
    """Compute the cost before the first step, and of each (step, rung): they add up to the plan's.

    The cost adds up over the layers, so a step's part is the cost with zero elsewhere.
    """
    layers = [step.layer for step in plan.steps]
    bounds = [*layers, cost.layers - 1]  # step j rules what enters bounds[j]+1..bounds[j+1]

    def part(after: int, until: int, t: Ints | int, t2: Ints | int, examples: int) -> Floats:
        entered = [after < layer <= until for layer in range(cost.layers)]
        entering: list[Any] = [here * t for here in entered]
        layers = cost.total(
            entering,
            [here * t2 for here in entered],
            examples=examples,
            restore=plan.restore,
        )
        return layers + step_cost(cost, plan, entering)

    prices = np.zeros((len(layers), len(tokens)))
    for j, (after, until) in enumerate(pairwise(bounds)):
        prices[j] = part(after, until, tokens, squares, 0)
    n, n2 = lengths.moment(1), lengths.moment(2)
    return float(part(-1, bounds[0], n, n2, lengths.total)), prices


def _bisect(shape: Floats, notches: Ints, prices: Floats, target: float) -> Ints:
    """Find the rungs of the largest ratios shape**c that cost at most the target."""
    logs = np.log(np.minimum(shape, 1 - 1 / DENOMINATOR))  # a ratio of one would never move
    steps = np.arange(len(shape))

    def rungs(log_c: float) -> Ints:
        ratios = np.exp(math.exp(log_c) * logs)
        return np.searchsorted(notches, ratios * DENOMINATOR)

    keep_all, keep_least = -12.0, 12.0  # logs of c: enough for ratios of .001 and of .999
    for _ in range(60):
        middle = (keep_all + keep_least) / 2
        if prices[steps, rungs(middle)].sum() > target:
            keep_all = middle
        else:
            keep_least = middle
    return rungs(keep_least)


def _refine(start: Ints, prices: Floats, target: float, close: float) -> Ints:
    """Come within `close` of the target: move a step by a rung, let another compensate for it.

    The common power moves equal ratios together; on short texts that jumps by several percent.
    Among moves that end close, the one that bends the shape least wins.
    """
    steps = np.arange(len(start))
    unit = np.eye(len(start), dtype=np.int64)
    nudges = np.concatenate([0 * unit[:1], unit, -unit])

    def rank(rungs: Ints) -> tuple[float, int]:
        miss = abs(prices[steps, rungs].sum() - target)
        return max(miss, close), int(np.abs(rungs - start).sum())

    best = start
    while rank(best)[0] > close:
        nudged = best + nudges
        inside = ((nudged >= 0) & (nudged < prices.shape[1])).all(axis=1)
        ordered = (np.diff(nudged, axis=1) <= 0).all(axis=1)
        tried = [
            _solve(rungs, step, prices, target)
            for rungs in nudged[inside & ordered]
            for step in range(len(start))
        ]
        better = min(tried, key=rank, default=best)
        if rank(better)[0] >= rank(best)[0]:
            break
        best = better
    return best


def _solve(rungs: Ints, step: int, prices: Floats, target: float) -> Ints:
    """Move one step to where the cost is nearest the target; the order of the ratios stays."""
    low = rungs[step + 1] if step + 1 < len(rungs) else 0
    high = rungs[step - 1] if step > 0 else prices.shape[1] - 1
    others = prices[np.arange(len(rungs)), rungs].sum() - prices[step, rungs[step]]
    solved = rungs.copy()
    solved[step] = low + np.abs(prices[step, low : high + 1] + others - target).argmin()
    return solved
