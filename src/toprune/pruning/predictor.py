"""Small networks that read a token's state and predict whether it stays. Transkimmer, TR-BERT,
AdapLeR and LoT rank by them; there is one at every layer that drops tokens.

They are part of the model: their weights are trained, saved, loaded and hashed with those of the
model, under a name that transformers ignores. Their cost is counted (`Sizes.ranking`).
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
MAX_LOGIT = 30.0  # so that its exponential stays finite


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
        """The odds of staying. They are positive, so that one factor can move all thresholds."""
        return self(state).clamp(-MAX_LOGIT, MAX_LOGIT).exp()


def add_predictors(model: Any, layers: Iterable[int], inner: int, *, normed: bool) -> nn.ModuleDict:
    """Give a model new predictors, in place of any that it has.

    Args:
        model: changed in place.
        layers: that get a predictor.
        inner: width of its hidden layer.
        normed: whether it has layer norms.

    Returns:
        The predictors by layer.
    """
    base, width = model.base_model, sizes_of(model).width
    predictors = nn.ModuleDict({str(i): Predictor(width, inner, normed=normed) for i in layers})
    setattr(base, NAME, predictors.to(next(base.parameters())))
    return predictors


def predictors_of(model: Any) -> dict[int, Predictor]:
    """Return the predictors of a model by layer; {} if it has none."""
    predictors: Any = getattr(model.base_model, NAME, {})
    return {int(i): predictor for i, predictor in predictors.items()}


def check_predictors(model: Any, plan: Plan) -> None:
    """Refuse a model without the predictors that the plan needs."""
    if plan.predictor is None:
        return
    predictors = predictors_of(model)
    for step in plan.steps:
        predictor = predictors.get(step.layer)
        if predictor is None or predictor.hidden.out_features != plan.predictor:
            raise UserError(
                f"this plan needs a predictor of width {plan.predictor} at layer {step.layer}, but "
                "the model has none; load the bundle that the plan came with"
            )


def read_predictors(model: Any, plan: Plan, folder: Path) -> None:
    """Give a model the predictors that are saved with the weights of a bundle."""
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
    predictors = add_predictors(model, layers, plan.predictor, normed=normed)
    try:
        predictors.load_state_dict(saved)
    except RuntimeError as error:
        raise UserError(
            f"the predictors in {folder} do not fit its plan; prune the model again"
        ) from error
    check_predictors(model, plan)
