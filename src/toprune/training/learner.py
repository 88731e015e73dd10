"""Training on `transformers.Trainer`: fine-tuning, the soft stage and the hard stage are one loop.

A `Learner` wraps the model and, in the soft stage, the selector, so that several processes keep one
set of masks and multipliers; the Trainer brings resume, accumulation, logging and launchers.
"""

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from toprune.errors import UserError
from toprune.models.heads import ask
from toprune.pruning.attach import attached
from toprune.pruning.policies import Follow
from toprune.pruning.tokens import take
from toprune.tasks import Task
from toprune.training.batches import Buckets
from toprune.training.distributed import ON_CPU, backend, processes, share_of
from toprune.training.features import Collate, tokens_in
from toprune.training.ranking_losses import RANK_LOSSES, Ranking
from toprune.training.soft_policy import Learn
from toprune.training.teacher import first_states
from toprune.training.trainer_bar import Bar

ALL_TOKENS = 10.0  # times the weight of states where they are those of every token that stays
LINES = 40  # of the log, at least, where a stage has as many steps; the report draws them


@dataclass(frozen=True)
class Training:
    """How weights are trained; what is learned beside them is the method's business."""

    soft_epochs: float = 1.0  # masks and weights together
    hard_epochs: float = 4.0  # weights alone, tokens truly gone
    lr: float = 1e-4
    batch_size: int = 32  # of all processes together
    accumulation: int = 1
    lr_warmup: float = 0.06  # share of a stage's steps
    sparsity_warmup: float = 0.7  # share of the soft stage in which the target rises
    mask_lr: float | None = None  # of masks and multipliers; None: enough to cross over in time
    state_weight: float = 10.0  # of the states, layer by layer, of the tokens that the head reads
    # of all tokens that are still there, too, where it reads the first one: the hard stage then
    # asks the dense model at every step
    token_states: bool = False
    label_weight: float = 0.0  # of the label loss beside distillation; 0: labels are not needed
    # None: while fine-tuning, not while distilling, where the dense model's answers are exact and
    # noise only blurs. Without it attention is fused, which counts on long texts.
    dropout: bool | None = None
    bf16: bool = False  # products in bfloat16 while training; what is kept and measured is float32
    max_grad_norm: float = 1.0
    train_embeddings: bool = False
    save_steps: int | None = None  # a checkpoint every so many steps; None: every epoch
    report_to: str = "none"  # tensorboard, wandb, ...: whatever transformers knows
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        """What the result depends on; the rest may change when a run is resumed."""
        return {k: v for k, v in vars(self).items() if k not in ("report_to", "save_steps")}


