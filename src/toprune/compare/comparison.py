"""Compare methods: the same model, data, epochs and seeds, so that only the method differs. One
directory holds all runs and can grow: runs that are already there are not repeated."""

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
from toprune.compare.runs import (
    OUT_OF_REACH,
    RUNS,
    TEACHER_CACHE,
    Key,
    Row,
    Run,
    Subject,
    WorkItem,
    execute,
    finished_row,
    plan_runs,
)
from toprune.data.presets import preset_of
from toprune.data.sets import load_texts
from toprune.errors import UserError
from toprune.export.export import export
from toprune.io.atomic import write_text
from toprune.io.devices import Device
from toprune.models.families import family_named
from toprune.models.load import read_config
from toprune.plan.budget import Count
from toprune.report import terminal as tables
from toprune.report.environment import environment
from toprune.report.html.compared import compare_page, curves
from toprune.report.svg import Line, chart
from toprune.run.manifest import PLACE
from toprune.tasks import TASKS, Task
from toprune.training.bfloat16 import choose_bf16
from toprune.training.distributed import processes, use_device
from toprune.training.settings import Training

SETTINGS, REPORT = "settings.json", "compare.json"
TIMED = 64  # texts on which a bundle is timed
RACE = ("pruned fp32", "dense fp32")  # the two whose ratio of times counts as the speed-up

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
    device: Device = "auto",
    count: Count = "executed",
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Prune a model by every method to every budget with every seed.

    Call it again to resume it, or to add methods, budgets and seeds.

    Args:
        methods: names from `methods.METHODS`; `top:received` also chooses the score, `top@0.01` the
            weight of the ranking distillation.
        out: directory of the comparison.
        training: the same for all methods; one with fewer stages trains as many epochs in all.
        protect_first: as in `prune`.
        timed: export every bundle at the end and time it on texts of the evaluation set.
        engine: does the runs: `in_turn`, or what `on_ray` returns.
        device: of the runs, as in `prune`. Times are taken on the CPU.
        count: how the budgets count FLOPs, see `Budget`.
        say: gets a line about the progress.

    Returns:
        The content of compare.json.
    """
    if not isinstance(model, str | Path):
        raise UserError("the first run would change a model object; save it and give its path")
    use_device(device)  # refuses one that is not here
    subject = Subject(
        model,
        data if isinstance(data, Data) else Data(data),
        task,
        training or Training(),
        protect_first,
        device=device,
        count=count,
    )
    runs = plan_runs(methods, budgets, seeds)
    if timed and processes().num_processes > 1:
        raise UserError("only a single process can take times; run --time again without torchrun")
    read_config(model)  # fails here rather than in the first run
    comparison = Comparison(Path(out), subject, runs)
    finish([comparison], engine, say)
    if timed:
        _time(comparison, say)
    return comparison.report()


class Comparison:
    """A directory of runs on one subject."""

    def __init__(self, directory: Path, subject: Subject, runs: Sequence[Run], title: str = ""):
        """Open a comparison or begin one.

        Args:
            title: put before the names of runs in progress lines.
        """
        before = _read(directory / SETTINGS) if (directory / SETTINGS).is_file() else {}
        training = subject.training.continued(before.get("training", {}))
        if training.bf16 is None:  # the same in all runs, wherever they are done
            config = read_config(subject.model)
            training = choose_bf16(training, family_named(config).sizes(config).width)
        self.directory, self.runs, self.title = directory, runs, title
        full_search = subject.full_search if not before else "full_search" in before
        self.subject = replace(subject, training=training, full_search=full_search)
        self.settings = self.subject.settings()
        self.rows = _open(directory, self.settings)
        self.done: dict[Key, Row] = {}
        for run in runs:
            row = finished_row(self.item(run), self.rows.get(run.key, {}))
            if row is not None:
                self.done[run.key] = row

    def item(self, run: Run) -> WorkItem:
        return WorkItem(self.directory, self.subject, run)

    def label(self, run: Run) -> str:
        seed = f", seed {run.seed}" if len({other.seed for other in self.runs}) > 1 else ""
        return f"{self.title}{run.name} at {run.budget}{seed}"

    def record(self, run: Run, row: Row) -> None:
        """Add a row and write all files; each of them is complete at any time."""
        self.rows[run.key] = row
        if processes().is_main_process:
            _publish(self.directory, self.report())

    def report(self) -> dict[str, Any]:
        return comparison_report(self.settings, self.rows)

    def discard_if_empty(self) -> None:
        """Remove the directory if no run was done: bad input leaves nothing behind."""
        if self.rows or not processes().is_main_process:
            return
        rmtree(self.directory / TEACHER_CACHE, ignore_errors=True)
        with suppress(OSError):  # not empty: it holds a training that can be resumed
            (self.directory / RUNS).rmdir()
            (self.directory / SETTINGS).unlink()
            self.directory.rmdir()


def finish(comparisons: Sequence[Comparison], engine: Executor, say: Say) -> None:
    """Do the runs that are left. A run that fails is reported and skipped, unless no run has
    succeeded so far: then the reason is not the method."""
    if engine is not in_turn and processes().num_processes > 1:
        raise UserError("an engine starts its own processes; run this without torchrun")
    pairs = [(comparison, run) for comparison in comparisons for run in comparison.runs]
    items = [comparison.item(run) for comparison, run in pairs if run.key not in comparison.done]
    try:
        with closing(engine(execute, items)) as rows:
            for number, (comparison, run) in enumerate(pairs, 1):
                line = f"{number} of {len(pairs)}: {comparison.label(run)}"
                row = comparison.done.get(run.key)
                say(line if row is None else f"{line} (done before)")
                row = _checked(next(rows), comparisons, say) if row is None else row
                comparison.record(run, row)
    except UserError:
        for comparison in comparisons:  # all work has stopped by now
            comparison.discard_if_empty()
        raise
    if processes().is_main_process:
        for comparison in comparisons:
            rmtree(comparison.directory / TEACHER_CACHE, ignore_errors=True)


def _checked(row: Row, comparisons: Sequence[Comparison], say: Say) -> Row:
    if "error" in row:
        others = [other for comparison in comparisons for other in comparison.rows.values()]
        if OUT_OF_REACH not in row and all("error" in other for other in others):
            raise UserError(row["error"])
        say(row["error"])
    return row


# -- the directory ---------------------------------------------------------------------------------


def _open(directory: Path, settings: dict[str, Any]) -> dict[Key, Row]:
    """Read the rows of a comparison with the same settings, or begin a new one without rows.
    Settings can change until the first run is done."""
    path, report = directory / SETTINGS, directory / REPORT
    if path.is_file():
        before = _read(path)
        changed = [name for name in settings if settings[name] != before.get(name)]
        if not changed:
            rows = _read(report)["rows"] if report.exists() else []
            return {(row["name"], row["budget"], row["seed"]): row for row in rows}
        if any((directory / RUNS).glob("*")):
            raise UserError(
                f"{directory} holds a comparison with other settings ({', '.join(changed)}); "
                "use the same settings, or choose another --out"
            )
    elif directory.exists() and (directory.is_file() or any(directory.iterdir())):
        raise UserError(f"{directory} exists and holds no comparison; choose another --out")
    state = processes()
    state.wait_for_everyone()  # all processes have looked before the first one creates files
    if state.is_main_process:
        try:
            (directory / RUNS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write into {directory} ({error.strerror}); choose another --out"
            ) from error
        write_text(path, json.dumps(settings, indent=1) + "\n")
    state.wait_for_everyone()
    return {}


def _publish(directory: Path, report: Mapping[str, Any]) -> None:
    write_text(directory / REPORT, json.dumps(report, indent=1) + "\n")
    write_text(directory / "compare.md", tables.compared_markdown(dict(report)))
    write_text(directory / "compare.html", compare_page(report))
    for name, x, title in (
        ("compare.svg", "reduction", "times fewer FLOPs, against unpadded inputs (real)"),
        ("compare-latency.svg", "faster", f"times faster, {' over '.join(RACE)}, 1 thread"),
    ):
        if lines := curves(report, x):
            write_text(directory / name, _chart(report, lines, title))


def _chart(report: Mapping[str, Any], lines: Sequence[Line], x: str) -> str:
    return chart(
        lines,
        title=f"{report['task']}, {report['examples']} examples; bars: difference to dense, 95 %",
        x=x,
        y=f"{report['metric']} (points)",
        start=1.0,
        level=("dense", 100 * report["dense"]["value"]),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}; choose another --out") from error


# -- times -----------------------------------------------------------------------------------------


def _time(comparison: Comparison, say: Say) -> None:
    """Time every bundle against its dense partner, in fp32 and int8, on the same texts."""
    rows = comparison.rows.values()
    untimed = [row for row in rows if "error" not in row and "latency" not in row]
    if not untimed:
        return
    texts = _texts(comparison.settings["model"], comparison.subject.data, untimed[0])
    say("Times are taken now: nothing else should run on this machine.")
    for number, row in enumerate(untimed, 1):
        say(f"{number} of {len(untimed)}: {row['bundle']}")
        folder = comparison.directory / row["bundle"]
        try:
            if not (folder / PLACE).exists():
                export(folder, int8=True, say=say)
            row["latency"] = bench(folder, texts=texts, threads=1, rounds=15, seconds=45, say=say)
        except UserError as error:  # the times of the other bundles are still useful
            row["not_timed"] = str(error)
            say(str(error))
        _publish(comparison.directory, comparison.report())


def _texts(model: str, data: Data, row: Row) -> list[Any]:
    """A sample of the evaluation set; of the whole data if they are one set."""
    texts = load_texts(
        data.source,
        reads=TASKS[row["task"]].READS,
        preset=preset_of(row),
        columns=replace(data.columns, images=family_named(read_config(model)).images),
        skip_bad_rows=data.skip_bad_rows,
    )
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:TIMED]]


# -- means over seeds ------------------------------------------------------------------------------


def comparison_report(settings: Mapping[str, Any], rows: Mapping[Key, Row]) -> dict[str, Any]:
    """Build the content of compare.json: the rows, and their means by the task's first metric."""
    done = [row for row in rows.values() if "error" not in row]
    summary: dict[str, Any] = {"task": settings["task"]}
    if done:
        summary["examples"] = done[0]["examples"]
        summary["max_length"] = max(row["max_length"] for row in done)  # some methods cut texts
        summary["metric"] = metric_of(done[0])
        dense = {row["seed"]: _figures(row, summary["metric"])["dense"] for row in done}
        summary["dense"] = _mean(list(dense.values()))
    by_method: dict[tuple[str, str], list[Row]] = {}
    for (name, budget, _), row in rows.items():
        by_method.setdefault((name, budget), []).append(row)
    counted = {"count": settings["count"]} if "count" in settings else {}
    return summary | {
        "settings": settings,
        "environment": environment(),
        "means": [
            {"name": name, "budget": budget} | _means(group, summary.get("metric", "")) | counted
            for (name, budget), group in by_method.items()
        ],
        "rows": list(rows.values()),
    }


