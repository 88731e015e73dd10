"""Sweeps: what is written by hand, with a `prune` that writes what we tell it; and real ones, in
turn and on Ray, which must not differ by a bit."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from support import synthetic
from support.models import make_tokenizer
from support.tables import write_rows
from toprune import cli
from toprune.api import Data
from toprune.compare import executors
from toprune.compare import runs as runs_module
from toprune.compare.comparison import compare
from toprune.compare.runs import Row, Run, Subject, WorkItem, execute
from toprune.compare.sweep import Grid, sweep, sweep_markdown, sweep_report
from toprune.errors import OutOfReach, UserError
from toprune.io.ray import cluster
from toprune.methods.top import Top
from toprune.plan.plan import Plan
from toprune.training.settings import Training
from toprune.training.trainer import StageTrainer

TRAINING = Training(soft_epochs=1, hard_epochs=1, batch_size=8, lr=1e-3, bf16=False)
DATA = {"train": synthetic.rows(24, 0), "test": synthetic.rows(40, 1)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and nothing else."""
    folder = tmp_path_factory.mktemp("place")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        synthetic.untrained().save_pretrained(folder / "dense")
    make_tokenizer().save_pretrained(folder / "dense")
    rows = synthetic.rows(60, 0)
    write_rows(folder / "data.jsonl", rows)
    return folder


# -- what is written -------------------------------------------------------------------------------


class Fake:
    """Stands in for prune. What a run loses, in points: its budget, its weight times a hundred, and
    its seed; on the task `two` twice as much."""

    def __init__(self):
        self.calls: list[str] = []
        self.errors: dict[str, BaseException] = {}  # by the run's folder, or by the task's

    def prune(self, model: Any, data: Data, budget: str, **options: Any) -> Any:
        out, method, seed = options["out"], options["method"], options["training"].seed
        task = out.parent.parent.name
        self.calls.append(f"{task}/{out.name}")
        for name in (task, out.name):
            if name in self.errors:
                raise self.errors[name]
        settings = {} if isinstance(method, str) else vars(method)
        reduction = float(budget.removesuffix("x"))
        lost = (2 if task == "two" else 1) * (
            reduction + 100 * settings.get("distill_weight", 0) + seed
        )

        def figure(value: float) -> dict[str, Any]:
            return {"accuracy": {"value": value, "low": value - 0.02, "high": value + 0.01}}

        report = {
            "task": "classify",
            "examples": 100,
            "max_length": 64,
            "agreement": 0.95,
            "budget": {
                "executed": {"unpadded": reduction, "padded": 2 * reduction, "paper": reduction}
            },
            "kept_per_layer": [20, 10, 10, 5],
            "dense": figure(0.9),
            "pruned": figure(0.9 - lost / 100),
            "difference": figure(-lost / 100),
            "provenance": {
                "settings": {
                    "method": method if isinstance(method, str) else method.NAME,
                    "method_settings": settings,
                    "score": options["score"] or "probe",
                    "budget": budget,
                    "training": options["training"].settings(),
                }
            },
        }
        out.mkdir()
        (out / "report.json").write_text(json.dumps(report))
        return SimpleNamespace(report=report)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr(runs_module, "prune", fake.prune)
    return fake


def grid_of(*tasks: str, model: Path | str = "dense", **options: Any) -> Grid:
    subjects = {name: Subject(model, Data(DATA), training=TRAINING) for name in tasks}
    how: dict[str, Any] = {"methods": ["top", "random"], "budgets": ["2x", "3x"]} | options
    return Grid(subjects, **how)


