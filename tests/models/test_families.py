"""Families x tasks: in every cell of the matrix the model is the stock one when all tokens stay,
all executions say the same, gradients flow and the cost is what torch counts."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config
from typer.testing import CliRunner

from support import matrix, models
from support.executions import LIMIT, STEPS, check_executions, make_plan
from support.flops import counted_macs
from support.matrix import Cell, Row, cells
from support.strategies import CLS, SEP, pad, random_text
from toprune import cli
from toprune.errors import UserError
from toprune.export.graph import write_onnx
from toprune.export.parity import check, draw
from toprune.export.quantize import quantize
from toprune.models.families import (
    FAMILIES,
    bert,
    family_of,
    has_segments,
    image_shape,
    max_positions,
    sizes_of,
)
from toprune.models.families.support import TASKS, all_support
from toprune.models.heads import task_outputs
from toprune.models.load import read_config
from toprune.plan.cost import dense_macs, executed_macs
from toprune.plan.plan import Score, Step
from toprune.pruning.attach import attach, attached, detach
from toprune.run.engines import OnnxRuntime

pytestmark = pytest.mark.usefixtures("rough_parity")

KEEP_ALL = tuple(replace(step, keep=Fraction(1)) for step in STEPS)
ROWS = [[*random_text(3, n), SEP, *random_text(n - 3, n)[1:]] for n in (24, 7, 15)] + [[CLS]]
QUARTER = (Step(0, Fraction(1, 4)),)
MEANS = [cell for cell in cells() if "classifier_pooling" in cell.row.own]
SINGLE = ("deberta-v2", "modernbert")  # parts of their stock code are in single precision
PAGE = Path(__file__).parents[2] / "docs" / "add-a-family.md"
CELLS = {cell.name: cell for cell in cells()}
every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
every_text = pytest.mark.parametrize(  # images have their own in test_image_models.py
    "cell", [pytest.param(cell, id=name) for name, cell in CELLS.items() if not cell.images]
)
inside = pytest.mark.parametrize(  # families whose attention reads positions
    "name", [name for name, family in FAMILIES.items() if family.rotary or family.bias]
)


def scores(cell: Cell) -> tuple[Score, ...]:
    return ("probe", "received") if cell.column == "classify" else ("probe",)


def batch_of(model: Any, rows: list[list[int]], extra: int = 0) -> dict[str, Tensor]:
    """Texts, or for each of them an image."""
    if FAMILIES[model.config.model_type].images:
        shape = image_shape(model.config)
        drawn = [np.random.default_rng(row).normal(size=shape) for row in rows]
        mask = torch.ones(len(rows), max_positions(model.config), dtype=torch.long)
        return {"pixel_values": torch.from_numpy(np.stack(drawn)), "attention_mask": mask}
    batch = pad(rows, extra)
    if has_segments(model.config):  # the second half of every text
        place = batch["attention_mask"].cumsum(1)
        batch["token_type_ids"] = (2 * place > place.amax(1, keepdim=True)).long()
    return batch


def outputs_by_text(model: Any, cell: Cell, rows: list[list[int]], extra: int = 0) -> list[Tensor]:
    """The outputs for each text, (C,), or for its live tokens, (n, C)."""
    with torch.no_grad():
        outputs, _ = task_outputs(model, cell.task, batch_of(model, rows, extra))
    if not cell.task.BY_TOKEN:
        return list(outputs)
    return [one[: len(row)] for one, row in zip(outputs, rows, strict=True)]


def assert_same(actual: list[Tensor], expected: list[Tensor], tolerance: float = 1e-9) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


# -- the matrix ----------------------------------------------------------------------------------


def check_keep_all(cell: Cell) -> None:
    model = cell.model().double()
    expected = outputs_by_text(model, cell, ROWS)
    tolerance = 1e-5 if cell.row.family in SINGLE else 1e-9
    for score in scores(cell):
        for gather in (True, False):
            attach(model, make_plan(model, cell.task, score, KEEP_ALL), gather=gather)
            assert_same(outputs_by_text(model, cell, ROWS), expected, tolerance)
    assert_same(outputs_by_text(detach(model), cell, ROWS), expected, 0)


def check_one_truth(cell: Cell) -> None:
    model = cell.model().double()
    stock = outputs_by_text(model, cell, ROWS)
    for score in scores(cell):
        plan = make_plan(model, cell.task, score)
        attach(model, plan)
        alone = [outputs_by_text(model, cell, [row])[0] for row in ROWS]
        assert_same(outputs_by_text(model, cell, ROWS), alone)
        assert_same(outputs_by_text(model, cell, ROWS, 5), alone)
        assert_same(outputs_by_text(attach(model, plan, gather=False), cell, ROWS, 5), alone)
        assert (alone[0] - stock[0]).abs().max() > 0.01  # the plan does bite
        detach(model)


def check_gradients(cell: Cell) -> None:
    """Every weight that learns in the stock model learns under a plan, checkpointed or not."""
    model = cell.model().double().train()
    stock = gradients(model, cell)
    plan = make_plan(model, cell.task, "probe")
    gathered = gradients(attach(model, plan), cell)
    assert stock.keys() == {name for name, weight in model.named_parameters()}
    flows = {name for name, gradient in stock.items() if gradient.abs().max() > 1e-9}
    assert flows <= {name for name, gradient in gathered.items() if gradient.abs().max() > 0}
    masked = gradients(attach(model, plan, gather=False), cell)
    assert_same(list(masked.values()), list(gathered.values()))
    if model.supports_gradient_checkpointing:
        attach(model, plan).gradient_checkpointing_enable()
        again = gradients(model, cell)
        run = attached(model)
        assert run is not None
        assert run.calls == 2 * sizes_of(model).layers  # each a second time, on the way back
        assert again.keys() == gathered.keys()
        assert_same(list(again.values()), list(gathered.values()))


def gradients(model: Any, cell: Cell) -> dict[str, Tensor]:
    for module in model.modules():
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.zero_grad()
    batch = batch_of(model, ROWS)
    out, _ = task_outputs(model, cell.task, batch)
    if cell.task.BY_TOKEN:
        out = out * batch["attention_mask"].unsqueeze(-1)
    out.square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check_flops(cell: Cell) -> None:
    """DeBERTa's table of positions, which is projected once a batch and which the exported file
    holds ready, is left out of the count (`counted_macs`)."""
    model = cell.model()
    sizes = sizes_of(model)
    assert counted_macs(model, 24) == dense_macs(sizes, 24, "last")
    for score in scores(cell):
        plan = make_plan(model, cell.task, score)
        attach(model, replace(plan, protect=(), protect_until=None))
        for n in (24, 5):
            assert counted_macs(model, n) == executed_macs(sizes, plan, n)


def check_file(cell: Cell, folder: Path) -> None:
    model, task = cell.model(), cell.task
    plan = make_plan(model, task, "received" if cell.column == "classify" else "probe")
    fp32, int8 = folder / "fp32.onnx", folder / "int8.onnx"
    write_onnx(model, plan, fp32, outputs=task.OUTPUTS, by_token=task.reads_all)
    engine = OnnxRuntime(fp32, threads=1)
    assert check(model, plan, engine.run, LIMIT, outputs=task.OUTPUTS).worst <= 1
    quantize(fp32, int8)
    feeds = draw(model.config, np.random.default_rng(0), [9, 20, 1], LIMIT)
    rounded = OnnxRuntime(int8, threads=1).run(feeds)
    assert rounded.shape == engine.run(feeds).shape
    assert np.isfinite(rounded).all()


def check_bundle(cell: Cell, folder: Path) -> None:
    score: Score = "received" if cell.column == "classify" else "probe"
    check_executions(cell.model(), cell.tokenizer(), cell.task, score, folder / "bundle", 6)


def has_bundle(cell: Cell) -> bool:
    """One cell of every row goes the whole way: saved, exported, loaded and served."""
    return cell.column == cell.row.tasks[0] if cell.row.special else cell.column == "embed"


@every_cell
def test_keep_all_is_the_stock_model(cell: Cell) -> None:
    check_keep_all(cell)


@every_cell
def test_masked_gathered_padded_and_alone_are_one(cell: Cell) -> None:
    check_one_truth(cell)


@every_cell
def test_gradients_flow(cell: Cell) -> None:
    check_gradients(cell)


@every_text
def test_cost_is_what_torch_counts(cell: Cell) -> None:
    check_flops(cell)


@pytest.mark.parametrize(  # all tasks of BERT are in test_every_task.py
    "cell",
    [
        pytest.param(cell, id=name)
        for name, cell in CELLS.items()
        if not cell.images and cell.row != Row("bert")
    ],
)
def test_the_file_is_the_model(cell: Cell, tmp_path: Path) -> None:
    (check_bundle if has_bundle(cell) else check_file)(cell, tmp_path)


def test_a_tick_says_what_the_stock_model_has() -> None:
    """Of checkpointing: the table reads it from a class, the tests ask the model."""
    for support in all_support():
        model = Cell(Row(support.family.name), "classify").model()
        assert model.supports_gradient_checkpointing == support.checkpointing
        assert {"classify", "regress"} <= {*support.tasks}


# -- positions -----------------------------------------------------------------------------------


def far_apart(name: str) -> tuple[Any, list[int]]:
    """(a model under a plan that keeps a quarter of a long text in its first layer, the text)"""
    cell = Cell(Row(name), "classify")
    model = cell.model().double()
    return attach(model, make_plan(model, cell.task, "probe", QUARTER)), random_text(40, 3)


@pytest.mark.parametrize("name", models.FAMILIES)
def test_who_leaves_is_nobodys_key(name: str) -> None:
    """And all others are where they were: against the stock code alone, in which those that have
    left are hidden as keys from the second layer on and every token has its own place."""
    model, text = far_apart(name)
    batch = pad([text], 1)  # without padding there would be no mask to hide them in
    with torch.no_grad():
        actual = model(**batch).logits
    run = attached(model)
    assert run is not None
    assert run.tokens[1] is not None
    alive = torch.zeros(41, dtype=torch.bool)
    alive[run.tokens[1].index[0]] = True
    assert alive.sum() == 10
    layers = list(dict.fromkeys(FAMILIES[name].layers(model.base_model)))
    detach(model)
    calls = 0

    def hide(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            return args, kwargs
        if "attention_mask" in kwargs:
            return args, kwargs | {"attention_mask": hidden(kwargs["attention_mask"], alive)}
        return (args[0], hidden(args[1], alive), *args[2:]), kwargs

    for layer in layers:
        layer.register_forward_pre_hook(hide, with_kwargs=True)
    with torch.no_grad():
        expected = model(**batch).logits
    assert calls == 4
    torch.testing.assert_close(actual, expected, atol=1e-5 if name in SINGLE else 1e-9, rtol=0)


def hidden(mask: Tensor, alive: Tensor) -> Tensor:
    """A mask of transformers, whichever kind, without some keys."""
    if mask.is_floating_point():
        return mask.masked_fill(~alive, torch.finfo(mask.dtype).min)
    return mask & alive


@inside
def test_counting_again_would_be_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what the test above would find: positions of what is left, not of the text."""
    model, text = far_apart(name)
    with torch.no_grad():
        right = model(**pad([text])).logits
    family = FAMILIES[name]

    def recount(positions: Tensor) -> Tensor:
        return torch.arange(positions.shape[1]).expand_as(positions)

    wrong: dict[str, Any] = {}
    if family.rotary is not None:
        turn: Any = family.rotary
        wrong["rotary"] = lambda base, layer, positions: turn(base, layer, recount(positions))
    if family.bias is not None:
        add: Any = family.bias
        wrong["bias"] = lambda base, layer, q, k, one, other: add(
            base, layer, q, k, recount(one), recount(other)
        )
    for field in wrong:
        monkeypatch.setitem(FAMILIES, name, replace(family, **{field: wrong[field]}))
        model, _ = far_apart(name)
        with torch.no_grad():
            assert (model(**pad([text])).logits - right).abs().max() > 1e-3


