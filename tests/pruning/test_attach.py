"""Attach and detach: what is refused, what stays as it was, and gradients under a plan."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from support.attached import TEXTS, double, every_family, pruned, steep
from support.models import FAMILIES, make_model
from support.strategies import LAYERS, logits, pad
from toprune.errors import UserError
from toprune.models.families import FAMILIES as KNOWN
from toprune.models.families.support import support_of
from toprune.models.heads import restore_of, task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attached, detach
from toprune.tasks import make_task
from toprune.training.job import dense_plan

# -- what is refused -----------------------------------------------------------------------------


@every_family
def test_left_padding_is_refused(family: str) -> None:
    batch = pad(TEXTS)
    model = pruned(family, steep(family))
    with pytest.raises(ValueError, match="left"):
        model(**{name: x.flip(1) for name, x in batch.items()})


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="attention_mask"):
        pruned("bert", steep())(torch.tensor([TEXTS[0]]), torch.ones(1, 1, 24, 24))


def test_a_plan_for_another_model_is_refused() -> None:
    model = copy.deepcopy(double("bert"))
    attach(model, steep())
    before = logits(model, TEXTS)
    for other in (
        steep("roberta"),
        Plan("bert", 6, 32, "received", ()),
        Plan("bert", 4, 64, "received", ()),
    ):
        with pytest.raises(UserError, match="another model"):
            attach(model, other)
    assert torch.equal(logits(model, TEXTS), before)  # and the plan it had is still there


def test_an_unknown_architecture_is_refused() -> None:
    model = copy.deepcopy(double("bert"))
    model.config.model_type = "gpt2"
    with pytest.raises(UserError, match="not known; supported: bert"):
        attach(model, steep())
    decoder = copy.deepcopy(double("bert"))
    decoder.config.is_decoder = True
    with pytest.raises(UserError, match="decoder"):
        attach(decoder, steep())


# -- without a trace -----------------------------------------------------------------------------


@every_family
def test_attach_then_detach_is_exact(family: str) -> None:
    model = make_model(family)
    classes, keys = [type(m) for m in model.modules()], list(model.state_dict())
    before = logits(model, TEXTS)
    plan = steep(family)
    assert attach(model, plan) is model
    assert attached(model) is not None
    assert list(model.state_dict()) == keys
    assert all(isinstance(m, c) for m, c in zip(model.modules(), classes, strict=True))
    assert not torch.equal(logits(model, TEXTS), before)
    attach(model, steep(family, "probe"))  # a second plan replaces the first
    assert detach(model) is model
    assert attached(model) is None
    assert [type(m) for m in model.modules()] == classes
    assert torch.equal(logits(model, TEXTS), before)
    assert torch.equal(logits(detach(model), TEXTS), before)  # detaching twice is harmless


@every_family
def test_a_deepcopy_is_isolated(family: str) -> None:
    model = pruned(family, steep(family))
    before = logits(model, TEXTS)
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin, TEXTS), before)
    run, other = attached(model), attached(twin)
    assert run is not None
    assert other is not None
    assert run is not other
    logits(twin, TEXTS[:1])
    assert run.tokens[0] is not None
    assert len(run.tokens[0].n) == len(TEXTS)  # the original still shows its own last pass
    detach(twin)
    assert torch.equal(logits(model, TEXTS), before)
    assert torch.equal(logits(twin, TEXTS), logits(double(family), TEXTS))


@every_family
def test_save_pretrained_writes_a_stock_model(family: str, tmp_path: Path) -> None:
    stock = make_model(family)
    attach(make_model(family), steep(family)).save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(stock)
    assert type(loaded.base_model) is type(stock.base_model)
    assert torch.equal(logits(loaded, TEXTS), logits(stock, TEXTS))


# -- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "task"),
    [
        (family, task)
        for family in FAMILIES
        for task in ("classify", "tokens", "answer")
        if task in support_of(KNOWN[family]).tasks
    ],
)
def test_a_plan_of_no_steps_has_the_gradients_of_the_stock_model(family: str, task: str) -> None:
    """What fine-tuning relies on."""
    kind = make_task(task)
    stock = make_model(family, head=kind.HEAD).double()
    pruned_model = copy.deepcopy(stock)
    attach(pruned_model, dense_plan(pruned_model, restore_of(kind, pruned_model.config)))
    parameters = []
    for model in (stock, pruned_model):
        out = task_outputs(model, kind, pad(TEXTS))[0]
        live = out if out.dim() == 2 else out[pad(TEXTS)["attention_mask"].bool()]
        live.square().sum().backward()
        parameters.append(dict(model.named_parameters()))
    for name, p in parameters[0].items():
        if p.grad is not None:
            other = parameters[1][name].grad
            assert other is not None, name
            close = 1e-5 * (1 + float(p.grad.abs().max()))  # some are zero but for rounding
            torch.testing.assert_close(other, p.grad, atol=close, rtol=0)


@every_family
@pytest.mark.parametrize("score", ["received", "probe"])
def test_masked_and_gathered_have_the_same_gradients(family: str, score: str) -> None:
    plan = steep(family, score)
    one, other = (gradients(pruned(family, plan, gather=g)) for g in (True, False))
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if double(name).supports_gradient_checkpointing]
)
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    plan = steep(family, protect=(5,))
    expected = gradients(pruned(family, plan).train())
    model = pruned(family, plan).train()
    model.gradient_checkpointing_enable()
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-9, rtol=1e-9, msg=name)


def gradients(model: Any) -> dict[str, Tensor]:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010
    model(**pad(TEXTS)).logits.square().sum().backward()
    actual = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert len(actual) > 6 * LAYERS
    return actual


def test_attention_dropout_only_while_training() -> None:
    model = pruned("bert", steep())
    assert torch.equal(model(**pad(TEXTS)).logits, model(**pad(TEXTS)).logits)
    model.train()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and "self" not in name:
            module.p = 0.0  # all but that of attention probabilities
    assert not torch.allclose(model(**pad(TEXTS)).logits, model(**pad(TEXTS)).logits)