def test_weights_are_methods_of_their_own():
    names = ["top", "top:received", "random", "top@0.5"]
    runs = grid_of("one", methods=names, budgets=["2x"], weights=[0, 1e-2, 0.01]).runs()
    assert [run.name for run in runs] == [
        "top@0",
        "top@0.01",
        "top:received@0",
        "top:received@0.01",
        "random",
        "top@0.5",
    ]
    assert runs[1].configured_method() == Top(distill_weight=0.01)
    assert runs[3] == Run("top", "received", "2x", 0, 0.01)
    assert runs[3].folder == "runs/top-received@0.01-2x-s0"
    assert runs[4].configured_method() == "random"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("random@1", "distils no ranking"),
        ("top@much", "at least 0"),
        ("top@-1", "at least 0"),
        ("top@nan", "at least 0"),
        ("top@", "at least 0"),
    ],
)
def test_bad_weights_are_refused(name: str, line: str):
    with pytest.raises(UserError, match=line):
        grid_of("one", methods=[name]).runs()


def test_every_run_of_every_task(fake: Fake, tmp_path: Path):
    progress: list[str] = []
    grid = grid_of("one", "two", budgets=["2x"], seeds=[0, 1], weights=[0, 0.01])
    sweep(grid, out=tmp_path, say=progress.append)
    runs = [f"{name}-2x-s{seed}" for name in ("top@0", "top@0.01", "random") for seed in (0, 1)]
    assert fake.calls == [f"{task}/{run}" for task in ("one", "two") for run in runs]
    assert progress[2] == "3 of 12: one, top@0.01 at 2x, seed 0"
    row = json.loads((tmp_path / "two" / "compare.json").read_text())["rows"][2]
    assert (row["name"], row["method"], row["weight"]) == ("top@0.01", "top", 0.01)
    assert not list(tmp_path.rglob("known"))


def test_the_table_by_hand(fake: Fake, tmp_path: Path):
    fake.errors["random-3x-s0"] = OutOfReach("budget 3x is out of reach: ask for less")
    report = sweep(grid_of("one", "two", seeds=[0, 2], weights=[0, 0.01]), out=tmp_path)
    assert report == json.loads((tmp_path / "sweep.json").read_text())
    lines = (tmp_path / "sweep.md").read_text().splitlines()
    assert lines[0].endswith("means over 2 seeds (also of the intervals' ends).")
    assert lines[2] == (
        "Budgets are of real FLOPs, against unpadded inputs. Against inputs padded to the maximum "
        "they are about: one (64 tokens) 4.00x for 2x, 6.00x for 3x; two (64 tokens) 4.00x for 2x, "
        "6.00x for 3x."
    )
    assert "none was chosen by these figures" in lines[4]
    dense = "90.0 [88.0, 91.0]"
    assert lines[6:] == [
        "| budget | method | one (accuracy) | two (accuracy) |",
        "| --- | --- | ---: | ---: |",
        f"|  | dense | {dense} | {dense} |",
        "| 2x | top@0 | 87.0 (-3.0 [-5.0, -2.0]) | 84.0 (-6.0 [-8.0, -5.0]) |",
        "| 2x | top@0.01 | 86.0 (-4.0 [-6.0, -3.0]) | 82.0 (-8.0 [-10.0, -7.0]) |",
        "| 2x | random | 87.0 (-3.0 [-5.0, -2.0]) | 84.0 (-6.0 [-8.0, -5.0]) |",
        "| 3x | top@0 | 86.0 (-4.0 [-6.0, -3.0]) | 82.0 (-8.0 [-10.0, -7.0]) |",
        "| 3x | top@0.01 | 85.0 (-5.0 [-7.0, -4.0]) | 80.0 (-10.0 [-12.0, -9.0]) |",
        "| 3x | random | 85.0 (-5.0 [-7.0, -4.0]) | 80.0 (-10.0 [-12.0, -9.0]) |",
        "",
        "- one: random at 3x, seed 0: budget 3x is out of reach: ask for less",
        "- two: random at 3x, seed 0: budget 3x is out of reach: ask for less",
    ]


