"""LTP: thresholds and penalty by hand, the soft mask against plain loops, counts that adapt."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from support import executions
from support.models import make_model, make_tokenizer
from support.strategies import make_plan, pad, random_text
from toprune import Runner
from toprune.bundle.bundle import Bundle
from toprune.compare.bench import bench
from toprune.errors import OutOfReach, UserError
from toprune.export.export import export
from toprune.methods.common import BRAKE
from toprune.methods.ltp import LAMBDA, Ltp, SoftThreshold, Thresholds
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import executed_macs, measured_reduction, reduction
from toprune.plan.plan import Plan, Step
from toprune.pruning.attach import attach, attach_policy, attached, detach
from toprune.training.evaluation import entering
from toprune.training.thresholds import meet, on_the_way, scaled

LENGTHS = Lengths.of([20, 24, 16])
ROWS = [random_text(n, n) for n in (24, 17, 9, 3)]


def thresholds(final: float | None = None, first: int = 0) -> Thresholds:
    sizes = sizes_of(make_model())
    return Thresholds(Ltp(final=final, first=first), sizes, LENGTHS, Budget.parse("2x"))


def adaptive(*values: float, **fields: object) -> Plan:
    steps = tuple(Step(layer, Fraction(1), value) for layer, value in enumerate(values))
    return replace(make_plan(), steps=steps, **fields)


def test_thresholds_start_on_a_line_from_zero() -> None:
    """Four layers, of which the first three may prune; zero itself is never reached."""
    assert thresholds(final=0.04).thresholds().tolist() == pytest.approx([1e-5, 0.01, 0.02])
    assert thresholds().final == pytest.approx(1 / 20)
    assert thresholds(final=0.04, first=1).thresholds().tolist() == pytest.approx([0.01, 0.02])


def test_a_calibrated_start_is_half_way_to_a_schedule() -> None:
    """Half as many tokens leave as in the schedule; the target starts there."""
    model, rows = make_model(), [random_text(20 + i % 9, i) for i in range(40)]
    batches = [pad(rows[:20]), pad(rows[20:])]
    schedule = make_plan("bert", (1, "1/2"), (2, "1/4"))
    plan, shares = on_the_way(model, schedule, batches)
    assert shares == [1, 3 / 4, 5 / 8]
    counts = entering(model, plan, [(None, batch) for batch in batches])
    kept = counts.sum(0) / counts[0:, 0].sum()
    assert kept.tolist() == pytest.approx([1, *shares], abs=0.05)
    first, second = (step.threshold for step in plan.steps)
    result = thresholds()
    result.start_at(plan, shares)
    assert result.thresholds().tolist() == pytest.approx([1e-5, first, second])
    result.progress = 0.0
    before = float(result.log_lambda)
    result.step_lambda()
    assert float(result.log_lambda) == pytest.approx(before)  # it is where it should be
    result.progress = 1.0
    assert result.target() == pytest.approx(0.5)


def test_soft_masks_and_penalty_by_hand() -> None:
    """What every layer's masks are in the mean, over live tokens only."""
    model, result = make_model().double(), thresholds(final=0.05).double()
    policy = SoftThreshold(result)
    attach_policy(model, policy)
    heard: list[tuple[torch.Tensor, torch.Tensor]] = []
    decide = policy.decide

    def listen(layer, state, received, tokens):
        heard.append((received, tokens.alive))
        return decide(layer, state, received, tokens)

    policy.decide = listen
    with torch.no_grad():
        model(**pad(ROWS))
    detach(model)
    wanted = 0.0
    for layer, theta in enumerate((1e-5, 0.0125, 0.025)):
        received, alive = heard[layer]
        masks = []
        for b, row in enumerate(ROWS):
            for i in range(len(row)):
                assert alive[b, i]
                above = (float(received[b, i]) - theta) / (0.05 * 0.1)
                masks.append(1.0 if i == 0 else 1 / (1 + math.exp(-above)))
        wanted += sum(masks) / len(masks)
    result.progress = 0.0
    with torch.no_grad():
        saved = float(result.sparsity())
    assert 0 < saved < 1
    factor = LAMBDA * math.exp(-(1 + BRAKE) * saved)
    assert float(result.penalty().detach()) == pytest.approx(factor * wanted, rel=1e-6)


def test_who_is_below_the_threshold_leaves() -> None:
    """Counts differ between texts of one length; the first token stays whatever it scores."""
    model = make_model()
    rows = [random_text(20, seed) for seed in range(6)]
    attach(model, adaptive(0.05))
    with torch.no_grad():
        model(**pad(rows))
    run = attached(model)
    assert run is not None
    before, after = run.tokens[0], run.tokens[1]
    assert before is not None
    assert after is not None
    detach(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        (attention, *_) = model(**pad(rows), output_attentions=True).attentions
    received = attention.mean((1, 2))  # (B, S): no text is padded
    counts = set()
    for b in range(len(rows)):
        wanted = {0} | {i for i in range(20) if float(received[b, i]) >= 0.05}
        assert set(after.index[b][after.alive[b]].tolist()) == wanted
        counts.add(len(wanted))
    assert len(counts) > 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["classify", "answer", "embed restored"])
