"""Fewer layers: which, what is left, what it costs, and that tokens can be pruned afterwards."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from support import synthetic
from support.models import make_model, make_tokenizer
from support.strategies import pad, random_text
from toprune.api import prune
from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.methods.drop_layers import DropLayers, spread
from toprune.models.families import family_of, sizes_of
from toprune.models.slim import keep_layers
from toprune.plan.cost import dense_macs
from toprune.training.settings import Training

ROWS = [random_text(n, n) for n in (24, 17, 9)]


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread(6, 12) == [0, 2, 4, 7, 9, 11]  # as DistilBERT's authors chose
    assert spread(3, 6) == [0, 2, 5]
    assert spread(2, 6) == [0, 5]
    assert spread(1, 6) == [0]


@pytest.mark.parametrize(
    "family",
    ["bert", "roberta", "electra", "distilbert", "mpnet", "deberta-v2", "modernbert", "eurobert"],
)
def test_what_is_left_is_an_ordinary_model(family: str, tmp_path: Path) -> None:
    """The kept layers are those of the dense model; saved and loaded it says the same."""
    model = make_model(family)
    layers = list(family_of(model).layers(model.base_model))
    keep_layers(model, [0, 3])
    left = list(family_of(model).layers(model.base_model))
    assert [id(layer) for layer in left] == [id(layers[0]), id(layers[3])]
    assert sizes_of(model).layers == 2
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert sizes_of(loaded).layers == 2
    batch = pad(ROWS)
    with torch.no_grad():
        assert torch.allclose(loaded(**batch).logits, model(**batch).logits, atol=1e-5)


def test_a_shared_layer_cannot_go() -> None:
    with pytest.raises(UserError, match="one layer many times"):
        keep_layers(make_model("albert"), [0, 1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_draws")
def test_half_the_layers_learn_and_tokens_can_go_too(fine_tuned: Any, tmp_path: Path) -> None:
    model, half, small = copy.deepcopy(fine_tuned), tmp_path / "half", tmp_path / "small"
    before = sizes_of(model)
    training = Training(soft_epochs=1, hard_epochs=2, lr=1e-3)
    options: dict[str, Any] = {"tokenizer": make_tokenizer(), "training": training}
    method = DropLayers(layers=2)
    report = prune(model, synthetic.DATA, "2x", out=half, method=method, **options).report
    after = sizes_of(Bundle.load(half).model)
    assert after.layers == 2
    counts = {int(n): many for n, many in report["lengths"].items()}
    dense = sum(many * dense_macs(before, n) for n, many in counts.items())
    left = sum(many * dense_macs(after, n) for n, many in counts.items())
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(dense / left)
    assert report["pruned"]["accuracy"]["value"] >= 0.9
    again = prune(half, synthetic.DATA, "1.3x", out=small, training=training).report
    assert again["budget"]["executed"]["unpadded"] == pytest.approx(1.3, rel=0.01)
    assert again["pruned"]["accuracy"]["value"] >= 0.9


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("budget", "layers"), [("1.3x", 3), ("2x", 2), ("9x", 1)])
@pytest.mark.usefixtures("few_draws")
def test_the_budget_says_how_many(budget: str, layers: int, tmp_path: Path) -> None:
    """Four layers, of which the last is nearly free: 1.5x, 2.9x and more are what there is."""
    small = {name: rows[:40] for name, rows in synthetic.DATA.items()}
    bundle = prune(
        make_model(),
        small,
        budget,
        out=tmp_path / "out",
        tokenizer=make_tokenizer(),
        method="drop_layers",
        training=Training(soft_epochs=0, hard_epochs=0),
    )
    assert sizes_of(bundle.model).layers == layers
