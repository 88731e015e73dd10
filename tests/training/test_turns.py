"""One training for several budgets: every plan of the dial works, and so do plans between them."""

import copy
import itertools
from collections import Counter
from pathlib import Path

import pytest

from support import marked
from support.marked import executed, outcome
from support.models import make_tokenizer
from support.resuming import ROWS, TRAINING, Stopped, same, stop_at
from toprune.api import prune
from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.plan.dial import Dial
from toprune.pruning.attach import attach
from toprune.training.settings import Training
from toprune.training.turns import CYCLE, RUNGS, rung

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("few_draws"),
]
UNTRAINED = Training(soft_epochs=0, hard_epochs=0)


@pytest.mark.slow
def test_all_budgets_keep_the_word_that_matters(tmp_path: Path) -> None:
    dense = marked.fine_tuned(carries=False)
    training = Training(soft_epochs=1, hard_epochs=1, lr=2e-3)
    bundle = prune(
        copy.deepcopy(dense),
        marked.DATA,
        ["2x", "1.5x", "3x"],
        out=tmp_path / "out",
        tokenizer=make_tokenizer(),
        training=training,
    )
    dial, report = bundle.dial, bundle.report
    assert dial is not None
    assert report["budget"]["asked"] == dial.default_budget.asked == "2x"
    assert report["provenance"]["settings"]["budget"] == "2x,1.5x,3x"
    assert bundle.plan == dial.plan("2x")
    assert [row["asked"] for row in report["dial"]] == ["1.5x", "2x", "3x"]
    for row in report["dial"]:
        plan = dial.plan(row["asked"])
        accuracy, kept = outcome(attach(bundle.model, plan))
        assert accuracy >= 0.97
        assert kept[-1] >= 0.97
        assert row["pruned"]["accuracy"]["value"] == pytest.approx(accuracy)
        assert row["executed"]["unpadded"] == executed(bundle.model, plan)
        assert executed(bundle.model, plan) == pytest.approx(float(row["asked"][:-1]), rel=0.01)
    default = report["dial"][1]
    assert default["difference"] == report["difference"]
    assert default["agreement"] == report["agreement"]
    accuracy, _ = outcome(attach(bundle.model, dial.plan("2.5x")))
    assert accuracy >= 0.97
    loaded = Bundle.load(tmp_path / "out")
    assert loaded.dial == dial
    assert loaded.plan == bundle.plan


def test_all_plans_are_those_of_one_model(untrained: Path) -> None:
    """Without training: the same layers and probes, and no layer keeps fewer for a looser budget
    than rounding explains."""
    bundle = prune(untrained, ROWS, "1.3x,2x,2.5x", training=UNTRAINED)
    assert bundle.dial is not None
    plans = list(bundle.dial.plans().values())
    assert len({tuple(step.layer for step in plan.steps) for plan in plans}) == 1
    assert len({(plan.probe, plan.score, plan.restore) for plan in plans}) == 1
    assert "dial" in bundle.report


def test_tokens_that_come_back(untrained: Path) -> None:
    """A head that reads every token gets the dial of a calibrated schedule."""
    pairs = [
        {"text": one["text"], "pair": other["text"], "label": float(one["label"])}
        for one, other in itertools.pairwise(ROWS)
    ]
    bundle = prune(untrained, pairs, "1.5x,2x", task="embed", training=UNTRAINED)
    assert bundle.dial is not None
    assert [row["asked"] for row in bundle.report["dial"]] == ["1.5x", "2x"]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "step"), [("soft", 10), ("hard", 10), ("hard", 0)])
def test_a_resumed_dial_ends_the_same(
    stage: str,
    step: int,
    untrained: Path,
    tmp_path: Path,
    whole: Path,
) -> None:
    halved = tmp_path / "halved"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, stage, step)
        with pytest.raises(Stopped):
            prune(untrained, ROWS, "1.5x,2.5x", out=halved, training=TRAINING)
    with pytest.raises(UserError, match=r"other settings \(budget\)"):
        prune(untrained, ROWS, "1.5x,2x", out=halved, training=TRAINING, resume=True)
    prune(untrained, ROWS, "1.5x,2.5x", out=halved, training=TRAINING, resume=True)
    same(whole, halved)
    assert (halved / "dial.json").read_text() == (whole / "dial.json").read_text()


@pytest.fixture(scope="module")
def whole(untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "bundle"
    prune(untrained, ROWS, "1.5x,2.5x", out=out, training=TRAINING)
    return out


def test_turns_depend_on_seed_and_step_only() -> None:
    rungs = [rung(0, step) for step in range(2000)]
    assert rungs == [rung(0, step) for step in range(2000)]
    assert rungs != [rung(1, step) for step in range(2000)]
    share = Counter(rungs)
    assert share[RUNGS - 1] == 2000 * CYCLE.count("smallest") / len(CYCLE)
    assert share[0] == 2000 * CYCLE.count("largest") / len(CYCLE)
    assert set(share) == set(range(RUNGS))


@pytest.mark.parametrize("method", ["joint", "truncate", "power_bert"])
def test_other_methods_learn_one_budget(method: str, untrained: Path) -> None:
    with pytest.raises(UserError, match="learns one budget at a time"):
        prune(untrained, ROWS, "2x,3x", method=method)


def test_the_tightest_budget_must_be_in_reach(untrained: Path) -> None:
    with pytest.raises(UserError, match="budget 40x is out of reach"):
        prune(untrained, ROWS, "2x,40x")


def test_a_bundle_without_a_dial_keeps_no_old_one(untrained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prune(untrained, ROWS, "1.5x,2x", out=out, training=UNTRAINED)
    bundle = Bundle.load(out)
    assert bundle.plan is not None
    assert Dial.load(out / "dial.json", bundle.plan) == bundle.dial
    prune(untrained, ROWS, "2x", out=out, training=UNTRAINED, overwrite=True)
    assert Bundle.load(out).dial is None
    assert not (out / "dial.json").exists()
