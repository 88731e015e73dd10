"""Methods against each other: the same model, data, epochs and seeds, so that the method is all
that differs. One directory holds every run and grows: what is there is not done again."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from toprune.api import Data
from toprune.compare.bench import bench
from toprune.compare.executors import Executor, in_turn
from toprune.compare.means import RACE, comparison_report
from toprune.compare.runs import (
    KNOWN,
    OUT_OF_REACH,
    RUNS,
    Cell,
    Key,
    Row,
    Run,
    Subject,
    do,
    planned,
    there,
)
from toprune.data.presets import preset_of
from toprune.data.sets import load_texts
from toprune.errors import UserError
from toprune.export.export import export
from toprune.io.atomic import draft
from toprune.models.families import family_named
from toprune.models.load import read_config
from toprune.report import terminal as tables
from toprune.report.html.compared import compare_page, curves
from toprune.report.svg import Line, chart
from toprune.run.manifest import PLACE
from toprune.tasks import TASKS, Task
from toprune.training.distributed import processes
from toprune.training.learner import Training

SETTINGS, REPORT = "settings.json", "compare.json"
TIMED = 64  # texts from which a bundle's latency is taken

Say = Callable[[str], object]


def compare(
    model: str | Path,
    data: Data | Any,
    methods: Sequence[str],
    budgets: Sequence[str],
    *,
    out: str | Path,
    task: str | Task = "classify",
    training: Training | None = None,
    seeds: Sequence[int] = (0,),
    protect_first: bool | None = None,
    timed: bool = False,
    engine: Executor = in_turn,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Prune the model by every method to every budget, with every seed; returns what compare.json
    holds. Called again it goes on where it was, and does only what is new.

    methods: names of `methods.METHODS`, with a score as in `top:received`, with a weight of the
    ranking distillation as in `top@0.01`. training: for all of them alike; a method with fewer
    stages has as many epochs in all. protect_first: as in `prune`. timed: in the end export every
    bundle, and time it on texts of the set that is evaluated on. engine: who does the runs.
    """
    if not isinstance(model, str | Path):
        raise UserError("a model object would be changed by the first run; save it, give the path")
    told = data if isinstance(data, Data) else Data(data)
    subject = Subject(model, told, task, training or Training(), protect_first)
    runs = planned(methods, budgets, seeds)
    if timed and processes().num_processes > 1:
        raise UserError("times are taken by one process alone; do that afterwards, with --time")
    read_config(model)  # or one line, before the first of the runs is told of
    comparison = Comparison(Path(out), subject, runs)
    go_on([comparison], engine, say)
    if timed:
        _time(comparison, say)
    return comparison.report()


class Comparison:
    """A directory of runs with a subject in common."""

    def __init__(self, place: Path, subject: Subject, runs: Sequence[Run], title: str = ""):
        """Opens it, or begins it. title: how it is told from others."""
        self.place, self.subject, self.runs, self.title = place, subject, runs, title
        self.settings = subject.settings()
        self.rows = _open(place, self.settings)
        cells = (self.cell(run) for run in runs)
        found = {cell.run.key: there(cell, self.rows.get(cell.run.key, {})) for cell in cells}
        self.done = {key: row for key, row in found.items() if row is not None}

    def cell(self, run: Run) -> Cell:
        return Cell(self.place, self.subject, run)

    def told(self, run: Run) -> str:
        seed = f", seed {run.seed}" if len({one.seed for one in self.runs}) > 1 else ""
        return f"{self.title}{run.name} at {run.budget}{seed}"

    def take(self, run: Run, row: Row) -> None:
        """Everything that can be said by now, in files that are whole at any time."""
        self.rows[run.key] = row
        if processes().is_main_process:
            _publish(self.place, self.report())

    def report(self) -> dict[str, Any]:
        return comparison_report(self.settings, self.rows)

    def withdraw(self) -> None:
        """Bad input leaves nothing."""
        if self.rows or not processes().is_main_process:
            return
        rmtree(self.place / KNOWN, ignore_errors=True)
        with suppress(OSError):  # not empty: there is a training to go on with
            (self.place / RUNS).rmdir()
            (self.place / SETTINGS).unlink()
            self.place.rmdir()