def test_the_line_joins_what_nothing_beats(fake: Fake, tmp_path: Path):
    """Of `one`: -2 and -3 points at 2x, -3 and -4 at 3x. The second at 2x loses as much as the
    first at 3x, for less; two that are equal are both undominated."""
    grid = grid_of("one", "two", methods=["top", "spatten"], weights=[0, 0.01])
    report = sweep(grid, out=tmp_path)
    best = {(m["name"], m["budget"]) for m in report["means"] if m["undominated"]}
    assert best == {(name, budget) for name in ("top@0", "spatten") for budget in ("2x", "3x")}
    root = ElementTree.parse(tmp_path / "sweep.svg").getroot()
    # x from 1 to 3: 245 pixels for one. y from -8 to 0: 41.25 for a point
    ways = [element.get("points") for element in root.iter() if element.tag.endswith("polyline")]
    assert ways == [
        "315.0,132.5 315.0,132.5 560.0,173.8 560.0,173.8",
        "315.0,215.0 315.0,215.0 560.0,297.5 560.0,297.5",
    ]
    others = [element for element in root.iter() if element.get("class") == "other"]
    assert [(o.get("cx"), o.get("cy")) for o in others] == [
        ("315.0", "173.8"),
        ("560.0", "215.0"),
        ("315.0", "297.5"),
        ("560.0", "380.0"),
    ]
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts.count("spatten") == 4
    assert "top@0.01" not in texts


@pytest.mark.parametrize(
    ("other", "beaten"),
    [
        ((2.0, -2.0), False),  # as good
        ((2.0, -1.9), True),
        ((1.985, -1.9), True),  # as many, within what a budget is met by
        ((1.97, -1.9), False),
        ((2.1, -2.0), True),
        ((2.1, -2.1), False),
        ((2.01, -2.1), False),
    ],
)
def test_what_beats(other: tuple[float, float], beaten: bool):
    means = [
        {"name": name, "budget": "2x"}
        | {"difference": {"value": lost / 100}, "executed": {"unpadded": fewer}}
        for name, (fewer, lost) in {"here": (2.0, -2.0), "other": other}.items()
    ]
    far = [{"name": "far", "budget": "9x"}, means[1] | {"executed": {"unpadded": 9.0}}]
    reports = {"one": {"means": means, "rows": []}, "two": {"means": far, "rows": []}}
    assert sweep_report(reports)["means"][0]["undominated"] is not beaten
    assert not sweep_report(reports)["means"][2]["undominated"]  # it could not be measured


# -- what is there, what goes wrong ----------------------------------------------------------------


