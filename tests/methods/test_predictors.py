"""Networks that choose tokens: Transkimmer's and TR-BERT's formulas by hand, one choice in every
execution, a bundle that brings them along. AdapLeR's and LoT's are in files of their own."""

import copy
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support import executions, synthetic
from support.flops import counted_macs
from support.models import make_model, make_tokenizer
from support.strategies import INNER, LAYERS, make_plan, pad, random_text
from toprune.api import finetune, prune
from toprune.bundle.bundle import Bundle
from toprune.compare.bench import bench
from toprune.data.examples import load
from toprune.errors import UserError
from toprune.export.export import export
from toprune.methods.adapler import AdapLeR, divergence
from toprune.methods.common import Predictors, fit
from toprune.methods.lot import Lot
from toprune.methods.tr_bert import Draw, PolicyGradient, TrBert, advantage, chosen, saliency
from toprune.methods.transkimmer import Transkimmer, drawn
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget
from toprune.plan.cost import executed_macs
from toprune.plan.plan import Plan, Step
from toprune.pruning.attach import attach, attach_policy, attached, detach
from toprune.pruning.policies import Record
from toprune.pruning.predictor import Predictor, add_predictors, predictors_of
from toprune.pruning.tokens import start
from toprune.tasks import Classify
from toprune.training.batches import Collate
from toprune.training.features import encode, lengths
from toprune.training.job import Job, Method
from toprune.training.settings import Training
from toprune.training.stages import teacher_of

ROWS = [random_text(n, n) for n in (24, 17, 9, 3)]


def with_predictors(model: Any, *, normed: bool = True, layers: Any = range(LAYERS - 1)) -> Any:
    torch.manual_seed(0)
    add_predictors(model, layers, INNER, normed=normed)
    return model.eval()


def adaptive(*odds: float, **fields: Any) -> Plan:
    steps = tuple(Step(layer, Fraction(1), value) for layer, value in enumerate(odds))
    return replace(make_plan(), score="predicted", predictor=INNER, steps=steps, **fields)


def states(model: Any, plan: Plan) -> list[Tensor]:
    """Alive places after each layer: (B, S) bool, by the masked execution."""
    attach(model, plan, gather=False)
    with torch.no_grad():
        model(**pad(ROWS))
    run = attached(model)
    assert run is not None
    detach(model)
    return [tokens.alive for tokens in run.tokens if tokens is not None]


def test_a_predictor_by_hand() -> None:
    torch.manual_seed(1)
    network, state = Predictor(3, 2, normed=True), torch.randn(5, 3)
    x = (state - state.mean(1, keepdim=True)) / (state.var(1, correction=0) + 1e-5).sqrt()[:, None]
    h = x @ network.hidden.weight.T + network.hidden.bias
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, correction=0) + 1e-5).sqrt()[:, None]
    gelu = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
    wanted = (gelu @ network.keep.weight.T + network.keep.bias)[:, 0]
    torch.testing.assert_close(network(state), wanted)
    torch.testing.assert_close(network.odds(state), wanted.exp())
    with torch.no_grad():
        network.keep.bias.add_(1000)
        assert network.odds(state).isfinite().all()


def test_who_is_likely_to_stay_stays() -> None:
    """By the odds of the state after attention of the stock model; the first token anyway."""
    model = with_predictors(make_model())
    heard: list[Tensor] = []
    module = model.base_model.encoder.layer[0].attention.output
    hook = module.register_forward_hook(lambda _m, _i, out: heard.append(out))
    with torch.no_grad():
        model(**pad(ROWS))
        odds = predictors_of(model)[0].odds(heard[0])
    hook.remove()
    middle = float(odds[0, 1:].median())
    after = states(model, adaptive(middle))[1]
    for b, row in enumerate(ROWS):
        live = range(len(row))
        stays = [i for i in live if i == 0 or float(odds[b, i]) >= middle]
        if len(stays) >= 2:  # or else the plan's least
            assert after[b].nonzero().view(-1).tolist() == stays
    assert len({int(n) for n in after.sum(1)}) > 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("task", ["classify", "answer", "embed restored"])
