"""One training loop for fine-tuning, the soft stage and the hard stage, on `transformers.Trainer`,
which brings resume, accumulation, logging and launchers."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.progress import Progress
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from toprune.errors import UserError
from toprune.io.progress import console, new_progress
from toprune.models.device import CPU
from toprune.training import hard_concrete
from toprune.training.batches import Buckets, Collate
from toprune.training.distributed import backend, processes, run_device, share_of
from toprune.training.features import tokens_in
from toprune.training.learner import Learner, Selector
from toprune.training.settings import Training

LINES = 40  # of the log, at least, where a stage has as many steps; the report draws them


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
    callback: TrainerCallback | None = None,
) -> list[dict[str, float]]:
    """Train one stage and return its log. `resume` goes on from the last checkpoint in `out`;
    `callback` is called at every step."""
    for p in learner.model.base_model.embeddings.parameters():
        p.requires_grad_(training.train_embeddings)
    batches = len(features) / (training.batch_size * training.accumulation)
    args = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=epochs,
        per_device_train_batch_size=share_of(training.batch_size),
        gradient_accumulation_steps=training.accumulation,
        max_grad_norm=training.max_grad_norm,
        bf16=training.precision == "bfloat16",
        fp16=training.precision == "float16",
        save_strategy="steps" if training.save_steps else "epoch",
        save_steps=training.save_steps or 500,
        save_total_limit=2,
        logging_steps=max(1, min(10, int(batches * epochs) // LINES)),
        report_to=training.report_to,
        remove_unused_columns=False,
        seed=training.seed,
        disable_tqdm=True,
        use_cpu=run_device() == CPU,
        dataloader_pin_memory=run_device().type == "cuda",
        ddp_find_unused_parameters=True,
        ddp_backend=backend(),
    )
    # A process trains on one GPU: `nn.DataParallel` would run copies that share one attached plan.
    args._n_gpu = min(1, args.n_gpu)  # pyright: ignore[reportPrivateUsage]
    progress_bar = Bar(label)
    callbacks = [Schedule(learner, training.sparsity_warmup), progress_bar]
    trainer = StageTrainer(
        learner,
        training,
        [tokens_in(feature) for feature in features],
        args=args,
        train_dataset=features,
        data_collator=collate,
        callbacks=callbacks if callback is None else [*callbacks, callback],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=last_checkpoint(out) if resume else None)
    finally:
        progress_bar.close()
    if not all(bool(p.isfinite().all()) for p in learner.parameters()):
        trainer.refuse("weights became NaN")
    return trainer.state.log_history


def last_checkpoint(out: Path) -> str | None:
    """The newest complete checkpoint: the trainer's state is the last file that is written."""
    complete = [folder for folder in out.glob("checkpoint-*") if _is_complete(folder)]
    newest = max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def _is_complete(folder: Path) -> bool:
    try:
        json.loads((folder / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return True


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
    """Sets the sampler's epoch: a resumed run of several processes wraps the sampler so deep that
    the Trainer does not reach it."""

    def __init__(self, buckets: Buckets):
        self.buckets = buckets

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.buckets.set_epoch(int(state.epoch or 0))


class StageTrainer(Trainer):
    """Bucketed batches, parameter groups for masks and multipliers, and a stop at NaN."""

    def __init__(self, learner: Learner, training: Training, lengths: Sequence[int], **kwargs: Any):
        self.learner, self.training, self.text_lengths = learner, training, lengths
        self.buckets = Buckets(lengths, training.batch_size, training.seed)
        super().__init__(model=learner, **kwargs)
        self.add_callback(Order(self.buckets))

    def _get_train_sampler(self, train_dataset: Any = None) -> Buckets:
        return self.buckets

    def _weights(self) -> list[Tensor]:
        """The model's weights without those that the selector trains at a rate of their own."""
        selector = self.learner.selector
        masks = {id(p) for p in selector.masks()} if selector is not None else set[int]()
        weights = self.learner.model.parameters()
        return [p for p in weights if p.requires_grad and id(p) not in masks]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": self._weights(), "lr": self.training.lr}]
        selector: Selector | None = self.learner.selector
        if selector is not None:
            lr = self.training.mask_lr or self._mask_lr(selector.SPAN)
            groups.append({"params": selector.masks(), "lr": lr})
            if multipliers := selector.multipliers():
                groups.append({"params": multipliers, "lr": lr, "maximize": True})
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)
        return self.optimizer

    def _mask_lr(self, span: float) -> float:
        """Adam moves a parameter by about its rate in every step. This rate closes a hard-concrete
        mask within half the warm-up, and lies between ToP's .01 and ten times that; masks of
        another span move in proportion."""
        batches = len(self.text_lengths) / (self.training.batch_size * self.training.accumulation)
        steps = max(1.0, batches * self.args.num_train_epochs * self.training.sparsity_warmup)
        return span / hard_concrete.SPAN * min(0.1, max(0.01, 18 / steps))

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
        """Stop, and remove the checkpoint of this step: its weights are broken."""
        out, step = Path(str(self.args.output_dir)), self.state.global_step
        if processes().is_main_process:
            shutil.rmtree(out / f"checkpoint-{step}", ignore_errors=True)
        good = last_checkpoint(out)
        fix = f"; {good} is good: --resume with a smaller --lr" if good else "; try a smaller --lr"
        raise UserError(f"{why} at step {step}{fix}")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Take the learning rate from this run, not from the checkpoint: NaN needs a lower one."""
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
                logs |= {name: x.item() for name, x in selector.log_values().items()}
            logs |= {f"loss_{name}": part for name, part in self.learner.parts.items()}
        super().log(logs, *args, **kwargs)


class Bar(TrainerCallback):
    """A bar with steps and loss; a log file gets a line at every tenth of a training."""

    def __init__(self, label: str):
        self.label = label
        self.progress: Progress | None = None
        self.task: Any = None
        self.tenths = -1  # printed so far where there is no terminal

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.progress = new_progress()
            self.progress.start()
            self.task = self.progress.add_task(
                self.label, total=state.max_steps, completed=state.global_step, note=""
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.progress is not None and logs and "loss" in logs:
            note = f"loss {float(logs['loss']):.3f}"
            if "sparsity" in logs:
                note += f", sparsity {logs['sparsity']:.2f} of {logs['target']:.2f}"
            self.progress.update(self.task, note=note)
            tenth = 10 * state.global_step // state.max_steps
            if not console.is_terminal and tenth > self.tenths:
                self.tenths = tenth
                step = f"step {state.global_step} of {state.max_steps}"
                console.print(f"{self.label}: {step}, {note}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Also called when a training breaks off: rich allows one live display at a time."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None