def test_executions_agree(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # see test_export.py
    steps = (Step(0, Fraction(9, 10), 0.05), Step(1, Fraction(1, 2), 0.06), Step(2, Fraction(1, 3)))
    monkeypatch.setattr(executions, "STEPS", steps)
    resolved, outputs = executions.TASKS[task]
    model = make_model(head=resolved.HEAD, num_labels=outputs)
    plan = executions.make_plan(model, resolved, "received", steps)
    monkeypatch.setattr(executions, "make_plan", lambda *_: plan)
    executions.check_executions(model, make_tokenizer(), resolved, "received", tmp_path / "bundle")


def test_measured_is_what_the_counts_cost() -> None:
    model = make_model()
    sizes = sizes_of(model)
    plan = make_plan("bert", (0, "1/2"), (2, "1/4"))
    counts = entering(model, plan, [(None, pad(ROWS))])
    assert counts.tolist() == [plan.lengths(len(row)) for row in ROWS]
    result = measured_reduction(sizes, plan, counts, max_length=30)
    expected = reduction(sizes, plan, Lengths.of([len(row) for row in ROWS]), max_length=30)
    assert vars(result) == pytest.approx(vars(expected))
    assert executed_macs(sizes, plan, 24) > 0


@pytest.mark.parametrize("budget", ["1.3x", "2x"])
def test_one_factor_meets_the_budget(budget: str) -> None:
    model = make_model()
    rows = [random_text(20 + i % 9, i) for i in range(60)]
    batches = [pad(rows[:30]), pad(rows[30:])]
    target = Budget.parse(budget)
    plan = meet(model, adaptive(0.01, 0.02, 0.03), batches, sizes_of(model), target)
    first, second, third = (step.threshold for step in plan.steps)
    assert first is not None
    assert (second, third) == (pytest.approx(2 * first), pytest.approx(3 * first))
    counts = entering(model, plan, [(None, batch) for batch in batches])
    result = measured_reduction(sizes_of(model), plan, counts, max_length=28).unpadded
    assert result == pytest.approx(target.reduction, rel=0.02)
    assert len(np.unique(counts[:, 1])) > 1


def test_out_of_reach_of_thresholds() -> None:
    model, plan = make_model(), adaptive(0.0, 0.0, 0.01)
    with pytest.raises(OutOfReach, match="50x is out of reach"):
        meet(model, plan, [pad(ROWS)], sizes_of(model), Budget.parse("50x"))


def test_plans_with_thresholds_are_kept_and_told() -> None:
    plan = adaptive(0.01, 0.02)
    assert plan.adaptive
    assert not make_plan("bert", (0, "1/2")).adaptive
    assert Plan.from_json(plan.to_json()) == plan
    assert "those that score 0.02000 or more" in plan.summary()
    assert [step.threshold for step in scaled(plan, 0.5).steps] == [0.005, 0.01]
    with pytest.raises(UserError, match="must be a finite number"):
        adaptive(math.nan)
    with pytest.raises(UserError, match="only the scores received and predicted"):
        adaptive(0.1, score="random")
    odd = plan.to_json().replace('"threshold": 0.01', '"threshold": "much"')
    with pytest.raises(UserError, match="threshold must be float"):
        Plan.from_json(odd)


@pytest.mark.filterwarnings("ignore")
def test_bench_counts_what_an_adaptive_plan_executes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lengths alone would say that every token stays."""
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # see test_export.py
    model, tokenizer = make_model(), make_tokenizer()
    Bundle(model, tokenizer, adaptive(0.05, 0.06), {"task": "classify"}).save(tmp_path)
    export(tmp_path)
    texts = [f"w1 w{i} w{i + 7} w3 w{2 * i} w9 w{i + 20} w11" for i in range(8)]
    report = bench(tmp_path, texts=texts, rounds=5, int8=False)
    run = Runner(tmp_path, threads=1)
    batches = [(None, pad([row.ids.tolist()])) for row, _ in run.read(texts)]
    counts = entering(model, adaptive(0.05, 0.06), batches)
    wanted = measured_reduction(
        sizes_of(model), adaptive(0.05, 0.06), counts, max_length=report["max_length"]
    )
    assert wanted.unpadded > 1.05
    assert report["rows"][0]["flops"]["unpadded"] == pytest.approx(wanted.unpadded)
