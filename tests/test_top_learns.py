"""The whole method on a task with known important tokens: it keeps them, at the budget.

One marked word among 12 to 30 decides the class; at 3x about one token in sixteen reaches the last
layer, so that word must be ranked above nearly all others, in every text.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

import synthetic
from conftest import make_tokenizer
from toprune.api import finetune, prune
from toprune.attach import Drop, Follow, attach, attach_policy, attached, detach
from toprune.budget import Budget
from toprune.bundle import Bundle
from toprune.cost import reduction
from toprune.data import load
from toprune.encode import Collate, encode, lengths
from toprune.errors import UserError
from toprune.families import sizes_of
from toprune.fit import Training
from toprune.plan import Plan, Score
from toprune.tokens import Tokens

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DATA = {"train": synthetic.rows(1500, 0), "test": synthetic.rows(300, 1)}
UNTRAINED = Training(soft_epochs=0, hard_epochs=0)


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    model = synthetic.untrained()
    training = Training(hard_epochs=4, lr=2e-3, label_weight=1, train_embeddings=True)
    out = tmp_path_factory.mktemp("dense") / "out"
    report = finetune(model, DATA, out=out, tokenizer=make_tokenizer(), training=training)
    assert report["metrics"]["accuracy"]["value"] >= 0.99
    return model.eval()


class Randomly(Follow):
    """The control: the same plan, tokens dropped at random."""

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        return super().decide(layer, state, torch.rand(state.shape[:2]), tokens)


def outcome(model: Any) -> tuple[float, float]:
    """(accuracy, share of texts whose marked word enters the last layer) on the test set."""
    tokenizer = make_tokenizer()
    features = encode(tokenizer, load(DATA, task="classify")["test"], 64)
    batch = Collate(tokenizer)(features)
    marks = torch.tensor(tokenizer.convert_tokens_to_ids(synthetic.MARKED))
    with torch.no_grad():
        right = model(**batch).logits.argmax(1) == batch.pop("labels")
    run = attached(model)
    assert run is not None
    last = run.at[run.last]
    assert last is not None
    kept = torch.isin(batch["input_ids"].gather(1, last.index), marks) & last.alive
    return right.double().mean().item(), kept.any(1).double().mean().item()


def executed(model: Any, plan: Plan) -> float:
    """Real reduction on the training texts, counted here and not read from the report."""
    features = encode(make_tokenizer(), load(DATA, task="classify")["train"], 64)
    return reduction(sizes_of(model), plan, lengths(features)).unpadded


@pytest.mark.parametrize("score", ["probe", "received"])
def test_top_at_3x_keeps_the_word_that_matters(
    fine_tuned: Any, score: Score, tmp_path: Path
) -> None:
    training = Training(soft_epochs=1, hard_epochs=1, lr=5e-4)
    bundle = prune(
        copy.deepcopy(fine_tuned),
        DATA,
        "3x",
        out=tmp_path / "out",
        tokenizer=make_tokenizer(),
        score=score,
        training=training,
    )
    plan = bundle.plan
    assert plan is not None
    assert plan.score == score
    assert executed(bundle.model, plan) == pytest.approx(3, rel=0.01)
    assert bundle.report["budget"]["executed"]["unpadded"] == executed(bundle.model, plan)
    assert bundle.report["budget"]["expected"] == pytest.approx(3, rel=0.05)

    accuracy, kept = outcome(attach(bundle.model, plan))
    assert accuracy >= 0.98
    assert kept >= 0.99
    assert accuracy == pytest.approx(bundle.report["pruned"]["accuracy"]["value"])

    chance = replace(plan, score="received", probe=None)
    torch.manual_seed(0)
    accuracy, kept = outcome(attach_policy(bundle.model, Randomly(chance)))
    assert accuracy < 0.75
    assert kept < 0.3
    assert_loads_as_saved(bundle, tmp_path / "out")


def assert_loads_as_saved(bundle: Bundle, folder: Path) -> None:
    loaded = Bundle.load(folder)
    own = detach(bundle.model).state_dict()
    assert loaded.plan == bundle.plan
    assert all(torch.equal(own[name], x) for name, x in loaded.model.state_dict().items())


def test_without_training_the_probe_keeps_it_too(fine_tuned: Any, tmp_path: Path) -> None:
    model = copy.deepcopy(fine_tuned)
    bundle = prune(
        model, DATA, "2x", out=tmp_path / "out", tokenizer=make_tokenizer(), training=UNTRAINED
    )
    assert bundle.plan is not None
    assert executed(model, bundle.plan) == pytest.approx(2, rel=0.01)
    before = fine_tuned.state_dict()
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    accuracy, kept = outcome(attach(model, bundle.plan))
    assert accuracy >= 0.98
    assert kept >= 0.99


@pytest.mark.parametrize("score", ["probe", "received"])
@pytest.mark.parametrize("budget", ["1.5x", "2x", "5x"])
def test_budgets_are_met_without_training(budget: str, score: Score, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=32,
        num_hidden_layers=8,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
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
    asked = Budget.parse(budget).reduction
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(asked, rel=0.01)
    assert bundle.plan is not None
    counts = [len(row["text"].split()) + 2 for row in data["train"]]
    sizes = sizes_of(bundle.model)
    both = [plan_cost(sizes, bundle.plan, counts), plan_cost(sizes, None, counts)]
    assert both[1] / both[0] == pytest.approx(asked, rel=0.01)


def plan_cost(sizes: Any, plan: Plan | None, counts: list[int]) -> float:
    """MACs of all texts, written out once more: attention on T, feed-forward on what stays."""
    d, inner = sizes.width, sizes.inner
    total = 0.0
    for n in counts:
        tokens = [n] * sizes.layers if plan is None else plan.lengths(n)
        for before, after in zip(tokens, tokens[1:], strict=False):
            total += 4 * d * d * before + 2 * d * before**2 + 2 * d * inner * after
        total += 2 * d * d * (tokens[-1] + 1) + 2 * d * tokens[-1] + 2 * d * inner
        total += d * n if plan is not None and plan.score == "probe" else 0
    return total


def test_a_budget_out_of_reach_says_what_can_be_reached(fine_tuned: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"at most.*|to 3\.\d\dx at most") as told:
        prune(copy.deepcopy(fine_tuned), DATA, "5x", out=out, tokenizer=make_tokenizer())
    assert not list(tmp_path.iterdir())  # nothing left half-written
    assert np.isclose(float(str(told.value).split("pruned to ")[1].split("x")[0]), 3.98, atol=0.1)
