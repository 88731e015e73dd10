"""The saliency probe: one vector per layer that says which tokens the answer depends on.

Target: the norm of the gradient of the answer's margin (see the task) with respect to a token's
state after attention, on the dense model; its log, standardised within each text. Where a token may
itself be the answer, its own share of it is added: one that the answer does not depend on, but that
could be said, must not be left with an early state. A ridge regression averages the noise of single
gradients away, which is why the probe ranks better than the very gradients it is fitted to. No
labels, no training loop: one backward pass over a few hundred texts.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toprune.models.families import sizes_of
from toprune.models.heads import reads_all, task_outputs
from toprune.plan.plan import Restore
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import UNPROTECTED, Protection, Record
from toprune.tasks import Task

RIDGE = 1e-2  # of the mean variance of the state's coordinates


def fit_probes(
    model: Any,
    task: Task,
    batches: Iterable[dict[str, Tensor]],
    *,
    protection: Protection = UNPROTECTED,
) -> Tensor:
    """A probe (L - 1, D) for every layer that may prune, from unlabelled batches. Tokens that stay
    anyway, the first one among them, are not what it has to rank."""
    sizes = sizes_of(model)
    restore: Restore = "last" if reads_all(task, model.config) else "none"
    record = Record(range(sizes.layers - 1), protection=replace(protection, restore=restore))
    moments = _Moments(sizes.layers - 1, sizes.width)
    training = model.training
    attach_policy(model.eval(), record)
    try:
        for batch in batches:
            with torch.enable_grad():
                mask = batch["attention_mask"]
                said = task_outputs(model, task, batch)[0]
                margin = task.margin(said, mask)
                grads = torch.autograd.grad(margin.sum(), record.values)
            tokens = record.tokens
            assert tokens is not None
            count = tokens.alive & ~tokens.protected
            own = task.log_shares(said.detach(), mask)
            more = 0 if own is None else _standardised(own, count)
            for i, (state, grad) in enumerate(zip(record.values, grads, strict=True)):
                saliency = grad.norm(dim=-1).clamp_min(1e-12).log()  # (B, S)
                moments.add(i, state.detach(), _standardised(saliency, count) + more, count)
    finally:
        detach(model).train(training)
    return moments.solve()


def _within_text(x: Tensor, count: Tensor) -> Tensor:
    """x (B, S, ...) minus its mean over the counted tokens of its own text, others zero."""
    w = count.reshape(*count.shape, *[1] * (x.dim() - 2)).to(x.dtype)
    return (x - (x * w).sum(1, keepdim=True) / w.sum(1, keepdim=True).clamp_min(1)) * w


def _standardised(x: Tensor, count: Tensor) -> Tensor:
    """(B, S) -> (B, S)"""
    x = _within_text(x, count)
    spread = (x.square().sum(1) / count.sum(1).clamp_min(1)).sqrt()
    return x / spread.clamp_min(1e-6)[:, None]


class _Moments:
    """Normal equations of a ridge regression within texts, one for each layer."""

    def __init__(self, layers: int, width: int):
        self.xx = torch.zeros(layers, width, width, dtype=torch.float64)
        self.xy = torch.zeros(layers, width, dtype=torch.float64)

    def add(self, layer: int, state: Tensor, target: Tensor, count: Tensor) -> None:
        x, y = _within_text(state, count)[count], target[count]  # (tokens, D), (tokens,)
        self.xx[layer] += (x.T @ x).double().cpu()
        self.xy[layer] += (x.T @ y).double().cpu()

    def solve(self) -> Tensor:
        eye = torch.eye(self.xx.shape[-1], dtype=torch.float64)
        scale = self.xx.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        return torch.linalg.solve(self.xx + RIDGE * scale * eye, self.xy).float()
