"""CoFi (ACL'22): structured pruning learns compact and accurate models.

Read beside the paper. Hard-concrete masks of four grains are learned together with the weights:
attention heads, inner columns of the FFNs, the hidden dimension that all layers share, and whole
layers. The dense model teaches its answers, and the first token's state after each layer. In the
end masks become yes or no, the soft values of those that stay are folded into the weights, the rest
is cut out, and the smaller model is trained further. It is a dense model with a plan without steps,
and any other method can prune its tokens afterwards.

Ours: the budget is of real FLOPs, not of parameters, and every step meets it by a shift of all
masks (`hard_concrete.shift_to`), not by multipliers. Masks start in an order: what the dense
model's answers depend on least, for what it costs, goes first. One mask closes a whole layer,
attention and FFN together; a layer that stays keeps at least one head and one column, and the last
layer always stays. The paper's search for matching layers is simplified: a layer is matched with
the teacher's layer of the same number, in the open part of its state, and a skipped layer is not
matched.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from toprune.errors import OutOfReach
from toprune.methods.cofi.masks import Masks, attach_masks, fold, saliency
from toprune.models.families import family_of, sizes_of
from toprune.models.shape import ENTRY
from toprune.models.slim import Kept, cut, keep_layers, parts_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, total_macs
from toprune.plan.plan import Plan, Restore, Score
from toprune.pruning.policies import Follow
from toprune.training import hard_concrete
from toprune.training.distributed import processes
from toprune.training.job import Job, Method, Outcome
from toprune.training.learner import Learner
from toprune.training.settings import Stage, setting
from toprune.training.stages import CALIBRATION_TEXTS, once, soft_stage, teacher_of
from toprune.training.teacher import Teacher

DENSE = 0.01  # sparsity at which a run starts; at zero the shift would be infinite
STAYS = 1e3  # the log-alpha of a mask that no shift closes
LATER = 20.0  # how much higher dimensions and layers start than heads and columns
FAINTEST = 0.01  # soft value of what stays only because something must
FURTHEST = 200.0  # an edge: all masks are above its negative, and below it unless they always stay


@dataclass(frozen=True)
class Cofi(Method):
    """Fewer heads, FFN columns, hidden dimensions and layers, by masks (CoFi, ACL'22)."""

    hidden: bool = setting(True, "Shrink the hidden dimension that all layers share, too.")
    slope: float = setting(
        30.0, "How much lower the least useful mask of a kind starts than the most useful one."
    )

    NAME: ClassVar[str] = "cofi"
    SCORES: ClassVar[tuple[Score, ...]] = ("received",)  # of the plan, which does not use it
    STAGES: ClassVar[tuple[Stage, ...]] = ("soft", "hard")
    SLIMS: ClassVar[bool] = True
    TIMED: ClassVar[bool] = False
    COUNTS: ClassVar[bool] = False

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        """Learn masks and weights together, then train the smaller model; without epochs for masks,
        take those that learning would start from."""
        family = family_of(job.model)
        parts_of(job.model, family)  # refuses a family whose weights cannot be cut
        teacher, before = teacher_of(job), sizes_of(job.model)
        path, handles = job.work / "kept.json", list[Any]()

        def begin() -> Masking:
            selector = self.selector(job)
            handles.extend(attach_masks(job.model, lambda: selector.drawn))
            return Masking(job.blank(), selector)

        def end(policy: Masking) -> tuple[Plan, float]:
            for handle in handles:
                handle.remove()
            masks = policy.selector.final()
            fold(job.model, masks)
            if processes().is_main_process:
                path.write_text(json.dumps(asdict(masks.kept())))
            with torch.no_grad():
                return job.blank(), 1 / (1 - float(policy.selector.sparsity()))

        if job.soft_epochs > 0:
            outcome = soft_stage(job, begin, end, resume=resume, learner=Matched)
        else:
            end(begin())
            processes().wait_for_everyone()
            outcome = Outcome(job, job.blank())
        kept = Kept(**json.loads(path.read_text()))
        keep_layers(job.model, kept.layers)
        cut(job.model, family, kept)
        # The smaller model learns from outputs of its size, which have a folder of their own.
        slim = replace(job, work=job.work / "slim", shared=None, before=before)
        once(slim.work / "teacher", lambda: matching(teacher, kept).save(slim.work / "teacher"))
        extra = {"kept": {"layers": kept.layers} | getattr(job.model.config, ENTRY)}
        return replace(outcome, job=slim, plan=slim.blank(), extra=extra)

    def selector(self, job: Job) -> "Selector":
        """The masks, in the order of their use to the model."""
        sizes = sizes_of(job.model)
        selector = Selector(self, sizes, job.lengths, job.budget, job.restore)
        useful = saliency(job.model, job.task, job.sample_batches(CALIBRATION_TEXTS))
        # The output of an embedding model is its vectors: they keep their width.
        selector.start(useful, hidden=self.hidden and not job.task.POOLS)
        selector.check_reach(job.budget)
        return selector


def matching(teacher: Teacher, kept: Kept) -> Teacher:
    """The teacher's states in the layers and dimensions that are left."""
    if not len(teacher.states):
        return teacher
    return replace(teacher, states=np.asarray(teacher.states[:, kept.layers])[..., kept.hidden])


class Masking(Follow):
    """Every token stays; the masks learn which weights stay."""

    def __init__(self, plan: Plan, selector: "Selector"):
        super().__init__(plan)
        self.selector = selector


class Matched(Learner):
    """Learns the teacher's states as far as the current masks are open."""

    def forward(
        self, *args: Any, teacher_states: Tensor | None = None, **batch: Any
    ) -> dict[str, Tensor]:
        assert self.selector is not None
        self.selector.sample()
        if teacher_states is not None:
            masks: Masks = self.selector.drawn
            through = torch.cat(list(masks.layers)) > 0  # (L,)
            # a skipped layer has the state of the layer before it
            source = (torch.arange(len(through), device=through.device) * through).cummax(0).values
            teacher_states = teacher_states[:, source] * (masks.hidden > 0)
        return super().forward(*args, teacher_states=teacher_states, **batch)


class Selector(nn.Module):
    """The masks while they are learned: `sample` for a forward pass, `final` at the end."""

    SPAN: ClassVar[float] = hard_concrete.SPAN
    rank_weight: ClassVar[float] = 0.0  # no ranking is distilled

    def __init__(
        self, settings: Cofi, sizes: Sizes, lengths: Lengths, budget: Budget, restore: Restore
    ):
        super().__init__()
        self.settings, self.sizes, self.lengths = settings, sizes, lengths
        self.restore: Restore = restore
        self.heads, self.inner = (
            [getattr(x, n) for x in sizes.by_layer] for n in ("heads", "inner")
        )
        counts = sizes.width, sum(self.heads), sum(self.inner), sizes.layers
        # log-alphas of hidden (D,), heads and inner of all layers (one after the other), layers
        self.loga = nn.ParameterList([torch.full((count,), STAYS) for count in counts])
        self.drawn = self._masks([torch.ones(count) for count in counts])  # for this step
        self.dense = float(self.macs(self.drawn))
        self.sparsity_target = budget.sparsity
        self.progress = 1.0  # share of the warm-up that is over; the trainer moves it

    def _masks(self, vectors: Sequence[Tensor]) -> Masks:
        hidden, heads, inner, layers = vectors
        return Masks(hidden, heads.split(self.heads), inner.split(self.inner), layers.split(1))

    def start(self, useful: Sequence[Tensor], *, hidden: bool) -> None:
        """Set the log-alphas: within each kind what is useful for its cost starts higher."""
        whole = [torch.ones_like(x, requires_grad=True) for x in useful]
        prices = torch.autograd.grad(self.macs(self._masks(whole)), whole)
        with torch.no_grad():
            for loga, worth, price, later in zip(
                self.loga, useful, prices, (LATER, 0.0, 0.0, LATER), strict=True
            ):
                place = (worth / price).argsort().argsort()  # 0 the least
                loga.copy_(later + self.settings.slope * ((place + 0.5) / len(place) - 0.5))
            self.loga[-1][-1] = STAYS
            if not hidden:
                self.loga[0].fill_(STAYS)

    # -- this step's masks -------------------------------------------------------------------

    def sample(self) -> None:
        """Draw all masks once for a forward pass; the batch shares them."""
        *soft, layers = (hard_concrete.sample(loga) for loga in self.logits())
        # Straight-through, as ToP's gates: a layer is skipped or not. Brackets: see there.
        self.drawn = self._masks([*soft, (layers > 0).to(layers) + (layers - layers.detach())])

    def logits(self) -> list[Tensor]:
        """The log-alphas in force: shifted until the target is met exactly."""
        shift = hard_concrete.shift_to(self.target(), list(self.loga), self._sparsity)
        return [loga - shift for loga in self.loga]

    def target(self) -> float:
        return DENSE + (self.sparsity_target - DENSE) * min(1.0, self.progress)

    def masks(self) -> list[nn.Parameter]:
        return list(self.loga)

    def multipliers(self) -> list[nn.Parameter]:
        return []

    def log_values(self) -> dict[str, Tensor]:
        """For the log: the expected share of each kind that is open."""
        names = ("hidden", "heads", "inner", "layers")
        shares = [hard_concrete.p_open(loga).mean() for loga in self.logits()]
        return {f"open_{name}": share for name, share in zip(names, shares, strict=True)}

    # -- the constraint ------------------------------------------------------------------------

    def macs(self, masks: Masks) -> Tensor:
        """Mean MACs of an example for the open parts; or expected MACs for masks that are open with
        these probabilities, because the expectation of a product of independent numbers is the
        product. A closed layer has no head and no column; the last one, which is shorter, stays."""
        parts = tuple(
            (layer * heads.sum(), layer * inner.sum())
            for layer, heads, inner in zip(masks.layers, masks.heads, masks.inner, strict=True)
        )
        width: Any = masks.hidden.sum()
        slim: Any = parts
        sizes = replace(self.sizes, width=width, head_width=self.sizes.head_size, slim=slim)
        n, n2 = (self.lengths.moment(power) / self.lengths.total for power in (1, 2))
        layers = self.sizes.layers
        return total_macs(sizes, [n] * layers, [n2] * layers, examples=1, restore=self.restore)

    def _sparsity(self, loga: Sequence[Tensor], shift: Tensor) -> Tensor:
        p = self._masks([hard_concrete.p_open(values - shift) for values in loga])
        return 1 - self.macs(p).squeeze() / self.dense

    def sparsity(self) -> Tensor:
        """Expected share of real FLOPs removed by the masks in force."""
        return self._sparsity(self.logits(), self.loga[0].new_zeros(()))

    def penalty(self) -> Tensor:
        return self.loga[0].new_zeros(())  # the shift meets the target

    # -- the end -------------------------------------------------------------------------------

    @torch.no_grad()
    def final(self) -> Masks:
        """Zero below an edge, and above it the value that a mask has most of the time (as in the
        published code). At the edge the open parts meet the budget. Where it falls on a layer, a
        head or a dimension, which are too large to meet it exactly, columns make up for it."""
        loga = self.logits()
        limit = self.dense * (1 - self.sparsity_target)

        def macs(edge: float, fine: float) -> float:
            return float(self.macs(self._above(loga, edge, fine)))

        edges = _bisect(lambda edge: macs(edge, edge), limit)
        tried = [(edge, _bisect(lambda fine, at=edge: macs(at, fine), limit)[1]) for edge in edges]
        best = min(tried, key=lambda pair: abs(macs(*pair) - limit))
        values = self._masks(
            [torch.sigmoid(0.8 * x / hard_concrete.BETA).clamp_min(FAINTEST) for x in loga]
        )
        open_ = self._above(loga, *best)

        def products(values: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
            return [a * b for a, b in zip(values, masks, strict=True)]

        return Masks(
            values.hidden * open_.hidden,
            products(values.heads, open_.heads),
            products(values.inner, open_.inner),
            open_.layers,
        )

    def _above(self, loga: Sequence[Tensor], edge: float, fine: float) -> Masks:
        """Ones and zeros; `fine` is the edge of the columns. At least one of every kind stays."""
        masks = self._masks(loga)
        return Masks(
            _best(masks.hidden, edge, self.sizes.head_size),  # no state is narrower than a head
            [_best(heads, edge, 1) for heads in masks.heads],
            [_best(inner, fine, 1) for inner in masks.inner],
            [(layer > edge).float() for layer in masks.layers],
        )

    def check_reach(self, budget: Budget) -> None:
        """Refuse a budget that even the smallest model cannot meet."""
        least = self._above(list(self.loga), FURTHEST, FURTHEST)
        most = self.dense / float(self.macs(least))
        if budget.reduction > most:
            raise OutOfReach(
                f"budget {budget.asked} is out of reach: with one layer, one head and one column "
                f"left, this model is {int(most * 100) / 100:.2f}x smaller; ask for less"
            )


def _best(loga: Tensor, edge: float, least: int) -> Tensor:
    """1 above the edge, and always for the `least` highest."""
    floor = loga.topk(min(least, len(loga))).values[-1]
    return ((loga > edge) | (loga >= floor)).float()


def _bisect(macs: Callable[[float], float], limit: float) -> tuple[float, float]:
    """Two neighbouring edges: one with more MACs than the limit, one without."""
    low, high = -FURTHEST, FURTHEST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if macs(middle) > limit else (low, middle)
    return low, high
