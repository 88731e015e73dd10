"""A file with a dial: one graph runs every budget, and whoever knows nothing of it the default."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from support.resuming import ROWS
from toprune.api import evaluate, prune
from toprune.bundle.bundle import Bundle
from toprune.compare.bench import bench
from toprune.errors import UserError
from toprune.export.export import export
from toprune.export.graph import write_onnx
from toprune.export.parity import draw
from toprune.inspection.explain.explain import explain
from toprune.plan.budget import Lengths
from toprune.plan.cost import reduction
from toprune.plan.dial import KEEP, numerators
from toprune.plan.plan import Plan
from toprune.run.engines import OnnxRuntime, OpenVino
from toprune.run.evaluate import evaluate as measure
from toprune.run.runner import Runner
from toprune.training.settings import Training

pytestmark = [
    pytest.mark.usefixtures("rough_parity"),
    pytest.mark.filterwarnings("ignore"),
]
BUDGETS = ("2x", "1.4x", "3x")
TEXTS = [row["text"] for row in ROWS]


@pytest.fixture(scope="module")
def bundle(untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained, so that answers at different budgets differ."""
    out = tmp_path_factory.mktemp("dial") / "bundle"
    prune(untrained, ROWS, BUDGETS, out=out, training=Training(soft_epochs=0, hard_epochs=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toprune.export.parity.TOLERANCE", 5e-4)
        export(out, int8=True)
    return out


def keep(plan: Plan) -> np.ndarray:
    return np.array(numerators([step.keep for step in plan.steps]))


def alone(model: Bundle, plan: Plan, path: Path) -> OnnxRuntime:
    """The graph of one plan, without a dial."""
    write_onnx(model.model, plan, path)
    return OnnxRuntime(path)


@pytest.mark.parametrize("budget", [*BUDGETS, "1.7x", "55%"])
def test_any_budget_is_the_graph_of_its_plan(budget: str, bundle: Path, tmp_path: Path) -> None:
    loaded, runner = Bundle.load(bundle), Runner(bundle)
    assert loaded.dial is not None
    plan = loaded.dial.plan(budget)
    other = alone(loaded, plan, tmp_path / "alone.onnx")
    rows = runner.encode(TEXTS)
    feeds = [runner._reader.batch(list(row.rows)) for row in rows]
    expected = np.concatenate([other.run(feed) for feed in feeds])
    np.testing.assert_allclose(runner(TEXTS, budget=budget), expected, atol=1e-5)
    np.testing.assert_allclose(Runner(bundle, budget=budget)(TEXTS), expected, atol=1e-5)
    assert runner.at(budget).plan == plan
    if budget != "2x":
        assert np.abs(runner(TEXTS) - expected).max() > 1e-4


def test_every_method_takes_a_budget(bundle: Path) -> None:
    runner, tight = Runner(bundle), Runner(bundle, budget="3x")
    logits = tight(TEXTS)
    assert np.array_equal(np.array(list(runner.stream(TEXTS, budget="3x"))), logits)
    assert runner.predict(TEXTS, budget="3x") == tight.predict(TEXTS)
    assert list(runner.predictions(TEXTS, budget="3x")) == tight.predict(TEXTS)
    assert np.array_equal(tight(TEXTS, budget="2x"), runner(TEXTS))
    assert runner(TEXTS, budget="3x").tolist() != runner(TEXTS).tolist()


def test_threads_do_not_see_the_budget_of_each_other(bundle: Path) -> None:
    runner = Runner(bundle, threads=1)
    expected = {budget: runner(TEXTS[:8], budget=budget) for budget in BUDGETS}
    asked = [*BUDGETS] * 8
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda budget: runner(TEXTS[:8], budget=budget), asked))
    for budget, result in zip(asked, results, strict=True):
        assert np.array_equal(result, expected[budget])


@pytest.mark.parametrize("name", ["model.onnx", "model_int8.onnx"])
def test_stock_sessions_need_not_know_it(name: str, bundle: Path) -> None:
    session = onnxruntime.InferenceSession(str(bundle / "onnx" / name))
    loaded = Bundle.load(bundle)
    assert loaded.dial is not None
    assert loaded.plan is not None
    assert [item.name for item in session.get_inputs()] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
    ]
    assert [item.name for item in session.get_overridable_initializers()] == [KEEP]
    feeds = draw(loaded.model.config, np.random.default_rng(0), [30, 12, 5], 30)

    def run(**more: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, feeds | more)[0])

    assert np.array_equal(run(), run(keep=keep(loaded.plan)))
    assert np.abs(run(keep=keep(loaded.dial.plan("3x"))) - run()).max() > 1e-4


