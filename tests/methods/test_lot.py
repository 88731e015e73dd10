"""LoT: who matters by hand; leaps and returns by hand, in every execution and at their real cost;
the soft policy against the hard one."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from support import executions
from support.attached import TEXTS, assert_same, places, pruned
from support.flops import counted_macs
from support.models import make_model, make_tokenizer
from support.strategies import INNER, LAYERS, logits, make_plan, pad, random_text
from toprune.errors import UserError
from toprune.methods.lot import Lot, Route, even_share, first_of_mass
from toprune.methods.transkimmer import Skimmers
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget
from toprune.plan.cost import measured_ratio
from toprune.plan.plan import Plan, Step
from toprune.pruning.attach import attach, attach_policy, detach
from toprune.pruning.predictor import add_predictors, predictors_of
from toprune.tasks import Classify, Embed
from toprune.training.evaluation import entering
from toprune.training.features import lengths
from toprune.training.job import Job
from toprune.training.settings import Training

ROWS = [random_text(n, n) for n in (24, 17, 9, 3)]


def returning(*odds: float, **fields: Any) -> Plan:
    steps = tuple(Step(layer, Fraction(1), value) for layer, value in enumerate(odds))
    plan = replace(make_plan(), score="predicted", predictor=INNER, steps=steps, returns=True)
    return replace(plan, **({"min_tokens": 1} | fields))


def job_of(model: Any, work: Path, task: Any = None, budget: str = "2x") -> Job:
    features = [{"input_ids": row} for row in ROWS]
    return Job(
        model=model,
        tokenizer=make_tokenizer(),
        task=task or Classify(),
        features=features,
        lengths=lengths(features),
        budget=Budget.parse(budget),
        method=Lot(inner=INNER),
        score="predicted",
        training=Training(soft_epochs=1, hard_epochs=0),
        work=work,
    )


def test_who_carries_the_mass_by_hand() -> None:
    """Shares of .5 .3 .2 and .9 .1: with p a little below .8, three of five matter."""
    salient = torch.tensor([[5.0, 3.0, 2.0, 99.0], [1.0, 9.0, 99.0, 99.0]])
    live = torch.tensor([[True, True, True, False], [True, True, False, False]])
    assert first_of_mass(salient, live, 3 / 5).tolist() == [[1, 1, 0, 0], [0, 1, 0, 0]]
    assert first_of_mass(salient, live, 1.0).tolist() == live.float().tolist()
    assert first_of_mass(salient, live, 0.0).sum() == 2  # the best of each text, at least


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("budget", ["1.5x", "2x"])
def test_the_even_share_meets_the_budget(first: int, budget: str, tmp_path: Path) -> None:
    model = make_model()
    job = job_of(model, tmp_path, budget=budget)
    ratios = [1.0] * first + [even_share(job, first)] * (LAYERS - 1 - first)
    entered = [[n, *(n * ratio for ratio in ratios)] for n in map(len, ROWS)]
    sums, squares = (
        [sum(t**k for t in column) for column in zip(*entered, strict=True)] for k in (1, 2)
    )
    cost = job.cost.total(sums, squares, examples=len(ROWS), restore="none")
    whole = [[n] * LAYERS for n in map(len, ROWS)]
    sums, squares = (
        [sum(t**k for t in column) for column in zip(*whole, strict=True)] for k in (1, 2)
    )
    dense = job.cost.total(sums, squares, examples=len(ROWS), restore="none")
    assert dense / cost == pytest.approx(job.budget.reduction, rel=1e-3)


def test_leaps_and_returns_by_hand() -> None:
    """Layers of the stock model on chosen rows: who leaps keeps the state after its last attention,
    and goes on with it where it returns."""
    model = make_model().double().eval()
    torch.manual_seed(0)
    add_predictors(model, range(LAYERS - 1), INNER, normed=True)
    ids = torch.tensor([ROWS[0]])
    layers = model.base_model.encoder.layer
    odds = (1.2, 1.1, 1.0)
    chosen: list[list[int]] = []
    with torch.no_grad():
        x, rows = model.base_model.embeddings(ids), list(range(ids.shape[1]))
        states = torch.empty_like(x)
        for i, layer in enumerate(layers):
            states[:, rows] = layer.attention(x)[0]
            if i < LAYERS - 1:
                scores = predictors_of(model)[i].odds(states)[0]
                rows = [r for r in range(ids.shape[1]) if r == 0 or float(scores[r]) >= odds[i]]
                chosen.append(rows)
            else:
                rows = [0]
            x = layer.feed_forward_chunk(states[:, rows])
        expected = model.classifier(model.dropout(model.base_model.pooler(x)))
    assert set(chosen[1]) - set(chosen[0])  # some return
    attach(model, returning(*odds))
    assert_same(logits(model, [ROWS[0]]), expected)
    assert [sorted(kept) for kept in places(model)[0][1:]] == chosen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["classify", "windows"])
def test_executions_agree(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # see test_export.py
    resolved, outputs = executions.TASKS[task]
    model = make_model(head=resolved.HEAD, num_labels=outputs)
    torch.manual_seed(0)
    add_predictors(model, range(LAYERS - 1), INNER, normed=True)
    plan = returning(1.2, 1.1, 1.0, protect=(3,), min_tokens=2)
    monkeypatch.setattr(executions, "make_plan", lambda *_: plan)
    executions.check_executions(
        model.eval(), make_tokenizer(), resolved, "predicted", tmp_path / "bundle"
    )


def test_what_it_costs_is_counted() -> None:
    """As torch counts: every router reads every token of the text."""
    model, plan = pruned("bert", returning(1.2, 1.1, 1.0)), returning(1.2, 1.1, 1.0)
    model = model.float()
    counts = entering(model, plan, [(None, pad([random_text(20, 20)]))])
    assert (counts[:, 2] > counts[:, 1]).any()
    attach(model, make_plan())
    dense = counted_macs(model, 20)
    attach(model, plan)
    ratio = dense / counted_macs(model, 20)
    assert measured_ratio(sizes_of(model), plan, counts) == pytest.approx(ratio, rel=1e-9)


def sure(model: Any, seed: int) -> None:
    """Routers that are sure: what they draw is what they choose."""
    torch.manual_seed(seed)
    add_predictors(model, range(LAYERS - 1), INNER, normed=True)
    for network in predictors_of(model).values():
        torch.nn.init.normal_(network.keep.weight, std=300.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_soft_policy_computes_what_the_plan_runs(seed: int, tmp_path: Path) -> None:
    model = make_model().double().eval()
    sure(model, seed)
    networks: Any = model.base_model.token_predictors
    selector = Skimmers(0.5, 5.0, 1.0, job_of(model, tmp_path), networks)
    policy = Route(selector, job_of(model, tmp_path), 0.5, Lot())
    attach_policy(model, policy)
    soft = logits(model, TEXTS)
    shares = [float(share) for share in policy.selector.kept]
    detach(model)
    attach(model, returning(1.0, 1.0, 1.0))
    assert_same(logits(model, TEXTS), soft)
    kept = [sum(len(text[i]) for text in places(model)) for i in range(LAYERS)]
    assert shares == pytest.approx([k / kept[0] for k in kept[1:]])
    assert kept[2] != kept[1]


def test_routers_learn_from_the_task_and_from_saliency(tmp_path: Path) -> None:
    """The gradient of the task reaches routers, also for tokens that leap."""
    torch.manual_seed(0)
    model = make_model().eval()
    networks = add_predictors(model, range(LAYERS - 1), INNER, normed=True)
    policy = Route(
        Skimmers(0.5, 5.0, 1.0, job_of(model, tmp_path), networks),
        job_of(model, tmp_path),
        0.5,
        Lot(weight=2.0),
    )
    attach_policy(model, policy)
    batch = pad(ROWS)
    out = model(**batch).logits
    grads = torch.autograd.grad(out.square().sum(), list(networks.parameters()), retain_graph=True)
    assert all(bool(grad.isfinite().all()) and bool(grad.any()) for grad in grads)
    salient = torch.randn(batch["input_ids"].shape)
    loss = policy.saliency_loss(salient)
    wanted = []
    for routed, tokens in policy.routed:
        live = tokens.alive & ~tokens.protected
        target = first_of_mass(salient.exp(), live, 0.5)[live]
        p = routed[live].sigmoid()
        wanted.append(float(-(target * p.log() + (1 - target) * (1 - p).log()).mean().detach()))
    assert float(loss.detach()) == pytest.approx(2 * math.fsum(wanted) / len(wanted), rel=1e-4)
    detach(model)


def test_heads_that_read_every_token_are_refused(tmp_path: Path) -> None:
    model = make_model(head=Embed.HEAD)
    job = job_of(model, tmp_path, task=Embed(pooling="mean"))
    with pytest.raises(UserError, match="heads that read the first token"):
        Lot().learn(job, resume=False)
    with pytest.raises(UserError, match="can return only with"):
        replace(returning(1.0), restore="last")
    with pytest.raises(UserError, match="can return only with"):
        replace(make_plan("bert", (0, "1/2")), returns=True)
