"""The saliency probe: one vector per layer that shows which tokens the answer depends on.

Its target is the gradient of the answer's margin (see the task) with respect to a token's state
after attention, on the dense model: the log of its norm, standardised within each text. Where a
token may itself be the answer, its share of the answer is added: a token that could be the answer
must not be left with an early state, even if the answer does not depend on it. A ridge regression
averages out the noise of single gradients, which is why the probe ranks better than the gradients
that it is fitted to. It needs no labels and no training loop, only one backward pass over a few
hundred texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from toprune.models.device import CPU, to_device
from toprune.models.families import sizes_of
from toprune.models.heads import reads_all, task_outputs
from toprune.plan.plan import Restore
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import UNPROTECTED, Protection, Record
from toprune.pruning.tokens import Tokens
from toprune.tasks import Task

RIDGE = 1e-2  # of the mean variance of the state's coordinates


@dataclass(frozen=True)
class Gradients:
    """What the answers to one batch depend on, in the dense model."""

    states: Sequence[Tensor]  # (B, S, D) after attention, of every layer but the last
    grads: Sequence[Tensor]  # (B, S, D): of the margin, with respect to these states
    outputs: Tensor  # of the task
    mask: Tensor  # (B, S) the attention mask
    tokens: Tokens

    @property
    def counted(self) -> Tensor:
        """(B, S): live tokens that may leave."""
        return self.tokens.alive & ~self.tokens.protected


def margin_gradients(
    model: Any,
    task: Task,
    batches: Iterable[dict[str, Tensor]],
    *,
    protection: Protection = UNPROTECTED,
) -> Iterator[Gradients]:
    """Run the dense model on unlabelled batches, forwards and backwards."""
    restore: Restore = "last" if reads_all(task, model.config) else "none"
    record = Record(
        range(sizes_of(model).layers - 1), protection=replace(protection, restore=restore)
    )
    training = model.training
    attach_policy(model.eval(), record)
    try:
        for batch in batches:
            batch = to_device(batch, model)
            mask = batch["attention_mask"]
            with torch.enable_grad():
                outputs = task_outputs(model, task, batch)[0]
                margin = task.margin(outputs, mask)
                grads = torch.autograd.grad(margin.sum(), record.values)
            assert record.tokens is not None
            states = [state.detach() for state in record.values]
            yield Gradients(states, grads, outputs.detach(), mask, record.tokens)
    finally:
        detach(model).train(training)


def fit_probes(
    model: Any,
    task: Task,
    batches: Iterable[dict[str, Tensor]],
    *,
    protection: Protection = UNPROTECTED,
) -> Tensor:
    """Fit a probe (L - 1, D) for every layer that may prune, on unlabelled batches. Tokens that
    always stay, such as the first one, do not count: no probe has to rank them."""
    sizes = sizes_of(model)
    moments = _Moments(sizes.layers - 1, sizes.width)
    for batch in margin_gradients(model, task, batches, protection=protection):
        count = batch.counted
        shares = task.log_shares(batch.outputs, batch.mask)
        extra = 0 if shares is None else _standardised(shares, count)
        for i, (state, grad) in enumerate(zip(batch.states, batch.grads, strict=True)):
            saliency = grad.norm(dim=-1).clamp_min(1e-12).log()  # (B, S)
            moments.add(i, state, _standardised(saliency, count) + extra, count)
    return moments.solve()


def _within_text(x: Tensor, count: Tensor) -> Tensor:
    """x (B, S, ...) minus its mean over the counted tokens of the text; zero for other tokens."""
    w = count.reshape(*count.shape, *[1] * (x.dim() - 2)).to(x.dtype)
    return (x - (x * w).sum(1, keepdim=True) / w.sum(1, keepdim=True).clamp_min(1)) * w


def _standardised(x: Tensor, count: Tensor) -> Tensor:
    """(B, S) -> (B, S)"""
    x = _within_text(x, count)
    spread = (x.square().sum(1) / count.sum(1).clamp_min(1)).sqrt()
    return x / spread.clamp_min(1e-6)[:, None]


class _Moments:
    """The normal equations of a ridge regression within texts, for each layer: on the CPU, in
    float64, which not every GPU has."""

    def __init__(self, layers: int, width: int):
        self.xx = torch.zeros(layers, width, width, dtype=torch.float64, device=CPU)
        self.xy = torch.zeros(layers, width, dtype=torch.float64, device=CPU)

    def add(self, layer: int, state: Tensor, target: Tensor, count: Tensor) -> None:
        x, y = _within_text(state, count)[count], target[count]  # (tokens, D), (tokens,)
        self.xx[layer] += (x.T @ x).cpu().double()
        self.xy[layer] += (x.T @ y).cpu().double()

    def solve(self) -> Tensor:
        eye = torch.eye(self.xx.shape[-1], dtype=torch.float64, device=CPU)
        scale = self.xx.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        return torch.linalg.solve(self.xx + RIDGE * scale * eye, self.xy).float()