def test_int8_turns_too(bundle: Path) -> None:
    fp32, int8 = (
        Runner(bundle, precision=precision, budget="3x") for precision in ("fp32", "int8")
    )
    assert np.abs(fp32(TEXTS) - int8(TEXTS)).mean() < np.abs(fp32(TEXTS)).mean()


def test_openvino_runs_the_default(bundle: Path) -> None:
    pytest.importorskip("openvino")
    engine = OpenVino(bundle / "onnx" / "model.onnx", threads=1)
    assert KEEP not in engine.inputs
    runner = Runner(bundle, runtime="openvino", threads=1)
    np.testing.assert_allclose(runner(TEXTS), Runner(bundle)(TEXTS), atol=1e-3)
    np.testing.assert_allclose(runner(TEXTS, budget="2x"), runner(TEXTS), atol=1e-6)
    with pytest.raises(UserError, match="runs the default budget 2x only, not 3x"):
        runner(TEXTS, budget="3x")


def test_a_dial_makes_the_file_hardly_larger(bundle: Path, tmp_path: Path) -> None:
    """By what does not grow with the weights: a MiniLM has 90 MB of them."""
    loaded = Bundle.load(bundle)
    assert loaded.plan is not None
    write_onnx(loaded.model, loaded.plan, tmp_path / "one.onnx")
    one, many = tmp_path / "one.onnx", bundle / "onnx" / "model.onnx"
    more = many.stat().st_size - one.stat().st_size
    assert 0 < more < 4096
    assert more < 0.01 * 90e6
    kept = [x.name for x in onnx.load(many).graph.initializer if x.name == KEEP]
    assert kept == [KEEP]


def test_bad_budgets_are_refused(bundle: Path, tmp_path: Path) -> None:
    runner = Runner(bundle)
    for budget, message in {
        "9x": "outside the range that was trained, 1.4x to 3x",
        "fast": "is not valid",
        "12ms": "12ms was not trained",
    }.items():
        with pytest.raises(UserError, match=message):
            runner(TEXTS, budget=budget)
        with pytest.raises(UserError, match=message):
            Runner(bundle, budget=budget)
    changed = tmp_path / "changed"
    shutil.copytree(bundle, changed)
    text = (changed / "dial.json").read_text()
    (changed / "dial.json").write_text(text.replace("1.4x", "1.5x"))
    with pytest.raises(UserError, match="is not the file that was exported"):
        Runner(changed)
    (changed / "dial.json").unlink()
    with pytest.raises(UserError, match=r"dial.json is missing"):
        Runner(changed)


def test_a_bundle_without_a_dial_has_one_budget(bundle: Path, tmp_path: Path) -> None:
    loaded = Bundle.load(bundle)
    plain = replace(loaded, dial=None)
    plain.save(tmp_path / "plain")
    export(tmp_path / "plain")
    with pytest.raises(UserError, match="has one budget and no dial, so 3x cannot be chosen"):
        Runner(tmp_path / "plain", budget="3x")
    with pytest.raises(UserError, match="has one budget and no dial, so 3x cannot be chosen"):
        plain.at("3x")


def test_commands_take_a_budget(bundle: Path) -> None:
    """Each runs the plan of that budget: by FLOPs, and by the tokens that are left."""
    dial = Bundle.load(bundle).dial
    assert dial is not None
    plan = dial.plan("3x")
    report = evaluate(bundle, ROWS, budget="3x")
    assert report["executed"]["unpadded"] == pytest.approx(3, rel=0.1)
    onnx_report = measure(Runner(bundle, budget="3x"), ROWS)
    assert onnx_report["metrics"] == report["metrics"]
    timed = bench(bundle, lengths=[32], rounds=5, seconds=1, int8=False, budget="3x")
    expected = reduction(dial.sizes, plan, Lengths.of([32])).unpadded
    assert timed["rows"][0]["flops"]["unpadded"] == pytest.approx(expected)
    assert timed["budget"] == "3x"
    both = bench(bundle, lengths=[32], rounds=5, seconds=1, int8=False, budget="2.5x,3x")
    assert [row["name"] for row in both["rows"]] == ["length 32 at 2.5x", "length 32 at 3x"]
    assert both["rows"][1]["flops"] == timed["rows"][0]["flops"] != both["rows"][0]["flops"]
    assert both["budget"] == "2.5x,3x"
    windows = [explain(bundle, TEXTS[:1], budget=b).texts[0].windows[0] for b in ("2x", "3x")]
    assert windows[0] != windows[1]
