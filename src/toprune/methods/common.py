"""lambda, which some papers set by hand for every task, held to a budget instead.

It grows while the expected FLOPs are above a linearly falling target, and shrinks below it.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, expected_share
from toprune.plan.plan import Restore

RECENT = 0.1  # weight of the last batch in what is known of recent ones
GAIN = 1.0  # change of log lambda in a step, for every 1.0 that the sparsity is off its target


class Coefficient(nn.Module):
    """What a selector with such a lambda has beside its masks."""

    rank_weight: ClassVar[float] = 0.0  # nobody distils a ranking here

    def __init__(
        self,
        start: float,
        sizes: Sizes,
        lengths: Lengths,
        budget: Budget,
        restore: Restore,
        *,
        most: float = math.inf,
    ):
        super().__init__()
        self.sizes, self.lengths, self.most = sizes, lengths, most
        self.restore: Restore = restore
        self.log_lambda: Tensor
        self.register_buffer("log_lambda", torch.tensor(start).log())
        self.sparsity_target = budget.sparsity
        self.progress = 1.0  # share of the warm-up that is over; the trainer moves it

    def ratios(self) -> list[Tensor]:
        """Expected share of all tokens that enters layers 1 to L - 1."""
        raise NotImplementedError

    def sparsity(self) -> Tensor:
        """Expected share of real FLOPs removed."""
        share = expected_share(self.sizes, self.ratios(), self.lengths, self.restore)
        return 1 - torch.as_tensor(share)

    def target(self) -> float:
        return self.sparsity_target * min(1.0, self.progress)

    def moved(self) -> Tensor:
        """lambda, after it has followed the target by a step."""
        with torch.no_grad():
            self.log_lambda += GAIN * (self.target() - self.sparsity())
            self.log_lambda.clamp_(max=math.log(self.most))
        return self.log_lambda.exp()

    def multipliers(self) -> list[nn.Parameter]:
        return []

    def told(self) -> dict[str, Tensor]:
        """For the log: lambda, and the share of tokens that is expected after each layer."""
        with torch.no_grad():
            kept = self.ratios()
        return {"lambda": self.log_lambda.exp()} | {f"kept_{i}": r for i, r in enumerate(kept)}
