"""The soft stage: gathering is exact, closed gates are dense, the constraint is met."""

import copy
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.models import FAMILIES, make_model
from support.probing import states
from support.strategies import LAYERS, SEP, WIDTH, logits, make_plan, pad, random_text
from toprune.methods.top import Selector, Top
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import expected_share
from toprune.plan.plan import PROBED, Score, probe_of
from toprune.pruning.attach import attach, attach_policy, attached
from toprune.pruning.policies import Drop, Protection
from toprune.pruning.tokens import Tokens
from toprune.tasks import Answer, Classify, Tags
from toprune.training.job import Job
from toprune.training.learner import ALL_TOKENS, Learner
from toprune.training.ranking_losses import Ranking, lambda_loss
from toprune.training.settings import Training
from toprune.training.soft_policy import Learn
from toprune.training.trainer import StageTrainer

TEXTS = [random_text(n, n) for n in (24, 7, 15, 2)]
LENGTHS = Lengths.of(range(10, 60))
PROBES = torch.from_numpy(np.random.default_rng(0).normal(size=(LAYERS - 1, WIDTH)))
BINS = 50


@cache
def double(family: str = "bert", head: str = "sequence") -> Any:
    return make_model(family, head=head).double()


def selector(budget: str = "3x", **settings: Any) -> Selector:
    sizes = sizes_of(double())
    return Selector(Top(**settings), sizes, LENGTHS, Budget.parse(budget)).double()


class Fixed(Selector):
    """Masks that are given, not drawn."""

    def __init__(self, rank: Tensor, gate: Tensor):
        super().__init__(Top(), sizes_of(double()), LENGTHS, Budget.parse("3x"))
        self.given = rank.double(), gate.double()

    def sample(self) -> None:
        self._z = self.given


class Masked(Learn):
    """The same decisions, but nobody leaves: rows of weight zero are only masked."""

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        drop = super().decide(layer, state, received, tokens)
        if drop is None:
            return None
        rows, kept = drop.rows, drop.tokens
        assert isinstance(rows, Tensor)
        assert kept.weight is not None
        blank = torch.zeros(tokens.index.shape, dtype=state.dtype)
        return Drop(
            None,
            replace(
                kept,
                index=tokens.index,
                protected=tokens.protected,
                alive=(blank > 0).scatter(1, rows, kept.alive),
                weight=blank.scatter(1, rows, kept.weight),
                rank=None if kept.rank is None else blank.long().scatter(1, rows, kept.rank),
            ),
        )


def policy(policy_class: type[Learn], chosen: Selector, score: str, **options: Any) -> Learn:
    probes = PROBES if score in PROBED else None
    names = ("protect", "protect_until", "restore")
    protection = Protection(**{name: options.pop(name) for name in names if name in options})
    return policy_class(chosen, score, probes=probes, protection=protection, **options)  # type: ignore[arg-type]


# -- the pass ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("score", ["received", "probe", "probes"])
@pytest.mark.parametrize("constraint", ["projection", "lagrangian"])
def test_gathering_is_exact(family: str, score: str, constraint: str) -> None:
    """Same loss, same gradients of weights and of masks as when rows are only masked."""
    result = [
        soft_gradients(policy_class, family, score, constraint, seed)
        for policy_class in (Learn, Masked)
        for seed in range(3)
    ]
    rows = 0
    for (loss, grads, size), (other, others, whole) in zip(result[:3], result[3:], strict=True):
        assert loss == pytest.approx(other, abs=1e-7)
        assert grads.keys() == others.keys()
        assert {"rank_loga", "gate_loga"} <= grads.keys()
        for name, gradient in grads.items():
            torch.testing.assert_close(gradient, others[name], atol=1e-7, rtol=1e-5, msg=name)
        assert whole == 24
        rows += size
    assert rows < 3 * 20  # rows did leave


