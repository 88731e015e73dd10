"""Which ranking of the dense model `received` learns: the last layer's, as in the paper, or another
one. Texts without labels can choose: the frozen model drops tokens by each ranking."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from toprune.io.progress import bar
from toprune.models.families import sizes_of
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Follow, Protection, Record
from toprune.pruning.tokens import Tokens
from toprune.tasks import Task
from toprune.training.evaluation import distance

Target = Literal["last", "middle", "middles"]
TARGETS: tuple[Target, ...] = ("last", "middle", "middles")


def target_layers(target: Target, layers: int) -> tuple[int, ...]:
    """The layers whose attention received, on average, is the target, of a model with `layers`."""
    middles = range(layers // 3, min(layers, layers - layers // 3 + 1))
    return {"last": (layers - 1,), "middle": (layers // 2,), "middles": tuple(middles)}[target]


def record_received(layers: Sequence[int]) -> Record:
    """Keep every token, and record the attention that each receives in these layers, (B, S)."""
    return Record(layers, _received, scored=True, protection=Protection(restore="last"))


def _received(_: int, __: Tensor, received: Tensor | None) -> Tensor:
    assert received is not None  # the last layer has all its rows, because `Record` restores them
    return received


def target_scores(received: Sequence[Tensor]) -> Tensor:
    """(B, S): the log of the mean attention received in the layers of a target."""
    return torch.stack(list(received), -1).mean(-1).clamp_min(1e-9).log()


class Oracle(Follow):
    """Executes a plan that ranks by scores which are known beforehand."""

    def __init__(self, plan: Plan, known_scores: Tensor):
        """known_scores: (B, S) of the batch that runs next."""
        super().__init__(plan)
        self.known_scores = known_scores

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        return self.known_scores.gather(1, tokens.index)


def target_distances(
    model: Any, task: Task, batches: Sequence[dict[str, Tensor]], plan: Plan
) -> dict[Target, float]:
    """How far the outputs are from the dense model's when the plan ranks by each target.

    Args:
        batches: without labels.
        plan: with the score `received`.
    """
    layers, training = sizes_of(model).layers, model.training
    record = record_received(range(layers))
    dense: list[Tensor] = []
    outputs: dict[Target, list[Tensor]] = {target: [] for target in TARGETS}
    detach(model).eval()
    try:
        with torch.inference_mode(), bar("choosing what to distil", len(batches)) as advance:
            for batch in batches:
                attach_policy(model, record)
                dense.append(task_outputs(model, task, batch)[0])
                received = record.values
                for target in TARGETS:
                    scores = target_scores([received[i] for i in target_layers(target, layers)])
                    attach_policy(detach(model), Oracle(plan, scores))
                    outputs[target].append(task_outputs(model, task, batch)[0])
                detach(model)
                advance()
    finally:
        detach(model).train(training)
    return {target: distance(task, out, dense, batches) for target, out in outputs.items()}
