"""Attach a plan to any supported transformers encoder, and detach it without a trace.

Mechanism: the *class* of the base model and of each of its layers is swapped for a subclass of the
same name, so weights, state-dict keys, `isinstance` and `save_pretrained` stay as they were, and a
deepcopy carries its own state. What a forward pass does with its tokens is decided by a `Policy`:
`Follow` a plan here, `Learn` one (`learn.py`), or `Record` states for a probe or a teacher.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from toprune.errors import UserError
from toprune.models.families import Family, family_of, patches, reads_every_token
from toprune.plan.cost import Sizes
from toprune.plan.plan import ONCE, PROBED, Plan, Restore, Step
from toprune.pruning.attention import attend, merge_heads, rotate, share_heads, split_heads
from toprune.pruning.predictor import Predictor, check_predictors, predictors_of
from toprune.pruning.tokens import (
    Rows,
    Tokens,
    accumulate,
    by_place,
    by_probe,
    groups,
    keep_merged,
    keep_top,
    mask_merged,
    mask_top,
    merge,
    order,
    ranks,
    restore,
    start,
    take,
)


@dataclass(frozen=True)
class Drop:
    """What a policy decides at a layer: the rows that stay (None: all of them), who they are, and
    what their states are multiplied with, if anything (B, k)."""

    rows: Rows | None
    tokens: Tokens
    scale: Tensor | None = None
    place: Tensor | None = None  # (B, K): rows are merged, each goes to this one of k, or nowhere


class Policy(Protocol):
    """Who decides which tokens leave."""

    protect: tuple[int, ...]  # token ids that always stay
    protect_until: int | None  # a token id: all up to the first one stays
    restore: Restore  # of dropped rows, where the head reads all of them

    def begin(self) -> None:
        """Called once before the first layer of every forward pass."""
        ...

    def scored(self, layer: int) -> bool:
        """Does this layer have to give the attention that tokens receive?"""
        ...

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        """After attention of `layer`, state (B, K, D): who goes on? None: everyone, as they are."""
        ...


class Follow:
    """Execute a plan: rows really gone (`gather=True`) or only masked, which must be the same."""

    def __init__(
        self,
        plan: Plan,
        *,
        gather: bool = True,
        predictors: Mapping[int, Predictor] | None = None,
    ):
        """`predictors`: by layer, of a plan that asks them."""
        self.plan, self.gather, self.predictors = plan, gather, predictors or {}
        self.protect, self.protect_until = plan.protect, plan.protect_until
        self.restore: Restore = plan.restore
        self.steps = {step.layer: step for step in plan.steps}
        self.final = max(self.steps, default=-1)
        self.probes = {layer: torch.tensor(probe) for layer, probe in plan.probes.items()}  # (D,)
        # (B, K) and whose they are, at every ranking of a pass that is trained
        self.told: list[tuple[Tensor, Tokens]] = []

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts afresh, as that of a `Run` does."""
        return vars(self) | {"told": []}

    def begin(self) -> None:
        self.told = []

    def scored(self, layer: int) -> bool:
        if self.plan.score == "accumulated":
            return layer <= self.final
        return layer in self.steps and self.plan.score == "received"

    def scores(self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens) -> Tensor:
        """(B, K): what tokens are ranked by."""
        if self.plan.score == "random":
            return by_place(tokens.index)
        if self.plan.score == "predicted":
            return self.predictors[layer].odds(state)
        if self.plan.score in PROBED:
            return by_probe(state, self.probes[layer])
        scores = tokens.total if self.plan.score == "accumulated" else received
        assert scores is not None
        return scores

    def _share(self, step: Step, tokens: Tokens) -> Tensor:
        """(B,): ceil(keep * n) in integers, within the plan's limits."""
        ratio, protected = step.keep, tokens.protected.sum(1)
        k = (tokens.n * ratio.numerator + ratio.denominator - 1) // ratio.denominator
        alive = tokens.alive.sum(1)  # an adaptive step may have left less than this one allows
        return torch.minimum(k.clamp_min(self.plan.min_tokens).maximum(protected), alive)

    def _pooled(self, tokens: Tokens, k: Tensor, size: int) -> Drop:
        place = groups(tokens, k, size)
        if self.gather:
            return Drop(None, keep_merged(tokens, place, k, size), place=place)
        stands, kept = mask_merged(tokens, place, size)
        return Drop(None, kept, place=stands)

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        if self.plan.score == "accumulated" and received is not None:
            tokens = accumulate(tokens, received)
        step = self.steps.get(layer)
        if step is None:
            return None if tokens.total is None else Drop(None, tokens)
        k = self._share(step, tokens)
        if self.plan.score == "pooled":
            return self._pooled(tokens, k, int(k.max()))
        once = self.plan.score in ONCE
        if once and tokens.rank is not None:  # ranked at the first step already
            rank, rows = tokens.rank, state.shape[1]
        else:
            scores = self.scores(layer, state, received, tokens)
            if torch.is_grad_enabled():  # for who trains a ranking
                self.told.append((scores, tokens))
            _check_finite(scores, tokens, layer)
            if step.threshold is not None:
                high = tokens.alive & (tokens.protected | (scores >= step.threshold))
                k = torch.minimum(k, high.sum(1).clamp_min(self.plan.min_tokens))
            rows = order(scores, tokens)
            rank = None if self.gather else ranks(rows)
        if not self.gather:
            assert rank is not None
            return Drop(None, mask_top(tokens, rank, k, remember=once))
        size = int(k.max())
        kept = keep_top(tokens, rows, k, size, remember=once)
        return Drop(size if isinstance(rows, int) else rows[:, :size], kept)


