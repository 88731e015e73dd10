"""Comparisons: most of them with a `prune` that writes what we tell it, so that every number of the
table and of the chart is known; one from end to end."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from support import synthetic
from support.models import make_model, make_tokenizer
from support.tables import write_rows
from toprune import cli
from toprune.api import Data
from toprune.compare import comparison as module
from toprune.compare import runs as runs_module
from toprune.compare.comparison import compare
from toprune.compare.runs import plan_runs
from toprune.errors import OutOfReach, UserError
from toprune.methods.ltp import Ltp
from toprune.methods.power_bert import PowerBert
from toprune.methods.tr_bert import TrBert
from toprune.report.terminal import compared_markdown
from toprune.training.settings import Training

TRAINING = Training(soft_epochs=1, hard_epochs=2)
DATA = {"train": synthetic.rows(20, 0), "test": synthetic.rows(100, 1)}
DENSE = 0.9


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.02, "high": value + 0.01}


class Fakes:
    """Stand in for prune, export and bench. A run loses a point for every seed and every 1x."""

    def __init__(self):
        self.calls: list[tuple[str, str | None, str, int]] = []
        self.options: list[dict[str, Any]] = []
        self.errors: dict[str, BaseException] = {}  # by the run's folder
        self.exported: list[str] = []
        self.timed: list[tuple[str, list[Any]]] = []
        self.more: dict[str, Any] = {}  # for the reports
        self.without: tuple[str, ...] = ()  # of the reports' keys

    def prune(self, model: Any, data: Data, budget: str, **options: Any) -> Any:
        out, training = options["out"], options["training"]
        method = getattr(options["method"], "NAME", options["method"])
        self.calls.append((method, options["score"], budget, training.seed))
        self.options.append(options | {"model": model, "data": data})
        if out.name in self.errors:
            raise self.errors[out.name]
        reduction = float(budget.removesuffix("x"))
        pruned = DENSE - 0.01 * (reduction + training.seed)
        report = {
            "task": "classify",
            "examples": 100,
            "max_length": 64,
            "agreement": 0.95,
            "budget": {
                "executed": {"unpadded": reduction, "padded": 2 * reduction, "paper": reduction}
            },
            "kept_per_layer": [20, 10, 10, 5],
            "dense": {"accuracy": figure(DENSE), "matthews": figure(0.5)},
            "pruned": {"accuracy": figure(pruned), "matthews": figure(0.4)},
            "difference": {
                "accuracy": figure(pruned - DENSE) | {"p": 0.04},
                "matthews": figure(-0.1) | {"p": 0.5},
            },
            "provenance": {
                "settings": {
                    "method": method,
                    "score": options["score"] or "probe",
                    "budget": budget,
                    "training": training.settings(),
                }
            },
        }
        report = {k: v for k, v in (report | self.more).items() if k not in self.without}
        out.mkdir()
        (out / "report.json").write_text(json.dumps(report))
        return SimpleNamespace(report=report)

    def export(self, folder: Path, *, int8: bool, say: Any) -> None:
        assert int8
        (folder / "onnx").mkdir()
        (folder / "onnx" / "export.json").touch()
        self.exported.append(folder.name)

    def bench(self, folder: Path, *, texts: list[Any], threads: int, **how: Any) -> dict[str, Any]:
        assert threads == 1
        assert how.get("int8", True)
        self.timed.append((folder.name, texts))
        ratios = [
            {"who": "pruned int8", "over": "dense fp32", "value": 9.0},
            {"who": "pruned fp32", "over": "dense fp32", "value": 1.5 + len(self.timed) / 4},
        ]
        return {"rows": [{"ratios": ratios}]}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    fakes = Fakes()
    monkeypatch.setattr(runs_module, "prune", fakes.prune)
    for name in ("export", "bench"):
        monkeypatch.setattr(module, name, getattr(fakes, name))
    return fakes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(model: Path, tmp_path: Path) -> Call:
    """A comparison in `out`; whatever is given is different from the last one."""

    def run(methods: str = "top,random", budgets: str = "2x,3x", **more: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "out": tmp_path / "out",
            "training": TRAINING,
            "data": DATA,
        } | more
        data = options.pop("data")
        return compare(model, data, methods.split(","), budgets.split(","), **options)

    return run


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "compare.json").read_text())


def names(report: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(row["name"], row["budget"], row["seed"]) for row in report["rows"]]


def drawn(path: Path, name: str) -> list[dict[str, str]]:
    """Attributes of the chart's things of that class, in their order."""
    elements = ElementTree.parse(path).getroot().iter()
    return [thing.attrib for thing in elements if thing.get("class") == name]


