"""Fewer weights and fewer tokens under one budget: CoFi first, then ToP on the smaller model.

A short text has few tokens to spare: a pair of 30 tokens that must run three times faster keeps
nine of them. But every model has heads, FFN columns and hidden dimensions to spare, whatever the
length of its texts. So a part of the budget is taken from the weights, where it costs little, and
tokens meet the rest. The smaller model teaches the second part: it is trained, and as accurate as
the dense one, or nearly so.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from toprune.data.recipes import Recipe
from toprune.methods.cofi.cofi import Cofi
from toprune.methods.top import Top
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget
from toprune.plan.cost import reduction
from toprune.plan.plan import Score
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, Training, setting
from toprune.training.stages import check_reach, run

SHARE = 2 / 3  # of the budget's logarithm: the most that weights take, so that tokens have a part


@dataclass(frozen=True)
class Joint(Method):
    """Fewer weights (CoFi), then fewer tokens (ToP), under one budget."""

    weights: float = setting(
        2.0, "Times fewer FLOPs by fewer weights; a small budget takes less.", minimum=1
    )

    NAME: ClassVar[str] = "joint"
    SCORES: ClassVar[tuple[Score, ...]] = Top.SCORES
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    TIMED: ClassVar[bool] = False
    COUNTS: ClassVar[bool] = False

    def default_score(self, recipe: Recipe) -> Score:
        return Top().default_score(recipe)

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """Run both methods, each with its own stages and half of the epochs."""
        total = job.budget.reduction
        by_weights = min(self.weights, total**SHARE)
        training, work, before = halved(job.training), job.work, sizes_of(job.model)
        tokens = replace(job, method=Top(), training=training, work=work / "tokens", shared=None)
        check_reach(replace(tokens, budget=_times(total / by_weights)))
        weights = replace(
            job,
            method=Cofi(),
            score=Cofi.SCORES[0],
            training=replace(training, token_states=False),
            budget=_times(by_weights),
            work=work / "weights",
        )
        smaller = run(weights, resume=resume)
        found = reduction(
            sizes_of(job.model), job.blank(), job.lengths, before=before
        ).unpadded  # whole columns meet a budget within 2 %: tokens make up for the rest
        outcome = run(replace(tokens, budget=_times(total / found)), resume=resume)
        expected = None if outcome.expected is None else outcome.expected * found
        return replace(
            outcome,
            job=replace(job, before=before),
            expected=expected,
            log=smaller.log + outcome.log,
            extra=smaller.extra | outcome.extra,
            trained=True,
        )


def halved(training: Training) -> Training:
    """Half of the epochs, with the same soft stage if that leaves as many to the hard one."""
    soft, hard = training.stage_epochs
    each = (soft + hard) / 2
    soft = min(soft, each / 2)
    return replace(training, soft_epochs=soft, hard_epochs=each - soft)


def _times(factor: float) -> Budget:
    return Budget(f"{factor:.2f}x", factor)
