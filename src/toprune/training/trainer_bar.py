"""The Trainer's steps as a bar; a log file gets a line at every tenth of a training.

Apart from `progress`, because the runtime has bars too and must not import transformers.
"""

from typing import Any

from rich.progress import Progress
from transformers import TrainerCallback

from toprune.io.progress import console, new_progress


class Bar(TrainerCallback):
    """The Trainer's steps as a bar, with its latest loss."""

    def __init__(self, label: str):
        self.label = label
        self.progress: Progress | None = None
        self.task: Any = None
        self.told = -1  # tenths that a log file has heard of

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
            if not console.is_terminal and tenth > self.told:
                self.told = tenth
                where = f"step {state.global_step} of {state.max_steps}"
                console.print(f"{self.label}: {where}, {note}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Also for a training that broke off: rich allows one live display at a time."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None
