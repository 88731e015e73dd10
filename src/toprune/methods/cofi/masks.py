"""Masks that multiply the parts of a model, while they are learned and afterwards.

A mask multiplies the output of a head, of an inner column, or one number of every state; a layer
whose mask is zero is skipped. While masks are learned, hooks on the modules multiply: weights and
class of the model stay as they are. Afterwards they are folded into the weights. Then the weights
that belong to zeros can be cut out (`models/slim.py`) without any change of the output.

Every state comes out of a norm, so its numbers are masked there. A norm reads only the numbers
whose mask is open, as it will when the others are gone (CoFi does so too).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from toprune.models.device import CPU, device_of
from toprune.models.families import family_of, sizes_of
from toprune.models.heads import task_outputs
from toprune.models.slim import Kept, parts_of
from toprune.tasks import Task


@dataclass(frozen=True)
class Masks:
    """Each (units,), or with dimensions before that which broadcast over the batch (B, K)."""

    hidden: Tensor  # (D,)
    heads: Sequence[Tensor]  # (H,) of each layer
    inner: Sequence[Tensor]  # (d',) of each layer
    layers: Sequence[Tensor]  # (1,) of each layer: 0 or 1

    def kept(self) -> Kept:
        """The parts whose mask is not zero."""
        layers = [i for i, open_ in enumerate(self.layers) if open_ > 0]
        return Kept(
            layers,
            _open(self.hidden),
            [_open(self.heads[i]) for i in layers],
            [_open(self.inner[i]) for i in layers],
        )


def _open(mask: Tensor) -> list[int]:
    return mask.nonzero().flatten().tolist()


def attach_masks(model: Any, masks: Callable[[], Masks]) -> list[Any]:
    """Let the current masks multiply in every forward pass; returns handles, to `remove`."""
    family, base = family_of(model), model.base_model
    parts, size = parts_of(model, family), sizes_of(model).head_size

    def multiply(module: nn.Module, mask: Callable[[], Tensor]) -> Any:
        return module.register_forward_pre_hook(lambda _, inputs: (inputs[0] * mask(),))

    def norm(module: nn.LayerNorm) -> Any:
        return module.register_forward_hook(
            lambda _, inputs, __: masked_norm(module, inputs[0], masks().hidden)
        )

    def skip(layer: nn.Module, i: int) -> Any:
        """Before the layer's other hooks: transformers records hidden states in one of them."""

        def blend(_: Any, inputs: Any, state: Tensor) -> Tensor:
            through = masks().layers[i]
            return through * state + (1 - through) * inputs[0]

        return layer.register_forward_hook(blend, prepend=True)

    layers = family.layers(base)
    handles = [norm(parts.embedding_norm(base))]
    for i, layer in enumerate(layers):
        handles += [norm(module) for module in parts.norms(layer)]
        handles += [
            multiply(
                parts.attention_output(layer),
                lambda i=i: masks().heads[i].repeat_interleave(size, dim=-1),
            ),
            multiply(parts.down(layer), lambda i=i: masks().inner[i]),
        ]
        if i < len(layers) - 1:  # the last one always stays, and may give one row for many
            handles.append(skip(layer, i))
    return handles


def masked_norm(norm: nn.LayerNorm, x: Tensor, mask: Tensor) -> Tensor:
    """LayerNorm over the numbers whose mask is open, multiplied by the mask."""
    open_ = (mask > 0).to(x.dtype)
    count = open_.sum(-1, keepdim=True)
    centred = (x - (x * open_).sum(-1, keepdim=True) / count) * open_
    spread = centred.square().sum(-1, keepdim=True) / count
    return (centred * torch.rsqrt(spread + norm.eps) * norm.weight + norm.bias) * mask


@torch.no_grad()
def fold(model: Any, masks: Masks) -> None:
    """Multiply the masks into the weights. A norm of the whole state would still read what is
    closed, so cut that out next."""
    family = family_of(model)
    parts, size = parts_of(model, family), sizes_of(model).head_size
    norms = [parts.embedding_norm(model.base_model)]
    for layer, heads, inner in zip(
        family.layers(model.base_model), masks.heads, masks.inner, strict=True
    ):
        output, down = parts.attention_output(layer).weight, parts.down(layer).weight
        output.mul_(heads.repeat_interleave(size).to(output.device))
        down.mul_(inner.to(down.device))
        norms += parts.norms(layer)
    for norm in norms:
        hidden = masks.hidden.to(norm.weight.device)
        norm.weight.mul_(hidden)
        norm.bias.mul_(hidden)


def saliency(model: Any, task: Task, batches: Sequence[dict[str, Tensor]]) -> list[Tensor]:
    """How much the answers depend on each mask, as the probe measures it for tokens: the square of
    the gradient of the answer's margin, summed over texts. For hidden, heads, inner, layers, on
    the CPU."""
    sizes = sizes_of(model)
    counts = [[sizes.width], *([getattr(x, n) for x in sizes.by_layer] for n in ("heads", "inner"))]
    counts.append([1] * sizes.layers)
    totals = [torch.zeros(sum(each), device=CPU) for each in counts]
    device = device_of(model)
    masks: list[Masks] = []
    handles, training = attach_masks(model, lambda: masks[-1]), model.training
    model.eval()
    try:
        for batch in batches:
            mask = batch["attention_mask"].to(device)
            ones = [
                torch.ones(len(mask), 1, len(x), device=device, requires_grad=True) for x in totals
            ]
            (hidden,), *others = (
                x.split(each, dim=-1) for x, each in zip(ones, counts, strict=True)
            )
            masks.append(Masks(hidden, *others))
            margin = task.margin(task_outputs(model, task, batch)[0], mask)
            grads = torch.autograd.grad(margin.sum(), ones)
            for total, grad in zip(totals, grads, strict=True):
                total += grad.square().sum((0, 1)).cpu()
    finally:
        for handle in handles:
            handle.remove()
        model.train(training)
    return totals
