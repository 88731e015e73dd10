"""The whole method on a task whose important tokens are known because nothing else can answer.

A marked word decides between two classes, and a third class is "no marked word": else one class
could be guessed from the absence of the other's words, and half of the marked words would be free
to go. The model's first layer carries nothing from token to token: else its attention, which runs
before the first drop, tells every token about the marked word, and again it would be free to go.
So a word that is dropped at the first step is lost, and the answer with it.
"""

import copy
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification

from support import marked, synthetic
from support.marked import DATA, Randomly, executed, outcome
from support.models import CONFIGS, make_tokenizer
from toprune.api import prune
from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.methods import top
from toprune.methods.top import Top
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget
from toprune.plan.plan import Plan, Score, Step
from toprune.pruning.attach import attach, attach_policy, detach
from toprune.training.settings import Training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("few_draws"),
]

UNTRAINED = Training(soft_epochs=0, hard_epochs=0)


@pytest.fixture(scope="module")
def fine_tuned() -> Any:
    return marked.fine_tuned(carries=False)


def pruned_at_3x(model: Any, out: Path, score: Score, top: Top, training: Training) -> Bundle:
    return prune(
        copy.deepcopy(model),
        DATA,
        "3x",
        out=out,
        tokenizer=make_tokenizer(),
        score=score,
        method=top,
        training=training,
    )


@pytest.mark.parametrize(
    ("score", "epochs", "lr", "bf16"),
    [("probe", 1, 2e-3, False), ("probe", 1, 2e-3, True), ("received", 4, 1e-3, False)],
)
def test_top_at_3x_keeps_the_word_that_matters(
    fine_tuned: Any, score: Score, epochs: int, lr: float, bf16: bool, tmp_path: Path
) -> None:
    training = Training(soft_epochs=epochs, hard_epochs=1, lr=lr, bf16=bf16)
    bundle = pruned_at_3x(fine_tuned, tmp_path / "out", score, Top(), training)
    plan = bundle.plan
    assert plan is not None
    assert plan.score == score
    assert executed(bundle.model, plan) == pytest.approx(3, rel=0.01)
    assert bundle.report["budget"]["executed"]["unpadded"] == executed(bundle.model, plan)
    assert bundle.report["budget"]["expected"] == pytest.approx(3, rel=0.05)
    ranking = bundle.report["ranking"]["layers"]
    assert [line["layer"] for line in ranking] == [0, 1, 2]
    if score == "probe":  # the dense model's own scores are the target
        assert all(line["start"] == pytest.approx(1, abs=0.01) for line in ranking)
    else:
        assert ranking[0]["soft"] > ranking[0]["start"] + 0.1
        assert ranking[0]["hard"] > ranking[0]["start"] + 0.1

    accuracy, kept = outcome(attach(bundle.model, plan))
    assert accuracy >= 0.98
    assert accuracy == pytest.approx(bundle.report["pruned"]["accuracy"]["value"])
    assert kept[0] >= 0.99
    if score == "probe":  # `received` may let it go later, when layer 1 has told the first token
        assert kept[-1] >= 0.99

    chance = replace(plan, score="received", probe=None)
    torch.manual_seed(0)
    accuracy, kept = outcome(attach_policy(bundle.model, Randomly(chance)))
    assert accuracy < 0.7
    assert kept[0] < 0.5
    assert kept[-1] < 0.2
    assert_loads_as_saved(bundle, tmp_path / "out")


def test_ranking_distillation_is_what_teaches_an_early_layer(
    fine_tuned: Any, tmp_path: Path
) -> None:
    """Nothing else can: the task's gradient does not reach the first layer's queries and keys."""
    training = Training(soft_epochs=1, hard_epochs=1, lr=2e-3)
    bundle = pruned_at_3x(fine_tuned, tmp_path / "out", "received", Top(distill="none"), training)
    assert bundle.plan is not None
    accuracy, kept = outcome(attach(bundle.model, bundle.plan))
    assert kept[0] < 0.6
    assert accuracy < 0.75
    ranking = bundle.report["ranking"]["layers"]
    assert ranking[0]["soft"] < ranking[0]["start"] + 0.1


