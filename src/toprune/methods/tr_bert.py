"""TR-BERT (NAACL'21): two selectors, one early and one half-way, decide which tokens stay.

Read beside the paper. A *selector* is p = sigmoid(W2 gelu(W1 h)), 32 wide. It first imitates a
heuristic: tokens matter by |<d answer / d h_late, h_late - h>|, how far their state will still move
in the direction that the answer depends on. Then (`samples`) it is trained by policy gradient
beside the weights: every text is read several times with selections drawn by chance, the reward
is -loss - alpha * (mean share kept), less its mean over the draws of the text. At inference tokens
stay where p >= 1/2, and their number adapts to the text.

Ours: imitation needs no labels (the margin in place of the loss) and aims at the top tokens of the
two-step schedule that meets the budget. By default that is all, and the epochs go to the weights:
the policy gradient takes `samples` passes for one (comparisons use it). It starts from the
imitation, so no draw needs the heuristic as a guide. alpha follows the budget (`common.py`), and
one factor of the odds at which tokens stay is bisected until the texts execute it on average.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toprune.methods.common import Predictors, fit_predictors, plan_to_budget
from toprune.models.families import sizes_of
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan, Score, Step
from toprune.pruning.policies import Drop, Policy, Protection
from toprune.pruning.predictor import add_predictors
from toprune.pruning.tokens import Tokens, gather_alive, order, ranks
from toprune.training.job import Job, Method, Outcome
from toprune.training.learner import Learner
from toprune.training.probe import Gradients
from toprune.training.settings import Stage, setting
from toprune.training.stages import PROBE_TEXTS, fitted_once, soft_stage

ALPHA = 1.0  # at the start: as in its scripts for classification
LARGEST = 10.0  # alpha
SAMPLES = 4  # draws per text in comparisons: half of the paper's, because each is a pass
SPAN = 0.09  # small: imitation comes first, and the weights of a network move slowly


@dataclass(frozen=True)
class TrBert(Method):
    """Two small networks that select tokens (TR-BERT, NAACL'21)."""

    first: int = setting(0, "Layer of the first selector, from zero on; the second is half-way.")
    inner: int = setting(32, "Width of a selector.", minimum=1)
    samples: int = setting(
        0, "Draws per text that train the selectors by policy gradient (the paper: 8; 0: none)."
    )

    NAME: ClassVar[str] = "tr_bert"
    SCORES: ClassVar[tuple[Score, ...]] = ("predicted",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    TIMED: ClassVar[bool] = False

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        schedule = self.schedule(job)
        layers = [step.layer for step in schedule.steps]
        torch.manual_seed(job.training.seed)
        selectors = add_predictors(job.model, layers, self.inner, normed=False)
        path = job.work / "selectors.safetensors"
        fitted_once(path, selectors, lambda: imitate(job, schedule, selectors))

        if self.samples == 0 or job.soft_epochs == 0:
            job = replace(job, training=job.training.for_stages(("hard",)))
            return Outcome(job, plan_to_budget(job, layers, self.inner))

        def begin() -> "Draw":
            predictors = Predictors(ALPHA, LARGEST, SPAN, job, selectors)
            predictors.start_at([float(step.keep) for step in schedule.steps])
            return Draw(predictors, job)

        def end(policy: "Draw") -> tuple[Plan, float]:
            expected = 1 / (1 - float(policy.selector.sparsity()))
            return plan_to_budget(job, layers, self.inner), expected

        return soft_stage(
            job,
            begin,
            end,
            resume=resume,
            learner=partial(PolicyGradient, samples=self.samples),
        )

    def for_comparison(self) -> "TrBert":
        return self if self.samples else replace(self, samples=SAMPLES)

    def schedule(self, job: Job) -> Plan:
        """Two equally steep steps that meet the budget."""
        layers = sorted({self.first, max(self.first, sizes_of(job.model).layers // 2 - 1)})
        steps = tuple(Step(layer, Fraction(1, 2**i)) for i, layer in enumerate(layers, 1))
        return job.repaired(replace(job.blank(), steps=steps, predictor=self.inner))


# -- imitation ---------------------------------------------------------------------------------


def imitate(job: Job, schedule: Plan, selectors: nn.ModuleDict) -> None:
    """Fit every selector to the heuristic's top tokens at its layer, on the dense model."""
    layers = sizes_of(job.model).layers
    late = min(layers - 2, layers * 2 // 3)
    steps = {step.layer: step for step in schedule.steps}

    def target(layer: int, batch: Gradients) -> Tensor:
        scores = saliency(batch.grads[late], batch.states[late], batch.states[layer])
        return chosen(scores, batch.tokens, schedule, steps[layer])

    loss = F.binary_cross_entropy_with_logits
    fit_predictors(job, selectors, target, loss, texts=PROBE_TEXTS)


def saliency(grad: Tensor, late: Tensor, state: Tensor) -> Tensor:
    """|<g, h_late - h>| of every token: (B, S, D) each -> (B, S)"""
    return (grad * (late - state)).sum(-1).abs()


def chosen(scores: Tensor, tokens: Tokens, schedule: Plan, step: Step) -> Tensor:
    """(B, S): one for the tokens that the step would keep by this score, else zero."""
    kept = [schedule.keep(step, int(n)) for n in tokens.n]
    k = torch.tensor(kept, device=scores.device)  # (B,)
    return (ranks(order(scores, tokens)) < k[:, None]).to(scores.dtype)


# -- policy gradient ---------------------------------------------------------------------------


class Draw(Policy):
    """The policy of that stage: selectors draw which tokens stay; -log p of a draw is kept."""

    def __init__(self, selector: Predictors, job: Job):
        self.selector = selector
        self.protection = Protection.of(job)
        self.surprise: list[Tensor] = []  # (B,) per selector: -log p of its draw, mean over tokens
        self.kept: list[Tensor] = []  # (B,): share of the text's tokens

    def begin(self) -> None:
        self.surprise, self.kept = [], []

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if layer not in self.selector.layers:
            return None
        logits = self.selector.network(layer)(state)  # (B, K)
        stay = torch.rand_like(logits) < logits.sigmoid()
        nll = F.binary_cross_entropy_with_logits(logits, stay.to(logits), reduction="none")
        free = tokens.alive & ~tokens.protected
        self.surprise.append((nll * free).sum(1) / free.sum(1).clamp_min(1))
        alive = tokens.alive & (stay | tokens.protected)
        self.kept.append(alive.sum(1) / tokens.n)
        self.selector.record(layer, alive.sum() / tokens.n.sum())
        return Drop(*gather_alive(replace(tokens, alive=alive, full=False)))


class PolicyGradient(Learner):
    """Reads every text `samples` times in a batch, each time with another draw."""

    def __init__(self, model: Any, task: Any, *, samples: int, policy: Draw, **options: Any):
        super().__init__(model, task, **options)
        self.draw, self.selector, self.samples = policy, policy.selector, samples

    def forward(
        self,
        labels: Tensor | None = None,
        teacher_logits: Tensor | None = None,
        teacher_scores: Tensor | None = None,
        teacher_states: Tensor | None = None,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        """The weights learn the dense model's answers; the selectors learn which draws helped."""
        assert teacher_logits is not None
        repeated = {name: x.repeat_interleave(self.samples, 0) for name, x in inputs.items()}
        logits, _ = task_outputs(self.model, self.task, repeated)
        rows = range(len(logits))
        losses = torch.stack([self._loss(logits, teacher_logits, repeated, i) for i in rows])
        alpha = self.selector.step_lambda()
        kept = torch.stack(self.draw.kept).mean(0)
        surprise = torch.stack(self.draw.surprise).sum(0)
        policy = (advantage(losses.detach(), kept, alpha, self.samples) * surprise).mean()
        self.parts = {"distill": float(losses.detach().mean()), "policy": float(policy.detach())}
        return {"loss": losses.mean() + policy, "logits": logits}

    def _loss(self, logits: Tensor, teacher: Tensor, repeated: dict[str, Tensor], i: int) -> Tensor:
        mask, j = repeated["attention_mask"][i : i + 1], i // self.samples
        return self.task.distill_loss(logits[i : i + 1], teacher[j : j + 1], mask)


def advantage(losses: Tensor, kept: Tensor, alpha: Tensor, samples: int) -> Tensor:
    """(B * samples,): reward -loss - alpha * kept, less its mean over the draws of a text."""
    reward = (-losses - alpha * kept).view(-1, samples)
    return (reward - reward.mean(1, keepdim=True)).view(-1)
