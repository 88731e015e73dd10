"""Settings with their descriptions, and the settings of a training.

This module needs no torch, so that the command line can read defaults and help from it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

Stage = Literal["soft", "hard"]  # masks and weights together; weights alone, with tokens dropped


OPTIMISTIC = "The weights were chosen by the examples that are reported: the scores are optimistic."


def setting(default: Any, description: str, *, minimum: float = 0, later: bool = False) -> Any:
    """A dataclass field whose metadata has a `help` line, for `toprune methods NAME` and --help,
    and the least number that the command line accepts for it.

    Args:
        later: the field was added to a class that stopped runs know without it (see `recorded`).
    """
    metadata = {"help": description, "minimum": minimum, "later": later}
    return field(default=default, metadata=metadata)


def recorded(settings: Any) -> dict[str, Any]:
    """The settings as a run records them. A field that was added later is left out while it has its
    default: a run that was stopped before goes on."""
    return {
        each.name: value
        for each in fields(settings)
        if (value := getattr(settings, each.name)) != each.default or not each.metadata["later"]
    }


@dataclass(frozen=True)
class Training:
    """How weights are trained. What is learned beside them belongs to the method's settings."""

    soft_epochs: float | None = setting(
        None, "Epochs that learn masks and weights together (default: soft_steps)."
    )
    hard_epochs: float | None = setting(
        None, "Epochs that train the weights alone, with tokens dropped (default: the rest)."
    )
    lr: float = setting(1e-4, "Learning rate of the weights.")
    batch_size: int = setting(32, "Texts per step, over all processes together.")
    accumulation: int = setting(1, "Steps per update of the weights.")
    lr_warmup: float = setting(0.06, "Share of a stage's steps in which the learning rate rises.")
    sparsity_warmup: float = setting(
        0.7, "Share of the mask epochs in which the target rises to the budget."
    )
    mask_lr: float | None = setting(
        None, "Learning rate of the masks (default: enough to close a mask in time)."
    )
    state_weight: float = setting(
        10.0, "Weight of the loss on the states of the tokens that the head reads, in every layer."
    )
    token_states: bool | None = setting(
        None, "Learn the dense model's states of all kept tokens (default: where that is possible)."
    )
    label_weight: float = setting(
        0.0, "Weight of the label loss beside distillation (0: labels are not needed)."
    )
    # Without dropout attention is fused, which saves much time on long texts. Distillation needs no
    # dropout: the dense model's answers are exact, and noise only blurs them.
    dropout: bool | None = setting(
        None, "Train with dropout (default: in fine-tuning, not in distillation)."
    )
    bf16: bool | None = setting(
        None, "Train with products in bfloat16 (default: where the processor has them)."
    )
    max_grad_norm: float = setting(1.0, "Largest norm of the gradient of the weights.")
    train_embeddings: bool = setting(False, "Train the embeddings, too.")
    save_steps: int | None = setting(None, "Steps between checkpoints (default: every epoch).")
    report_to: str = setting("none", "Where to log: tensorboard, wandb or another Trainer logger.")
    seed: int = setting(0, "Seed for splits, shuffling, masks and dropout.")
    epochs: float = setting(5.0, "Epochs of both stages together, if these have none of their own.")
    # Masks move a little in every step, so a small dataset needs more epochs to learn them.
    soft_steps: int = setting(300, "Steps that learn masks and weights, but at most half of all.")
    fp16: bool = setting(
        False, "Train with products in float16 (default: on GPUs without bfloat16).", later=True
    )

    select: Literal["last", "best-dev"] = setting(
        "last",
        "Weights and plan to keep: the last, or the best on the reported examples, which is "
        "optimistic.",
        later=True,
    )

    @property
    def precision(self) -> str | None:
        """The type of products, by its name in torch; None: float32."""
        return "bfloat16" if self.bf16 else "float16" if self.fp16 else None

    def settings(self) -> dict[str, Any]:
        """What the result depends on; the other settings may change when a run is resumed."""
        unread = {"report_to", "save_steps"}
        if self.soft_epochs is not None and self.hard_epochs is not None:
            unread |= {"epochs", "soft_steps"}
        return {k: v for k, v in recorded(self).items() if k not in unread}

    def continued(self, before: Mapping[str, Any]) -> "Training":
        """What the caller left open as the stopped run had it: it must end as it began.

        Args:
            before: `settings()` of the stopped run; empty: there is none.
        """
        bf16 = before.get("bf16") if self.bf16 is None else self.bf16
        states = before.get("token_states") if self.token_states is None else self.token_states
        fp16 = self.fp16 or (self.bf16 is None and before.get("fp16", False))
        current = replace(self, bf16=bf16, fp16=fp16, token_states=states)
        soft, hard = before.get("soft_epochs"), before.get("hard_epochs")
        is_open = self.soft_epochs is None and self.hard_epochs is None
        is_open = is_open and self.soft_steps == Training.soft_steps
        if is_open and soft is not None and hard is not None and soft + hard == self.epochs:
            return replace(current, soft_epochs=soft, hard_epochs=hard)
        return current

    def resolved(self, texts: int) -> "Training":
        """The same training with the epochs of both stages, for this number of texts."""
        soft, hard = self.soft_epochs, self.hard_epochs
        if soft is None:
            steps = math.ceil(math.ceil(texts / self.batch_size) / self.accumulation)  # an epoch's
            most = self.epochs / 2 if hard is None else hard
            soft = min(most, math.floor(1e6 * self.soft_steps / max(1, steps)) / 1e6)
        if hard is None:
            hard = max(0, self.epochs - soft)
        return replace(self, soft_epochs=soft, hard_epochs=hard)

    @property
    def stage_epochs(self) -> tuple[float, float]:
        """Epochs of the soft and of the hard stage; only a `resolved` training has both."""
        if self.soft_epochs is None or self.hard_epochs is None:
            raise ValueError("the epochs of a stage are open; call resolved() first")
        return self.soft_epochs, self.hard_epochs

    def for_stages(self, stages: tuple[Stage, ...]) -> "Training":
        """The same number of epochs whatever stages a method has: a single stage gets all."""
        if len(stages) == 2:
            return self
        total = sum(self.stage_epochs)
        soft, hard = (total if name in stages else 0.0 for name in ("soft", "hard"))
        return replace(self, soft_epochs=soft, hard_epochs=hard)


FINETUNE = Training(soft_epochs=0, epochs=3, lr=5e-5, label_weight=1.0)  # of a dense model
