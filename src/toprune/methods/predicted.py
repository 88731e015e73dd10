"""What methods have in common whose tokens are chosen by networks (`predictor.py`)."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from toprune.methods.common import RECENT, Coefficient
from toprune.models.families import sizes_of
from toprune.plan.plan import Plan, Step
from toprune.pruning.predictor import Predictor
from toprune.training.stages import CALIBRATION_TEXTS, Job
from toprune.training.thresholds import meet


class Predictors(Coefficient):
    """The networks while they are trained, and the coefficient that holds them to the budget."""

    def __init__(self, start: float, most: float, span: float, job: Job, networks: nn.ModuleDict):
        """`span`: how far their weights may have to move (see `FitTrainer._mask_lr`)."""
        sizes = sizes_of(job.model)
        super().__init__(start, sizes, job.lengths, job.budget, job.restore, most=most)
        self.SPAN, self.layers = span, sorted(map(int, networks))
        self._networks = (networks,)  # the model has them; in a tuple they are not ours, too
        self.shares: Tensor
        self.register_buffer("shares", torch.ones(len(networks)))  # alive after each, recently

    def network(self, layer: int) -> Predictor:
        found: Any = self._networks[0][str(layer)]
        return found

    def masks(self) -> list[nn.Parameter]:
        return list(self._networks[0].parameters())

    def saw(self, layer: int, share: Tensor) -> None:
        """So many of a batch's tokens were left after this layer."""
        at = self.layers.index(layer)
        self.shares[at] += RECENT * (share.detach() - self.shares[at])

    def ratios(self) -> list[Tensor]:
        """As recent texts would have it."""
        last = [sum(layer <= i for layer in self.layers) for i in range(self.sizes.layers - 1)]
        return [self.shares[n - 1] if n else torch.ones(()) for n in last]


def met(job: Job, layers: Sequence[int], inner: int) -> Plan:
    """Tokens stay where that is likelier than not, at odds of one; one factor of these is then
    bisected until the texts execute the budget on average."""
    steps = tuple(Step(layer, Fraction(1), 1.0) for layer in layers)
    plan = replace(job.blank(), steps=steps, predictor=inner)
    return meet(job.model, plan, job.some(CALIBRATION_TEXTS), job.budget)
