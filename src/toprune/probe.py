"""The saliency probe: one vector per layer that says which tokens the answer depends on.

Target: the norm of the gradient of the answer's margin (see the task) with respect to a token's
state after attention, on the dense model; its log, standardised within each text. A ridge
regression averages the noise of single gradients away, which is why the probe ranks better than the
very gradients it is fitted to. No labels, no training loop: one backward pass over a few hundred
texts.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from toprune.attachment import Drop, attach_policy, detach
from toprune.families import sizes_of
from toprune.heads import ask, reads_all
from toprune.plan import Restore
from toprune.tasks import Task
from toprune.tokens import Tokens

RIDGE = 1e-2  # of the mean variance of the state's coordinates


class Record:
    """A policy that keeps every token and remembers the states after attention."""

    protect: tuple[int, ...] = ()
    protect_until: int | None = None

    def __init__(self, layers: int, *, whole: bool) -> None:
        self.layers = layers
        self.restore: Restore = "last" if whole else "none"
        self.states: list[Tensor] = []
        self.tokens: Tokens | None = None

    def begin(self) -> None:
        self.states = []

    def scored(self, layer: int) -> bool:
        return False

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if layer < self.layers:
            self.states.append(state)
        self.tokens = tokens
        return None


def fit_probes(model: Any, task: Task, batches: Iterable[dict[str, Tensor]]) -> Tensor:
    """A probe (L - 1, D) for every layer that may prune, from unlabelled batches."""
    sizes = sizes_of(model)
    record = Record(sizes.layers - 1, whole=reads_all(task, model.config))
    moments = _Moments(sizes.layers - 1, sizes.width)
    training = model.training
    attach_policy(model.eval(), record)
    try:
        for batch in batches:
            with torch.enable_grad():
                mask = batch["attention_mask"]
                margin = task.margin(ask(model, task, batch)[0], mask)
                grads = torch.autograd.grad(margin.sum(), record.states)
            tokens = record.tokens
            assert tokens is not None
            count = tokens.alive & ~tokens.protected  # the first token stays anyway
            for i, (state, grad) in enumerate(zip(record.states, grads, strict=True)):
                moments.add(i, state.detach(), grad, count)
    finally:
        detach(model).train(training)
    return moments.solve()


def _within_text(x: Tensor, count: Tensor) -> Tensor:
    """x (B, S, ...) minus its mean over the counted tokens of its own text, others zero."""
    w = count.reshape(*count.shape, *[1] * (x.dim() - 2)).to(x.dtype)
    return (x - (x * w).sum(1, keepdim=True) / w.sum(1, keepdim=True).clamp_min(1)) * w


class _Moments:
    """Normal equations of a ridge regression within texts, one for each layer."""

    def __init__(self, layers: int, width: int):
        self.xx = torch.zeros(layers, width, width, dtype=torch.float64)
        self.xy = torch.zeros(layers, width, dtype=torch.float64)

    def add(self, layer: int, state: Tensor, grad: Tensor, count: Tensor) -> None:
        saliency = grad.norm(dim=-1).clamp_min(1e-12).log()  # (B, S)
        y = _within_text(saliency, count)
        spread = (y.square().sum(1) / count.sum(1).clamp_min(1)).sqrt()
        y = (y / spread.clamp_min(1e-6)[:, None])[count]
        x = _within_text(state, count)[count]  # (tokens, D)
        self.xx[layer] += (x.T @ x).double().cpu()
        self.xy[layer] += (x.T @ y).double().cpu()

    def solve(self) -> Tensor:
        eye = torch.eye(self.xx.shape[-1], dtype=torch.float64)
        scale = self.xx.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        return torch.linalg.solve(self.xx + RIDGE * scale * eye, self.xy).float()
