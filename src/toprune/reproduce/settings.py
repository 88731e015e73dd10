"""How runs are trained: as published, in what two cores do in an hour, or in seconds.

The method is the published one at every scale: `received`, Lagrangian, gates, rank masks.

- `paper`: epochs and warm-up of the recipe, masks to the end; learning rate and weight of the
  ranking distillation are searched on a fifth of train.
- `cpu`: at most 1,000 steps with masks, then a third of that with tokens dropped, by the library's
  distillation. Nothing is searched.
- `tiny`: one epoch on a few made texts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from toprune.reproduce import paper as printed
from toprune.reproduce.paper import CUT_SHARE, Published
from toprune.training.settings import FINETUNE, Training

Scale = Literal["tiny", "cpu", "paper"]
Recipe = Literal["paper", "authors"]
Select = Literal["last", "best-dev"]

CPU_STEPS, CPU_LEAST = 1000, 150  # that learn masks, at most and at least
CPU_DENSE_EPOCHS, CPU_DENSE_STEPS = 3.0, 2000  # of a fine-tuning, at most
CPU_TOKENS = 6_000_000  # that these steps read, at most
CPU_TEXT_TOKENS = 1_500_000  # of all texts of a set
CPU_WEIGHT = 1e-2  # of the ranking distillation: the largest of the published ones
DEEP = 12  # layers from which on the first two see all tokens, as in the authors' code


def dense_training(scale: Scale, paper: Published, *, texts: int, seed: int) -> Training:
    """The fine-tuning of the dense model.

    Args:
        texts: number of training texts.
    """
    if scale == "paper":
        batch = paper.content.get("batch_size", printed.settings()["batch_size"])
        epochs = float(paper.content["dense_epochs"])
        return replace(
            FINETUNE, hard_epochs=epochs, lr=2e-5, lr_warmup=0.0, batch_size=batch, seed=seed
        )
    if scale == "cpu":
        epochs = min(CPU_DENSE_EPOCHS, CPU_DENSE_STEPS * FINETUNE.batch_size / texts)
        return replace(FINETUNE, hard_epochs=epochs, dropout=False, seed=seed)
    return replace(FINETUNE, hard_epochs=1.0, lr=1e-3, batch_size=16, seed=seed)


def prune_training(
    scale: Scale,
    paper: Published,
    *,
    texts: int,
    recipe: Recipe,
    seed: int,
    select: Select,
    lr: float | None = None,
) -> Training:
    """The training of ToP.

    Args:
        texts: number of training texts.
        recipe: whose epochs and warm-up, at the scale `paper`.
        lr: that the search has chosen.
    """
    if scale == "paper":
        epochs, warmup = (float(paper.content[recipe][key]) for key in ("epochs", "warmup"))
        return Training(
            soft_epochs=epochs,
            hard_epochs=0.0,
            lr=lr or paper.content.get("lr", 2e-5),
            batch_size=paper.content.get("batch_size", printed.settings()["batch_size"]),
            lr_warmup=0.0,
            sparsity_warmup=warmup / epochs,
            mask_lr=printed.settings()["mask_lr"],
            state_weight=0.0,
            label_weight=1.0 if paper.name == "stsb" else 0.0,
            dropout=True,
            seed=seed,
            select=select,
        )
    if scale == "cpu":
        steps = texts / Training.batch_size  # of an epoch
        soft = cpu_steps(paper) / steps
        return Training(soft_epochs=soft, hard_epochs=soft / 3, seed=seed, select=select)
    return Training(
        soft_epochs=1.0, hard_epochs=0.0, lr=1e-3, batch_size=16, seed=seed, select=select
    )


def rival_training(training: Training) -> Training:
    """As many epochs for the other methods, which learn their plan first and the weights then."""
    soft, hard = training.stage_epochs
    if hard > 0 or soft <= 1:
        return replace(training, select="last")
    return replace(
        Training(lr=training.lr, batch_size=training.batch_size, seed=training.seed),
        soft_epochs=soft * 2 / 3,
        hard_epochs=soft / 3,
    )


def cpu_steps(paper: Published) -> int:
    """Steps with masks, fewer where texts are long."""
    steps = CPU_TOKENS / (Training.batch_size * _mean_length(paper))
    most = paper.content.get("cpu_steps", CPU_STEPS)
    return round(min(most, max(CPU_LEAST, steps)))


def cpu_texts(paper: Published) -> int:
    """Texts of a set, fewer where they are long."""
    return round(CPU_TEXT_TOKENS / _mean_length(paper))


def _mean_length(paper: Published) -> float:
    return min(paper.mean_length or paper.max_length, CUT_SHARE * paper.max_length)


def method_settings(
    scale: Scale, paper: Published, *, layers: int, masks: str, weight: float | None = None
) -> dict[str, Mapping[str, Any]]:
    """Settings of methods, by name: the published ones of ToP.

    Args:
        layers: of the model.
        masks: `learn` or `auto`, for heads that read every token.
        weight: of the ranking distillation, that the search has chosen.
    """
    top: dict[str, Any] = {
        "bins": paper.content["bins"] if scale != "tiny" else 10,
        "top_k": paper.content["top_k"] if scale != "tiny" else 4,
        "first": 1 if layers >= DEEP else 0,
        "constraint": "lagrangian",
        "distill_weight": CPU_WEIGHT if weight is None else weight,
        "masks": masks,
    }
    return {"top": top}
