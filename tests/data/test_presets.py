"""Presets: their names, their recipes and their reports."""

import inspect
from dataclasses import replace

import pytest

from toprune import cli
from toprune.data.glue import GLUE
from toprune.data.presets import find_preset, recipe_of, with_preset
from toprune.data.recipes import SHORT
from toprune.errors import UserError
from toprune.methods.top import Top
from toprune.tasks import TASKS
from toprune.training.settings import FINETUNE, Training


def test_other_names_are_no_presets():
    assert find_preset("wnli") is None
    assert find_preset("classify") is None


@pytest.mark.parametrize(
    ("written", "name"),
    [("sst-2", "sst2"), ("SST-2", "sst2"), ("sts-b", "stsb"), ("sts_b", "stsb"), ("MRPC", "mrpc")],
)
def test_names_as_users_write_them(written: str, name: str):
    assert find_preset(written) is GLUE[name]


def test_short_is_what_the_library_does():
    assert SHORT.soft is None
    assert Training(epochs=SHORT.epochs, **SHORT.training) == Training()
    assert Top(**SHORT.methods.get("top", {})) == Top()
    assert SHORT.score == Top.SCORES[0]
    options = inspect.signature(cli.finetune).parameters
    assert FINETUNE.epochs == options["epochs"].default
    assert FINETUNE.lr == options["lr"].default


@pytest.mark.parametrize("name", GLUE)
def test_every_task_is_whole(name: str):
    preset = GLUE[name]
    assert set(preset.metrics) <= set(TASKS[preset.task].METRICS)
    paper = preset.paper
    Top(**paper.methods["top"])
    Training(**paper.training)
    replace(FINETUNE, **paper.finetune)
    assert paper.training["sparsity_warmup"] < 1


def test_the_recipe_of_the_paper():
    """The README's table: bins, top-k, warm-up and all epochs; SST-2's rate."""
    table = {
        "cola": (20, 10, 50, 100),
        "rte": (100, 20, 50, 80),
        "qqp": (50, 20, 10, 40),
        "mrpc": (50, 20, 150, 200),
        "sst2": (25, 20, 10, 40),
        "mnli": (50, 20, 10, 40),
        "qnli": (50, 20, 10, 40),
        "stsb": (30, 20, 50, 150),
    }
    for name, (bins, top_k, warmup, epochs) in table.items():
        recipe = recipe_of(name, "paper")
        top = recipe.methods["top"]
        assert (top["bins"], top["top_k"]) == (bins, top_k)
        assert (recipe.epochs, recipe.soft) == (epochs, 1)
        assert recipe.training["sparsity_warmup"] * epochs == pytest.approx(warmup)
    assert recipe_of("sst2", "paper").training["lr"] == 1e-5
    lengths = {name: preset.max_length for name, preset in GLUE.items()}
    assert lengths == {n: 128 for n in lengths} | {"cola": 64, "sst2": 64, "stsb": 64, "rte": 256}


def test_schedules_are_for_glue():
    assert recipe_of("classify", None) is recipe_of("mrpc", "short") is SHORT
    with pytest.raises(UserError, match="tasks of GLUE"):
        recipe_of("classify", "short")
    with pytest.raises(UserError, match="use short or paper"):
        recipe_of("mrpc", "long")


def test_the_task_is_judged_by_its_metric_first():
    report = {"metrics": {"accuracy": 1, "f1": 2, "matthews": 3}}
    assert list(with_preset(report, GLUE["cola"])["metrics"]) == ["matthews", "accuracy", "f1"]
    assert list(with_preset(report, GLUE["mrpc"])["metrics"]) == ["f1", "accuracy", "matthews"]
    assert with_preset(report, GLUE["mrpc"])["glue"] == "mrpc"
    assert with_preset(report, None) == report
