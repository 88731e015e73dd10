"""SpAtten (HPCA'21), its cascade token pruning: a schedule by rule; tokens are ranked by all the
attention that they have received so far.

The importance of a token is the attention that it receives, summed over heads and queries and
*accumulated over the layers*. Nothing is learned: every token stays in the first layers, then the
share that stays falls along a line to the final rate at the last layer. The paper's final rate is
a setting; here it is bisected until the budget is met. Head pruning and progressive quantisation,
made for its accelerator, are left out.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from toprune.models.families import sizes_of
from toprune.plan.plan import DENOMINATOR, Plan, Score, Step, notch
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, setting


@dataclass(frozen=True)
class SpAtten(Method):
    """A linear schedule; attention accumulated over layers ranks tokens (SpAtten, HPCA'21)."""

    first: int = setting(0, "First layer that may drop tokens; the rule may start later.")

    NAME: ClassVar[str] = "spatten"
    SCORES: ClassVar[tuple[Score, ...]] = ("accumulated",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """The paper's line; it starts earlier where it cannot reach the budget, as is usual on
        models of six layers."""
        layers = sizes_of(job.model).layers
        for whole in range(min(whole_layers(layers), layers - 1), self.first, -1):
            if _executed(job, line(job.blank(), whole, 0.0)) >= job.budget.reduction:
                return Outcome(job, job.repaired(_bisected(job, whole)))
        return Outcome(job, job.repaired(_bisected(job, self.first + 1)))


def whole_layers(layers: int) -> int:
    """The number of layers at the beginning that see every token."""
    return max(3, math.ceil(0.15 * layers))


def line(blank: Plan, whole: int, final: float) -> Plan:
    """Shares fall linearly from 1 at layer `whole` - 1 to `final` at the last layer. The step at
    layer i - 1 decides what enters layer i."""
    last = blank.n_layers - 1
    falling = {
        i: 1 - (1 - final) * (i - whole + 1) / (last - whole + 1) for i in range(whole, last + 1)
    }
    steps = tuple(Step(i - 1, notch(share)) for i, share in falling.items())
    return replace(blank, steps=steps)


def _executed(job: Job, plan: Plan) -> float:
    return job.reduction(plan)


def _bisected(job: Job, whole: int) -> Plan:
    low, high = 0, DENOMINATOR  # thousandths of the final rate
    while high - low > 1:
        middle = (low + high) // 2
        reached = _executed(job, line(job.blank(), whole, middle / DENOMINATOR))
        low, high = (middle, high) if reached >= job.budget.reduction else (low, middle)
    return line(job.blank(), whole, low / DENOMINATOR)
