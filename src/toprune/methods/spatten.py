"""SpAtten (HPCA'21), its cascade token pruning: a schedule by rule, tokens ranked by all the
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
from toprune.plan.cost import reduction
from toprune.plan.plan import DENOMINATOR, Plan, Score, Step, notch
from toprune.training.stages import Job, Outcome, Stage


@dataclass(frozen=True)
class SpAtten:
    first: int = 0  # first layer that may prune; the rule below may say a later one

    NAME: ClassVar[str] = "spatten"
    SCORES: ClassVar[tuple[Score, ...]] = ("accumulated",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("hard",)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """The paper's line; from an earlier layer on where that cannot reach the budget, which on
        models of six layers is the rule."""
        layers = sizes_of(job.model).layers
        for whole in range(min(whole_layers(layers), layers - 1), self.first, -1):
            if _executed(job, line(job.blank(), whole, 0.0)) >= job.budget.reduction:
                return Outcome(job.repaired(_bisected(job, whole)), None, [])
        return Outcome(job.repaired(_bisected(job, self.first + 1)), None, [])


def whole_layers(layers: int) -> int:
    """Layers at the beginning that see every token."""
    return max(3, math.ceil(0.15 * layers))


def line(blank: Plan, whole: int, final: float) -> Plan:
    """Shares fall linearly from 1 at layer `whole` - 1 to `final` at the last layer. What enters
    layer i is what the step at layer i - 1 leaves."""
    last = blank.n_layers - 1
    falling = {
        i: 1 - (1 - final) * (i - whole + 1) / (last - whole + 1) for i in range(whole, last + 1)
    }
    steps = tuple(Step(i - 1, notch(share)) for i, share in falling.items())
    return replace(blank, steps=steps)


def _executed(job: Job, plan: Plan) -> float:
    return reduction(sizes_of(job.model), plan, job.lengths).unpadded


def _bisected(job: Job, whole: int) -> Plan:
    low, high = 0, DENOMINATOR  # thousandths of the final rate
    while high - low > 1:
        middle = (low + high) // 2
        enough = _executed(job, line(job.blank(), whole, middle / DENOMINATOR))
        low, high = (middle, high) if enough >= job.budget.reduction else (low, middle)
    return line(job.blank(), whole, low / DENOMINATOR)