def _check_finite(scores: Tensor, tokens: Tokens, layer: int) -> None:
    """A score that is no number must not choose: torch ranks NaN first, others last, and the answer
    may look like any other. While learning the loss tells, and what to do is another thing."""
    if torch.is_grad_enabled():
        return
    if not bool((scores.isfinite() | ~tokens.alive).all()):
        raise UserError(
            f"the scores of tokens at layer {layer + 1} are not numbers (NaN or infinite); "
            "check the weights"
        )


@dataclass
class Run:
    """State of one attached model. Slots per layer, not one current value, so that gradient
    checkpointing may run a layer again."""

    family: Family
    base: Any  # whose layers these are
    sizes: Sizes
    policy: Policy
    passed: int = 0  # layers of this pass: the depth, where one module is layer after layer
    at: list[Tokens | None] = field(default_factory=list)  # tokens that enter layer i
    left: list[tuple[Tensor, Tokens] | None] = field(default_factory=list)  # (states, before drop)

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts afresh: states of the last pass may hang in a graph, which has no copy."""
        return vars(self) | {"at": [], "left": []}

    @property
    def last(self) -> int:
        return self.sizes.layers - 1

    @property
    def whole(self) -> bool:
        """The head reads every row: the last layer is computed in full."""
        return self.policy.restore != "none"

    def begin(self, input_ids: Tensor | None, mask: Tensor) -> None:
        self.policy.begin()
        ids, until = self.policy.protect, self.policy.protect_until
        protected = None
        if ids or until is not None:
            if input_ids is None:
                raise UserError("a plan that protects token ids needs input_ids, not embeddings")
            known = torch.tensor(ids, dtype=torch.long, device=input_ids.device)
            protected = torch.isin(input_ids, known)
            if until is not None:
                ends = (input_ids == until).long()
                protected |= ends.cumsum(1) == ends  # no end before this token
        self.at = [start(mask, protected)] + [None] * (self.last + 1)
        self.left = [None] * (self.last + 1)

    def layer(self, module: Any, i: int, hidden: Tensor) -> Tensor:
        """One layer on its live tokens: attend, score, drop, feed forward. hidden (B, K, D)"""
        tokens = self.at[i]
        assert tokens is not None, "layer called outside the model's forward"
        if i == self.last and not self.whole:  # only the head's row: exact, and a layer almost free
            state, _ = self._attention(module, hidden[:, :1], hidden, tokens, scored=False)
            self.at[i + 1] = replace(tokens, index=tokens.index[:, :1], alive=tokens.alive[:, :1])
            return self.family.feed_forward(module, state)
        scored = self.policy.scored(i)
        state, received = self._attention(module, hidden, hidden, tokens, scored=scored)
        drop = self.policy.decide(i, state, received, tokens)
        self.at[i + 1] = tokens if drop is None else drop.tokens
        if self.policy.restore != "last":
            return self.family.feed_forward(module, _kept(state, drop))
        states = self.family.feed_forward(module, state)
        if drop is not None and (drop.rows is not None or drop.tokens.alive is not tokens.alive):
            self.left[i] = (states, tokens)
        return _kept(states, drop)

    def _attention(
        self, module: Any, queries: Tensor, states: Tensor, tokens: Tokens, *, scored: bool
    ) -> tuple[Tensor, Tensor | None]:
        family, size = self.family, self.sizes.head_size
        project_q, project_k, project_v = family.projections(module)
        seen = family.before_attention(module, states)
        own = seen if queries is states else family.before_attention(module, queries)
        q, scale = split_heads(project_q(own), size), family.scale(module, size)
        k, v = split_heads(project_k(seen), size), split_heads(project_v(seen), size)
        where = tokens.index
        where_q = where[:, : queries.shape[1]]
        if family.rotary is not None:
            q = rotate(q, *family.rotary(self.base, module, where_q))
            k = rotate(k, *family.rotary(self.base, module, where))
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        positions = None
        if family.bias is not None:
            tables = family.tables(self.base, module)
            positions = family.bias(tables, module, q * scale, k, where_q, where)
        context, received = attend(
            q,
            k,
            v,
            tokens,
            scale=scale,
            positions=positions,
            dropout=family.dropout(module) if module.training else 0.0,
            scored=scored,
        )
        return family.after_attention(module, merge_heads(context), queries), received

    def convolve(self, module: Any, entered: Tensor, states: Tensor) -> Tensor:
        """The part that a convolution over all that `entered` (B, S, D) adds to the first layer's
        states (B, K, D), and to those of tokens that have left there."""
        first, then = self.at[0], self.at[1]
        assert first is not None
        assert then is not None
        convolution = self.family.convolution
        assert convolution is not None
        part = convolution.part(module, entered, first.alive)
        if self.left[0] is not None:
            self.left[0] = (convolution.blend(module, self.left[0][0], part), first)
        return convolution.blend(module, states, take(part, then.index))

    def finish(self, hidden: Tensor) -> Tensor:
        """Every token back at its place (B, S, D) with its last state, or zeros, for heads that
        read all."""
        first, final = self.at[0], self.at[self.last + 1]
        assert first is not None
        assert final is not None
        buffer = hidden.new_zeros(*first.index.shape, hidden.shape[-1])
        if self.policy.restore == "zero" and final.weight is not None:
            hidden = hidden * final.weight[..., None]  # who is about to leave counts for less
        for left in self.left:
            if left is not None:
                states, tokens = left
                buffer = restore(buffer, self.family.final_norm(self.base, states), tokens)
        return restore(buffer, hidden, final)


def _kept(states: Tensor, drop: Drop | None) -> Tensor:
    """(B, K, D) -> (B, k, D)"""
    if drop is None:
        return states
    if drop.place is not None:
        return merge(states, drop.place, drop.tokens.alive.shape[1])
    kept = states if drop.rows is None else take(states, drop.rows)
    return kept if drop.scale is None else kept * drop.scale.unsqueeze(-1)


def attach(model: Any, plan: Plan, *, gather: bool = True) -> Any:
    """Make `model` execute `plan`; returns the same object. `gather=False` only masks (a check)."""
    family = family_of(model)
    sizes = family.sizes(model.config)
    plan.check_model(family.name, sizes.layers, sizes.width)
    if plan.restore == "none" and reads_every_token(model):
        raise UserError(
            f"the head of {type(model).__name__} reads every token, and this plan does not bring "
            'dropped ones back; it needs restore="last"'
        )
    check_predictors(model, plan)
    return attach_policy(model, Follow(plan, gather=gather, predictors=predictors_of(model)))


def attach_policy(model: Any, policy: Policy) -> Any:
    """Let `policy` decide in every forward pass. A model that has one already changes hands."""
    family = family_of(model)
    return attach_run(model, Run(family, model.base_model, family.sizes(model.config), policy))


def attach_run(model: Any, run: Any) -> Any:
    """Let `run` execute the layers: ours in torch, or the one that is traced for ONNX."""
    detach(model)
    base, family = model.base_model, family_of(model)
    depths: dict[Any, list[int]] = {}
    for i, layer in enumerate(family.layers(base)):
        depths.setdefault(layer, []).append(i)
    _swap(base, _image_forward if family.images else _base_forward, run)
    for layer, where in depths.items():
        _swap(layer, _layer_forward, (run, where))
    conv = None if family.convolution is None else family.convolution.module(base)
    if conv is not None:
        _swap(conv, _convolution_forward, run)
    return model


def detach(model: Any) -> Any:
    """Undo `attach` exactly; a model without a plan is left alone. Returns the same object."""
    for module in model.modules():
        if "_toprune" in module.__dict__:
            del module._toprune
            module.__class__ = type(module).__bases__[0]
    return model


def attached(model: Any) -> Run | None:
    """The run of an attached model, to look at its tokens after a forward pass."""
    return model.base_model.__dict__.get("_toprune")


def _swap(module: Any, forward: Any, state: Any) -> None:
    stock = type(module)
    own = {"forward": forward, "__module__": stock.__module__}
    module.__class__ = type(stock.__name__, (stock,), own)
    module._toprune = state


def _base_forward(
    self: Any, input_ids: Any = None, attention_mask: Any = None, *args: Any, **kwargs: Any
) -> Any:
    run = self._toprune
    run.passed = 0
    given = input_ids if input_ids is not None else kwargs.get("inputs_embeds")
    if given is None:
        raise ValueError("give input_ids or inputs_embeds")
    if attention_mask is None:
        attention_mask = torch.ones(given.shape[:2], dtype=torch.long, device=given.device)
    if attention_mask.dim() != 2:
        raise ValueError("attention_mask must be (batch, length): 1 for tokens, 0 for padding")
    moved = kwargs.get("position_ids") is not None
    if moved and (run.family.rotary is not None or run.family.bias is not None):
        raise ValueError("position_ids of your own: this family reads them inside attention")
    run.begin(input_ids, attention_mask)
    stock: Any = type(self).__bases__[0]
    return _finished(run, stock.forward(self, input_ids, attention_mask, *args, **kwargs))


def _image_forward(self: Any, pixel_values: Any = None, *args: Any, **kwargs: Any) -> Any:
    run = self._toprune
    run.passed = 0
    if kwargs.pop("attention_mask", None) is not None:
        raise ValueError("attention_mask: an image has no padding")
    batch, _, height, width = pixel_values.shape
    tokens = patches(self.config, height, width) + 1
    run.begin(None, torch.ones(batch, tokens, dtype=torch.long, device=pixel_values.device))
    stock: Any = type(self).__bases__[0]
    return _finished(run, stock.forward(self, pixel_values, *args, **kwargs))


def _finished(run: Any, out: Any) -> Any:
    if not run.whole:
        return out
    if isinstance(out, tuple):  # return_dict=False
        return (run.finish(out[0]), *out[1:])
    out.last_hidden_state = run.finish(out.last_hidden_state)
    return out


def _layer_forward(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
    run, depths = self._toprune
    i = depths[0] if len(depths) == 1 else run.passed  # a fixed one may be computed again
    run.passed += 1
    return run.family.layer_output(run.layer(self, i, hidden_states))


def _convolution_forward(self: Any, entered: Tensor, states: Tensor, _: Any) -> Tensor:
    return self._toprune.convolve(self, entered, states)