def assert_loads_as_saved(bundle: Bundle, folder: Path) -> None:
    loaded = Bundle.load(folder)
    weights = detach(bundle.model).state_dict()
    assert loaded.plan == bundle.plan
    assert all(torch.equal(weights[name], x) for name, x in loaded.model.state_dict().items())


def test_without_training_the_probe_keeps_it_too(fine_tuned: Any, tmp_path: Path) -> None:
    bundle = pruned_at_3x(fine_tuned, tmp_path / "out", "probe", Top(), UNTRAINED)
    assert bundle.plan is not None
    assert executed(bundle.model, bundle.plan) == pytest.approx(3, rel=0.01)
    assert "ranking" not in bundle.report
    before = fine_tuned.state_dict()
    assert all(torch.equal(before[name], x) for name, x in bundle.model.state_dict().items())
    accuracy, kept = outcome(attach(bundle.model, bundle.plan))
    assert accuracy >= 0.98
    assert kept[-1] >= 0.99


@pytest.mark.parametrize("score", ["probe", "received"])
@pytest.mark.parametrize("budget", ["1.5x", "2x", "5x"])
def test_budgets_are_met_without_training(budget: str, score: Score, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = CONFIGS["bert"](vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    config.num_hidden_layers = 8
    data = {"train": synthetic.rows(100, 2), "test": synthetic.rows(20, 3)}
    bundle = prune(
        BertForSequenceClassification(config),
        data,
        budget,
        out=tmp_path / "out",
        tokenizer=tokenizer,
        score=score,
        training=UNTRAINED,
    )
    target = Budget.parse(budget).reduction
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(target, rel=0.01)
    assert bundle.plan is not None
    counts = [len(row["text"].split()) + 2 for row in data["train"]]
    sizes = sizes_of(bundle.model)
    costs = [plan_cost(sizes, bundle.plan, counts), plan_cost(sizes, None, counts)]
    assert costs[1] / costs[0] == pytest.approx(target, rel=0.01)


def plan_cost(sizes: Any, plan: Plan | None, counts: list[int]) -> float:
    """MACs of all texts, written out once more: attention on T, feed-forward on what stays."""
    d, inner = sizes.width, sizes.inner
    total = 0.0
    for n in counts:
        tokens = [n] * sizes.layers if plan is None else plan.lengths(n)
        for before, after in pairwise(tokens):
            total += 4 * d * d * before + 2 * d * before**2 + 2 * d * inner * after
        total += 2 * d * d * (tokens[-1] + 1) + 2 * d * tokens[-1] + 2 * d * inner
        total += d * n if plan is not None and plan.score == "probe" else 0
    return total


def test_a_budget_out_of_reach_says_what_can_be_reached(fine_tuned: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"pruned to \d\.\d\dx at most") as error:
        prune(copy.deepcopy(fine_tuned), DATA, "5x", out=out, tokenizer=make_tokenizer())
    assert not list(tmp_path.iterdir())  # nothing left half-written
    reach = str(error.value).split("pruned to ")[1].split(" ")[0]
    model = copy.deepcopy(fine_tuned)
    bundle = prune(model, DATA, reach, out=out, tokenizer=make_tokenizer(), training=UNTRAINED)
    assert bundle.plan is not None
    assert executed(model, bundle.plan) == pytest.approx(float(reach[:-1]), rel=0.01)


def test_a_score_that_ranks_once_ranks_where_calibration_begins(
    fine_tuned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks of earlier layers, which might open for a token or two, are not learned at all."""
    shape = Plan("bert", 4, 32, "received", (Step(1, Fraction(1, 3)),))
    monkeypatch.setattr(top, "calibrated", lambda job, **how: shape)
    training = Training(soft_epochs=0.5, hard_epochs=0, lr=1e-3)
    first_layers: dict[Score, int] = {}
    for score in Top.SCORES:
        bundle = prune(
            copy.deepcopy(fine_tuned),
            DATA,
            "1.5x",
            tokenizer=make_tokenizer(),
            training=training,
            method=Top(gates=False),
            score=score,
        )
        assert bundle.plan is not None
        first_layers[score] = bundle.plan.steps[0].layer
    assert first_layers == {"probe": 1, "received": 0, "probes": 0}