class Learner(nn.Module):
    """A model and the loss that it is trained with; with a policy also the masks."""

    accepts_loss_kwargs = False  # the Trainer averages over accumulation steps itself

    def __init__(
        self,
        model: Any,
        task: Task,
        *,
        label_weight: float,
        state_weight: float = 0.0,
        dropout: bool = True,
        policy: Learn | None = None,
        ranking: Ranking | None = None,
        dense: Any = None,
    ):
        """`ranking`: with which answers that a token is are kept from being dropped; `dense`: the
        model whose states the tokens that stay are to have."""
        super().__init__()
        self._dense = (dense,)  # in a tuple: no part of what is trained and saved
        self.dropout, self.ranking = dropout, ranking
        self.model, self.task, self.policy = model, task, policy
        self.selector = policy.selector if policy is not None else None
        self.label_weight, self.state_weight = label_weight, state_weight
        self.rank_weight = 0.0  # the trainer moves it
        self.parts: dict[str, float] = {}

    def train(self, mode: bool = True) -> "Learner":
        """Dropout is all that tells an encoder's training mode from its evaluation mode."""
        super().train(mode)
        if not self.dropout:
            self.model.eval()
        return self

    def forward(
        self,
        labels: Tensor | None = None,
        teacher_logits: Tensor | None = None,
        teacher_scores: Tensor | None = None,
        teacher_states: Tensor | None = None,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        mask = inputs["attention_mask"]
        taught = teacher_states is not None or self._dense[0] is not None
        stated = taught and self.state_weight > 0
        # logits (B, C) or (B, S, C)
        logits, out = ask(self.model, self.task, inputs, output_hidden_states=stated)
        # a loss in bfloat16 would be mostly rounding
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        terms: dict[str, Tensor] = {}
        if stated and teacher_states is not None:
            gap = F.mse_loss(first_states(out.hidden_states), teacher_states)
            terms["state"] = self.state_weight * gap
        if stated and self._dense[0] is not None:
            gap = self._state_gap(inputs, out.hidden_states)
            terms["states"] = ALL_TOKENS * self.state_weight * gap
        if teacher_logits is not None:
            terms["distill"] = self.task.distill_loss(logits, teacher_logits, mask)
            if self.ranking is not None:
                terms |= self._ranked(self.ranking, teacher_logits, mask)
        if labels is not None and self.label_weight > 0:
            terms["label"] = self.label_weight * self.task.label_loss(logits, labels, mask)
        if self.policy is not None:
            terms |= self._selection(self.policy, teacher_scores)
        self.parts = {name: float(term.detach()) for name, term in terms.items()}
        return {"loss": torch.stack(list(terms.values())).sum(), "logits": logits}

    def _state_gap(self, inputs: dict[str, Tensor], hidden: Sequence[Tensor]) -> Tensor:
        """Mean square between the states after every layer of tokens that are still there and what
        the dense model makes of them. Computed anew each time: to keep the states of all tokens
        takes thousands of bytes a token and layer."""
        run, dense = attached(self.model), self._dense[0].to(hidden[0].device)
        assert run is not None
        with torch.no_grad():
            wanted = ask(dense, self.task, inputs, output_hidden_states=True)[1].hidden_states
        gaps = []
        for state, want, tokens in zip(hidden[1:], wanted[1:], run.tokens[1:], strict=True):
            assert tokens is not None
            square = (state - take(want, tokens.index)).square().mean(-1)  # (B, K)
            gaps.append((square * tokens.alive).sum() / tokens.alive.sum())
        return torch.stack(gaps).mean()

    def _ranked(self, loss: Ranking, teacher: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Tokens that the dense model would answer with must rank high where ranks are for good:
        no gradient of the answer tells of one that was dropped."""
        run, share = attached(self.model), self.task.own_share(teacher, mask)
        policy = None if run is None else run.policy
        if share is None or not isinstance(policy, Follow) or not policy.rankings:
            return {}
        terms = []
        for scores, tokens in policy.rankings:
            x = scores if policy.probes else scores.clamp_min(1e-9).log()  # shares of attention
            live = tokens.alive & ~tokens.protected
            terms.append(loss(x, share.gather(1, tokens.index), live))
        return {"rank": torch.stack(terms).mean()}

    def _selection(self, policy: Learn, teacher_scores: Tensor | None) -> dict[str, Tensor]:
        terms = {"penalty": policy.selector.penalty()}
        if self.rank_weight > 0 and teacher_scores is not None:
            settings = policy.selector.settings
            rank = policy.rank_loss(RANK_LOSSES[settings.distill], teacher_scores, settings.top_k)
            terms["rank"] = self.rank_weight * rank
        return terms


class Schedule(TrainerCallback):
    """Moves the sparsity target up and the weight of the ranking distillation down."""

    def __init__(self, learner: Learner, warmup: float):
        self.learner, self.warmup = learner, warmup

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        selector = self.learner.selector
        if selector is None:
            return
        over = state.global_step / max(1.0, self.warmup * state.max_steps)
        selector.progress = min(1.0, over)
        self.learner.rank_weight = selector.rank_weight * max(0.0, 1 - over)


class Order(TrainerCallback):
    """Tells the sampler its epoch: a resumed run of several processes wraps it too deep for the
    Trainer to reach."""

    def __init__(self, buckets: Buckets):
        self.buckets = buckets

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.buckets.set_epoch(int(state.epoch or 0))


class FitTrainer(Trainer):
    """Bucketed batches, a group of its own for masks and multipliers, and a stop at NaN."""

    def __init__(self, learner: Learner, training: Training, lengths: Sequence[int], **kwargs: Any):
        self.learner, self.training, self.text_lengths = learner, training, lengths
        self.buckets = Buckets(lengths, training.batch_size, training.seed)
        super().__init__(model=learner, **kwargs)
        self.add_callback(Order(self.buckets))

    def _get_train_sampler(self, train_dataset: Any = None) -> Buckets:
        return self.buckets

    def _weights(self) -> list[Tensor]:
        """Of the model, but for those that a selector trains at a rate of its own."""
        selector = self.learner.selector
        own = {id(p) for p in selector.masks()} if selector is not None else set[int]()
        return [p for p in self.learner.model.parameters() if p.requires_grad and id(p) not in own]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": self._weights(), "lr": self.training.lr}]
        selector = self.learner.selector
        if selector is not None:
            lr = self.training.mask_lr or self._mask_lr(selector.SPAN)
            groups.append({"params": selector.masks(), "lr": lr})
            if multipliers := selector.multipliers():
                groups.append({"params": multipliers, "lr": lr, "maximize": True})
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)
        return self.optimizer

    def _mask_lr(self, span: float) -> float:
        """Adam moves a parameter by about its rate each step: let a mask cross from open to closed
        (a span, nine units in ToP) within half the warm-up, between ToP's .01 and a tenfold."""
        batches = len(self.text_lengths) / (self.training.batch_size * self.training.accumulation)
        steps = max(1.0, batches * self.args.num_train_epochs * self.training.sparsity_warmup)
        return span / 9 * min(0.1, max(0.01, 18 / steps))

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Linear warm-up and decay for weights; masks keep their rate, as in the paper."""
        rising = max(1.0, self.training.lr_warmup * num_training_steps)

        def weights(step: int) -> float:
            left = (num_training_steps - step) / max(1.0, num_training_steps - rising)
            return min(step / rising, max(0.0, left)) if step < rising else max(0.0, left)

        optimizer = optimizer or self.optimizer
        shapes = [weights] + [lambda step: 1.0] * (len(optimizer.param_groups) - 1)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, shapes)
        return self.lr_scheduler

    def _clip_grad_norm(self, model: Any) -> Any:
        return self.accelerator.clip_grad_norm_(self._weights(), self.args.max_grad_norm)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = model(**inputs)["loss"]
        if not math.isfinite(float(loss.detach())):
            self.refuse(f"the loss became {float(loss.detach())}")
        return loss

    def refuse(self, why: str) -> NoReturn:
        """Stop. A checkpoint of this very step holds the weights that are at fault."""
        out, step = Path(str(self.args.output_dir)), self.state.global_step
        if processes().is_main_process:
            shutil.rmtree(out / f"checkpoint-{step}", ignore_errors=True)
        good = last_checkpoint(out)
        way = f"; {good} is good: --resume with a smaller --lr" if good else "; try a smaller --lr"
        raise UserError(f"{why} at step {step}{way}")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The rate is this run's, not the checkpoint's: that is how one goes on after a NaN."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.optimizer is not None:
            schedule, group = self.lr_scheduler, self.optimizer.param_groups[0]
            schedule.base_lrs[0] = group["initial_lr"] = self.training.lr
            group["lr"] = self.training.lr * schedule.lr_lambdas[0](schedule.last_epoch)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        selector = self.learner.selector
        if selector is not None and "loss" in logs:
            with torch.no_grad():
                logs |= {"sparsity": float(selector.sparsity()), "target": selector.target()}
            logs |= {f"loss_{name}": part for name, part in self.learner.parts.items()}
            logs |= {name: float(x) for name, x in selector.told().items()}
        super().log(logs, *args, **kwargs)


def train(
    learner: Learner,
    features: Sequence[dict[str, Any]],
    collate: Collate,
    training: Training,
    *,
    epochs: float,
    out: Path,
    label: str,
    resume: bool = False,
) -> list[dict[str, float]]:
    """Run one stage; returns its log. Checkpoints under `out`, from which `resume` goes on."""
    for p in learner.model.base_model.embeddings.parameters():
        p.requires_grad_(training.train_embeddings)
    batches = len(features) / (training.batch_size * training.accumulation)
    args = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=epochs,
        per_device_train_batch_size=share_of(training.batch_size),
        gradient_accumulation_steps=training.accumulation,
        max_grad_norm=training.max_grad_norm,
        bf16=training.bf16,
        save_strategy="steps" if training.save_steps else "epoch",
        save_steps=training.save_steps or 500,
        save_total_limit=2,
        logging_steps=max(1, min(10, int(batches * epochs) // LINES)),
        report_to=training.report_to,
        remove_unused_columns=False,
        seed=training.seed,
        disable_tqdm=True,
        use_cpu=ON_CPU,
        dataloader_pin_memory=not ON_CPU,
        ddp_find_unused_parameters=True,
        ddp_backend=backend(),
    )
    told = Bar(label)
    trainer = FitTrainer(
        learner,
        training,
        [tokens_in(feature) for feature in features],
        args=args,
        train_dataset=features,
        data_collator=collate,
        callbacks=[Schedule(learner, training.sparsity_warmup), told],
    )
    trainer.remove_callback(_printer())
    try:
        trainer.train(resume_from_checkpoint=last_checkpoint(out) if resume else None)
    finally:
        told.close()
    if not all(bool(p.isfinite().all()) for p in learner.parameters()):
        trainer.refuse("weights became NaN")
    return trainer.state.log_history


def _printer() -> type[TrainerCallback]:
    from transformers.trainer_callback import PrinterCallback

    return PrinterCallback


def last_checkpoint(out: Path) -> str | None:
    """The newest checkpoint that was written to its end: the trainer's state is its last file."""
    whole = [folder for folder in out.glob("checkpoint-*") if _is_whole(folder)]
    newest = max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def _is_whole(folder: Path) -> bool:
    try:
        json.loads((folder / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return True