# -- what is run -----------------------------------------------------------------------------------


def test_every_run_once_under_the_same_training(fakes: Fakes, call: Call, tmp_path: Path):
    progress: list[str] = []
    report = call("top,top:received,top", "2x,3x", seeds=(0, 1), say=progress.append)
    assert fakes.calls == [
        ("top", None, "2x", 0),
        ("top", None, "2x", 1),
        ("top", "received", "2x", 0),
        ("top", "received", "2x", 1),
        ("top", None, "3x", 0),
        ("top", None, "3x", 1),
        ("top", "received", "3x", 0),
        ("top", "received", "3x", 1),
    ]
    assert all(options["resume"] for options in fakes.options)
    assert {options["training"].hard_epochs for options in fakes.options} == {2}
    folders = [path.name for path in (tmp_path / "out" / "runs").iterdir()]
    assert "top-2x-s0" in folders
    assert "top-received-3x-s1" in folders
    assert len(folders) == len(report["rows"]) == 8
    assert progress[3] == "4 of 8: top:received at 2x, seed 1"
    assert report["rows"][0]["score"] == "probe"


@pytest.mark.parametrize(
    ("methods", "budgets", "seeds", "line"),
    [
        (["top", "tip"], ["2x"], [0], "method 'tip' is not known"),
        (["top:accumulated"], ["2x"], [0], "by probes or probe or received: 'top:accumulated'"),
        (["top:"], ["2x"], [0], "ranks tokens by probes or probe or received"),
        (["top"], ["2x", "much"], [0], "budget 'much' is not valid"),
        (["top"], [], [0], "one budget"),
        ([], ["2x"], [0], "one method"),
        (["top"], ["2x"], [], "one seed"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    methods: list[str], budgets: list[str], seeds: list[int], line: str
):
    with pytest.raises(UserError, match=line):
        plan_runs(methods, budgets, seeds)


def test_a_model_object_would_be_pruned_by_the_first(tmp_path: Path):
    loaded: Any = make_model()
    with pytest.raises(UserError, match="give its path"):
        compare(loaded, DATA, ["top"], ["2x"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- what is there ---------------------------------------------------------------------------------


def test_what_is_there_is_not_done_again(fakes: Fakes, call: Call):
    first = call()
    minutes = [row["minutes"] for row in first["rows"]]
    fakes.calls.clear()
    progress: list[str] = []
    again = call(say=progress.append)
    assert not fakes.calls
    assert progress[0] == "1 of 4: top at 2x (done before)"
    assert again == first
    assert [row["minutes"] for row in again["rows"]] == minutes
    assert None not in minutes


def test_more_may_join_and_nothing_is_lost(fakes: Fakes, call: Call):
    call("top,random", "2x")
    fakes.calls.clear()
    report = call("spatten,random", "2x,3x")
    assert [one[::2] for one in fakes.calls] == [
        ("spatten", "2x"),
        ("spatten", "3x"),
        ("random", "3x"),
    ]
    assert set(names(report)) == {
        ("top", "2x", 0),
        ("random", "2x", 0),
        ("spatten", "2x", 0),
        ("spatten", "3x", 0),
        ("random", "3x", 0),
    }


def test_a_stopped_comparison_goes_on(fakes: Fakes, call: Call, tmp_path: Path):
    fakes.errors["top-3x-s0"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call()
    assert names(read(tmp_path / "out")) == [("top", "2x", 0), ("random", "2x", 0)]
    (tmp_path / "out" / "runs" / "top-3x-s0.partial").mkdir()  # what prune leaves then
    fakes.errors.clear()
    fakes.calls.clear()
    report = call()
    assert [one[::2] for one in fakes.calls] == [("top", "3x"), ("random", "3x")]
    assert [row["minutes"] is None for row in report["rows"]] == [False, False, True, False]
    assert not list((tmp_path / "out").glob(".*"))


def test_a_bundle_without_its_row_is_read(fakes: Fakes, call: Call, tmp_path: Path):
    """Killed after the one was written and before the other."""
    before = call()
    (tmp_path / "out" / "compare.json").unlink()
    fakes.calls.clear()
    after = call()
    assert not fakes.calls
    assert after["rows"] == [row | {"minutes": None} for row in before["rows"]]


@pytest.mark.parametrize(
    ("changed", "which"),
    [
        ({"training": Training(soft_epochs=1, hard_epochs=3)}, "training"),
        ({"training": Training(soft_epochs=1, hard_epochs=2, lr=1e-5)}, "training"),
        ({"data": Data(DATA, max_length=32)}, "data"),
        ({"data": {"train": DATA["train"], "test": DATA["train"]}}, "data"),
        ({"task": "mrpc"}, "task"),
        ({"protect_first": True}, "protect_first"),
    ],
)
def test_other_settings_are_refused(
    changed: dict[str, Any], which: str, fakes: Fakes, call: Call, tmp_path: Path
):
    call("top", "2x")
    before = (tmp_path / "out" / "compare.json").read_bytes()
    with pytest.raises(UserError, match=rf"other settings \({which}\); .* another --out"):
        call("top", "3x", **changed)
    assert len(fakes.calls) == 1
    assert (tmp_path / "out" / "compare.json").read_bytes() == before


def test_a_comparison_keeps_the_stages_that_it_began_with(fakes: Fakes, call: Call):
    """One from before `soft_steps` has epochs for both stages; now the default leaves them open."""
    call("top", "2x", training=Training(soft_epochs=1, hard_epochs=4))
    call("top", "3x", training=Training())
    stages = [options["training"].stage_epochs for options in fakes.options]
    assert stages == [(1, 4), (1, 4)]


def test_all_runs_of_a_comparison_use_bfloat16_or_none(
    fakes: Fakes, call: Call, monkeypatch: pytest.MonkeyPatch
):
    """A machine that joins later does not decide again."""
    monkeypatch.setattr("toprune.training.bfloat16.NARROW", 1)
    for budget, support in (("2x", False), ("3x", True)):
        monkeypatch.setattr("toprune.training.bfloat16.is_supported", lambda value=support: value)
        call("top", budget)
    assert [options["training"].bf16 for options in fakes.options] == [False, False]


def test_every_method_searches_in_full(fakes: Fakes, call: Call, tmp_path: Path):
    """A comparison that began before goes on as it began, for further methods too."""
    call("top,ltp,power_bert,tr_bert", "2x")
    methods = [options["method"] for options in fakes.options]
    calibrated = [Ltp(start="calibrated"), PowerBert(start="calibrated"), TrBert(samples=4)]
    assert methods == ["top", *calibrated]
    path = tmp_path / "out" / "settings.json"
    settings = json.loads(path.read_text())
    assert settings.pop("full_search")
    path.write_text(json.dumps(settings))
    call("ltp,power_bert", "3x")
    assert [options["method"] for options in fakes.options[4:]] == ["ltp", "power_bert"]


def test_the_seed_of_a_training_does_not_count(fakes: Fakes, call: Call):
    call("top", "2x")
    call("top", "2x", training=Training(soft_epochs=1, hard_epochs=2, seed=7))
    assert fakes.calls == [("top", None, "2x", 0)]


def test_a_place_with_other_things_is_refused(fakes: Fakes, call: Call, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter").touch()
    with pytest.raises(UserError, match="holds no comparison"):
        call()
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match="holds no comparison"):
        call()
    assert not fakes.calls


def test_a_run_from_elsewhere_is_refused(fakes: Fakes, call: Call, tmp_path: Path):
    call("top,random", "2x")
    runs = tmp_path / "out" / "runs"
    (runs / "random-2x-s0").replace(runs / "spatten-2x-s0")
    with pytest.raises(UserError, match="spatten-2x-s0 holds the bundle of another run"):
        call("spatten", "2x")
    (runs / "top-2x-s0").replace(runs / "top-2x-s1")
    with pytest.raises(UserError, match="top-2x-s1 holds the bundle of another run"):
        call("top", "2x", seeds=(1,))


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_budget_out_of_reach_does_not_stop_the_others(fakes: Fakes, call: Call, tmp_path: Path):
    line = "budget 9x is out of reach: this model can be pruned to 4.00x at most; ask for less"
    fakes.errors["top-9x-s0"] = OutOfReach(line)
    progress: list[str] = []
    report = call("top,random", "9x,2x", say=progress.append)
    row = report["rows"][0]
    assert row == {
        "name": "top",
        "method": "top",
        "score": None,
        "budget": "9x",
        "seed": 0,
        "error": line,
        "out_of_reach": True,
    }
    assert line in progress
    assert len(report["rows"]) == 4
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "| top | none, see below | 88.0 (-2.0 [-4.0, -1.0]) |" in text
    assert f"- top at 9x, seed 0: {line}" in text
    assert len(drawn(tmp_path / "out" / "compare.svg", "marker")) == 3
    fakes.calls.clear()
    assert call("top,random", "9x,2x") == report
    assert not fakes.calls  # it would be the same again


def test_nothing_in_reach(fakes: Fakes, call: Call, tmp_path: Path):
    fakes.errors["top-9x-s0"] = OutOfReach("budget 9x is out of reach")
    report = call("top", "9x")
    assert "metric" not in report
    assert "No method could be measured." in compared_markdown(report)
    assert not (tmp_path / "out" / "compare.svg").exists()


def test_bad_input_stops_at_once_and_leaves_nothing(fakes: Fakes, call: Call, tmp_path: Path):
    fakes.errors["top-2x-s0"] = UserError("there is no file reviews.csv")
    with pytest.raises(UserError, match=r"reviews\.csv"):
        call()
    assert len(fakes.calls) == 1
    assert not (tmp_path / "out").exists()


def test_a_training_that_was_begun_stays(fakes: Fakes, call: Call, tmp_path: Path):
    begun = tmp_path / "out" / "runs" / "top-2x-s0.partial"
    fakes.errors["top-2x-s0"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call()
    begun.mkdir()
    fakes.errors["top-2x-s0"] = UserError("the loss became nan at step 3; try a smaller --lr")
    with pytest.raises(UserError, match="nan"):
        call()
    assert begun.exists()
    assert (tmp_path / "out" / "settings.json").exists()


def test_one_that_fails_among_others_is_told_and_tried_again(fakes: Fakes, call: Call):
    fakes.errors["random-2x-s0"] = UserError("the loss became nan at step 3; try a smaller --lr")
    report = call("top,random,spatten", "2x")
    assert "nan at step 3" in report["rows"][1]["error"]
    assert len(report["rows"]) == 3
    fakes.errors.clear()
    fakes.calls.clear()
    report = call("top,random,spatten", "2x")
    assert fakes.calls == [("random", None, "2x", 0)]
    assert [row["name"] for row in report["rows"] if "error" not in row] == [
        "top",
        "random",
        "spatten",
    ]


# -- what is written -------------------------------------------------------------------------------


def test_the_report_by_hand(fakes: Fakes, call: Call, tmp_path: Path):
    report = call("top", "2x", seeds=(0, 2))
    assert read(tmp_path / "out") == report
    assert report["task"] == "classify"
    assert report["metric"] == "accuracy"
    assert report["examples"] == 100
    assert report["settings"] == json.loads((tmp_path / "out" / "settings.json").read_text())
    assert report["environment"].keys() == {"machine", "versions", "commit"}
    row = report["rows"][1]
    assert (row["seed"], row["agreement"], row["kept_per_layer"]) == (2, 0.95, [20, 10, 10, 5])
    assert row["executed"] == {"unpadded": 2, "padded": 4, "paper": 2}
    assert row["pruned"]["accuracy"]["value"] == pytest.approx(0.86)
    assert row["difference"]["matthews"]["p"] == 0.5
    (mean,) = report["means"]
    assert mean["seeds"] == 2
    assert mean["pruned"]["value"] == pytest.approx(0.87)  # of .88 and .86
    assert mean["difference"] == pytest.approx({"value": -0.03, "low": -0.05, "high": -0.02})
    assert report["dense"] == pytest.approx({"value": 0.9, "low": 0.88, "high": 0.91})


def test_the_table_by_hand(fakes: Fakes, call: Call, tmp_path: Path):
    call("top:received", "2x", seeds=(0, 1))
    call("random", "3x", seeds=(0, 1))
    lines = (tmp_path / "out" / "compare.md").read_text().splitlines()
    assert lines[0] == (
        "accuracy in points on 100 examples that training never saw; in parentheses the "
        "difference to dense [with its 95 % interval]; means over 2 seeds, also of the interval "
        "ends. Dense: 90.0 [88.0, 91.0]."
    )
    assert lines[2] == (
        "Budgets count real FLOPs, against unpadded inputs. Against inputs padded to the maximum "
        "(64) they are about 4.00x for 2x, 6.00x for 3x."
    )
    assert lines[4:] == [
        "| method | 2x | 3x |",
        "| --- | ---: | ---: |",
        "| top:received | 87.5 (-2.5 [-4.5, -1.5]) | - |",
        "| random | - | 86.5 (-3.5 [-5.5, -2.5]) |",
    ]


def test_the_chart_by_hand(fakes: Fakes, call: Call, tmp_path: Path):
    """y from 85 (90 less 3 less 2) to 90 in steps of one: 66 pixels a point. x from 1 to 3: 245
    pixels for one."""
    call("top,random", "3x,2x")
    path = tmp_path / "out" / "compare.svg"
    places = [(float(m["cx"]), float(m["cy"])) for m in drawn(path, "marker")]
    assert places == [(315, 182), (560, 248)] * 2  # 88 at 2x, 87 at 3x
    ends = [(float(bar["y1"]), float(bar["y2"])) for bar in drawn(path, "interval")]
    assert ends == [(314, 116), (380, 182)] * 2  # 86 to 89, 85 to 88
    (level,) = drawn(path, "level")
    assert float(level["y1"]) == 50
    words = [element.text for element in ElementTree.parse(path).getroot() if element.text]
    assert words[-3:] == ["dense", "top", "random"]
    assert "accuracy (points)" in words
    assert "times fewer FLOPs, against unpadded inputs (real)" in words


def test_glue_is_judged_by_its_own_metric(fakes: Fakes, call: Call):
    fakes.more = {"glue": "cola"}
    report = call("top", "2x", task="cola")
    assert report["metric"] == "matthews"
    assert report["dense"]["value"] == 0.5


def test_without_labels_agreement_is_compared(fakes: Fakes, call: Call, tmp_path: Path):
    fakes.without = ("dense", "pruned", "difference")
    report = call("top", "2x")
    assert report["metric"] == "agreement"
    assert report["dense"] == {"value": 1.0}
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "| top | 95.0 (-5.0) |" in text
    assert "Dense: 100.0." in text
    assert len(drawn(tmp_path / "out" / "compare.svg", "marker")) == 1
    assert not drawn(tmp_path / "out" / "compare.svg", "interval")


# -- how fast --------------------------------------------------------------------------------------


def test_every_bundle_is_timed_once_on_the_same_texts(fakes: Fakes, call: Call, tmp_path: Path):
    progress: list[str] = []
    call()
    assert not (tmp_path / "out" / "compare-latency.svg").exists()
    report = call(timed=True, say=progress.append)
    folders = ["top-2x-s0", "random-2x-s0", "top-3x-s0", "random-3x-s0"]
    assert fakes.exported == [folder for folder, _ in fakes.timed] == folders
    held_out = [row["text"] for row in DATA["test"]]
    for _, texts in fakes.timed:
        assert texts == fakes.timed[0][1]
        assert len(set(texts)) == 64
        assert set(texts) <= set(held_out)
    assert any("nothing else should run" in line for line in progress)
    assert [mean["faster"] for mean in report["means"]] == [1.75, 2.0, 2.25, 2.5]
    # x from 1 to 2.6 in steps of .2: 306.25 pixels for one
    markers = drawn(tmp_path / "out" / "compare-latency.svg", "marker")
    assert [float(m["cx"]) for m in markers] == [299.7, 452.8, 376.2, 529.4]
    again = call(timed=True)
    assert len(fakes.timed) == len(fakes.exported) == 4
    assert again["rows"] == report["rows"]
    assert read(tmp_path / "out")["rows"] == report["rows"]


def test_one_that_cannot_be_timed_does_not_stop_the_others(
    fakes: Fakes, call: Call, monkeypatch: pytest.MonkeyPatch
):
    def bench(folder: Path, **how: Any) -> dict[str, Any]:
        if folder.name == "truncate-2x-s0":
            raise UserError("it drops no tokens, there is nothing to compare")
        return fakes.bench(folder, **how)

    monkeypatch.setattr(module, "bench", bench)
    report = call("top,truncate,random", "2x", timed=True)
    assert ["latency" in row for row in report["rows"]] == [True, False, True]
    assert "nothing to compare" in report["rows"][1]["not_timed"]
    assert [mean["faster"] for mean in report["means"]] == [1.75, None, 2.0]


def test_what_was_exported_is_only_timed(fakes: Fakes, call: Call, tmp_path: Path):
    call("top", "2x")
    fakes.export(tmp_path / "out" / "runs" / "top-2x-s0", int8=True, say=print)
    fakes.exported.clear()
    call("top", "2x", timed=True)
    assert not fakes.exported
    assert len(fakes.timed) == 1


# -- from end to end -------------------------------------------------------------------------------


def command(*words: Any) -> Result:
    return CliRunner().invoke(cli.app, ["compare", *map(str, words)])


def test_command_line(model: Path, tmp_path: Path):
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    write_rows(data, synthetic.rows(60, 0))
    words = ("--model", model, "--data", data, "--epochs", 0, "--soft-steps", 400, "--out", out)
    done = command(
        *(*words, "--methods", "top, random", "--budgets", "2x, 50x", "--seeds", "0", "--json"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report.pop("out") == str(out)
    assert report == read(out)
    assert "2 of 4: random at 2x" in done.stderr
    top, random, *unreachable = report["rows"]
    assert (top["score"], random["score"]) == ("probes", "random")
    for row in (top, random):
        assert row["executed"]["unpadded"] == pytest.approx(2, rel=0.01)
        assert row["examples"] == 6
        assert row["dense"] == top["dense"]
        assert (out / row["bundle"] / "plan.json").exists()
    assert all("budget 50x is out of reach" in row["error"] for row in unreachable)
    assert report["settings"]["training"]["epochs"] == 0
    assert report["settings"]["training"]["soft_steps"] == 400

    again = command(*words, "--methods", "top", "--budgets", "2x", "--time")
    assert again.exit_code == 0, again.output
    assert "1 of 1: top at 2x (done before)" in again.stderr
    assert "Against inputs padded to the maximum (66)" in " ".join(again.stdout.split())
    assert f"The comparison is in {out}" in again.stdout
    assert (out / "compare-latency.svg").exists()
    timed = read(out)["rows"][0]["latency"]["rows"][0]
    assert timed["texts"] == 16
    assert {"pruned fp32", "dense fp32", "pruned int8", "dense int8"} <= timed["ms_per_text"].keys()

    other = command(*words, "--methods", "top", "--budgets", "2x", "--max-length", 20)
    assert other.exit_code == 2
    assert other.stderr.startswith("toprune: ")
    assert "other settings (data)" in other.stderr
    assert len(other.stderr.splitlines()) == 1


def test_real_trainings_go_on_where_they_were(model: Path, tmp_path: Path):
    """Two methods of two stages and of one: a comparison that is called twice trains once."""
    options: dict[str, Any] = {
        "out": tmp_path / "out",
        "training": Training(soft_epochs=0.5, hard_epochs=0.5, batch_size=8),
    }
    first = compare(model, DATA, ["top:received", "spatten"], ["2x"], **options)
    again = compare(model, DATA, ["top:received", "spatten"], ["2x"], **options)
    assert again == first
    epochs = []
    for row in first["rows"]:
        report = json.loads((tmp_path / "out" / row["bundle"] / "report.json").read_text())
        training = report["provenance"]["settings"]["training"]
        epochs.append(training["soft_epochs"] + training["hard_epochs"])
        assert row["executed"]["unpadded"] == pytest.approx(2, rel=0.01)
    assert epochs == [1, 1]


@pytest.mark.parametrize("seeds", ["0,x", "-1", ","])
def test_seeds_are_whole_numbers(seeds: str, model: Path, tmp_path: Path):
    done = command(
        *("--model", model, "--budgets", "2x", f"--seeds={seeds}", "--out", tmp_path / "out"),
    )
    assert done.exit_code == 2
    assert "--seeds" in done.stderr
    assert "like 0,1,2" in done.stderr
