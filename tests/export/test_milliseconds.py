"""Budgets in milliseconds, on machines whose times are known."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import toprune
from support import synthetic
from support.clockwork import Machine, true_curve
from support.commands import save_model
from support.models import make_model, make_tokenizer
from toprune import api
from toprune.compare.comparison import compare
from toprune.errors import OutOfReach, UserError
from toprune.export import milliseconds, profile
from toprune.export.export import export
from toprune.export.profile import Bench, counts_to, measure_curve
from toprune.models.families import sizes_of
from toprune.plan.budget import Lengths
from toprune.plan.cost import reduction
from toprune.plan.plan import Plan, Score, held_tokens
from toprune.report.terminal import pruned as pruned_table
from toprune.tasks import make_task
from toprune.training.job import dense_plan
from toprune.training.settings import Training

DATA = {"train": synthetic.rows(64, 0), "test": synthetic.rows(32, 1)}
LAYERS = 4
NO_TRAINING = Training(soft_epochs=0, hard_epochs=0)
Use = Callable[[Machine], Machine]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Run what follows on such a machine."""

    def switch(machine: Machine) -> Machine:
        for module in (profile, milliseconds):
            monkeypatch.setattr(module, "OnnxRuntime", machine.open)
        for name in ("with_curve", "meet_time"):
            timed = partial(getattr(milliseconds, name), clock=machine.clock)
            monkeypatch.setattr(api, name, timed)
        return machine

    return switch


def pruned(budget: Any, **more: Any) -> toprune.Bundle:
    options = {"tokenizer": make_tokenizer(), "training": NO_TRAINING, "score": "received"}
    return toprune.prune(make_model(), DATA, budget, **options | more)


def curve_on(machine: Machine, score: Score = "received") -> Any:
    model: Any = make_model()
    blank = Plan("bert", LAYERS, 32, score, (), restore="none")
    bench = Bench(model, make_tokenizer(), make_task("classify"), clock=machine.clock)
    return measure_curve(bench, blank, counts_to(30), lambda line: None)


@pytest.mark.parametrize("score", ["received", "probe", "probes"])
def test_the_curve_of_a_machine_is_found(score: Score, use: Use) -> None:
    """Every whole file that was timed has its time again; steps and FFN are found exactly."""
    machine = use(Machine(true_curve(LAYERS)))
    found = curve_on(machine, score)
    assert found.counts[0] == 1
    assert found.counts[-1] == 30
    for n in found.counts:
        flat = [n] * LAYERS
        parts = [
            curve.total(flat, flat, examples=1, restore="none") for curve in (found, machine.curve)
        ]
        assert parts[0] == pytest.approx(parts[1])
        steps = [curve.ranking(score, [n]) for curve in (found, machine.curve)]
        assert steps[0] == pytest.approx(steps[1], abs=1e-9)


def test_noise_that_only_adds_time_does_not_move_the_curve(use: Use) -> None:
    """Two of three runs are disturbed: the quickest counts."""
    quiet = curve_on(use(Machine(true_curve(LAYERS))))
    rng = np.random.default_rng(0)
    noisy = Machine(true_curve(LAYERS), lambda run: 1 + (rng.random() < 0.6) * rng.random())
    assert curve_on(use(noisy)).milliseconds["attend"] == pytest.approx(
        quiet.milliseconds["attend"], rel=0.02
    )


def test_a_block_in_which_the_speed_changes_is_measured_again(use: Use) -> None:
    """The machine slows down once, by half, in the middle of everything: the blocks before and
    after it are sound, and that block is repeated."""
    plain = use(Machine(true_curve(LAYERS)))
    curve_on(plain)
    middle = plain.runs // 2 + 60  # inside a block
    machine = use(Machine(true_curve(LAYERS), lambda run: 1.5 if run > middle else 1.0))
    found, runs = curve_on(machine), machine.runs
    assert runs > plain.runs
    dense = [found.total([n] * LAYERS, [], examples=1, restore="none") for n in found.counts]
    true = [machine.curve.total([n] * LAYERS, [], examples=1, restore="none") for n in found.counts]
    ratios = np.array(dense) / true
    assert ratios[0] == pytest.approx(1)
    assert ratios[-1] == pytest.approx(1.5)


def test_a_machine_that_never_rests_is_refused(use: Use) -> None:
    drifting = use(Machine(true_curve(LAYERS), lambda run: 1 + run / 300))
    with pytest.raises(UserError, match="too noisy for a budget in ms"):
        curve_on(drifting)


