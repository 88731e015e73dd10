"""Small networks that read a token's state and say whether it stays: what Transkimmer and TR-BERT
rank by, one at every layer that drops tokens.

They are part of the model: their weights are trained, saved, loaded and hashed with its own, under
a name that transformers ignores. What they cost is counted (`cost.score_macs`).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from toprune.errors import UserError
from toprune.models.families import sizes_of
from toprune.plan.plan import Plan

NAME = "token_predictors"  # of the module in the base model
LIMIT = 30.0  # of a logit, so that its exponential stays a number


class Predictor(nn.Module):
    """State (..., D) -> logit (...): LN, Linear, LN, GELU, Linear; or the same without norms."""

    def __init__(self, width: int, inner: int, *, normed: bool):
        super().__init__()
        self.before = nn.LayerNorm(width) if normed else nn.Identity()
        self.hidden = nn.Linear(width, inner)
        self.between = nn.LayerNorm(inner) if normed else nn.Identity()
        self.keep = nn.Linear(inner, 1)

    def forward(self, state: Tensor) -> Tensor:
        inner = self.between(self.hidden(self.before(state)))
        return self.keep(nn.functional.gelu(inner)).squeeze(-1)

    def odds(self, state: Tensor) -> Tensor:
        """Of staying: positive, as thresholds that move together by a factor need it."""
        return self(state).clamp(-LIMIT, LIMIT).exp()


def add_predictors(model: Any, layers: Iterable[int], inner: int, *, normed: bool) -> nn.ModuleDict:
    """New ones for these layers, in place of any that the model had."""
    base, width = model.base_model, sizes_of(model).width
    made = nn.ModuleDict({str(i): Predictor(width, inner, normed=normed) for i in layers})
    setattr(base, NAME, made.to(next(base.parameters())))
    return made


def predictors_of(model: Any) -> dict[int, Predictor]:
    """By layer; none where the model has none."""
    found: Any = getattr(model.base_model, NAME, {})
    return {int(i): predictor for i, predictor in found.items()}


def check_predictors(model: Any, plan: Plan) -> None:
    """Refuse a model without those that the plan asks."""
    if plan.predictor is None:
        return
    found = predictors_of(model)
    for step in plan.steps:
        own = found.get(step.layer)
        if own is None or own.hidden.out_features != plan.predictor:
            raise UserError(
                f"this plan asks a predictor of width {plan.predictor} at layer {step.layer}, and "
                "the model has none; load the bundle that it came with"
            )


def read_predictors(model: Any, plan: Plan, folder: Path) -> None:
    """Bring back those that were saved with the weights of a bundle."""
    if plan.predictor is None:
        return
    saved = {
        name.partition(f"{NAME}.")[2]: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
        if f"{NAME}." in name
    }
    layers = sorted({int(name.partition(".")[0]) for name in saved if name[0].isdigit()})
    normed = any(".before." in name for name in saved)
    made = add_predictors(model, layers, plan.predictor, normed=normed)
    try:
        made.load_state_dict(saved)
    except RuntimeError as error:
        raise UserError(
            f"the predictors in {folder} do not fit its plan; prune the model anew"
        ) from error
    check_predictors(model, plan)
