"""Attach a plan to any supported transformers encoder, and detach it without a trace.

Mechanism: the *class* of the base model and of each of its layers is swapped for a subclass of the
same name. Weights, state-dict keys, `isinstance` and `save_pretrained` stay as they were, and a
deepcopy carries its own state. A policy (`policies.py`) decides which tokens leave; a run
(`execution.py`, or `export/packed.py` while a graph is traced) computes the layers.
"""

from typing import Any

import torch
from torch import Tensor

from toprune.errors import UserError
from toprune.models.families import family_of, patches, reads_every_token
from toprune.plan.plan import Plan
from toprune.pruning.execution import Run
from toprune.pruning.policies import Follow, Policy
from toprune.pruning.predictor import check_predictors, predictors_of


def attach(model: Any, plan: Plan, *, gather: bool = True) -> Any:
    """Make a model execute a plan in every forward pass.

    Args:
        model: a transformers encoder of a supported family, with or without a head. It is changed
            in place; `detach` undoes that exactly.
        plan: which layers drop tokens. It must be for this family, depth and width.
        gather: False only masks dropped tokens. That gives the same outputs and no speed; it is
            for checks.

    Returns:
        The same model object.
    """
    family = family_of(model)
    sizes = family.sizes(model.config)
    plan.check_model(family.name, sizes.layers, sizes.width)
    if plan.restore == "none" and reads_every_token(model):
        raise UserError(
            f"the head of {type(model).__name__} reads every token, but this plan does not restore "
            'dropped tokens; it needs restore="last"'
        )
    check_predictors(model, plan)
    return attach_policy(model, Follow(plan, gather=gather, predictors=predictors_of(model)))


def attach_policy(model: Any, policy: Policy) -> Any:
    """Let `policy` decide in every forward pass, in place of any policy the model has.

    Returns:
        The same model object.
    """
    family = family_of(model)
    return swap_layers(model, Run(family, model.base_model, family.sizes(model.config), policy))


def swap_layers(model: Any, run: Any) -> Any:
    """Swap the classes of the base model and its layers, so that `run` computes them.

    Args:
        model: changed in place.
        run: a `Run`, or the `PackedRun` that is traced for ONNX.

    Returns:
        The same model object.
    """
    detach(model)
    base, family = model.base_model, family_of(model)
    depths: dict[Any, list[int]] = {}
    for i, layer in enumerate(family.layers(base)):
        depths.setdefault(layer, []).append(i)
    _swap(base, _image_forward if family.images else _text_forward, run)
    for layer, layer_depths in depths.items():
        _swap(layer, _layer_forward, (run, layer_depths))
    conv = None if family.convolution is None else family.convolution.module(base)
    if conv is not None:
        _swap(conv, _convolution_forward, run)
    return model


def detach(model: Any) -> Any:
    """Undo `attach` exactly; a model without a plan is left alone.

    Returns:
        The same model object.
    """
    for module in model.modules():
        if "_toprune" in module.__dict__:
            del module._toprune
            module.__class__ = type(module).__bases__[0]
    return model


def attached(model: Any) -> Run | None:
    """Return the run of an attached model, for a look at its tokens after a forward pass."""
    return model.base_model.__dict__.get("_toprune")


def _swap(module: Any, forward: Any, state: Any) -> None:
    stock = type(module)
    members = {"forward": forward, "__module__": stock.__module__}
    module.__class__ = type(stock.__name__, (stock,), members)
    module._toprune = state


def _text_forward(
    self: Any, input_ids: Any = None, attention_mask: Any = None, *args: Any, **kwargs: Any
) -> Any:
    run = self._toprune
    run.calls = 0
    inputs = input_ids if input_ids is not None else kwargs.get("inputs_embeds")
    if inputs is None:
        raise ValueError("give input_ids or inputs_embeds")
    if attention_mask is None:
        attention_mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
    if attention_mask.dim() != 2:
        raise ValueError("attention_mask must be (batch, length): 1 for tokens, 0 for padding")
    if kwargs.get("position_ids") is not None and (run.family.rotary or run.family.bias):
        raise ValueError("position_ids: leave them out, this family reads positions in attention")
    run.begin(input_ids, attention_mask)
    stock: Any = type(self).__bases__[0]
    return _finish(run, stock.forward(self, input_ids, attention_mask, *args, **kwargs))


def _image_forward(self: Any, pixel_values: Any = None, *args: Any, **kwargs: Any) -> Any:
    run = self._toprune
    run.calls = 0
    if kwargs.pop("attention_mask", None) is not None:
        raise ValueError("attention_mask: an image has no padding")
    batch, _, height, width = pixel_values.shape
    tokens = patches(self.config, height, width) + 1
    run.begin(None, torch.ones(batch, tokens, dtype=torch.long, device=pixel_values.device))
    stock: Any = type(self).__bases__[0]
    return _finish(run, stock.forward(self, pixel_values, *args, **kwargs))


def _finish(run: Any, out: Any) -> Any:
    if not run.restores:
        return out
    if isinstance(out, tuple):  # return_dict=False
        return (run.finish(out[0]), *out[1:])
    out.last_hidden_state = run.finish(out.last_hidden_state)
    return out


def _layer_forward(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
    run, depths = self._toprune
    i = depths[0] if len(depths) == 1 else run.calls  # checkpointing may call a layer again
    run.calls += 1
    return run.family.layer_output(run.layer(self, i, hidden_states))


def _convolution_forward(self: Any, embeddings: Tensor, states: Tensor, _: Any) -> Tensor:
    return self._toprune.convolve(self, embeddings, states)
