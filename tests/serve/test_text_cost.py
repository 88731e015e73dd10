"""The predicted cost of a text is what the plan executes with the sizes that the export stores."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.refusals import one_line_error
from support.resuming import ROWS
from toprune.api import prune
from toprune.bundle.bundle import Bundle
from toprune.export.export import export
from toprune.models.families import sizes_of
from toprune.plan.cost import Sizes, dense_macs, executed_macs
from toprune.plan.plan import Plan, Step
from toprune.run.manifest import PLACE, Manifest
from toprune.run.runner import Runner
from toprune.serve.bundles import Loaded
from toprune.serve.cost import TextCost
from toprune.tasks.tokenize import Row
from toprune.training.settings import Training

TEXTS = [row["text"] for row in ROWS[:6]]
SHED = ("1.4x", "3x")


@pytest.fixture(scope="module")
def bundle(untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cost") / "dial"
    prune(untrained, ROWS, SHED, out=out, training=Training(soft_epochs=0, hard_epochs=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # random weights
        export(out)
    return out


def test_the_export_stores_the_sizes(bundle: Path):
    sizes = sizes_of(Bundle.load(bundle).model)
    manifest = Manifest.load(bundle)
    assert manifest.sizes == sizes
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_the_cost_is_exact_at_each_budget(bundle: Path):
    runner = Runner(bundle, threads=1)
    served = Loaded("one", runner, budgets=SHED)
    sizes = sizes_of(Bundle.load(bundle).model)
    plans = [runner.at(budget).plan for budget in SHED]
    for text, levels in served.encode(TEXTS):
        (row,) = text.rows
        assert [sum(rows[0]) for rows in levels] == [
            executed_macs(sizes, plan, len(row)) for plan in plans
        ]
    (encoded, levels) = served.encode(TEXTS[:1])[0]
    answers = served.run([encoded], 1)
    assert served.executed([encoded], answers, 1) == sum(levels[1][0])


def test_a_batch_costs_a_text_of_full_length_with_all_its_tokens(bundle: Path):
    runner = Runner(bundle, threads=1)
    sizes = sizes_of(Bundle.load(bundle).model)
    for budgets in ((), SHED):
        served = Loaded("one", runner, budgets=budgets)
        assert served.batch_macs == dense_macs(sizes, runner.max_length)
    assert Loaded("one", runner, 12).batch_macs == 12


def test_an_export_without_sizes_is_served(bundle: Path, tmp_path: Path):
    """As toprune wrote it before: usual widths are assumed."""
    old = tmp_path / "old"
    shutil.copytree(bundle, old)
    data = json.loads((old / PLACE).read_text())
    del data["sizes"]
    (old / PLACE).write_text(json.dumps(data))
    runner = Runner(old, threads=1)
    assert runner.manifest.sizes is None
    served, plan = Loaded("old", runner), runner.plan
    sizes = Sizes(plan.n_layers, plan.width, max(1, plan.width // 64), 4 * plan.width)
    for text, levels in served.encode(TEXTS):
        assert sum(levels[0][0]) == executed_macs(sizes, plan, len(text.rows[0]))


def test_sizes_of_another_model_are_refused(bundle: Path):
    runner = Runner(bundle, threads=1)
    assert runner.manifest.sizes is not None
    wide = replace(runner.manifest.sizes, width=999)
    runner.manifest = replace(runner.manifest, sizes=wide)
    with one_line_error("another model"):
        Loaded("one", runner)


BROKEN: dict[str, Any] = {
    "a number": 3,
    "no heads": {"heads": 0},
    "a field too many": {"depth": 3},
    "slim of one layer": {"slim": [[1, 2]]},
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_sizes_are_refused(bundle: Path, case: str):
    data = json.loads((bundle / PLACE).read_text())
    change = BROKEN[case]
    data["sizes"] = data["sizes"] | change if isinstance(change, dict) else change
    with one_line_error("onnx/export.json"):
        Manifest.from_json(json.dumps(data))


def test_the_fallback_is_expected_by_its_share_and_counted_as_it_was():
    """The dense model has more layers than the pruned one: its own sizes count."""
    plan = Plan("bert", 2, 8, "received", (Step(0, Fraction(1, 2)),))
    small, large = Sizes(2, 8, 2, 16), Sizes(4, 8, 2, 32)
    net = SimpleNamespace(dense=SimpleNamespace(sizes=large), fallback=SimpleNamespace(share=0.25))
    runner: Any = SimpleNamespace(plan=plan, manifest=SimpleNamespace(sizes=small), net=net)
    cost = TextCost([runner])
    row = Row(np.arange(10), None)
    pruned, dense = executed_macs(small, plan, 10), dense_macs(large, 10)
    assert sum(cost.predict([row])[0][0]) == pytest.approx(pruned + 0.25 * dense, abs=1)
    assert cost.executed([[row]], [False], 0) == pruned
    assert cost.executed([[row], [row]], [True, False], 0) == 2 * pruned + dense
