"""Keep the weights that do best on the examples that are reported, as the authors of ToP did.

Hundreds of candidates and the best of them kept: such a figure is optimistic. It is here to compare
with printed figures; the default keeps the last weights.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import TrainerCallback

from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, detach
from toprune.training.batches import Collate
from toprune.training.distributed import processes
from toprune.training.evaluation import collect_outputs
from toprune.training.features import rows_of
from toprune.training.job import Job, Judge

Candidate = Callable[[], tuple[Plan, float | None]]  # the plan now, and its expected reduction


def judged(job: Job, features: Sequence[dict[str, Any]], examples: Examples, metric: str) -> Job:
    """The job with a judge, which scores its model under a plan on examples. Afterwards the model
    has no plan attached.

    Args:
        features: of the examples.
        metric: name of the metric that chooses.
    """
    model, tokenizer, task = job.model, job.tokenizer, job.task
    if not job.method.SELECTS:
        raise UserError(f"best-dev is for the method top, not for {job.method.NAME}")
    if examples.labels is None:
        raise UserError("best-dev needs labels to choose by; name their column with --label")

    def judge(plan: Plan) -> float:
        attach(model, plan)
        try:
            outputs = collect_outputs(model, task, features, Collate(tokenizer), "choosing weights")
        finally:
            detach(model)
        return float(task.metrics(task.statistics(outputs, rows_of(features), examples))[metric])

    return replace(job, judge=judge)


class KeepBest(TrainerCallback):
    """Judges the model after every epoch in which the budget is met, and keeps the best."""

    def __init__(
        self,
        model: Any,
        judge: Judge,
        candidate: Candidate,
        attach_again: Callable[[], object],
        folder: Path,
        save: Callable[[dict[str, Any], Path], None],
        *,
        selector: Any = None,
        resume: bool = False,
    ):
        """
        Args:
            model: the one that is trained.
            judge: scores the model under a plan.
            candidate: gives the plan of this moment.
            attach_again: attaches what the training goes on with.
            folder: of the stage.
            save: writes tensors to a file in one step.
            selector: its target must have risen to the budget.
            resume: go on with the best of a stopped run.
        """
        self.model, self.judge, self.candidate, self.save = model, judge, candidate, save
        self.attach_again, self.selector = attach_again, selector
        self.note, self.weights = folder / "best.json", folder / "best.safetensors"
        if not resume:
            self.note.unlink(missing_ok=True)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_met = self.selector is None or self.selector.progress >= 1
        if not (is_met or state.global_step >= state.max_steps):
            return
        plan, expected = self.candidate()
        score = self.judge(plan)
        if processes().is_main_process and score > self._best().get("score", float("-inf")):
            self.save(dict(self.model.state_dict()), self.weights)
            best = {"score": score, "epoch": state.epoch, "expected": expected}
            write_text(self.note, json.dumps(best | {"plan": plan.to_json()}))
        processes().wait_for_everyone()
        self.attach_again()

    def restore(self) -> tuple[Plan, float | None]:
        """Load the best weights into the model; returns their plan and its expected reduction."""
        best = self._best()
        self.model.load_state_dict(load_file(self.weights))
        return replace(Plan.from_json(best["plan"]), provenance={}), best["expected"]

    def _best(self) -> dict[str, Any]:
        return json.loads(self.note.read_text(encoding="utf-8")) if self.note.exists() else {}