@pytest.mark.parametrize(("budget", "quantile"), [("4ms", "p50"), ("p95:4.5ms", "p95")])
def test_a_budget_is_met(budget: str, quantile: str, use: Use) -> None:
    use(Machine(true_curve(LAYERS)))
    time = pruned(budget).report["time"]
    asked = time["milliseconds"]
    token = 0.25  # in the layers after a step: the texts are short
    assert time["predicted"] == pytest.approx(asked, abs=token)
    assert time["measured"][quantile]["value"] == pytest.approx(asked, abs=token)
    assert time["measured"]["p50"]["value"] <= time["measured"]["p95"]["value"]
    assert time["dense"] > asked


def test_what_the_curve_cannot_foresee_is_corrected_once(use: Use) -> None:
    """Files that drop tokens take a quarter longer than their parts."""
    use(Machine(true_curve(LAYERS), drag=1.25))
    time = pruned("5ms").report["time"]
    assert time["before_correction"] == pytest.approx(6.25, rel=0.04)
    assert time["measured"]["p50"]["value"] == pytest.approx(5, rel=0.04)
    assert time["predicted"] == pytest.approx(5 / 1.25, rel=0.04)


def test_every_time_of_a_dial_is_met(use: Use, tmp_path: Path) -> None:
    """Files that drop tokens take a quarter longer than their parts, so that all are corrected."""
    use(Machine(true_curve(LAYERS), drag=1.25))
    out, token = tmp_path / "dial", 0.3
    bundle = pruned("6ms,5ms", out=out)
    time, dial = bundle.report["time"], bundle.dial
    assert dial is not None
    assert dial.asked == ["6ms", "5ms"]
    assert dial.default_budget.asked == "6ms"
    for asked, one in time["dial"].items():
        assert one["milliseconds"] == float(asked.removesuffix("ms"))
        assert one["before_correction"] > one["milliseconds"] + token
        assert one["measured"]["p50"]["value"] == pytest.approx(one["milliseconds"], abs=token)
    assert time["measured"] == time["dial"]["6ms"]["measured"]
    lengths, sizes = Lengths.from_json(bundle.report["lengths"]), sizes_of(bundle.model)
    for stop, row in zip(dial.stops, bundle.report["dial"], strict=True):
        plan = dial.plan(stop.budget.asked)
        assert stop.budget.reduction == pytest.approx(reduction(sizes, plan, lengths).unpadded)
        assert row["asked"] == stop.budget.asked
        assert row["executed"]["unpadded"] == pytest.approx(stop.budget.reduction)
    assert toprune.Bundle.load(out).dial == replace(dial, default=dial.plan("6ms"))
    table = StringIO()
    Console(file=table, width=120).print(pruned_table(bundle.report))
    assert "measured at 5ms, p50" in table.getvalue()
    exported = export(out)["time"]
    assert list(exported["dial"]) == ["6ms", "5ms"]
    assert exported["dial"]["5ms"]["measured"]["p50"]["value"] > 0  # by the real clock


def test_masks_learn_under_a_time(use: Use) -> None:
    use(Machine(true_curve(LAYERS)))
    training = Training(soft_epochs=1, hard_epochs=0, batch_size=16)
    report = pruned("4ms", training=training).report
    last = [line for line in report["log"] if "sparsity" in line][-1]
    assert last["sparsity"] == pytest.approx(last["target"], abs=0.02)
    time = report["time"]
    reduction = time["dense"] / 4
    assert report["budget"]["expected"] == pytest.approx(reduction, rel=0.05)
    assert time["measured"]["p50"]["value"] == pytest.approx(4, rel=0.03)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("0.5ms", r"can be pruned to \d\.\d\d ms at least; ask for more time"),
        ("100ms", r"the dense model takes \d\.\d\d ms here already"),
    ],
)
def test_budgets_that_cannot_be(budget: str, message: str, use: Use, tmp_path: Path) -> None:
    use(Machine(true_curve(LAYERS)))
    with pytest.raises(UserError, match=message) as caught:
        pruned(budget, out=tmp_path / "small")
    assert isinstance(caught.value, OutOfReach) == (budget == "0.5ms")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["ltp", "joint", "truncate"])
def test_methods_that_take_flops_alone(method: str) -> None:
    with pytest.raises(UserError, match=f"--method {method} takes a budget in FLOPs"):
        pruned("2ms", method=method, score=None)


@pytest.mark.parametrize("method", ["spatten", "lat", "power_bert"])
def test_methods_that_meet_a_time(method: str, use: Use) -> None:
    use(Machine(true_curve(LAYERS)))
    time = pruned("5ms", method=method, score=None).report["time"]
    assert time["measured"]["p50"]["value"] == pytest.approx(5, rel=0.03)


