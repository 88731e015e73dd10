"""What several methods share: a coefficient that follows the budget, and token predictors.

Some papers set lambda, the weight of their sparsity loss, by hand for every task. Here it grows
while the expected FLOPs are above a linearly falling target, and shrinks below it. Where masks have
gone too far it is small at once, but what it has learned is kept within limits: a lambda that has
vanished could not stop them when they come back.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from toprune.io.progress import bar
from toprune.models.device import device_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Cost, expected_share
from toprune.plan.plan import Plan, Restore, Step
from toprune.pruning.policies import Protection
from toprune.pruning.predictor import Predictor
from toprune.training.job import Job
from toprune.training.probe import Gradients, margin_gradients
from toprune.training.stages import CALIBRATION_TEXTS
from toprune.training.thresholds import meet

RECENT = 0.1  # weight of the last batch in a moving average
GAIN = 1.0  # change of log lambda in a step, per unit of distance to the target sparsity
BRAKE = 20.0  # how much smaller log lambda is, per unit of distance beyond the target
LEAST = 0.01  # of lambda, in units of its start
TOKENS = 50_000  # on which a predictor is fitted
PASSES, ROWS, RATE = 20, 512, 3e-3  # of that fit: passes, batch size, learning rate


class Coefficient(nn.Module):
    """A selector whose lambda follows the budget; subclasses add the masks."""

    rank_weight: ClassVar[float] = 0.0  # no ranking is distilled
    sparsity_start = 0.0  # where the target starts; higher where the masks start from a schedule

    def __init__(
        self,
        start: float,
        cost: Cost,
        lengths: Lengths,
        budget: Budget,
        restore: Restore,
        *,
        largest: float = math.inf,
    ):
        super().__init__()
        self.cost, self.lengths = cost, lengths
        self.limits = math.log(LEAST * start), math.log(largest)  # of log lambda
        self.restore: Restore = restore
        self.log_lambda: Tensor
        self.register_buffer("log_lambda", torch.tensor(start).log())
        self.sparsity_target = budget.sparsity
        self.progress = 1.0  # share of the warm-up that is over; the trainer moves it

    def ratios(self) -> list[Tensor]:
        """Expected share of all tokens that enters layers 1 to L - 1."""
        raise NotImplementedError

    def sparsity(self) -> Tensor:
        """Expected share of the dense cost (real FLOPs, or time) removed."""
        share = expected_share(self.cost, self.ratios(), self.lengths, self.restore)
        return 1 - torch.as_tensor(share)

    def target(self) -> float:
        risen = (self.sparsity_target - self.sparsity_start) * min(1.0, self.progress)
        return self.sparsity_start + risen

    def step_lambda(self) -> Tensor:
        """lambda, after one step towards the target."""
        with torch.no_grad():
            gap = self.target() - self.sparsity()
            self.log_lambda += GAIN * gap
            self.log_lambda.clamp_(*self.limits)
        return (self.log_lambda + BRAKE * gap.clamp(max=0)).exp()

    def multipliers(self) -> list[nn.Parameter]:
        return []

    def log_values(self) -> dict[str, Tensor]:
        """For the log: lambda, and the expected share of tokens after each layer."""
        with torch.no_grad():
            kept = self.ratios()
        return {"lambda": self.log_lambda.exp()} | {f"kept_{i}": r for i, r in enumerate(kept)}


class Predictors(Coefficient):
    """The networks (`pruning/predictor.py`) while they are trained, and their coefficient."""

    def __init__(
        self, start: float, largest: float, span: float, job: Job, networks: nn.ModuleDict
    ):
        """`span`: how far the weights may have to move (see `learner.Selector`)."""
        super().__init__(start, job.cost, job.lengths, job.budget, job.restore, largest=largest)
        self.SPAN, self.layers = span, sorted(map(int, networks))
        self._networks = (networks,)  # in a tuple: they are part of the model already
        self.shares: Tensor
        self.register_buffer("shares", torch.ones(len(networks)))  # alive after each, recently

    def start_at(self, shares: Sequence[float]) -> None:
        """The share of tokens left after each network when the training starts. The target starts
        there, too: below it the coefficient would only shrink, for nothing."""
        self.shares.copy_(self.shares.new_tensor(shares))
        self.sparsity_start = float(self.sparsity())

    def network(self, layer: int) -> Predictor:
        network: Any = self._networks[0][str(layer)]
        return network

    def masks(self) -> list[nn.Parameter]:
        return list(self._networks[0].parameters())

    def record(self, layer: int, share: Tensor) -> None:
        """Update the moving average with a batch's share of tokens left after this layer."""
        at = self.layers.index(layer)
        self.shares[at] += RECENT * (share.detach() - self.shares[at])

    def ratios(self) -> list[Tensor]:
        """Shares of recent batches."""
        last = [sum(layer <= i for layer in self.layers) for i in range(self.cost.layers - 1)]
        return [self.shares[n - 1] if n else self.shares.new_ones(()) for n in last]


def plan_to_budget(
    job: Job,
    layers: Sequence[int],
    inner: int,
    odds: Sequence[float] | None = None,
    *,
    returns: bool = False,
) -> Plan:
    """A plan whose networks keep tokens at these odds or more (default: one); one factor of the
    odds is then bisected until the texts execute the budget on average."""
    thresholds = [1.0] * len(layers) if odds is None else odds
    steps = tuple(
        Step(layer, Fraction(1), value) for layer, value in zip(layers, thresholds, strict=True)
    )
    plan = replace(job.blank(), steps=steps, predictor=inner, returns=returns)
    batches = job.sample_batches(CALIBRATION_TEXTS)
    return meet(job.model, plan, batches, job.cost, job.budget)


def fit_predictors(
    job: Job,
    networks: nn.ModuleDict,
    target: Callable[[int, Gradients], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    texts: int,
) -> None:
    """Fit the network of every layer to what the dense model's gradients show.

    Args:
        target: (layer, gradients of a batch) -> (B, S): what the network has to predict.
        loss: (logits (N,), targets (N,)) -> the mean loss.
        texts: number of training texts on which the networks are fitted.
    """
    batches = job.sample_batches(texts)
    pairs: dict[int, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in map(int, networks)}
    with bar("fitting predictors", len(batches)) as advance:
        for batch in margin_gradients(job.model, job.task, batches, protection=Protection.of(job)):
            for layer, found in pairs.items():
                count = batch.counted
                pair = batch.states[layer][count], target(layer, batch)[count]
                found.append((pair[0].cpu(), pair[1].cpu()))  # a GPU may not hold all of them
            advance()
    generator = torch.Generator("cpu").manual_seed(job.training.seed)
    device = device_of(job.model)
    for layer, parts in pairs.items():
        states, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        sample = torch.randperm(len(states), generator=generator, device="cpu")[:TOKENS]
        network: Any = networks[str(layer)]
        fit(network, states[sample].to(device), targets[sample].to(device), loss, generator)


def fit(
    network: Predictor,
    states: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    generator: torch.Generator,
) -> None:
    """Regression with a hidden layer: states (N, D), targets (N,)."""
    adam = torch.optim.Adam(network.parameters(), lr=RATE)
    with torch.enable_grad():
        for _ in range(PASSES):
            order = torch.randperm(len(states), generator=generator, device="cpu")
            for rows in order.split(ROWS):
                value = loss(network(states[rows]), targets[rows])
                adam.zero_grad()
                value.backward()
                adam.step()