def metric_of(row: Row) -> str:
    """The first metric of the task; without labels, the agreement with the dense model."""
    if "difference" not in row:
        return "agreement"
    preset = preset_of(row)
    return preset.metrics[0] if preset else TASKS[row["task"]].METRICS[0]


def _means(rows: Sequence[Row], metric: str) -> dict[str, Any]:
    """Means of one method at one budget over the seeds that succeeded."""
    done = [row for row in rows if "error" not in row]
    if not done:
        return {}
    figures = [_figures(row, metric) for row in done]
    speedups = [speedup for row in done if (speedup := _speedup(row)) is not None]
    return {
        "seeds": len(done),
        **{part: _mean([figure[part] for figure in figures]) for part in figures[0]},
        "executed": _mean([row["executed"] for row in done]),
        "faster": float(np.mean(speedups)) if speedups else None,
    }


def _figures(row: Row, metric: str) -> dict[str, dict[str, float]]:
    if "difference" in row:
        return {part: row[part][metric] for part in ("dense", "pruned", "difference")}
    agreement = float(row["agreement"])
    values = {"dense": 1.0, "pruned": agreement, "difference": agreement - 1}
    return {part: {"value": value} for part, value in values.items()}


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number; for an interval, of each of its ends."""
    names = [name for name in figures[0] if name != "p"]
    return {name: float(np.mean([figure[name] for figure in figures])) for name in names}


def _speedup(row: Row) -> float | None:
    ratios = row["latency"]["rows"][0]["ratios"] if "latency" in row else []
    return next((one["value"] for one in ratios if (one["who"], one["over"]) == RACE), None)