def test_a_profile_is_used_and_checked(use: Use, tmp_path: Path) -> None:
    machine = use(Machine(true_curve(LAYERS)))
    path = tmp_path / "curve.json"
    curve_on(machine).save(path)
    runs = machine.runs
    with pytest.raises(UserError, match="the curve is of another threads"):
        pruned(toprune.Budget("2ms", threads=2), profile=path)
    with pytest.raises(UserError, match="the curve is of another score"):
        pruned("2ms", profile=path, score="probe")
    with pytest.raises(UserError, match="a profile is for a budget in milliseconds"):
        pruned("2x", profile=path)
    assert machine.runs == runs
    time = pruned("4ms", profile=path).report["time"]
    assert time["measured"]["p50"]["value"] == pytest.approx(4, rel=0.03)


def test_runs_that_share_the_dense_model_share_its_curve(use: Use, tmp_path: Path) -> None:
    """As those of a comparison do; the machine is twice as fast when the second run begins."""
    use(Machine(true_curve(LAYERS)))
    first = pruned("5ms", known=tmp_path / "known").report["time"]
    use(Machine(true_curve(LAYERS), lambda run: 0.5))
    second = pruned("4ms", known=tmp_path / "known").report["time"]
    assert second["curve"] == first["curve"]
    assert second["before_correction"] == pytest.approx(2, abs=0.2)
    assert pruned("3ms").report["time"]["dense"] == pytest.approx(first["dense"] / 2)


def test_a_comparison_takes_times(use: Use, tmp_path: Path) -> None:
    use(Machine(true_curve(LAYERS)))
    model = save_model(tmp_path / "dense")
    how: Any = {"training": NO_TRAINING, "out": tmp_path / "compared"}
    report = compare(model, DATA, ["top:received", "spatten"], ["5ms", "6ms"], **how)
    assert [row.get("error") for row in report["rows"]] == [None] * 4
    for row in report["rows"]:
        asked = float(row["budget"].removesuffix("ms"))
        assert row["milliseconds"]["p50"]["value"] == pytest.approx(asked, abs=0.3)


def test_real_files_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine, whatever it is doing: the times mean nothing, but there are some."""
    monkeypatch.setattr("toprune.run.timing.DRIFT", float("inf"))
    model: Any = make_model("albert")  # one layer at several depths
    bench = Bench(model, make_tokenizer(), make_task("classify"), precision="int8")
    curve = measure_curve(bench, dense_plan(model), [2, 8, 20], lambda line: None)
    assert curve.layers == sizes_of(model).layers
    assert curve.total([20] * 4, [], examples=1, restore="none") > 0


def test_protected_texts_are_drawn_as_asked() -> None:
    """The random text at a length has as many protected tokens as the user's."""
    bench = Bench(make_model(), make_tokenizer(), make_task("classify"))
    for protect, until, held in (((), None, 1), ((7, 9), None, 4), ((2,), 2, 6)):
        plan = Plan("bert", 4, 32, "received", (), protect=protect, protect_until=until)
        ids = bench.text(plan, 12, held)["input_ids"][0]
        assert len(ids) == 12
        assert held_tokens(ids.tolist(), protect, until) == held


def test_reports_and_the_card_have_the_times(use: Use, tmp_path: Path) -> None:
    """Terminal, page and card show what was asked and measured, and where; export measures here."""
    use(Machine(true_curve(LAYERS)))
    out = tmp_path / "small"
    bundle = pruned("4ms", out=out)
    value = f"{bundle.report['time']['measured']['p50']['value']:.2f}"
    machine = bundle.report["provenance"]["machine"]
    table = Console(file=StringIO(), width=200, record=True)
    table.print(pruned_table(bundle.report))
    page = (out / "report.html").read_text(encoding="utf-8")
    card = (out / "README.md").read_text(encoding="utf-8")
    for text in (table.export_text(), page, card):
        assert value in text
        assert machine in text
    time = export(out)["time"]
    assert (time["machine"], time["same_machine"], time["asked"]) == (machine, True, "4ms")
    assert time["measured"]["p50"]["length"] == bundle.report["time"]["length"]
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    report["time"]["curve"]["environment"]["machine"] = "elsewhere"
    (out / "report.json").write_text(json.dumps(report), encoding="utf-8")
    lines: list[str] = []
    assert export(out, say=lines.append)["time"]["same_machine"] is False
    assert "timing the file here; the budget was for elsewhere" in lines