def soft_gradients(
    policy_class: type[Learn], family: str, score: str, constraint: str, seed: int
) -> tuple[float, dict[str, Tensor], int]:
    """Loss, gradients and rows in the last layer of one soft pass with half-open masks."""
    model = copy.deepcopy(double(family))
    chosen = selector("2x", constraint=constraint)
    with torch.no_grad():
        chosen.rank_loga.copy_(torch.linspace(4, -4, BINS).repeat(LAYERS - 1, 1))
        chosen.gate_loga.fill_(0.5)
    learn = policy(policy_class, chosen, score, protect=(5,), distilled=frozenset({0, 1}))
    attach_policy(model, learn)
    torch.manual_seed(seed)
    teacher = torch.randn(4, 24, 1, dtype=torch.float64)
    loss = model(**pad(TEXTS)).logits.square().sum() + chosen.penalty()
    loss = loss + learn.rank_loss(partial(lambda_loss, top_k=5), teacher)
    loss.backward()
    named = [*model.named_parameters(), *chosen.named_parameters()]
    run = attached(model)
    assert run is not None
    last = run.entered[-1]
    return (
        loss.item(),
        {n: p.grad for n, p in named if p.grad is not None},
        last.index.shape[1],
    )


@pytest.mark.parametrize("score", ["received", "probe", "probes"])
def test_closed_gates_are_the_dense_model(score: str) -> None:
    model = copy.deepcopy(double())
    shut = Fixed(torch.zeros(LAYERS - 1, BINS), torch.zeros(LAYERS - 1))
    attach_policy(model, policy(Learn, shut, score))
    torch.testing.assert_close(logits(model, TEXTS), logits(double(), TEXTS), atol=1e-9, rtol=0)


@pytest.mark.parametrize("score", ["received", "probe", "probes"])
def test_open_ranks_are_the_dense_model(score: str) -> None:
    model = copy.deepcopy(double())
    shut = Fixed(torch.ones(LAYERS - 1, BINS), torch.ones(LAYERS - 1))
    attach_policy(model, policy(Learn, shut, score))
    torch.testing.assert_close(logits(model, TEXTS), logits(double(), TEXTS), atol=1e-9, rtol=0)