def test_a_sweep_goes_on_and_grows(fake: Fake, tmp_path: Path):
    fake.errors["random-3x-s0"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        sweep(grid_of("one"), out=tmp_path)
    fake.errors.clear()
    fake.calls.clear()
    progress: list[str] = []
    report = sweep(grid_of("one", "two", budgets=["3x"]), out=tmp_path, say=progress.append)
    assert fake.calls == ["one/random-3x-s0", "two/top-3x-s0", "two/random-3x-s0"]
    assert progress[0] == "1 of 4: one, top at 3x (done before)"
    of_one = [(m["name"], m["budget"]) for m in report["means"] if m["of"] == "one"]
    assert of_one == [("top", "2x"), ("random", "2x"), ("top", "3x"), ("random", "3x")]


def test_compare_goes_on_in_it(fake: Fake, place: Path, tmp_path: Path):
    model = place / "dense"
    sweep(grid_of("one", model=model, weights=[0.5]), out=tmp_path)
    fake.calls.clear()
    names = ["top@0.50", "random", "top"]
    compare(model, DATA, names, ["2x"], out=tmp_path / "one", training=TRAINING)
    assert fake.calls == ["one/top-2x-s0"]


def test_a_run_of_another_weight_is_refused(fake: Fake, tmp_path: Path):
    grid = grid_of("one", methods=["top@0.5"], budgets=["2x"])
    sweep(grid, out=tmp_path)
    runs = tmp_path / "one" / "runs"
    (runs / "top@0.5-2x-s0").replace(runs / "top@0.25-2x-s0")
    with pytest.raises(UserError, match=r"top@0.25-2x-s0 holds the bundle of another run"):
        sweep(replace(grid, methods=["top@0.25"]), out=tmp_path)


def test_bad_input_at_first_leaves_nothing(fake: Fake, tmp_path: Path):
    fake.errors["one"] = UserError("a row has no text")
    with pytest.raises(UserError, match="a row has no text"):
        sweep(grid_of("one", "two"), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_task_that_fails_later_is_told_and_may_change(fake: Fake, tmp_path: Path):
    fake.errors["two"] = UserError("a row has no text")
    grid = grid_of("one", "two", budgets=["2x"])
    report = sweep(grid, out=tmp_path)
    assert report["refused"] == [
        f"two: {name} at 2x, seed 0: a row has no text" for name in ("top", "random")
    ]
    assert "| 2x | top | 88.0 (-2.0 [-4.0, -1.0]) | none, see below |" in (
        (tmp_path / "sweep.md").read_text()
    )
    fake.errors.clear()
    fake.calls.clear()
    mended = Subject("dense", Data(DATA, max_length=32), training=TRAINING)
    report = sweep(replace(grid, tasks={**grid.tasks, "two": mended}), out=tmp_path)
    assert fake.calls == ["two/top-2x-s0", "two/random-2x-s0"]
    assert not report["refused"]


def test_nothing_could_be_measured(fake: Fake, tmp_path: Path):
    line = OutOfReach("budget 2x is out of reach")
    fake.errors |= {"top-2x-s0": line, "random-2x-s0": line}
    sweep(grid_of("one", budgets=["2x"]), out=tmp_path)
    assert (tmp_path / "sweep.md").read_text().startswith("No method could be measured.")
    assert not (tmp_path / "sweep.svg").exists()


# -- the file --------------------------------------------------------------------------------------

GRID = """
budgets = ["2x"]
methods = ["top", "random"]
weights = [0, 1e-1]
epochs = 0
[tasks.marks]
model = "dense"
data = "data.jsonl"
"""


def command(*words: Any) -> Result:
    return CliRunner().invoke(cli.app, ["sweep", *map(str, words)])


def test_command_line(place: Path, tmp_path: Path):
    (place / "grid.toml").write_text(GRID)
    done = command(place / "grid.toml", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report.pop("out") == str(tmp_path / "out")
    assert report == json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [mean["name"] for mean in report["means"]] == ["top@0", "top@0.1", "random"]
    assert "3 of 3: marks, random at 2x" in done.stderr
    again = command(place / "grid.toml", "--out", tmp_path / "out")
    assert again.exit_code == 0, again.output
    assert "1 of 3: marks, top@0 at 2x (done before)" in again.stderr
    assert "marks (accuracy)" in again.stdout
    assert "sweep.md, sweep.svg" in again.stdout


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('budgets = ["2x"]', "budgets = [2]", r"budgets must be a list of texts.*, not \[2\]"),
        ('budgets = ["2x"]', "budgets = []", "budgets must be a list of texts"),
        ('budgets = ["2x"]', "", "budgets is missing"),
        ('budgets = ["2x"]', 'budgets = ["many"]', "budgets: .*'many'"),
        ('"random"', '"rndom"', "methods: method 'rndom' is not known"),
        ("weights = [0, 1e-1]", "weights = [-1]", "weights must be a list of numbers from 0"),
        ("weights = [0, 1e-1]", "weights = [true]", "weights must be a list of numbers"),
        ("epochs = 0", 'epochs = "5"', "epochs must be a number from 0 on, not '5'"),
        ("epochs = 0", "epoch = 0", "there is no key epoch; there are: budgets, methods"),
        ("epochs = 0", "soft_steps = 0.5", "soft_steps must be a whole number from 0 on"),
        ("epochs = 0", "seeds = [0.5]", "seeds must be a list of whole numbers"),
        ("epochs = 0", "batch_size = 0", "batch_size must be a whole number from 1 on"),
        ("[tasks.marks]", "[tasks]", "tasks.model must be a table"),
        ("[tasks.marks]", '[tasks."a/b"]', "tasks.'a/b' cannot name a directory"),
        ('model = "dense"', "", "tasks.marks.model is missing"),
        ('model = "dense"', 'model = "./dens"', "tasks.marks.model: .* directory ./dens"),
        ('model = "dense"', 'model = "dense"\ntext = 1', "tasks.marks.text must be a text"),
        ('model = "dense"', 'model = "dense"\ntexts = "a"', "no key tasks.marks.texts; there are"),
        ('model = "dense"', 'model = "dense"\ntask = "dance"', "tasks.marks.task: task 'dance'"),
        ('model = "dense"', 'model = "dense"\nstride = 9\ntask = "mrpc"', "tasks.marks.task: mrpc"),
        ('data = "data.jsonl"', 'data = "dta.jsonl"', "tasks.marks.data: no file or directory"),
        ('data = "data.jsonl"', 'data = "data.jsonl"\nlabel = "x"', "tasks.marks.data: .*'x'"),
        ('data = "data.jsonl"', "", "tasks.marks.data: no data"),
        ("[tasks.marks]", "[tasks.marks", "is not TOML"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(
    old: str, new: str, line: str, place: Path, tmp_path: Path
):
    assert old in GRID
    file = place / "wrong.toml"
    file.write_text(GRID.replace(old, new))
    done = command(file, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert re.match(f"toprune: .*wrong.toml.* {line}", done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_no_file(tmp_path: Path):
    done = command(tmp_path / "none.toml", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "none.toml (No such file or directory); give a TOML file" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--workers", "2"], "--address and --workers need --engine ray"),
        (["--address", "auto"], "--address and --workers need --engine ray"),
        (["--engine", "ray", "--address", "auto", "--workers", "2"], "leave --workers out"),
        (["--engine", "slurm"], "'slurm' is not one of"),
    ],
)
def test_engines_that_cannot_be(words: list[str], line: str, place: Path, tmp_path: Path):
    (place / "grid.toml").write_text(GRID)
    done = command(place / "grid.toml", "--out", tmp_path / "out", *words)
    assert done.exit_code == 2
    assert line in done.stderr
    assert not (tmp_path / "out").exists()


def test_ray_is_not_imported_unasked():
    code = "import sys, toprune.compare.sweep, toprune.cli.grid; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# -- on Ray ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One for all tests: to start it takes seconds."""
    pytest.importorskip("ray")
    with cluster(None, 2) as ray:
        yield ray


@pytest.fixture(scope="module")
def in_turn(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("in-turn")
    sweep(six(place), out=out)
    return out


def six(place: Path) -> Grid:
    return grid_of("one", "two", model=place / "dense", budgets=["2x"], weights=[0, 1])


def same_bundle(one: Path, other: Path) -> None:
    plans = [replace(Plan.load(each / "plan.json"), provenance={}) for each in (one, other)]
    assert plans[0].to_json() == plans[1].to_json()
    weights, others = (load_file(each / "model.safetensors") for each in (one, other))
    assert weights.keys() == others.keys()
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []


def timeless(path: Path) -> Any:
    report = json.loads(path.read_text())
    return report | {
        "environment": None,
        "rows": [row | {"minutes": None} for row in report.get("rows", [])],
    }


@pytest.mark.slow
def test_ray_writes_the_same_files(ray: Any, in_turn: Path, place: Path, tmp_path: Path):
    sweep(six(place), out=tmp_path, engine=executors.on_ray())
    names = sorted(str(path.relative_to(in_turn)) for path in in_turn.rglob("*"))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == names
    bundles = [path.parent for path in in_turn.rglob("plan.json")]
    assert len(bundles) == 6
    for bundle in bundles:
        same_bundle(bundle, tmp_path / bundle.relative_to(in_turn))
    for name in ("sweep.json", "one/compare.json", "two/compare.json"):
        assert timeless(tmp_path / name) == timeless(in_turn / name)
    for name in ("sweep.md", "sweep.svg", "one/compare.md", "two/compare.svg"):
        assert (tmp_path / name).read_bytes() == (in_turn / name).read_bytes()
    rows = json.loads((tmp_path / "one" / "compare.json").read_text())["rows"]
    assert all(row["minutes"] > 0 for row in rows)


@pytest.mark.slow
def test_a_killed_worker_goes_on_from_its_checkpoint(
    ray: Any, in_turn: Path, place: Path, tmp_path: Path
):
    def mortal(item: WorkItem) -> Row:
        marker, loss = item.directory / "killed", StageTrainer.compute_loss

        def last_words(self: StageTrainer, *args: Any, **kwargs: Any) -> Any:
            if Path(str(self.args.output_dir)).name == "hard" and self.state.global_step == 2:
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return loss(self, *args, **kwargs)

        if not marker.exists():
            StageTrainer.compute_loss = last_words
        else:  # the soft stage and a step of the hard one are done
            stages = item.directory / f"{item.run.folder}.partial" / "stages"
            assert (stages / "soft.json").exists()
            assert (stages / "hard" / "checkpoint-1").exists()
        return execute(item)

    (tmp_path / "runs").mkdir()
    subject = six(place).tasks["one"]
    subject = replace(subject, training=replace(TRAINING, save_steps=1))
    run = six(place).runs()[1]
    (row,) = executors.on_ray()(mortal, [WorkItem(tmp_path, subject, run)])
    assert (tmp_path / "killed").exists()
    assert "error" not in row
    assert row["minutes"] is None  # nobody knows of a resumed one
    same_bundle(in_turn / "one" / run.folder, tmp_path / run.folder)


@pytest.mark.slow
def test_what_ray_cannot_do_is_a_row(
    ray: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A process that is killed whenever it begins; bad input; a directory that is not there."""

    def work(item: WorkItem) -> Row:
        if item.run.budget == "2x":
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(item)

    monkeypatch.setattr(executors, "RETRIES", 0)
    runs = grid_of("one", methods=["random"], budgets=["2x", "99x"]).runs()
    element = [WorkItem(tmp_path, six(place).tasks["one"], run) for run in runs]
    killed, refused = executors.on_ray()(work, element)
    assert killed == runs[0].row() | {
        "error": "its process was killed several times; check that memory is sufficient"
    }
    assert "budget 99x is out of reach" in refused["error"]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rename(tmp_path / "elsewhere")
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
    (lost,) = executors.on_ray()(work, element[1:])
    assert "give paths that all machines see" in lost["error"]


def test_notes_name_the_count_of_the_budgets() -> None:
    mean: dict[str, Any] = {"name": "top", "budget": "6x", "of": "one", "seeds": 1}
    mean |= {"count": "authors"}
    mean |= {part: {"value": 0.9} for part in ("dense", "pruned", "difference")}
    executed = {"unpadded": 2.5, "padded": 6.2, "paper": 2.1, "paper_padded": 5.1}
    mean |= {"executed": executed | {"authors_padded": 6.01}}
    one = {"metric": "accuracy", "max_length": 64, "dense": {"value": 0.9}}
    text = sweep_markdown({"tasks": {"one": one}, "means": [mean], "refused": []})
    assert "as the code of ToP's authors counts them" in text
    assert "Executed, against unpadded inputs (real), they are about: one (64 tokens) 2.50x" in text
    assert "90.0 (+90.0)" in text  # met within 3 %, so its reduction is not repeated
    mean["executed"] = executed | {"authors_padded": 7.0}
    text = sweep_markdown({"tasks": {"one": one}, "means": [mean], "refused": []})
    assert "at 7.00x" in text
