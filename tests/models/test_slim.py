"""Slim models: what is cut out was not read, and what is left saves, loads, counts and runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from support.executions import check_executions
from support.executions import make_plan as plan_for
from support.flops import count_macs
from support.models import make_model, make_tokenizer
from support.strategies import pad, random_text
from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.methods.cofi.masks import Masks, attach_masks, fold, masked_norm
from toprune.models.families import family_of, sizes_of
from toprune.models.load import load_model, read_weights
from toprune.models.shape import ENTRY, Shape, shape_of
from toprune.models.slim import Kept, cut, keep_layers, parts_of
from toprune.plan.cost import dense_macs, executed_macs
from toprune.plan.plan import Score
from toprune.pruning.attach import attach
from toprune.tasks import Answer, Classify, Tags, Task

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
ROWS = [random_text(n, n) for n in (24, 17, 9)]
HEADS, INNER, HIDDEN = (1, 3, 4, 2), (10, 33, 1, 64), 21  # of 4, of 64, of 32


def make_masks(layers: tuple[float, ...] = (1, 1, 1, 1), *, soft: bool = True) -> Masks:
    """Random ones with so many open; soft ones are between a fifth and six fifths."""
    draw = torch.Generator().manual_seed(0)

    def some(units: int, count: int) -> torch.Tensor:
        mask = torch.zeros(units)
        mask[torch.randperm(units, generator=draw)[:count]] = 1
        return mask * (torch.rand(units, generator=draw) + 0.2) if soft else mask

    return Masks(
        some(32, HIDDEN),
        [some(4, count) for count in HEADS],
        [some(64, count) for count in INNER],
        [torch.tensor([float(layer)]) for layer in layers],
    )


def make_slim(family: str = "bert", masks: Masks | None = None, **how: Any) -> Any:
    model, masks = make_model(family, **how), masks or make_masks()
    fold(model, masks)
    kept = masks.kept()
    keep_layers(model, kept.layers)
    cut(model, family_of(model), kept)
    return model


@torch.no_grad()
def answers(model: Any) -> list[torch.Tensor]:
    out = model(**pad(ROWS))
    names = ("logits", "start_logits", "end_logits", "last_hidden_state")
    return [getattr(out, name) for name in names if hasattr(out, name)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["sequence", "answer", "tokens"])
@pytest.mark.parametrize("soft", [True, False])
def test_what_is_cut_out_was_not_read(family: str, head: str, soft: bool) -> None:
    """Multipliers of zero, and norms of what is open: the same answers as without the weights."""
    masks, model = make_masks((1, 0, 1, 1), soft=soft), make_model(family, head=head)
    dense = answers(model)
    handles = attach_masks(model, lambda: masks)
    expected = answers(model)
    for handle in handles:
        handle.remove()
    assert all(map(torch.equal, answers(model), dense))
    actual = answers(make_slim(family, masks, head=head))
    live = pad(ROWS)["attention_mask"].bool() if head != "sequence" else slice(None)
    for one, other, whole in zip(actual, expected, dense, strict=True):
        torch.testing.assert_close(one[live], other[live], rtol=1e-4, atol=1e-4)
        assert (other - whole).abs().max() > 0.01


def test_states_of_an_encoder_are_those_that_are_open() -> None:
    masks, model = make_masks(), make_model(head="encoder")
    handles = attach_masks(model, lambda: masks)
    (expected,) = answers(model)
    assert len(handles) == 4 * 5  # a norm; of a layer two and two and itself, but for the last
    (actual,) = answers(make_slim(masks=masks, head="encoder"))
    torch.testing.assert_close(actual, expected[..., masks.hidden > 0], rtol=1e-4, atol=1e-4)
    assert expected[..., masks.hidden == 0].abs().max() == 0


def test_a_masked_norm_by_hand() -> None:
    """Of 1, 3 and 5: mean 3, variance 8/3; the closed 100 is not seen."""
    norm = torch.nn.LayerNorm(4, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 1.0, 7.0, 2.0]))
        norm.bias.copy_(torch.tensor([0.0, 0.5, 7.0, 0.0]))
    x, mask = torch.tensor([1.0, 3.0, 100.0, 5.0]), torch.tensor([1.0, 0.5, 0.0, 1.0])
    unit = (8 / 3) ** -0.5
    expected = torch.tensor([-2 * unit, 0.25, 0.0, 4 * unit])
    torch.testing.assert_close(masked_norm(norm, x, mask), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_it_says_the_same(family: str, tmp_path: Path) -> None:
    model = make_slim(family, make_masks((1, 0, 1, 1)))
    tokenizer = make_tokenizer(family)
    plan = plan_for(model, Classify(), "probe", ())
    Bundle(model, tokenizer, None, {"task": "classify"}).save(tmp_path)
    assert shape_of(model.config) == Shape(HIDDEN, (1, 4, 2), (10, 1, 64))
    loaded = Bundle.load(tmp_path).model
    assert type(loaded) is type(make_model(family))
    assert sizes_of(loaded) == sizes_of(model)
    assert plan.width == HIDDEN
    assert all(map(torch.equal, answers(loaded), answers(model)))
    keep_layers(loaded, [0, 2])  # fewer layers still
    assert shape_of(loaded.config) == Shape(HIDDEN, (1, 2), (10, 64))
    loaded.save_pretrained(tmp_path)
    assert sizes_of(read_weights(tmp_path, Classify())).slim == ((1, 10), (2, 64))


def test_cut_again() -> None:
    """Numbers are of what is there, not of what there was."""
    twice, model = make_slim(), make_slim()
    cut(twice, family_of(twice), Kept(range(4), range(9), [[0]] * 4, [[0], [4, 5], [0], [63]]))
    assert shape_of(twice.config) == Shape(9, (1,) * 4, (1, 2, 1, 1))
    weight = twice.base_model.encoder.layer[1].output.dense.weight
    stock = model.base_model.encoder.layer[1].output.dense.weight
    assert torch.equal(weight, stock[:9, 4:6])
    assert answers(twice)[0].isfinite().all()


def test_a_new_head_on_a_slim_model(tmp_path: Path) -> None:
    """The body is read, the head is new; the old one may be of another size."""
    from toprune.data.examples import Examples

    model = make_slim()
    model.save_pretrained(tmp_path)
    examples = Examples(["w1"] * 3, labels=[0, 1, 2])
    loaded = load_model(tmp_path, Classify(), examples, new_head=True)
    assert loaded.classifier.weight.shape == (3, 32)
    body, stock = loaded.bert.state_dict(), model.bert.state_dict()
    assert all(torch.equal(body[name], stock[name]) for name in stock)
    with pytest.raises(UserError, match="has no trained head"):
        read_weights(tmp_path, Answer())


HOSTILE = [
    {"hidden": HIDDEN},
    {"hidden": HIDDEN, "heads": [1, 3, 4], "inner": [*INNER]},
    {"hidden": HIDDEN, "heads": [*HEADS], "inner": [10, 33, 0, 64]},
    {"hidden": HIDDEN, "heads": [5, 3, 4, 2], "inner": [*INNER]},
    {"hidden": 10**12, "heads": [*HEADS], "inner": [*INNER]},
    {"hidden": True, "heads": [*HEADS], "inner": [*INNER]},
    {"hidden": 21.0, "heads": [*HEADS], "inner": [*INNER]},
    {"hidden": HIDDEN, "heads": "1342", "inner": [*INNER]},
    {"hidden": HIDDEN, "heads": [*HEADS], "inner": [*INNER], "more": 1},
    [HIDDEN, [*HEADS], [*INNER]],
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slim")
    make_slim().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def rewritten(saved: Path, folder: Path, changes: Any) -> Path:
    shutil.copytree(saved, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("shape", HOSTILE, ids=str)
def test_a_shape_that_cannot_be_is_refused(shape: Any, saved: Path, tmp_path: Path) -> None:
    folder = rewritten(saved, tmp_path / "odd", {ENTRY: shape})
    with pytest.raises(UserError, match=r"toprune_shape in config\.json must give hidden") as error:
        Bundle.load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden": 20, "heads": [*HEADS], "inner": [*INNER]},
        {"hidden": HIDDEN, "heads": [1, 3, 4, 1], "inner": [*INNER]},
        {"hidden": HIDDEN, "heads": [*HEADS], "inner": [10, 33, 2, 64]},
    ],
    ids=str,
)
@pytest.mark.parametrize("new_head", [False, True])
def test_a_shape_that_the_weights_do_not_have_is_refused(
    shape: Any, new_head: bool, saved: Path, tmp_path: Path
) -> None:
    folder = rewritten(saved, tmp_path / "odd", {ENTRY: shape})
    with pytest.raises(UserError, match="does not fit its weights") as error:
        read_weights(folder, Classify(), **({"num_labels": 3} if new_head else {}))
    assert "\n" not in str(error.value)


def test_stock_transformers_refuses_it(saved: Path) -> None:
    with pytest.raises(RuntimeError):
        AutoModelForSequenceClassification.from_pretrained(saved)


@pytest.mark.parametrize("family", ["distilbert", "albert", "mpnet", "modernbert"])
def test_other_families_say_so(family: str) -> None:
    with pytest.raises(UserError, match="those of bert, roberta, xlm-roberta, electra, camembert"):
        parts_of(make_model(family), family_of(make_model(family)))


def test_a_shape_for_another_family_is_refused(tmp_path: Path) -> None:
    make_model("mpnet").save_pretrained(tmp_path / "stock")
    shape = {"hidden": HIDDEN, "heads": [*HEADS], "inner": [*INNER]}
    folder = rewritten(tmp_path / "stock", tmp_path / "odd", {ENTRY: shape})
    with pytest.raises(UserError, match="weights of mpnet models"):
        read_weights(folder, Classify())


def counted_macs(model: Any, n: int) -> int:
    """Without the pooler of the base model, which is from the slim width to the stock one."""
    return count_macs(lambda: model.base_model(**pad([random_text(n, n)]))) - HIDDEN * 32


@pytest.mark.parametrize("score", ["received", "probe"])
@pytest.mark.parametrize("n", [2, 11, 40])
def test_cost_is_what_torch_counts(score: Score, n: int) -> None:
    model = make_slim()
    sizes = sizes_of(model)
    assert counted_macs(model, n) == dense_macs(sizes, n, "last")
    plan = plan_for(model, Classify(), score)
    assert counted_macs(attach(model, plan), n) == executed_macs(sizes, plan, n)


def test_cost_of_some_layers() -> None:
    """As of the model without the others."""
    model, kept = make_slim(), [0, 3]
    expected = sizes_of(model).of_layers(kept)
    keep_layers(model, kept)
    assert sizes_of(model) == expected
    assert expected.slim == ((1, 10), (2, 64))


def test_cost_by_hand() -> None:
    """Two layers on three tokens, states of 5, heads of 8; the last layer is for one row."""
    config = make_model().config
    config.num_hidden_layers = 2
    Shape(5, (1, 2), (7, 3)).write(config)
    sizes = family_of(make_model()).sizes(config)
    first = 3 * (4 * 5 * 8 + 2 * 5 * 7) + 9 * 2 * 8  # projections and FFN; pairs
    last = 3 * 2 * 5 * 16 + 2 * 5 * 16 + 3 * 2 * 16 + 2 * 5 * 3  # keys, values; one query; FFN
    assert dense_macs(sizes, 3) == first + last


@pytest.mark.parametrize(
    ("task", "head", "score"),
    [
        (Classify(), "sequence", "probe"),
        (Classify(), "sequence", "received"),
        (Classify(), "sequence", "accumulated"),
        (Tags(stride=0), "tokens", "received"),
    ],
    ids=str,
)
def test_one_truth(
    task: Task, head: str, score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked == gathered == alone == ONNX, and int8 runs, with tokens dropped from a slim model."""
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # as in test_every_task.py
    model = make_slim(head=head, num_labels=3)
    check_executions(model, make_tokenizer(), task, score, tmp_path / "bundle", count=8)


def test_a_slim_model_without_steps_in_onnx(tmp_path: Path) -> None:
    from toprune import Runner
    from toprune.export.export import export

    model, tokenizer = make_slim("roberta", make_masks((1, 0, 1, 1))), make_tokenizer("roberta")
    plan = plan_for(model, Classify(), "received", ())
    Bundle(model, tokenizer, plan, {"task": "classify", "max_length": 24}).save(tmp_path)
    export(tmp_path)
    text = "w1 w2 w3 w4 w5"
    with torch.no_grad():
        expected = model(**tokenizer(text, return_tensors="pt")).logits
    actual = torch.tensor(Runner(tmp_path, threads=1)([text])[0])
    torch.testing.assert_close(actual, expected[0], rtol=1e-4, atol=1e-4)