@pytest.mark.parametrize("until", [None, SEP])
@pytest.mark.parametrize("restore", ["none", "last", "zero"])
@pytest.mark.parametrize("score", ["received", "probe", "probes"])
@given(
    kept=st.lists(st.integers(1, BINS), min_size=LAYERS - 1, max_size=LAYERS - 1),
    gates=st.lists(st.booleans(), min_size=LAYERS - 1, max_size=LAYERS - 1),
)
@settings(deadline=None, max_examples=8)
def test_masks_of_zero_and_one_run_as_their_plan(
    score: str, restore: str, until: int | None, kept: list[int], gates: list[bool]
) -> None:
    """What is learned is what will run: the best b of 50 bins open is a plan that keeps b/50. For
    a head that reads every token, too: those that left come back as they left, or as zeros."""
    head = "sequence" if restore == "none" else "tokens"
    kept = sorted(kept, reverse=True)
    rank = torch.arange(BINS) < torch.tensor(kept)[:, None]
    model = copy.deepcopy(double(head=head))
    fixed = Fixed(rank, torch.tensor(gates))
    guard: dict[str, Any] = {"protect": (5, 6), "protect_until": until}
    attach_policy(model, policy(Learn, fixed, score, restore=restore, **guard))
    steps = [(i, str(Fraction(b, BINS))) for i, b in enumerate(kept) if gates[i]]
    plan_options: dict[str, Any] = {"score": score, "min_tokens": 1} | guard
    plan_options["restore"] = restore
    if score in PROBED and steps:
        plan_options["probe"] = probe_of(PROBES, score, [layer for layer, _ in steps])
    hard = attach(copy.deepcopy(double(head=head)), make_plan("bert", *steps, **plan_options))
    # A plan holds its probe in single precision, so ranks could differ at a tie; none here.
    result, expected = logits(model, TEXTS), logits(hard, TEXTS)
    if head == "tokens":  # what is said to padding nobody reads
        live = pad(TEXTS)["attention_mask"].bool()
        result, expected = result[live], expected[live]
    torch.testing.assert_close(result, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("score", ["received", "probe", "probes"])
def test_padding_and_batch_mates_change_nothing_while_learning(score: str) -> None:
    model = copy.deepcopy(double())
    made = torch.Generator().manual_seed(0)
    rank = torch.rand(LAYERS - 1, BINS, generator=made).sub(0.3).clamp(0, 1)
    attach_policy(model, policy(Learn, Fixed(rank, torch.ones(LAYERS - 1)), score))
    alone = torch.cat([logits(model, [row]) for row in TEXTS])
    torch.testing.assert_close(logits(model, TEXTS, extra=4), alone, atol=1e-9, rtol=0)
    assert (alone - logits(double(), TEXTS)).abs().max() > 1e-3


@pytest.mark.parametrize("score", ["received", "probe", "probes"])
def test_padding_and_batch_mates_change_nothing_for_a_head_that_reads_all(score: str) -> None:
    model = copy.deepcopy(double(head="tokens"))
    made = torch.Generator().manual_seed(0)
    rank = torch.rand(LAYERS - 1, BINS, generator=made).sub(0.3).clamp(0, 1)
    fixed = Fixed(rank, torch.ones(LAYERS - 1))
    attach_policy(model, policy(Learn, fixed, score, restore="last", protect_until=SEP))
    together, dense = logits(model, TEXTS, extra=4), logits(double(head="tokens"), TEXTS)
    for b, text in enumerate(TEXTS):
        alone = logits(model, [text])[0]
        torch.testing.assert_close(together[b, : len(text)], alone, atol=1e-9, rtol=0)
    assert (together[0] - torch.cat([dense[0], dense[0][:4]])).abs().max() > 1e-3


def test_learner_of_a_head_that_reads_all_teaches_every_live_token() -> None:
    """Its loss is the task's, on what the model says to live tokens; no state of the first token
    is wanted, and padding is nothing."""
    model = copy.deepcopy(double(head="tokens"))
    learner = Learner(model, Tags(), label_weight=0.0, state_weight=10.0).eval()
    batch, made = pad(TEXTS), torch.Generator().manual_seed(0)
    teacher = torch.randn(4, 24, 2, dtype=torch.float64, generator=made)
    loss = learner(teacher_logits=teacher, **batch)["loss"]
    assert learner.parts.keys() == {"distill"}
    expected = Tags().distill_loss(logits(model, TEXTS), teacher, batch["attention_mask"])
    torch.testing.assert_close(loss, expected)
    spoiled = teacher + 9 * (1 - batch["attention_mask"])[..., None]
    torch.testing.assert_close(learner(teacher_logits=spoiled, **batch)["loss"], expected)


ASKED = [[*text[:3], SEP, *text[3:]] for text in TEXTS[:3]]  # a question of two words, a context


def answering(ranking: Ranking | None, seed: int = 3) -> tuple[Learner, dict[str, Tensor], Tensor]:
    """A reader of answers that keeps a third of its tokens, and what to teach it."""
    model = make_model("bert", head="answer")
    plan = make_plan("bert", (1, "1/3"), score="probe", restore="last", protect_until=SEP)
    learner = Learner(attach(model, plan), Answer(), label_weight=0.0, ranking=ranking)
    teacher = torch.randn(3, 25, 2, generator=torch.Generator().manual_seed(seed)) * 3
    return learner, pad(ASKED), teacher


def classifying() -> tuple[Learner, dict[str, Tensor], Tensor]:
    model = attach(make_model("bert"), make_plan("bert", (1, "1/3"), score="probe"))
    return Learner(model, Classify(), label_weight=0.0), pad(ASKED), torch.eye(3)[:, :2]


def kept_answers(learner: Learner, batch: dict[str, Tensor], teacher: Tensor) -> float:
    """Share of the probability that the teacher gives to tokens that stay."""
    learner(teacher_logits=teacher, **batch)
    run = attached(learner.model)
    assert run is not None
    tokens, share = run.tokens[2], Answer().log_shares(teacher, batch["attention_mask"])
    assert tokens is not None
    shares = share.exp() * batch["attention_mask"]
    return float((shares.gather(1, tokens.index) * tokens.alive).sum() / shares.sum())


def test_answers_learn_to_stay_where_the_ranking_is_distilled() -> None:
    """The loss of the answers alone says nothing of a token that was dropped; a single one may
    come back by chance, so several teachers are asked."""

    def gain(ranking: Ranking | None, seed: int) -> float:
        learner, batch, teacher = answering(ranking, seed)
        before = kept_answers(learner, batch, teacher)
        weights = [p for p in learner.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=3e-3)
        for _ in range(20):
            optimizer.zero_grad()
            learner(teacher_logits=teacher, **batch)["loss"].backward()
            optimizer.step()
        assert ("rank" in learner.parts) == (ranking is not None)
        return kept_answers(learner, batch, teacher) - before

    ranked, unranked = (np.mean([gain(x, seed) for seed in range(6)]) for x in (lambda_loss, None))
    assert ranked > 0.2
    assert ranked > unranked + 0.1


def test_distilled_ranking_is_of_tokens_that_may_leave() -> None:
    """By hand: the scores of the first step, the dense model's shares, no token of the question."""
    seen = []

    def listen(x: Tensor, t: Tensor, live: Tensor) -> Tensor:
        seen.append((x.detach(), t, live))
        return x.sum() * 0

    learner, batch, teacher = answering(listen)
    learner(teacher_logits=teacher, **batch)
    (x, t, live), plan = seen[0], attached(learner.model).policy.plan  # type: ignore[union-attr]
    dense = make_model("bert", head="answer")
    share = Answer().log_shares(teacher, batch["attention_mask"])
    for b, text in enumerate(ASKED):
        n = len(text)
        state = states(dense, pad([text]))[1][0]
        torch.testing.assert_close(x[b, :n], state @ torch.tensor(plan.probe), atol=1e-4, rtol=0)
        torch.testing.assert_close(t[b, :n], share[b, :n])
        assert live[b].tolist() == [3 < i < n for i in range(25)]  # not the question


@pytest.mark.parametrize(("score", "rankings"), [("probe", 1), ("probes", 2)])
def test_every_ranking_is_distilled(score: Score, rankings: int) -> None:
    """Once where tokens are ranked once; at each step among those that are left, where anew."""
    seen: list[tuple[Tensor, Tensor]] = []

    def listen(x: Tensor, t: Tensor, live: Tensor) -> Tensor:
        seen.append((t, live))
        return 0 * x.sum() + len(seen)  # one, then two

    model = make_model("bert", head="answer")
    steps = ((0, "2/3"), (2, "1/3"))
    plan = make_plan("bert", *steps, score=score, restore="zero", protect_until=SEP)
    learner = Learner(attach(model, plan), Answer(), label_weight=0.0, ranking=listen)
    batch = pad(ASKED)
    teacher = torch.randn(3, 25, 2, generator=torch.Generator().manual_seed(3))
    learner(teacher_logits=teacher, **batch)
    assert len(seen) == rankings
    assert learner.parts["rank"] == (1 + rankings) / 2  # their mean
    share = Answer().log_shares(teacher, batch["attention_mask"])
    run = attached(model)
    assert run is not None
    for (t, live), layer in zip(seen, (0, 2), strict=False):
        tokens = run.tokens[layer]
        assert tokens is not None
        assert torch.equal(t[live], share.gather(1, tokens.index)[live])
        assert live.sum() == (tokens.alive & ~tokens.protected).sum()


@pytest.mark.parametrize("soft", [0.0, 0.5])
def test_answers_are_ranked_by_what_is_taught_whatever_the_stages(
    soft: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No masks are learned for them, so all epochs are the weights', with the ranking beside."""
    monkeypatch.setattr("toprune.methods.top.calibrated", lambda job: None)
    training = Training(soft_epochs=soft, hard_epochs=1.0)
    job = Job(
        model=make_model("bert", head="answer"),
        tokenizer=None,
        task=Answer(dropped="zero"),
        features=[],
        lengths=Lengths.of([9]),
        budget=Budget.parse("2x"),
        method=Top(),
        score="probes",
        training=training,
        work=Path(),
    )
    outcome = Top().learn(job, resume=False)
    trained = outcome.job.training
    assert (trained.soft_epochs, trained.hard_epochs) == (0, 1 + soft)
    assert job.training == training  # a job never changes
    assert outcome.ranking is not None


@pytest.mark.parametrize("head", ["answer", "sequence"])
def test_states_of_tokens_that_stay_are_those_of_the_dense_model(head: str) -> None:
    """By hand, text by text; a token that left is nobody's business, nor is the dense model's
    weight anything to train or to save. A head that reads the first token has its states beside
    them, and no others after the last layer."""
    student, batch, teacher = answering(None) if head == "answer" else classifying()
    plan = attached(student.model).policy.plan  # type: ignore[union-attr]
    dense = make_model("bert", head=head)
    for p in dense.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    learner = Learner(student.model, student.task, label_weight=0, state_weight=3, dense=dense)
    assert learner.state_dict().keys() == student.state_dict().keys()
    first = torch.zeros(len(ASKED), LAYERS, WIDTH) if head == "sequence" else None
    learner(teacher_logits=teacher, teacher_states=first, **batch)["loss"].backward()
    beside = [] if head == "answer" else ["state"]
    assert learner.parts.keys() == {"distill", "states", *beside}
    assert all(p.grad is None for p in dense.parameters())
    squares: list[list[Tensor]] = [[] for _ in range(LAYERS)]
    for text in ASKED:
        alone = attach(make_model("bert", head=head), plan)
        got = alone(**pad([text]), output_hidden_states=True).hidden_states[1:]
        want = dense(**pad([text]), output_hidden_states=True).hidden_states[1:]
        run = attached(alone)
        assert run is not None
        for layer, (one, other) in enumerate(zip(got, want, strict=True)):
            tokens = run.tokens[layer + 1]
            assert tokens is not None
            left = tokens.index[0].tolist()
            stay = max(4 * (head == "answer"), plan.lengths(len(text))[2])  # the question does
            read = 1 if layer == LAYERS - 1 and head == "sequence" else stay
            assert len(left) == (len(text) if layer < 1 else read)
            squares[layer].append((one[0] - other[0, left]).square().mean(1))
    gap = torch.stack([torch.cat(layer).mean() for layer in squares]).mean()
    assert learner.parts["states"] == pytest.approx(ALL_TOKENS * 3 * float(gap.detach()), rel=1e-4)


def test_model_can_be_copied_after_a_pass_that_was_trained() -> None:
    learner, batch, teacher = answering(lambda_loss)
    learner(teacher_logits=teacher, **batch)["loss"].backward()
    copied = copy.deepcopy(learner.model)
    torch.testing.assert_close(
        copied(**batch).start_logits, learner.model(**batch).start_logits, atol=0, rtol=0
    )


def test_weights_multiply_over_layers_and_only_zeros_leave() -> None:
    """By hand, with the one ranking of a probe: the product of the masks of a token's bin."""
    made = torch.Generator().manual_seed(1)
    rank = torch.rand(LAYERS - 1, BINS, generator=made).sub(0.2).clamp(0, 1)
    model = copy.deepcopy(double())
    attach_policy(model, policy(Learn, Fixed(rank, torch.tensor([1, 0, 1])), "probe"))
    logits(model, TEXTS)
    run = attached(model)
    assert run is not None
    for b, text in enumerate(TEXTS):
        n = len(text)
        scores = states(double(), pad([text]))[0][0] @ PROBES[0]
        order = [0, *sorted(range(1, n), key=lambda i: -scores[i])]
        bins = {i: place * BINS // n for place, i in enumerate(order)}
        first = {i: float(rank[0, bins[i]]) if i else 1.0 for i in range(n)}
        product = {i: first[i] * float(rank[2, bins[i]]) if i else 1.0 for i in range(n)}
        for tokens, expected in zip(run.entered[1:], (first, first, product), strict=True):
            assert tokens.weight is not None
            live = tokens.alive[b]
            result = dict(
                zip(tokens.index[b][live].tolist(), tokens.weight[b][live].tolist(), strict=True)
            )
            assert result == pytest.approx({i: w for i, w in expected.items() if w > 0})


def test_scores_are_seen_in_distilled_layers_only() -> None:
    model = copy.deepcopy(double())
    learn = policy(Learn, selector(), "received", distilled=frozenset({1}))
    attach_policy(model, learn)
    logits(model, TEXTS)
    assert list(learn.rankings) == [1]
    # rank_loss reads the teacher at the original places of the rows that were there
    seen = learn.rankings[1]
    teacher = torch.randn(4, 24, 1, dtype=torch.float64)
    live = seen.tokens.alive & ~seen.tokens.protected
    target = torch.stack([teacher[b, seen.tokens.index[b], 0] for b in range(4)])
    expected = lambda_loss(seen.log_scores, target, live, 5)
    torch.testing.assert_close(learn.rank_loss(partial(lambda_loss, top_k=5), teacher), expected)
    assert policy(Learn, selector(), "received").rank_loss(lambda_loss, teacher) == 0


def test_straight_through_gates_are_exactly_zero_or_one() -> None:
    """(1 + z) - z is 0.99999994 for many z, and then rows of weight 6e-8 would never leave."""
    chosen = Selector(Top(constraint="lagrangian"), sizes_of(double()), LENGTHS, Budget.parse("3x"))
    torch.nn.init.constant_(chosen.gate_loga, 0.0)
    torch.nn.init.constant_(chosen.rank_loga, -1.0)
    opened = 0
    for seed in range(30):
        torch.manual_seed(seed)
        chosen.sample()
        assert chosen._z is not None
        rank, gate = chosen._z
        assert set(gate.tolist()) <= {0.0, 1.0}
        weight = 1 - (1 - rank) * gate[:, None]
        assert torch.equal(weight[gate > 0] == 0, rank[gate > 0] == 0)
        opened += int(gate.sum())
    assert 30 < opened < 90


# -- the constraint ------------------------------------------------------------------------------


@pytest.mark.parametrize("gates", [True, False])
def test_masks_start_with_almost_everything_open(gates: bool) -> None:
    chosen = selector(gates=gates)
    assert 0 <= chosen.sparsity_start < 0.03
    chosen.progress = 0.0
    assert chosen.target() == chosen.sparsity_start
    assert chosen.sparsity().item() == pytest.approx(chosen.sparsity_start, abs=1e-3)


def shaken(chosen: Selector, seed: int, size: float = 1.0) -> Selector:
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in (chosen.rank_loga, chosen.gate_loga):
            p += size * torch.randn(p.shape, dtype=p.dtype, generator=made)
    return chosen


@given(
    seed=st.integers(0, 99),
    progress=st.floats(0, 1),
    reduction=st.sampled_from(["1.2x", "2x", "5x"]),
    gates=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_projection_meets_its_target(
    seed: int, progress: float, reduction: str, gates: bool
) -> None:
    chosen = shaken(selector(reduction, gates=gates), seed, 2.0)
    chosen.progress = progress
    assert chosen.sparsity().item() == pytest.approx(chosen.target(), abs=1e-3)
    assert min(chosen.sparsity_start, 0.1) <= chosen.target() <= 1 - 1 / float(reduction[:-1])


@pytest.mark.parametrize("gates", [True, False])
@pytest.mark.parametrize("progress", [0.2, 0.6, 1.0])
def test_gradient_of_the_projection_is_that_of_finite_differences(
    gates: bool, progress: float
) -> None:
    chosen = shaken(selector(gates=gates), 1)
    chosen.progress = progress
    read = torch.linspace(-1, 1, BINS, dtype=torch.float64)

    def loss() -> Tensor:
        rank, gate = chosen.logits()
        return (rank.sigmoid() * read).sum() + gate.sigmoid().sum()

    names = ["rank_loga", "gate_loga"] if gates else ["rank_loga"]
    for name in names:
        p = getattr(chosen, name)
        (gradient,) = torch.autograd.grad(loss(), p)
        for seed in range(3):
            made = torch.Generator().manual_seed(seed)
            way = torch.randn(p.shape, dtype=p.dtype, generator=made)
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    p += sign * 1e-2 * way
                    values.append(loss().item())
                    p -= sign * 1e-2 * way
            slope = (values[0] - values[1]) / 2e-2
            assert (gradient * way).sum().item() == pytest.approx(slope, rel=5e-3, abs=1e-3)


def test_the_projection_leaves_no_gradient_along_the_constraint() -> None:
    chosen = shaken(selector(), 2)
    gradients = torch.autograd.grad(chosen.sparsity(), [chosen.rank_loga, chosen.gate_loga])
    assert max(g.abs().max() for g in gradients) < 1e-6
    assert chosen.penalty() == 0
    assert not chosen.lambdas.requires_grad


@pytest.mark.parametrize("gates", [True, False])
def test_expected_ratios_are_those_of_the_draws(gates: bool) -> None:
    """Share of bins that are alive after each layer, over many draws of the masks."""
    chosen = shaken(selector(gates=gates, constraint="lagrangian", first=1), 3)
    with torch.no_grad():
        chosen.rank_loga.sub_(3.5)
        chosen.gate_loga.add_(3.0)
    expected = [r.item() for r in chosen.ratios(*chosen.logits())]
    torch.manual_seed(0)
    share = torch.zeros(LAYERS - 1, dtype=torch.float64)
    for _ in range(2000):
        chosen.sample()
        assert chosen._z is not None
        rank, gate = (z.detach() for z in chosen._z)
        alive = (1 - (1 - (rank > 0).double()) * gate[:, None]).cumprod(0).mean(1)
        share += torch.cat([torch.ones(1, dtype=torch.float64), alive]) / 2000
    assert share.tolist() == pytest.approx(expected, abs=0.02)
    assert expected[0] == 1 > expected[1] > expected[2]
    assert chosen.sparsity().item() == pytest.approx(
        1 - expected_share(chosen.cost, expected, LENGTHS), abs=1e-6
    )


def test_multipliers_ascend_until_the_target_is_met() -> None:
    """Masks descend on the penalty and multipliers ascend, in the trainer's own optimizer."""
    chosen = selector("2x", constraint="lagrangian")
    learn = Learn(chosen, "received", probes=None)
    learner = Learner(copy.deepcopy(double()), Classify(), label_weight=0.0, policy=learn)
    training = Training(mask_lr=0.05)
    fake: Any = SimpleNamespace(learner=learner, training=training, text_lengths=[9] * 9)
    fake._weights = lambda: list(learner.model.parameters())
    optimizer = StageTrainer.create_optimizer(fake)
    assert [g.get("maximize", False) for g in optimizer.param_groups] == [False, False, True]
    seen: list[tuple[float, float, float]] = []
    for _ in range(400):
        optimizer.zero_grad()
        loss = chosen.penalty()
        loss.backward()
        off = chosen.sparsity().item() - chosen.target()
        optimizer.step()
        seen.append((off, *chosen.lambdas.tolist()))
    assert seen[0][0] < -0.4  # far too dense at first, so the first multiplier goes down
    assert seen[5][1] < seen[0][1] < 0
    assert all(b[2] >= a[2] - 1e-9 for a, b in pairwise(seen[:20]))
    assert min(abs(off) for off, *_ in seen) < 0.01
    assert abs(np.mean([off for off, *_ in seen[-100:]])) < 0.1


def test_penalty_by_hand() -> None:
    chosen = selector("2x", constraint="lagrangian")
    with torch.no_grad():
        chosen.lambdas.copy_(torch.tensor([-0.3, 2.0]))
    off = chosen.sparsity().item() - 0.5
    assert chosen.penalty().item() == pytest.approx(-0.3 * off + 2 * off**2)
    (gradient,) = torch.autograd.grad(chosen.penalty(), chosen.lambdas)
    assert gradient.tolist() == pytest.approx([off, off**2])


def test_log_alphas_stay_within_the_papers_limits() -> None:
    chosen = selector(constraint="lagrangian")
    with torch.no_grad():
        chosen.rank_loga.add_(50)
        chosen.gate_loga.sub_(50)
    chosen.sample()
    assert chosen.rank_loga.max().item() == pytest.approx(np.log(100))
    assert chosen.gate_loga.min().item() == pytest.approx(-np.log(100))


# -- the plan ------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 999),
    first=st.integers(0, LAYERS - 2),
    gates=st.booleans(),
    constraint=st.sampled_from(["projection", "lagrangian"]),
)
@settings(deadline=None, max_examples=40)
def test_any_masks_become_a_plan(seed: int, first: int, gates: bool, constraint: str) -> None:
    """Never empty, never before `first`, monotone, with the probe of its first step."""
    chosen = selector("1.1x", first=first, gates=gates, constraint=constraint)
    shaken(chosen, seed, 4.0)
    blank = make_plan("bert", score="probe", protect=(5,), min_tokens=3)
    plan = chosen.plan(blank, PROBES)
    layers = [step.layer for step in plan.steps]
    keeps = [step.keep for step in plan.steps]
    assert layers
    assert min(layers) >= first
    assert keeps == sorted(keeps, reverse=True)
    assert plan.probe == tuple(PROBES[layers[0]].tolist())
    assert (plan.protect, plan.min_tokens, plan.score) == ((5,), 3, "probe")
    opened = hard_open(chosen)
    assert layers == [first + i for i, o in enumerate(opened) if o] or not any(opened)
    if not gates:
        assert layers == list(range(first, LAYERS - 1))


def hard_open(chosen: Selector) -> list[bool]:
    """P(z > 0) >= .5 is log-alpha >= -1.5986."""
    if not chosen.settings.gates:
        return [True] * len(chosen.gate_loga)
    return (chosen.logits()[1] >= -1.5986).tolist()


def test_ratios_of_the_plan_are_the_expected_shares() -> None:
    chosen = selector("1.3x", gates=False, first=1)
    plan = chosen.plan(make_plan("bert"), None)
    expected = chosen.ratios(*chosen.logits())
    assert [float(s.keep) for s in plan.steps] == pytest.approx(
        [r.item() for r in expected[1:]], abs=6e-4
    )
    assert plan.probe is None


def test_without_gates_every_layer_prunes() -> None:
    chosen = selector(gates=False)
    assert not chosen.gate_loga.requires_grad
    chosen.sample()
    assert all(chosen.opens(layer) for layer in range(LAYERS - 1))
    assert not chosen.opens(LAYERS - 1)
    assert len(chosen.plan(make_plan("bert"), None).steps) == LAYERS - 1


def test_no_layer_before_the_first_one_prunes() -> None:
    chosen = selector(gates=False, first=2)
    chosen.sample()
    assert [chosen.opens(layer) for layer in range(LAYERS)] == [False, False, True, False]