@inside
def test_positions_of_your_own_are_refused(name: str) -> None:
    model, text = far_apart(name)
    place = torch.arange(40).unsqueeze(0)
    with pytest.raises(ValueError, match="position_ids: leave them out"):
        model(**pad([text]), position_ids=place)


# -- what is refused -----------------------------------------------------------------------------


def test_an_unknown_architecture_is_one_line(tmp_path: Path) -> None:
    GPT2Config().save_pretrained(tmp_path)
    model = Cell(Row("bert"), "classify").model()
    model.config.model_type = "gpt2"
    for look in (lambda: family_of(model), lambda: read_config(tmp_path)):
        with pytest.raises(UserError) as caught:
            look()
        line = str(caught.value)
        assert "\n" not in line
        assert "'gpt2' is not known" in line
        assert ", ".join(FAMILIES) in line
        assert "docs/add-a-family.md" in line
    assert PAGE.is_file()


@pytest.mark.parametrize(
    "cell", [Cell(Row("bert"), "tokens"), Cell(Row("bert"), "answer"), *MEANS], ids=lambda c: c.name
)
def test_a_head_that_reads_every_token_needs_them_back(cell: Cell) -> None:
    model = cell.model()
    plan = make_plan(model, cell.task, "received")
    assert plan.restore == "last"
    with pytest.raises(UserError, match='needs restore="last"'):
        attach(model, replace(plan, restore="none"))
    assert attached(model) is None


