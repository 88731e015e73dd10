"""LoT, Leap-of-Thought (EMNLP'23): tokens leap over layers, and may return.

Read beside the paper. A *router* before every layer (LN, Linear, GELU, Linear) reads the state of
every token of the text and decides which ones the layer processes. A token that leaps keeps its
state and is no key for others, and the next router reads it again: nothing is lost for good. In
training the choice is drawn (Gumbel-softmax, hard, with a straight-through gradient). Beside the
task, routers learn which tokens matter, with a small weight: a cross entropy against the tokens
that together carry the first p of a text's saliency, |gradient x input| of the fine-tuned model.

Ours: a token leaps from one attention to the next, as in all methods here, so the first router has
seen one attention, and what is leapt over is a feed-forward part and an attention. Saliency is that
of AdapLeR here, without labels. p follows the budget: it is chosen so that the same share of tokens
in every layer would meet it. Every router reads all tokens, which is a cost that no plan can avoid,
so a router is 32 wide and not 256. Routers are first fitted to the frozen model, and the weight of
the share that is kept follows the budget (`common.py`); the authors' code has no such weight, sets
p by hand and trains some thousand steps. One factor of the odds at which tokens stay is bisected in
the end, until the texts execute the budget on average. That code also gives a layer one more token,
the mean of those that leap, and adds the mean state to what a router reads; ours does neither.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toprune.errors import UserError
from toprune.methods.adapler import Contributions, saliency, saliency_teacher
from toprune.methods.common import TOKENS, fit_predictors, plan_to_budget
from toprune.methods.transkimmer import LAMBDA, LARGEST, SPAN, Skimmers, drawn
from toprune.models.families import sizes_of
from toprune.plan.cost import expected_share
from toprune.plan.plan import Plan, Score
from toprune.pruning.policies import Drop, Policy, Protection
from toprune.pruning.predictor import add_predictors
from toprune.pruning.tokens import Tokens
from toprune.training.job import Job, Method, Outcome
from toprune.training.probe import Gradients
from toprune.training.settings import Stage, setting
from toprune.training.stages import PROBE_TEXTS, fitted_once, soft_stage

HALVINGS = 20  # of a bisection: a share of tokens to six digits


@dataclass(frozen=True)
class Lot(Method):
    """A router in every layer; tokens may leap over layers and return (LoT, EMNLP'23)."""

    first: int = setting(0, "First layer that tokens may leap from, counted from zero.")
    inner: int = setting(32, "Width of a router (the paper: 256).", minimum=1)
    weight: float = setting(0.05, "Weight of the loss that holds routers to the saliency.")
    temperature: float = setting(1.0, "Temperature of the Gumbel-softmax.", minimum=1e-6)

    NAME: ClassVar[str] = "lot"
    SCORES: ClassVar[tuple[Score, ...]] = ("predicted",)
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    TIMED: ClassVar[bool] = False

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        if job.restore != "none":
            raise UserError(
                "the method lot is for heads that read the first token: others need every token "
                "back; take another method, such as transkimmer"
            )
        layers = range(self.first, sizes_of(job.model).layers - 1)
        torch.manual_seed(job.training.seed)
        routers = add_predictors(job.model, layers, self.inner, normed=True)
        share = even_share(job, self.first)
        path = job.work / "routers.safetensors"
        fitted_once(path, routers, lambda: fit_routers(job, routers, share))

        def plan() -> Plan:
            return plan_to_budget(job, layers, self.inner, returns=True)

        if job.soft_epochs == 0:
            return Outcome(job, plan())

        def begin() -> "Route":
            width = sizes_of(job.model).width
            selector = Skimmers(LAMBDA, LARGEST, SPAN / width, job, routers)
            selector.start_at([share] * len(layers))
            return Route(selector, job, share, self)

        def end(policy: "Route") -> tuple[Plan, float]:
            return plan(), 1 / (1 - float(policy.selector.sparsity()))

        return soft_stage(
            job, begin, end, resume=resume, learner=Contributions, teacher=saliency_teacher
        )


# -- which tokens matter -----------------------------------------------------------------------


def even_share(job: Job, first: int) -> float:
    """The share of the tokens that meets the budget if every layer after the first ones keeps it;
    a little more than nothing if none does: then the layers that see all tokens are too many."""
    low, high = 0.0, 1.0
    whole = [1.0] * first
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        ratios = whole + [middle] * (job.cost.layers - 1 - first)
        cost = expected_share(job.cost, ratios, job.lengths, job.restore)
        low, high = (middle, high) if cost < 1 - job.budget.sparsity else (low, middle)
    return max(high, 0.01)


def first_of_mass(salient: Tensor, live: Tensor, share: float) -> Tensor:
    """(B, S): one for the most salient tokens, which together carry a part p of each text's
    saliency. p is the same for all texts of the batch; it is chosen so that `share` of the live
    tokens are ones."""
    mass = salient.masked_fill(~live, 0)
    mass = mass / mass.sum(1, keepdim=True).clamp_min(1e-12)
    best = mass.sort(1, descending=True)
    before = best.values.cumsum(1) - best.values  # carried by more salient tokens
    before = torch.empty_like(before).scatter(1, best.indices, before)
    wanted = before[live].sort().values
    count = max(1, min(len(wanted), round(share * len(wanted))))
    return ((before <= wanted[count - 1]) & live).to(salient.dtype)


def fit_routers(job: Job, routers: nn.ModuleDict, share: float) -> None:
    """Fit all routers to the tokens that matter to the dense model."""

    def target(_: int, batch: Gradients) -> Tensor:
        return first_of_mass(saliency(batch), batch.counted, share)

    texts = min(PROBE_TEXTS, max(1, round(TOKENS / job.lengths.mean)))
    loss = F.binary_cross_entropy_with_logits
    fit_predictors(job, routers, target, loss, texts=texts)


# -- routing -----------------------------------------------------------------------------------


class Route(Policy):
    """The policy of the soft stage: every layer computes all tokens, and those that leap keep the
    state that they had; so routers learn what a layer would have changed."""

    def __init__(self, selector: Skimmers, job: Job, share: float, settings: Lot):
        self.selector, self.share, self.settings = selector, share, settings
        self.protection = Protection.of(job)

    def begin(self) -> None:
        self.selector.kept = []
        self.before: tuple[Tensor, Tensor, Tokens] | None = None  # states, weights, all tokens
        self.routed: list[tuple[Tensor, Tokens]] = []  # logits (B, S) of every router

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        selector = self.selector
        if layer not in selector.layers:
            return None
        if self.before is not None:
            states, weight, tokens = self.before
            state = torch.lerp(states, state, weight.to(state).unsqueeze(-1))
        logits = selector.network(layer)(state)  # (B, S)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        self.routed.append((logits, tokens))
        weight = drawn(logits, self.settings.temperature).masked_fill(tokens.protected, 1.0)
        share = (weight * tokens.alive).sum() / tokens.n.sum()
        selector.kept = [*selector.kept, share]
        selector.record(layer, share)
        self.before = state, weight, tokens
        alive = tokens.alive & (weight > 0)
        routed = replace(tokens, weight=weight, alive=alive, full=False)
        return Drop(None, routed, states=state)

    def saliency_loss(self, log_saliency: Tensor) -> Tensor:
        """The cross entropy against the tokens that matter, mean over routers; (B, S)"""
        losses: list[Tensor] = []
        for logits, tokens in self.routed:
            live = tokens.alive & ~tokens.protected
            target = first_of_mass(log_saliency.exp(), live, self.share).to(logits)
            losses.append(F.binary_cross_entropy_with_logits(logits[live], target[live]))
        return self.settings.weight * torch.stack(losses).mean()
