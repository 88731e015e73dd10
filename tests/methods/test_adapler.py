"""AdapLeR: soft removal, saliency and its loss by hand; what learns from what; hard removal as the
limit of the soft one."""

import copy
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import synthetic
from support.models import make_model, make_tokenizer
from support.strategies import LAYERS, make_plan, pad, random_text
from toprune.data.examples import load
from toprune.methods.adapler import (
    AdapLeR,
    SoftRemoval,
    Thresholds,
    contributions,
    fit_contributions,
    remaining,
    saliency_teacher,
)
from toprune.plan.budget import Budget
from toprune.plan.plan import Plan, Step
from toprune.pruning.attach import attach, attach_policy, attached, detach
from toprune.pruning.policies import UNPROTECTED
from toprune.pruning.predictor import add_predictors, predictors_of
from toprune.tasks import Classify
from toprune.training.batches import Collate
from toprune.training.evaluation import entering
from toprune.training.features import encode, lengths
from toprune.training.job import Job
from toprune.training.settings import Training
from toprune.training.thresholds import thresholds_of

ROWS = [random_text(n, n) for n in (24, 17, 9, 3)]
INNER = 6


def job_of(model: Any, features: list[dict[str, Any]], work: Path, budget: str = "2x") -> Job:
    return Job(
        model=model,
        tokenizer=make_tokenizer(),
        task=Classify(),
        features=features,
        lengths=lengths(features),
        budget=Budget.parse(budget),
        method=AdapLeR(inner=INNER),
        score="predicted",
        training=Training(soft_epochs=1, hard_epochs=0),
        work=work,
    )


def with_predictors() -> Any:
    torch.manual_seed(0)
    model = make_model().double()
    networks = add_predictors(model, range(LAYERS - 1), INNER, normed=False)
    for network in networks.children():  # spread, so that some tokens are above and some below
        torch.nn.init.normal_(network.keep.weight, std=2.0)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return model.eval()


EVEN = replace(
    make_plan("bert", (0, "4/5"), (1, "3/5"), (2, "2/5")),
    score="predicted",
    predictor=INNER,
    min_tokens=1,
)


def removal(model: Any, **settings: Any) -> SoftRemoval:
    """Soft removal whose thresholds keep as many tokens of `ROWS` as `EVEN` does."""
    features = [{"input_ids": row} for row in ROWS]
    job = job_of(model, features, Path("unused"))
    networks: Any = model.base_model.token_predictors
    eta = list(thresholds_of(model, EVEN, [pad(ROWS)]).values())
    selector = Thresholds(job, networks, eta, [0.8, 0.6, 0.4]).double()
    return SoftRemoval(AdapLeR(inner=INNER, **settings), selector, UNPROTECTED)


def test_soft_removal_by_hand() -> None:
    """Whole from the threshold on; half of the uniform share below a threshold of one: e^-5."""
    logits = torch.tensor([3.0, 0.0, math.log(0.5), -50.0], requires_grad=True)
    log_eta = torch.zeros((), requires_grad=True)
    weight = remaining(logits, log_eta, 10.0)
    expected = [1, 1, math.exp(-5), math.exp(-10)]
    assert weight.tolist() == pytest.approx(expected, rel=1e-5)
    weight.sum().backward()
    assert logits.grad is not None
    assert log_eta.grad is not None
    assert logits.grad[0] == 0
    assert logits.grad[2] > 0
    assert log_eta.grad < 0  # a higher threshold leaves less


def test_contributions_are_relative_to_those_left() -> None:
    salient = torch.tensor([[9.0, 1.0, 3.0, 100.0]])
    weight = torch.tensor([[0.0, 1.0, 0.5, 0.0]])  # protected, whole, half gone, padding
    assert contributions(salient, weight)[0, 1:3].tolist() == pytest.approx([0.6, 1.8])


def test_the_loss_by_hand() -> None:
    """gamma * sum (L - l) * the mean over texts of exp(logit) - target * logit, by weight."""
    model = with_predictors()
    policy = removal(model, gamma=0.1, slope=2.0, steeper=1.0)
    attach_policy(model, policy)
    batch = pad(ROWS)
    with torch.no_grad():
        model(**batch)
        salient = torch.randn(batch["input_ids"].shape, dtype=torch.float64)
        loss = float(policy.saliency_loss(salient))
    detach(model)
    assert [layer for layer, _, _ in policy.predicted] == [0, 1, 2]
    expected = 0.0
    for layer, logits, tokens in policy.predicted:
        means = []
        for b, row in enumerate(ROWS):
            live = [
                (float(logits[b, i]), int(tokens.index[b, i]), i)
                for i in range(logits.shape[1])
                if tokens.alive[b, i] and tokens.index[b, i] != 0
            ]
            assert len(live) <= len(row) - 1
            weights = [
                1.0 if tokens.weight is None else float(tokens.weight[b, i]) for *_, i in live
            ]
            shares = [math.exp(float(salient[b, place])) for _, place, _ in live]
            mean = np.average(shares, weights=weights)
            terms = [
                math.exp(logit) - share / mean * logit
                for (logit, _, _), share in zip(live, shares, strict=True)
            ]
            means.append(np.average(terms, weights=weights))
        expected += 0.1 * (LAYERS - layer) * float(np.mean(means))
    assert loss == pytest.approx(expected, rel=1e-6)