# -- for people ----------------------------------------------------------------------------------


def test_the_page_is_up_to_date() -> None:
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert page == matrix.page(), "run: cd tests && python -m support.matrix"


def test_every_family_has_a_row_and_a_note() -> None:
    texts = {name for name, family in FAMILIES.items() if not family.images}
    assert all(family.note.models and family.note.positions for family in FAMILIES.values())
    assert texts == set(models.FAMILIES)


def test_the_command_prints_what_is_supported() -> None:
    done = CliRunner().invoke(cli.app, ["families", "--json"])
    assert done.exit_code == 0, done.output
    printed = {support["family"]: support for support in json.loads(done.stdout)["families"]}
    assert printed.keys() == FAMILIES.keys()
    assert printed["bert"]["tasks"] == list(TASKS)
    assert "answer" in printed["gte"]["missing"]
    assert (printed["vit"]["input"], printed["vit"]["tasks"]) == ("images", ["classify", "regress"])
    assert all(support["since"] == FAMILIES[name].since for name, support in printed.items())
    done = CliRunner().invoke(cli.app, ["families"])
    assert done.exit_code == 0, done.output
    for name in FAMILIES:
        assert re.search(rf"^ *{name} ", done.stdout, re.MULTILINE), name
    assert "docs/add-a-family.md" in done.stdout


def test_the_worked_example_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The code blocks of the page, put into bert.py, registry.py and support/models.py, and run."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    name = "roberta-prelayernorm"
    assert name not in FAMILIES
    file: dict[str, Any] = dict(vars(bert))
    registry: dict[str, Any] = {"FAMILIES": {}}
    tests: dict[str, Any] = dict(vars(models)) | {"CONFIGS": {}}
    exec(blocks[0], file)
    exec(blocks[1], file | registry)
    exec(blocks[2], tests)
    monkeypatch.setitem(FAMILIES, name, registry["FAMILIES"][name])
    monkeypatch.setitem(models.CONFIGS, name, tests["CONFIGS"][name])
    added = matrix.cells_of(Row(name))
    assert [cell.column for cell in added] == list(TASKS)
    checks: list[Callable[[Cell], None]] = [check_keep_all, check_one_truth, check_gradients]
    for cell in added:
        for check_it in [*checks, check_flops]:
            check_it(cell)
    check_file(added[0], tmp_path)
    check_bundle(added[3], tmp_path)
