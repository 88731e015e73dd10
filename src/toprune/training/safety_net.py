"""Choose a safety net: a plan and the margin below which the dense model answers instead.

The budget counts both models. So the pruned one is trained deeper than the budget, and what is left
pays for texts that fall back. Without further training, plans between the trained one and the
budget are tried on texts that were neither trained on nor will be reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toprune.data.examples import Examples
from toprune.data.splits import split_validation
from toprune.errors import OutOfReach, UserError
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, dense_macs, reduction
from toprune.plan.plan import Plan, Restore
from toprune.plan.schedule import largest_reduction, repair
from toprune.pruning.attach import attach, detach
from toprune.tasks import Task
from toprune.tasks.base import Outputs, Rows
from toprune.tasks.fallback import (
    Candidate,
    Fallback,
    answers_same,
    choose,
    counted,
    fallback_report,
)
from toprune.training.batches import Collate
from toprune.training.evaluation import collect_outputs
from toprune.training.features import rows_of
from toprune.training.job import Job, Outcome

TEXTS, SHARE = 2000, 0.2  # texts that are set aside, at most, and their share of the training set
TRAINED = 0.6  # share of the budget that the trained plan takes; the rest pays for fallbacks
SHALLOWEST = 0.9  # the same of the shallowest plan that is tried
PLANS = 4
NEAR = 0.95  # share of the largest possible reduction that is trained at most


@dataclass(frozen=True)
class Calibration:
    """Texts that choose a fallback, as the dense model answers them."""

    texts: Sequence[Any]
    features: Sequence[dict[str, Any]]
    dense: Outputs  # of each row

    @property
    def rows(self) -> Rows:
        return rows_of(self.features)

    def weights(self, sizes: Sizes, restore: Restore) -> np.ndarray:
        """(N,): MACs of each text in the dense model, over all its windows."""
        macs = [dense_macs(sizes, len(row), restore) for row in self.rows]
        return np.bincount([row.text for row in self.rows], macs, len(self.texts))

    def candidate(
        self, model: Any, tokenizer: Any, task: Task, plan: Plan, cost: float
    ) -> Candidate:
        """What a plan answers; afterwards the model has no plan attached.

        Args:
            task: decides for both models.
            cost: of the plan, as a share of the dense model's FLOPs.
        """
        attach(model, plan)
        try:
            label = f"trying {1 / cost:.2f}x"
            outputs = collect_outputs(model, task, self.features, Collate(tokenizer), label)
        finally:
            detach(model)
        return Candidate(
            name=f"{1 / cost:.2f}x",
            cost=cost,
            margins=task.answer_margins(outputs, self.rows, len(self.texts)),
            same=answers_same(task, self.dense, outputs, self.rows, self.texts),
        )


@dataclass(frozen=True)
class Net:
    """The plan and the fallback that were chosen, and their entry of the report."""

    plan: Plan
    budget: Budget  # of both models
    fallback: Fallback
    report: dict[str, Any]

    def add_to(self, report: dict[str, Any], fell: np.ndarray) -> dict[str, Any]:
        """Add the fallback to the report of a run, whose FLOPs then count both models.

        Args:
            report: of `prune_report`, with metrics and agreement of the bundle as it runs.
            fell: (N,) booleans: reported texts that the dense model answered.
        """
        executed = report["budget"]["executed"]
        more = self.report["reduction"] / self.report["pruned_reduction"]
        both = {name: value * more for name, value in executed.items()}
        held_out = counted(int(fell.sum()), len(fell)) | {"agreement": report["agreement"]}
        return report | {
            "budget": report["budget"] | {"executed": both},
            "fallback": self.report | {"pruned_executed": executed, "held_out": held_out},
        }


def answer_again(
    outputs: list[np.ndarray],
    features: Sequence[dict[str, Any]],
    fell: np.ndarray,
    dense: Callable[[Sequence[dict[str, Any]], str], list[np.ndarray]],
) -> list[np.ndarray]:
    """Outputs in which the dense model's replace those of the texts that fell back.

    Args:
        outputs: of the pruned model, one for each row.
        features: of the same rows.
        fell: (N,) booleans for the texts.
        dense: gives the outputs of features, under a progress bar with this label.
    """
    chosen = [i for i, row in enumerate(rows_of(features)) if fell[row.text]]
    answers = dense([features[i] for i in chosen], "texts that fell back") if chosen else []
    replaced = list(outputs)
    for i, answer in zip(chosen, answers, strict=True):
        replaced[i] = answer
    return replaced


def check_request(task: Task, budgets: Sequence[Budget], cut: int | None = None) -> None:
    """Refuse a fallback that cannot be."""
    if task.NO_MARGIN is not None:
        raise UserError(f"--fallback: {task.NO_MARGIN}")
    if len(budgets) > 1 or budgets[0].milliseconds is not None or budgets[0].count != "executed":
        raise UserError("--fallback needs one budget in executed FLOPs, like 3x or 67%")
    if cut is not None:
        raise UserError(
            "--fallback needs models that read the same tokens, but this method cuts texts; "
            "choose another --method"
        )


def set_aside(train: Examples, seed: int, task: Task) -> tuple[Examples, Examples]:
    """(train, calibration): some texts of the training set that will not be trained on."""
    share = min(SHARE, TEXTS / max(len(train), 1))
    return split_validation(train, share, seed, reads=task.READS)


def trained_budget(job: Job) -> Budget:
    """The deeper budget that is trained, so that the job's own one pays for fallbacks, too."""
    asked, most = job.budget, np.inf
    if job.method.first_layer is not None:
        sizes, first = sizes_of(job.model), job.method.first_layer
        most = largest_reduction(sizes, job.lengths, first, job.min_tokens, job.restore, job.score)
    deeper = min(asked.reduction / TRAINED, NEAR * most)
    if deeper * SHALLOWEST < asked.reduction:
        raise OutOfReach(
            f"budget {asked.asked} with a fallback is out of reach: the pruned model alone must "
            f"take less, and on these lengths it can be pruned to {most:.2f}x at most; ask for "
            "less, or leave --fallback out"
        )
    return Budget(f"{deeper:.2f}x", deeper)


