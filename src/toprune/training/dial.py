"""The plans of a dial, from the plan for its smallest budget.

Masks are learned once, for the tightest budget: there their shape matters most, and layers that
reach it reach every looser budget, too. The looser plans come from calibration: they start from
that shape, or that shape without its first steps, because a looser budget can drop tokens later.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

from torch import Tensor

from toprune.errors import OutOfReach
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget
from toprune.plan.cost import reduction
from toprune.plan.dial import FILE, Dial, Stop, tightness
from toprune.plan.plan import Plan, Step
from toprune.training.calibrate import MOVES, calibrate
from toprune.training.job import Job, Outcome
from toprune.training.stages import CALIBRATION_TEXTS, once


def with_dial(outcome: Outcome) -> Outcome:
    """Add the plans of the job's other budgets. The first budget of the request is the default."""
    job, tightest = outcome.job, outcome.plan
    path = job.work / FILE

    def compute() -> None:
        batches = job.sample_batches(CALIBRATION_TEXTS)
        budgets = sorted(job.budgets, key=tightness, reverse=True)
        plans = [tightest]
        for budget in budgets[1:]:
            plans.append(_looser(replace(job, budget=budget), plans[-1], batches))
        dial_of(job, dict(zip(budgets, plans, strict=True))).save(path)

    once(path, compute)
    dial = Dial.load(path, tightest)
    default = dial.plan(job.budgets[0])
    expected = outcome.expected if default == tightest else None  # the masks expect the tightest
    return replace(outcome, plan=default, expected=expected, dial=replace(dial, default=default))


def dial_of(job: Job, plans: Mapping[Budget, Plan]) -> Dial:
    """The dial with these plans by their budgets. Its default is the first budget of the job."""
    sizes, stops = sizes_of(job.model), list[Stop]()
    for budget in sorted(plans, key=tightness):
        plan = plans[budget]
        if budget.milliseconds is not None:  # then its reduction is that of the time here
            executed = reduction(sizes, plan, job.lengths).unpadded
            budget = replace(budget, reduction=float(executed))
        stops.append(Stop.of(budget, plan))
    return Dial(plans[job.budgets[0]], tuple(stops), sizes, job.lengths)


def _looser(job: Job, tighter: Plan, batches: Sequence[dict[str, Tensor]]) -> Plan:
    """The plan for the job's budget. Where it can, every layer keeps at least as many tokens as the
    tighter plan."""

    def repaired(plan: Plan) -> Plan:
        pairs = zip(plan.steps, tighter.steps, strict=True)
        steps = tuple(Step(one.layer, max(one.keep, other.keep)) for one, other in pairs)
        return job.repaired(replace(plan, steps=steps))

    starts: list[Plan] = []
    for whole in range(len(tighter.steps)):  # steps that drop nothing
        steps = tuple(
            Step(step.layer, Fraction(1) if i < whole else step.keep)
            for i, step in enumerate(tighter.steps)
        )
        with suppress(OutOfReach):
            starts.append(repaired(replace(tighter, steps=steps)))
    how: Any = {"moves": MOVES, "seed": job.training.seed}
    return calibrate(job.model, batches, job.task, starts, repaired, **how)
