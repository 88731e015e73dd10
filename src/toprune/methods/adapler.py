"""AdapLeR (ACL'22): adaptive length reduction, by predicted contributions and learned thresholds.

Read beside the paper. In every layer a *contribution predictor* (32 wide) reads a token's state and
predicts which share of the answer's saliency the token has: |gradient x input| of the fine-tuned
model. A token stays while its share is at least delta_l = eta_l / n, a learned fraction of the
uniform share. In training tokens below the threshold leave softly: slope * (share / delta - 1),
which is negative there, is added to the attention logits of their keys, and the slope grows. The
weights and the predictors learn the task and gamma * sum_l (L - l) KL(saliency, predicted); the
thresholds learn the task and phi * (sum of the lengths). At inference tokens below are gone, and
their number adapts to the text.

Ours: a predictor gives the share in units of the uniform one without a softmax over the text, so
that it is the odds of a plan (`pruning/predictor.py`); the generalised KL, which also punishes a
wrong sum, keeps it there. Tokens leave after attention, as in all methods here, so saliency is
taken where the first predictor reads, of the answer's margin (no labels). The first token, whose
share the paper rescales by a learned factor, does not count. phi follows the budget (`common.py`).
Predictors are fitted to the frozen model first, and thresholds start half-way to an even schedule
that meets the budget; the paper has some thousand steps to get there. In the end one factor of all
thresholds is bisected until the texts execute the budget on average.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toprune.io.atomic import draft
from toprune.io.progress import bar
from toprune.methods.common import TOKENS, Predictors, fit_predictors, plan_to_budget
from toprune.models.device import autocast, device_of
from toprune.models.families import sizes_of
from toprune.plan.plan import Plan, Score
from toprune.pruning.policies import Drop, Policy, Protection
from toprune.pruning.predictor import add_predictors
from toprune.pruning.tokens import Tokens, gather_alive
from toprune.training.batches import Collate, in_batches
from toprune.training.job import Job, Method, Outcome
from toprune.training.learner import Learner
from toprune.training.probe import Gradients, margin_gradients
from toprune.training.settings import Stage, setting
from toprune.training.stages import (
    CALIBRATION_TEXTS,
    PROBE_TEXTS,
    fitted_once,
    once,
    soft_stage,
    teacher_of,
)
from toprune.training.teacher import Teacher
from toprune.training.thresholds import on_the_way

PHI = 0.1  # at the start; of shares of the tokens, not of their number
LARGEST = 10.0  # phi: thresholds alone learn from it
SPAN = 1.0  # how far the log of a threshold may have to move
GONE = 1e-6  # weight below which a token is no longer computed


@dataclass(frozen=True)
class AdapLeR(Method):
    """A predictor of saliency and a learned threshold in every layer (AdapLeR, ACL'22)."""

    first: int = setting(0, "First layer that may drop tokens, counted from zero.")
    inner: int = setting(32, "Width of a contribution predictor.", minimum=1)
    gamma: float = setting(0.005, "Weight of the loss that holds predictors to the saliency.")
    slope: float = setting(
        10.0, "How steeply tokens below a threshold lose their weight at the start.", minimum=1e-6
    )
    steeper: float = setting(100.0, "Factor by which that slope grows over the warm-up.", minimum=1)

    NAME: ClassVar[str] = "adapler"
    SCORES: ClassVar[tuple[Score, ...]] = ("predicted",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    TIMED: ClassVar[bool] = False

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        layers = range(self.first, sizes_of(job.model).layers - 1)
        torch.manual_seed(job.training.seed)
        predictors = add_predictors(job.model, layers, self.inner, normed=False)
        path = job.work / "predictors.safetensors"
        fitted_once(path, predictors, lambda: fit_contributions(job, predictors))
        start, shares = on_the_way(
            job.model, self.schedule(job), job.sample_batches(CALIBRATION_TEXTS)
        )
        eta = [step.threshold or 1.0 for step in start.steps]
        if job.soft_epochs == 0:
            return Outcome(job, plan_to_budget(job, layers, self.inner, eta))

        def begin() -> "SoftRemoval":
            return SoftRemoval(self, Thresholds(job, predictors, eta, shares), Protection.of(job))

        def end(policy: "SoftRemoval") -> tuple[Plan, float]:
            expected = 1 / (1 - float(policy.selector.sparsity()))
            learned = policy.selector.log_eta.detach().exp().tolist()
            return plan_to_budget(job, layers, self.inner, learned), expected

        return soft_stage(
            job, begin, end, resume=resume, learner=Contributions, teacher=saliency_teacher
        )

    def schedule(self, job: Job) -> Plan:
        """The same share of the tokens left leaves in every layer; meets the budget."""
        plan = replace(job, score="received").geometric(self.first, None)
        return job.repaired(replace(plan, score="predicted", predictor=self.inner))


# -- saliency ----------------------------------------------------------------------------------


def saliency(batch: Gradients) -> Tensor:
    """(B, S): ||gradient x state|| where the first predictor may read."""
    return (batch.grads[0] * batch.states[0]).norm(dim=-1)


def contributions(salient: Tensor, weight: Tensor) -> Tensor:
    """(B, S): saliency in units of its mean over the text, tokens counted by their weight."""
    mean = (salient * weight).sum(1) / weight.sum(1).clamp_min(1e-9)
    return salient / mean.clamp_min(1e-12)[:, None]


def divergence(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The generalised KL divergence of exp(logits) from the target, up to a constant."""
    return F.poisson_nll_loss(logits, target, log_input=True, reduction=reduction)


def fit_contributions(job: Job, predictors: nn.ModuleDict) -> None:
    """Fit all predictors to the saliency of the dense model."""

    def target(_: int, batch: Gradients) -> Tensor:
        return contributions(saliency(batch), batch.counted.float())

    texts = min(PROBE_TEXTS, max(1, round(TOKENS / job.lengths.mean)))
    fit_predictors(job, predictors, target, divergence, texts=texts)


def saliency_teacher(job: Job) -> Teacher:
    """The dense model's outputs, with the log of the saliency of every token as its score."""
    teacher, path = teacher_of(job), job.teacher_folder / "saliency.npy"

    def compute() -> None:
        scores = np.zeros((teacher.starts[-1], 1), np.float32)
        rows: list[int] = []  # of the batch that is under way

        def batches() -> Iterator[dict[str, Tensor]]:
            for numbers, batch in in_batches(job.features, Collate(job.tokenizer)):
                rows[:] = numbers.tolist()
                yield batch

        precision = autocast(device_of(job.model), job.training.precision)
        with precision, bar("finding salient tokens", len(job.features)) as advance:
            for batch in margin_gradients(job.model, job.task, batches()):
                salient = saliency(batch).float().clamp_min(1e-12).log().numpy(force=True)
                for line, row in zip(salient, rows, strict=True):
                    start, end = teacher.starts[row : row + 2]
                    scores[start:end, 0] = line[: end - start]
                advance(len(rows))
        with draft(path) as made, made.open("wb") as file:
            np.save(file, scores)

    once(path, compute)
    return replace(teacher, scores=np.load(path))


# -- soft removal ------------------------------------------------------------------------------


class Thresholds(Predictors):
    """eta of every layer, and the coefficient that leads them to the budget."""

    def __init__(
        self, job: Job, predictors: nn.ModuleDict, eta: Sequence[float], shares: Sequence[float]
    ):
        """`eta`: of each layer at the start; `shares`: of the tokens that enter layers 1 to L - 1
        then."""
        super().__init__(PHI, LARGEST, SPAN, job, predictors)
        self.log_eta = nn.Parameter(torch.tensor(eta).log())  # (P,)
        self.start_at([shares[layer] for layer in self.layers])
        self.kept: list[Tensor] = []  # of this pass: the share of tokens left after each layer

    def masks(self) -> list[nn.Parameter]:
        return [self.log_eta]  # predictors learn at the rate of the weights

    def penalty(self) -> Tensor:
        """phi * sum over layers of the share that is left; phi takes a step, too."""
        return self.step_lambda() * torch.stack(self.kept).sum()


def remaining(logits: Tensor, log_eta: Tensor, slope: float) -> Tensor:
    """Weight of a token: one from the threshold on, exp(slope * (share / delta - 1)) below it."""
    return (slope * ((logits - log_eta).clamp(max=0).exp() - 1)).exp()


class SoftRemoval(Policy):
    """The policy of the soft stage: tokens below the threshold count for less and less."""

    def __init__(self, settings: AdapLeR, selector: Thresholds, protection: Protection):
        self.settings, self.selector, self.protection = settings, selector, protection
        self.predicted: list[tuple[int, Tensor, Tokens]] = []  # layer, logits (B, K), their tokens

    def begin(self) -> None:
        self.selector.kept, self.predicted = [], []

    @property
    def slope(self) -> float:
        return self.settings.slope * self.settings.steeper ** min(1.0, self.selector.progress)

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        selector = self.selector
        if layer not in selector.layers:
            return None
        logits = selector.network(layer)(state)  # (B, K)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        self.predicted.append((layer, logits, tokens))
        log_eta = selector.log_eta[selector.layers.index(layer)]
        weight = self._weight(logits, log_eta, tokens, tokens.weight)
        # The same number, of which only the thresholds learn: predictors must not learn lengths.
        counted = self._weight(logits.detach(), log_eta, tokens, tokens.total)
        share = (counted * tokens.alive).sum() / tokens.n.sum()
        selector.kept.append(share)
        selector.record(layer, share)
        alive = tokens.alive & (weight > GONE)
        tokens = replace(tokens, weight=weight, total=counted, alive=alive, full=False)
        return Drop(*gather_alive(tokens))

    def _weight(
        self, logits: Tensor, log_eta: Tensor, tokens: Tokens, before: Tensor | None
    ) -> Tensor:
        weight = remaining(logits, log_eta, self.slope).masked_fill(tokens.protected, 1.0)
        return weight if before is None else weight * before

    def saliency_loss(self, log_saliency: Tensor) -> Tensor:
        """gamma * sum_l (L - l) * the divergence from the saliency of the tokens that are left;
        log_saliency (B, S)"""
        losses = []
        for layer, logits, tokens in self.predicted:
            weight = (tokens.alive & ~tokens.protected).to(logits)
            if tokens.weight is not None:
                weight = weight * tokens.weight.detach()
            target = contributions(log_saliency.gather(1, tokens.index).exp(), weight)
            terms = divergence(logits, target, "none") * weight
            mean = terms.sum(1) / weight.sum(1).clamp_min(1e-9)
            losses.append((self.selector.cost.layers - layer) * mean.mean())
        return self.settings.gamma * torch.stack(losses).sum()


class Contributions(Learner):
    """Teaches the networks of the policy, too: saliency is their target."""

    def _selection(self, teacher_scores: Tensor | None) -> dict[str, Tensor]:
        assert teacher_scores is not None
        salient = self.policy.saliency_loss(teacher_scores[..., 0])
        return super()._selection(None) | {"saliency": salient}
