"""One set of weights for all plans of a dial: the plans take turns, one in each training step.

It is the sandwich rule of slimmable networks, spread over steps: the smallest plan, which loses
most, the largest one, and random ones between them. All learn from the dense model's outputs. A
step costs what its own plan costs, so turns of 2x, 5x and plans between them cost as much as steps
at 3x.
"""

from typing import Any, Literal

import numpy as np
from transformers import TrainerCallback

from toprune.plan.dial import Dial
from toprune.pruning.attach import attached
from toprune.pruning.policies import Follow

Turn = Literal["smallest", "between", "largest"]
CYCLE: tuple[Turn, ...] = ("smallest", "between", "largest", "smallest", "between")
RUNGS = 9  # plans of equal distances, the smallest and the largest among them
MORE_STEPS = 1.35  # of a dial's hard stage: so it costs less than 1.5 trainings at one budget


class Turns(TrainerCallback):
    """Gives an attached model the plan of each step. The plan depends on seed and step only: a
    resumed run, and every process of a run, follows the same plans."""

    def __init__(self, model: Any, dial: Dial, seed: int):
        self.model, self.seed = model, seed
        self.policies = [Follow(plan) for plan in dial.ladder(RUNGS)]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = attached(self.model)
        assert run is not None
        run.policy = self.policies[rung(self.seed, state.global_step)]


def rung(seed: int, step: int) -> int:
    """The number of the plan for a step, from the largest plan on."""
    turn = CYCLE[step % len(CYCLE)]
    if turn == "between":
        return int(np.random.default_rng((seed, step)).integers(1, RUNGS - 1))
    return 0 if turn == "largest" else RUNGS - 1