def go_on(comparisons: Sequence[Comparison], engine: Executor, say: Say) -> None:
    """Do what is left of them. A run that fails is told and passed over; unless nothing has gone
    well so far, for then it is not about this method."""
    if engine is not in_turn and processes().num_processes > 1:
        raise UserError("an engine starts its own processes; leave torchrun out")
    todo = [(own, run) for own in comparisons for run in own.runs]
    cells = [own.cell(run) for own, run in todo if run.key not in own.done]
    try:
        with closing(engine(do, cells)) as rows:
            for number, (own, run) in enumerate(todo, 1):
                here = f"{number} of {len(todo)}: {own.told(run)}"
                row = own.done.get(run.key)
                say(here if row is None else f"{here} (done before)")
                own.take(run, _good_enough(next(rows), comparisons, say) if row is None else row)
    except UserError:
        for own in comparisons:  # when nobody works there any more
            own.withdraw()
        raise
    if processes().is_main_process:
        for own in comparisons:
            rmtree(own.place / KNOWN, ignore_errors=True)


def _good_enough(row: Row, comparisons: Sequence[Comparison], say: Say) -> Row:
    if "error" in row:
        others = (other for own in comparisons for other in own.rows.values())
        if OUT_OF_REACH not in row["error"] and all("error" in other for other in others):
            raise UserError(row["error"])
        say(row["error"])
    return row


# -- what is there ---------------------------------------------------------------------------------


def _open(place: Path, settings: dict[str, Any]) -> dict[Key, Row]:
    """The rows of a comparison with the same settings; of a new one none. Settings bind as soon as
    something was done under them."""
    path, report = place / SETTINGS, place / REPORT
    if path.is_file():
        before = _read(path)
        changed = [name for name in settings if settings[name] != before.get(name)]
        if not changed:
            rows = _read(report)["rows"] if report.exists() else []
            return {(row["name"], row["budget"], row["seed"]): row for row in rows}
        if any((place / RUNS).glob("*")):
            raise UserError(
                f"{place} holds a comparison with other settings ({', '.join(changed)}); "
                "say the same again, or choose another --out"
            )
    elif place.exists() and (place.is_file() or any(place.iterdir())):
        raise UserError(f"{place} is there and holds no comparison; choose another --out")
    state = processes()
    state.wait_for_everyone()  # nobody looks at what the first one is about to make
    if state.is_main_process:
        try:
            (place / RUNS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write into {place} ({error.strerror}); choose another --out"
            ) from error
        write(path, json.dumps(settings, indent=1) + "\n")
    state.wait_for_everyone()
    return {}


def _publish(place: Path, report: Mapping[str, Any]) -> None:
    write(place / REPORT, json.dumps(report, indent=1) + "\n")
    write(place / "compare.md", tables.compared_markdown(dict(report)))
    write(place / "compare.html", compare_page(report))
    for name, x, words in (
        ("compare.svg", "reduction", "times fewer FLOPs, against unpadded inputs (real)"),
        ("compare-latency.svg", "faster", f"times faster, {' over '.join(RACE)}, 1 thread"),
    ):
        if lines := curves(report, x):
            write(place / name, _chart(report, lines, words))


def _chart(report: Mapping[str, Any], lines: Sequence[Line], x: str) -> str:
    return chart(
        lines,
        title=f"{report['task']}, {report['examples']} examples; bars: difference to dense, 95 %",
        x=x,
        y=f"{report['metric']} (points)",
        start=1.0,
        level=("dense", 100 * report["dense"]["value"]),
    )


# -- how fast --------------------------------------------------------------------------------------


def _time(comparison: Comparison, say: Say) -> None:
    """Every bundle beside its dense partner, fp32 and int8, on the same texts."""
    place, rows = comparison.place, comparison.rows.values()
    left = [row for row in rows if "error" not in row and "latency" not in row]
    if not left:
        return
    texts = _texts(comparison.settings["model"], comparison.subject.data, left[0])
    say("Times are taken now: nothing else may run on this machine meanwhile.")
    for number, row in enumerate(left, 1):
        say(f"{number} of {len(left)}: {row['bundle']}")
        folder = place / row["bundle"]
        try:
            if not (folder / PLACE).exists():
                export(folder, int8=True, say=say)
            row["latency"] = bench(folder, texts=texts, threads=1, rounds=15, seconds=45, say=say)
        except UserError as error:  # the times of the others stay worth having
            row["not_timed"] = str(error)
            say(str(error))
        _publish(place, comparison.report())


def _texts(model: str, data: Data, row: Row) -> list[Any]:
    """Some of the set that is evaluated on; of data that are one set, of all."""
    texts = load_texts(
        data.source,
        reads=TASKS[row["task"]].READS,
        preset=preset_of(row),
        columns=replace(data.columns, images=family_named(read_config(model)).images),
        skip_bad_rows=data.skip_bad_rows,
    )
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:TIMED]]


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}; choose another --out") from error


def write(path: Path, text: str) -> None:
    with draft(path) as made:
        made.write_text(text, encoding="utf-8", newline="\n")
