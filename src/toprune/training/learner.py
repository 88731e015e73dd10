"""The loss of every stage, as a module that `transformers.Trainer` can train.

A `Learner` wraps the model and, in the soft stage, the selector, so that several processes keep one
set of masks and multipliers.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toprune.models.heads import task_outputs
from toprune.pruning.attach import attached
from toprune.pruning.policies import Follow
from toprune.pruning.tokens import take
from toprune.tasks import Task
from toprune.training.ranking_losses import Ranking
from toprune.training.teacher import first_states

ALL_TOKENS = 10.0  # factor of the state weight where the states of all kept tokens are learned


class Selector(Protocol):
    """What a policy learns beside the weights: an `nn.Module` of a method, as the trainer sees it.

    The trainer trains `masks()` at a rate of their own and ascends on `multipliers()`.
    """

    SPAN: float  # how far a mask moves from open to closed, in units of its parameter
    rank_weight: float  # of the ranking distillation at the start; 0: there is none
    progress: float  # share of the warm-up that is over; the trainer moves it

    def masks(self) -> list[nn.Parameter]: ...

    def multipliers(self) -> list[nn.Parameter]: ...

    def penalty(self) -> Tensor:
        """The term of the loss that holds the masks to the budget."""
        ...

    def sparsity(self) -> Tensor:
        """Expected share of real FLOPs removed."""
        ...

    def target(self) -> float:
        """The sparsity that the masks should have by now."""
        ...

    def log_values(self) -> dict[str, Tensor]:
        """Further numbers for the training log."""
        ...


class Learner(nn.Module):
    """A model and the loss that trains it; with a policy also the masks."""

    accepts_loss_kwargs = False  # the Trainer averages over accumulation steps itself

    def __init__(
        self,
        model: Any,
        task: Task,
        *,
        label_weight: float,
        state_weight: float = 0.0,
        dropout: bool = True,
        policy: Any = None,
        ranking: Ranking | None = None,
        dense: Any = None,
    ):
        """
        Args:
            policy: has the `selector` that is learned; None in fine-tuning and the hard stage.
            ranking: loss that keeps the tokens that the teacher would answer with.
            dense: model whose states the kept tokens learn.
        """
        super().__init__()
        self._dense = (dense,)  # in a tuple: it is neither trained nor saved
        self.dropout, self.ranking = dropout, ranking
        self.model, self.task, self.policy = model, task, policy
        self.selector = policy.selector if policy is not None else None
        self.label_weight, self.state_weight = label_weight, state_weight
        self.rank_weight = 0.0  # the trainer moves it
        self.parts: dict[str, float] = {}

    def train(self, mode: bool = True) -> "Learner":
        """Without dropout the model stays in evaluation mode: an encoder's modes differ in nothing
        else."""
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
        has_states = teacher_states is not None or self._dense[0] is not None
        learns_states = has_states and self.state_weight > 0
        # logits (B, C) or (B, S, C)
        logits, out = task_outputs(
            self.model, self.task, inputs, output_hidden_states=learns_states
        )
        # a loss in bfloat16 would be mostly rounding
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        terms: dict[str, Tensor] = {}
        if learns_states and teacher_states is not None:
            gap = F.mse_loss(first_states(out.hidden_states), teacher_states)
            terms["state"] = self.state_weight * gap
        if learns_states and self._dense[0] is not None:
            gap = self._state_gap(inputs, out.hidden_states)
            terms["states"] = ALL_TOKENS * self.state_weight * gap
        if teacher_logits is not None:
            terms["distill"] = self.task.distill_loss(logits, teacher_logits, mask)
            if self.ranking is not None:
                terms |= self._rank_answers(self.ranking, teacher_logits, mask)
        if labels is not None and self.label_weight > 0:
            terms["label"] = self.label_weight * self.task.label_loss(logits, labels, mask)
        if self.policy is not None:
            terms |= self._selection(teacher_scores)
        self.parts = {name: float(term.detach()) for name, term in terms.items()}
        return {"loss": torch.stack(list(terms.values())).sum(), "logits": logits}

    def _state_gap(self, inputs: dict[str, Tensor], hidden: Sequence[Tensor]) -> Tensor:
        """Mean square between the states of kept tokens and the dense model's, over all layers. The
        dense model runs again in every step: to store the states of all tokens would take thousands
        of bytes per token and layer."""
        run, dense = attached(self.model), self._dense[0].to(hidden[0].device)
        assert run is not None
        with torch.no_grad():
            _, out = task_outputs(dense, self.task, inputs, output_hidden_states=True)
        gaps = []
        layers = zip(hidden[1:], out.hidden_states[1:], run.tokens[1:], strict=True)
        for state, target, tokens in layers:
            assert tokens is not None
            square = (state - take(target, tokens.index)).square().mean(-1)  # (B, K)
            gaps.append((square * tokens.alive).sum() / tokens.alive.sum())
        return torch.stack(gaps).mean()

    def _rank_answers(self, loss: Ranking, teacher: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Tokens that the dense model would answer with must rank high wherever tokens are dropped:
        the gradient of the answer knows nothing of a token that is gone."""
        run, share = attached(self.model), self.task.log_shares(teacher, mask)
        policy = None if run is None else run.policy
        if share is None or not isinstance(policy, Follow) or not policy.rankings:
            return {}
        terms = []
        for scores, tokens in policy.rankings:
            x = scores if policy.probes else scores.clamp_min(1e-9).log()  # shares of attention
            live = tokens.alive & ~tokens.protected
            terms.append(loss(x, share.gather(1, tokens.index), live))
        return {"rank": torch.stack(terms).mean()}

    def _selection(self, teacher_scores: Tensor | None) -> dict[str, Tensor]:
        terms = {"penalty": self.policy.selector.penalty()}
        if self.rank_weight > 0 and teacher_scores is not None:
            rank = self.policy.rank_loss(self.policy.selector.rank_loss, teacher_scores)
            terms["rank"] = self.rank_weight * rank
        return terms