def test_executions_agree(
    task: str, normed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # see test_export.py
    resolved, outputs = executions.TASKS[task]
    model = with_predictors(make_model(head=resolved.HEAD, num_labels=outputs), normed=normed)
    steps = (Step(0, Fraction(9, 10), 0.9), Step(1, Fraction(1, 2), 1.0), Step(2, Fraction(1, 3)))
    plan = executions.make_plan(model, resolved, "predicted", ())
    plan = replace(plan, predictor=INNER, steps=steps)
    monkeypatch.setattr(executions, "make_plan", lambda *_: plan)
    executions.check_executions(model, make_tokenizer(), resolved, "predicted", tmp_path / "bundle")


def test_what_they_cost_is_counted() -> None:
    """As torch counts."""
    model = with_predictors(make_model())
    steps = tuple(Step(layer, Fraction(1, layer + 2)) for layer in range(3))
    plan = replace(make_plan(), score="predicted", predictor=INNER, steps=steps)
    attach(model, plan)
    assert counted_macs(model, 20) == executed_macs(sizes_of(model), plan, 20)


def test_a_bundle_brings_them_along(tmp_path: Path) -> None:
    model, plan = with_predictors(make_model(), normed=False, layers=(0, 2)), adaptive(0.9)
    Bundle(model, make_tokenizer(), plan, {"task": "classify"}).save(tmp_path)
    read = Bundle.load(tmp_path)
    weights, other = (dict(m.state_dict()) for m in (model, read.model))
    assert weights.keys() == other.keys()
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    assert sorted(predictors_of(read.model)) == [0, 2]
    for gather in (True, False):
        logits_of_both = [
            attach(m, plan, gather=gather)(**pad(ROWS)).logits.detach() for m in (model, read.model)
        ]
        assert torch.equal(*logits_of_both)


@pytest.mark.filterwarnings("ignore")
def test_their_bundles_can_be_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a dense partner, which asks nobody."""
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # see test_export.py
    model = with_predictors(make_model())
    Bundle(model, make_tokenizer(), adaptive(0.9), {"task": "classify"}).save(tmp_path)
    export(tmp_path)
    report = bench(tmp_path, texts=["w1 w2 w3 w4 w5 w6 w7"] * 2, rounds=5, int8=False)
    assert report["rows"][0]["ratios"]


def test_a_plan_without_its_predictors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a predictor of width 6 at layer 0"):
        attach(make_model(), adaptive(1.0))
    wide = replace(adaptive(1.0), predictor=7)
    with pytest.raises(UserError, match="width 7 at layer 0"):
        attach(with_predictors(make_model()), wide)
    Bundle(with_predictors(make_model()), make_tokenizer(), wide, {"task": "classify"}).save(
        tmp_path
    )
    with pytest.raises(UserError, match="do not fit its plan"):
        Bundle.load(tmp_path)


def test_plans_say_how_wide_they_are() -> None:
    plan = adaptive(0.5, 2.0)
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(UserError, match="needs the width"):
        replace(plan, predictor=None)
    with pytest.raises(UserError, match="the score is 'received'"):
        replace(plan, score="received")
    with pytest.raises(UserError, match="must be positive"):
        adaptive(0.0)
    with pytest.raises(UserError, match="at least 1"):
        replace(plan, predictor=0)


# -- Transkimmer ---------------------------------------------------------------------------------


def test_draws_are_one_or_zero_as_likely_as_told() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([-2.0, 0.0, 1.0]).repeat(20_000, 1).requires_grad_()
    result = drawn(logits, 1.0)
    assert set(result.unique().tolist()) == {0.0, 1.0}
    wanted = torch.tensor([-2.0, 0.0, 1.0]).sigmoid()
    torch.testing.assert_close(result.detach().mean(0), wanted, atol=0.015, rtol=0)
    result.sum().backward()
    assert logits.grad is not None
    assert bool((logits.grad > 0).all())  # of the soft choice: a higher logit is likelier to stay


# -- TR-BERT -------------------------------------------------------------------------------------


def test_the_heuristic_by_hand() -> None:
    grad = torch.tensor([[[1.0, 0.0], [2.0, -1.0]]])
    late = torch.tensor([[[3.0, 5.0], [1.0, 1.0]]])
    state = torch.tensor([[[1.0, 9.0], [0.5, 3.0]]])
    assert saliency(grad, late, state).tolist() == [[2.0, 3.0]]  # |1*2|, |2*.5 - 1*-2|
    plan = replace(make_plan(), steps=(Step(0, Fraction(1, 2)),))
    tokens = start(torch.ones(1, 6, dtype=torch.long))
    matters = torch.tensor([[0.0, 5.0, 1.0, 7.0, 2.0, 3.0]])
    # three of six: the first, which stays anyway, and the best two
    assert chosen(matters, tokens, plan, plan.steps[0]).tolist() == [[1, 1, 0, 1, 0, 0]]


def test_selectors_learn_what_they_are_shown() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(4000, 8, generator=generator)
    wanted = (states[:, 0].abs() > 1).float()  # not linear: the hidden layer is needed
    torch.manual_seed(0)
    selector = Predictor(8, 32, normed=False)
    fit(selector, states, wanted, F.binary_cross_entropy_with_logits, generator)
    right = ((selector(states) > 0) == wanted.bool()).float().mean()
    assert float(right) > 0.9  # none of them: .68
    amounts, network = 0.1 + 3 * wanted, Predictor(8, 32, normed=False)  # not only yes or no
    fit(network, states, amounts, divergence, generator)
    predicted = network.odds(states).detach()
    assert float(predicted.mean()) == pytest.approx(float(amounts.mean()), rel=0.1)
    assert predicted[wanted > 0].mean() > 3 * predicted[wanted == 0].mean()


def test_advantage_by_hand() -> None:
    """Two texts, two draws each: rewards -1 - .5 * 1, -2 - .5 * .5; -3 - .25, -3 - .5"""
    losses, kept = torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([1.0, 0.5, 0.5, 1.0])
    result = advantage(losses, kept, torch.tensor(0.5), 2)
    assert result.tolist() == pytest.approx([0.375, -0.375, 0.125, -0.125])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_policy_gradient_raises_the_reward(fine_tuned: Any, tmp_path: Path) -> None:
    """Selectors that know nothing learn to keep the word that answers and little else."""
    model, tokenizer, alpha = copy.deepcopy(fine_tuned), make_tokenizer(), torch.tensor(1.0)
    train = load(synthetic.DATA, reads=Classify.READS)["train"]
    features = encode(tokenizer, Classify(), train, 64)[:256]
    job = Job(
        model=model,
        tokenizer=tokenizer,
        task=Classify(),
        features=features,
        lengths=lengths(features),
        budget=Budget.parse("2x"),
        method=TrBert(),
        score="predicted",
        training=Training(soft_epochs=1, hard_epochs=0),
        work=tmp_path,
    )
    collate = Collate(tokenizer, teacher_of(job).extras)
    batches = [collate(features[i : i + 32]) for i in range(0, len(features), 32)]
    torch.manual_seed(0)
    selectors = add_predictors(model, (0,), 32, normed=False)
    predictors = Predictors(1.0, 10.0, 1.0, job, selectors)
    predictors.step_lambda = lambda: alpha  # the reward must not change on the way
    policy = Draw(predictors, job)
    attach_policy(model, policy)
    learner = PolicyGradient(model, Classify(), samples=4, policy=policy, label_weight=0.0)
    adam = torch.optim.Adam(selectors.parameters(), lr=3e-3)

    def epoch() -> float:
        """The mean reward of the draws of an epoch."""
        rewards = []
        for batch in batches:
            adam.zero_grad()
            learner(**batch)["loss"].backward()
            adam.step()
            rewards.append(-learner.parts["distill"] - float(alpha * policy.kept[0].mean()))
        return float(np.mean(rewards))

    learner.eval()
    rewards = [epoch() for _ in range(12)]
    assert rewards[-1] > rewards[0] + 0.2
    marks = torch.tensor(tokenizer.convert_tokens_to_ids(synthetic.MARKED))
    likely: dict[bool, list[float]] = {True: [], False: []}
    state = Record([0])
    attach_policy(model, state)
    for batch in batches[:2]:
        with torch.no_grad():
            model(batch["input_ids"], batch["attention_mask"])
            p = predictors.network(0)(state.values[0]).sigmoid()
        free = batch["attention_mask"].bool() & (torch.arange(p.shape[1]) > 0)
        here = torch.isin(batch["input_ids"], marks)
        likely[True] += p[free & here].tolist()
        likely[False] += p[free & ~here].tolist()
    detach(model)
    assert np.mean(likely[True]) > 2 * np.mean(likely[False])


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is good enough to look at what a method leaves behind."""
    torch.manual_seed(0)
    data = {"train": synthetic.rows(400, 0), "test": synthetic.rows(50, 1)}
    training = Training(hard_epochs=4, lr=2e-3, label_weight=1, train_embeddings=True)
    out = tmp_path_factory.mktemp("dense") / "out"
    finetune(synthetic.untrained(), data, out=out, tokenizer=make_tokenizer(), training=training)
    return out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [Transkimmer(), TrBert(samples=4), AdapLeR(), Lot()])
def test_networks_and_weights_are_trained_together(
    dense: Path, method: Method, tmp_path: Path
) -> None:
    """Both move in the soft stage, the log tells of the coefficient, and the file runs."""
    data = {"train": synthetic.rows(200, 2), "test": synthetic.rows(50, 3)}
    training = Training(soft_epochs=2, hard_epochs=0.5, lr=1e-3, seed=3)
    bundle = prune(dense, data, "1.5x", out=tmp_path / "out", method=method, training=training)
    executed = bundle.report["budget"]["executed"]["unpadded"]
    assert executed == pytest.approx(1.5, rel=0.1)  # on 50 other texts
    log = bundle.report["log"] if "log" in bundle.report else bundle.report["training"]["log"]
    lambdas = [entry["lambda"] for entry in log if "lambda" in entry]
    assert len(lambdas) >= 1
    before = Bundle.load(dense).model.state_dict()
    moved = {
        name
        for name, x in bundle.model.state_dict().items()
        if name in before and not torch.equal(x, before[name])
    }
    assert any("encoder.layer.0" in name for name in moved)
    assert np.isfinite([float(x.sum()) for x in bundle.model.state_dict().values()]).all()