def plans_between(sizes: Sizes, plan: Plan, lengths: Lengths, budget: Budget) -> list[Plan]:
    """The trained plan, and shallower ones that still leave a part of the budget.

    Args:
        sizes: of the model.
        plan: the trained one; an adaptive one stays alone.
        lengths: of the texts that the budget is for.
        budget: of both models.
    """
    if plan.adaptive or not plan.steps:
        return [plan]
    deepest = 1 / reduction(sizes, plan, lengths).unpadded
    shares = np.linspace(deepest, SHALLOWEST / budget.reduction, PLANS)[1:]
    budgets = [Budget(f"{1 / share:.2f}x", float(1 / share)) for share in shares if share > deepest]
    return [plan, *(repair(sizes, plan, lengths, one) for one in budgets)]


def find_net(
    outcome: Outcome,
    cost: float,
    calibration: Calibration,
    task: Task,
    requested: float,
    budget: Budget,
) -> Net:
    """Choose the plan and the threshold for a trained model.

    Args:
        outcome: of the training.
        cost: of its plan, as a share of the dense model's FLOPs.
        calibration: texts that choose.
        task: decides for both models.
        requested: share of the texts that are to get the answer of dense.
        budget: of both models together.
    """
    job, plan = outcome.job, outcome.plan
    sizes = sizes_of(job.model)
    plans, costs = [plan], [cost]
    if job.before is None:
        plans = plans_between(sizes, plan, job.lengths, budget)
        costs += [1 / reduction(sizes, one, job.lengths).unpadded for one in plans[1:]]
    candidates = [
        calibration.candidate(job.model, job.tokenizer, task, one, share)
        for one, share in zip(plans, costs, strict=True)
    ]
    weights = calibration.weights(job.before or sizes, plan.restore)
    number, fallback = choose(candidates, weights, requested, 1 / budget.reduction)
    report = fallback_report(fallback, candidates, number, weights)
    return Net(replace(plans[number], provenance=plan.provenance), budget, fallback, report)