def test_lengths_teach_the_thresholds_alone() -> None:
    model = with_predictors()
    policy = removal(model, slope=1.0, steeper=1.0)
    attach_policy(model, policy)
    model(**pad(ROWS))
    detach(model)
    policy.selector.penalty().backward()
    grad = policy.selector.log_eta.grad
    assert grad is not None
    assert bool((grad <= 0).all())  # a higher threshold makes texts shorter
    assert bool((grad[:2] < 0).all())  # no token happens to be below the third
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_target_starts_where_the_thresholds_do() -> None:
    """Or else the coefficient would vanish before the target rises above what is removed."""
    selector = removal(with_predictors()).selector
    selector.progress = 0.0
    assert selector.target() == pytest.approx(float(selector.sparsity()))
    assert 0.2 < selector.target() < 0.5
    selector.progress = 1.0
    assert selector.target() == pytest.approx(0.5)


def test_hard_removal_is_the_limit_of_the_soft_one() -> None:
    model = with_predictors()
    policy = removal(model, slope=1e9)
    attach_policy(model, policy)
    with torch.no_grad():
        soft = model(**pad(ROWS)).logits
    run = attached(model)
    assert run is not None
    counts = [tokens.alive.sum(1).tolist() for tokens in run.entered]
    assert sum(counts[0]) > sum(counts[1]) > sum(counts[2]) > sum(counts[3]) > len(ROWS)
    eta = policy.selector.log_eta.exp().tolist()
    steps = tuple(Step(layer, Fraction(1), value) for layer, value in enumerate(eta))
    plan = replace(EVEN, steps=steps)
    attach(model, plan)
    with torch.no_grad():
        hard = model(**pad(ROWS)).logits
    run = attached(model)
    assert run is not None
    assert [tokens.alive.sum(1).tolist() for tokens in run.entered] == counts
    torch.testing.assert_close(soft, hard)


def test_the_saliency_of_every_training_text(tmp_path: Path) -> None:
    """||gradient x state|| of the margin, one text at a time; the file serves later runs."""
    model = make_model()
    features = [{"input_ids": row, "index": i} for i, row in enumerate(ROWS)]
    job = job_of(model, features, tmp_path)
    teacher = saliency_teacher(job)
    for i, row in enumerate(ROWS):
        states: list[Any] = []
        hook = model.base_model.encoder.layer[0].attention.output.register_forward_hook(
            lambda _m, _i, out, states=states: states.append(out)
        )
        logits = model(**pad([row])).logits
        hook.remove()
        margin = Classify().margin(logits, pad([row])["attention_mask"]).sum()
        (grad,) = torch.autograd.grad(margin, states[0])
        expected = (grad * states[0]).norm(dim=-1)[0].log().detach().numpy()
        part = teacher.scores[teacher.starts[i] : teacher.starts[i + 1], 0]
        np.testing.assert_allclose(part, expected, rtol=1e-3, atol=1e-4)
    written = (tmp_path / "saliency.npy").read_bytes()
    again = saliency_teacher(replace(job, model=make_model()))
    np.testing.assert_array_equal(again.scores, teacher.scores)
    assert (tmp_path / "saliency.npy").read_bytes() == written


@pytest.mark.parametrize("score", ["received", "predicted"])
def test_thresholds_that_keep_as_many_as_a_schedule(score: Any) -> None:
    """Of all texts together, exactly, where there is one step."""
    model = with_predictors()
    rows = [random_text(20 + i % 9, i) for i in range(40)]
    batches = [pad(rows[:20]), pad(rows[20:])]
    inner = INNER if score == "predicted" else None
    plan = replace(make_plan("bert", (1, "2/5")), score=score, predictor=inner, min_tokens=1)
    (found,) = thresholds_of(model, plan, batches).items()
    assert found[0] == 1
    adaptive = replace(plan, steps=(Step(1, Fraction(1), found[1]),))
    numbered = [(None, batch) for batch in batches]
    wanted, kept = (entering(model, p, numbered)[:, 2] for p in (plan, adaptive))
    assert wanted.sum() == kept.sum()
    assert (wanted != kept).any()  # texts differ in how much of them matters


def marked_share(model: Any, plan: Plan) -> float:
    """Share of the test texts whose marked word enters the last layer."""
    tokenizer = make_tokenizer()
    features = encode(tokenizer, Classify(), load(synthetic.DATA, reads=Classify.READS)["test"], 64)
    batch = Collate(tokenizer)(features)
    del batch["labels"]
    marks = torch.tensor(tokenizer.convert_tokens_to_ids(synthetic.MARKED))
    attach(model, plan)
    with torch.no_grad():
        model(**batch)
    run = attached(model)
    assert run is not None
    last = run.entered[-1]
    here = torch.isin(batch["input_ids"].gather(1, last.index), marks) & last.alive
    detach(model)
    return float(here.any(1).double().mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_predictors_find_the_word_that_answers(fine_tuned: Any, tmp_path: Path) -> None:
    """Without a step of training: few tokens stay, and the marked word is one of them."""
    model = copy.deepcopy(fine_tuned)
    train = load(synthetic.DATA, reads=Classify.READS)["train"]
    job = job_of(model, encode(make_tokenizer(), Classify(), train, 64), tmp_path, "2.5x")
    torch.manual_seed(0)
    fit_contributions(job, add_predictors(model, range(LAYERS - 1), INNER, normed=False))
    assert sorted(predictors_of(model)) == list(range(LAYERS - 1))
    schedule = AdapLeR(inner=INNER).schedule(job)
    assert float(schedule.steps[-1].keep) < 0.35
    assert marked_share(model, schedule) > 0.85  # one class can be answered by its absence
    chance = replace(schedule, score="random", predictor=None)
    assert marked_share(model, chance) < 0.6
    outcome = replace(job.method, inner=INNER).learn(  # pyright: ignore[reportArgumentType, reportCallIssue]
        replace(job, training=Training(soft_epochs=0, hard_epochs=0)), resume=False
    )
    assert outcome.plan.adaptive
    assert marked_share(model, outcome.plan) > 0.85
