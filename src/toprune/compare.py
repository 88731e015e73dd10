"""Methods against each other: the same model, data, epochs and seeds, so that the method is all
that differs. One directory holds every run and grows: what is there is not done again."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from toprune import tables
from toprune.api import Data, prune
from toprune.bench import bench
from toprune.budget import Budget
from toprune.bundle import Bundle, read_report
from toprune.errors import UserError
from toprune.export import export
from toprune.families import family_named
from toprune.fit import Training
from toprune.glue import glue_of, load_texts
from toprune.methods import make_method
from toprune.models import read_config
from toprune.pages.compared import compare_page, curves
from toprune.plan import Score
from toprune.plot import Line, chart
from toprune.processes import processes
from toprune.report import environment
from toprune.run.sheet import PLACE
from toprune.tasks import TASKS, Task, settings_of

SETTINGS, REPORT, RUNS = "settings.json", "compare.json", "runs"
KNOWN = "known"  # what the dense model says, until all is done
OUT_OF_REACH = "is out of reach"  # how `prune` says that a budget cannot be met
TIMED = 64  # texts from which a bundle's latency is taken
RACE = ("pruned fp32", "dense fp32")  # whose times the chart of latency shows

Row = dict[str, Any]
Key = tuple[str, str, int]  # the method's name, budget, seed
Rows = dict[Key, Row]
Say = Callable[[str], object]


@dataclass(frozen=True)
class Run:
    """One method at one budget with one seed."""

    method: str
    score: Score | None  # None: the method's own
    budget: str
    seed: int

    @property
    def name(self) -> str:
        """The method, as the user writes it."""
        return self.method if self.score is None else f"{self.method}:{self.score}"

    @property
    def key(self) -> Key:
        return self.name, self.budget, self.seed

    @property
    def folder(self) -> str:
        return f"{RUNS}/{self.name.replace(':', '-')}-{self.budget}-s{self.seed}"

    def row(self) -> Row:
        return asdict(self) | {"name": self.name}


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
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Prune the model by every method to every budget, with every seed; returns what compare.json
    holds. Called again it goes on where it was, and does only what is new.

    methods: names of `methods.METHODS`, with a score as in `top:received`. training: for all of
    them alike; a method with fewer stages has as many epochs in all. protect_first: as in `prune`.
    timed: in the end export every bundle, and time it on texts of the set that is evaluated on.
    """
    if not isinstance(model, str | Path):
        raise UserError("a model object would be changed by the first run; save it, give the path")
    runs = planned(methods, budgets, seeds)
    told = data if isinstance(data, Data) else Data(data)
    training = training or Training()
    if timed and processes().num_processes > 1:
        raise UserError("times are taken by one process alone; do that afterwards, with --time")
    place = Path(out)
    settings = _settings(model, told, task, training, protect_first)
    rows = _open(place, settings)
    for number, run in enumerate(runs, 1):
        here = f"{number} of {len(runs)}: {run.name} at {run.budget}"
        here += f", seed {run.seed}" if len(seeds) > 1 else ""
        there = _there(place, run, rows.get(run.key, {}))
        say(here if there is None else f"{here} (done before)")
        if there is None:
            learn = partial(prune, model, told, task=task, protect_first=protect_first)
            try:
                there = _done(place, run, training, learn)
            except UserError as error:
                line = " ".join(str(error).split())
                if OUT_OF_REACH not in line and all("error" in row for row in rows.values()):
                    _withdraw(place, rows)
                    raise  # nothing has gone well so far: it is not about this method
                say(line)
                there = run.row() | {"error": line}
        rows[run.key] = there
        _publish(place, settings, rows)
    if processes().is_main_process:
        rmtree(place / KNOWN, ignore_errors=True)
    if timed:
        _time(place, settings, rows, told, say)
    return _report(settings, rows)


def planned(methods: Sequence[str], budgets: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """Every run once, budget by budget; what cannot be is refused before any work."""
    if not (methods and budgets and seeds):
        raise UserError("a comparison needs one method, one budget and one seed at least")
    chosen: list[tuple[str, Score | None]] = []
    for name in dict.fromkeys(methods):
        method, colon, asked = name.partition(":")
        scores: dict[str, Score] = {score: score for score in make_method(method).SCORES}
        if colon and asked not in scores:
            raise UserError(f"the method {method} ranks tokens by {' or '.join(scores)}: {name!r}")
        chosen.append((method, scores.get(asked)))
    for budget in budgets:
        Budget.parse(budget)
    grid = product(dict.fromkeys(budgets), chosen, dict.fromkeys(seeds))
    return [Run(method, score, budget, seed) for budget, (method, score), seed in grid]


def _done(place: Path, run: Run, training: Training, learn: Callable[..., Bundle]) -> Row:
    is_resumed = (place / f"{run.folder}.partial").exists()
    started = time.monotonic()
    bundle = learn(
        run.budget,
        out=place / run.folder,
        method=run.method,
        score=run.score,
        training=replace(training, seed=run.seed),
        known=place / KNOWN / f"seed-{run.seed}",
        resume=True,
    )
    # Of a resumed one nobody knows how long it took in all.
    minutes = None if is_resumed else (time.monotonic() - started) / 60
    return _row(run, bundle.report) | {"minutes": minutes}


# -- what is there ---------------------------------------------------------------------------------


def _settings(
    model: str | Path, data: Data, task: str | Task, training: Training, protect_first: bool | None
) -> dict[str, Any]:
    """What all runs have in common. Methods, budgets and seeds are not of it: more may join."""
    settings = {
        "model": _whereabouts(model),
        "task": task if isinstance(task, str) else task.NAME,
        "task_settings": {} if isinstance(task, str) else settings_of(task),
        "data": asdict(data.columns)
        | {
            "source": _whereabouts(data.source),
            "max_length": data.max_length,
            "skip_bad_rows": data.skip_bad_rows,
        },
        "training": {k: v for k, v in training.settings().items() if k != "seed"},
        "protect_first": protect_first,
    }
    return json.loads(json.dumps(settings))


def _whereabouts(source: Any) -> str | None:
    """A path from wherever one is; a hub's name; of rows in memory, a hash of what they say."""
    if source is None:
        return None
    if isinstance(source, str | Path):
        return str(Path(source).resolve()) if Path(source).exists() else str(source)
    said = json.dumps(source, sort_keys=True, default=lambda thing: type(thing).__name__)
    return hashlib.sha256(said.encode()).hexdigest()


def _open(place: Path, settings: dict[str, Any]) -> Rows:
    """The rows of a comparison with the same settings; of a new one none."""
    path, report = place / SETTINGS, place / REPORT
    if path.is_file():
        before = _read(path)
        changed = [name for name in settings if settings[name] != before.get(name)]
        if changed:
            raise UserError(
                f"{place} holds a comparison with other settings ({', '.join(changed)}); "
                "say the same again, or choose another --out"
            )
        rows = _read(report)["rows"] if report.exists() else []
        return {(row["name"], row["budget"], row["seed"]): row for row in rows}
    if place.exists() and (place.is_file() or any(place.iterdir())):
        raise UserError(f"{place} is there and holds no comparison; choose another --out")
    state = processes()
    state.wait_for_everyone()  # nobody looks at what the first one is about to make
    if state.is_main_process:
        try:
            (place / RUNS).mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"cannot write into {place} ({error.strerror}); choose another --out"
            ) from error
        _write(path, json.dumps(settings, indent=1) + "\n")
    state.wait_for_everyone()
    return {}


def _withdraw(place: Path, rows: Rows) -> None:
    """Bad input must not bind the next attempt to its settings."""
    if rows or not processes().is_main_process:
        return
    with suppress(OSError):  # not empty: there is a training to go on with
        (place / RUNS).rmdir()
        (place / SETTINGS).unlink()
        place.rmdir()


def _there(place: Path, run: Run, old: Row) -> Row | None:
    """The row of a run that need not be done again."""
    if not (place / run.folder).exists():
        return old if OUT_OF_REACH in old.get("error", "") else None
    report = read_report(place / run.folder)
    told = report.get("provenance", {}).get("settings", {})
    asked = {"method": run.method, "budget": run.budget, "score": run.score or told.get("score")}
    is_same = asked == {key: told.get(key) for key in asked}
    if not is_same or told["training"]["seed"] != run.seed:
        raise UserError(f"{place / run.folder} is of another run; move it away")
    return _row(run, report) | {k: old[k] for k in ("minutes", "latency") if k in old}


# -- what was found --------------------------------------------------------------------------------


def _row(run: Run, report: Mapping[str, Any]) -> Row:
    row = run.row() | {
        "score": report["provenance"]["settings"]["score"],
        "bundle": run.folder,
        "examples": report["examples"],
        "max_length": report["max_length"],
        "task": report["task"],
        "agreement": report["agreement"],
        "executed": report["budget"]["executed"],
        "kept_per_layer": report["kept_per_layer"],
        "minutes": None,
    }
    return row | {k: report[k] for k in ("glue", "dense", "pruned", "difference") if k in report}


def _publish(place: Path, settings: dict[str, Any], rows: Rows) -> None:
    """Everything that can be said by now, in files that are whole at any time."""
    if not processes().is_main_process:
        return
    report = _report(settings, rows)
    _write(place / REPORT, json.dumps(report, indent=1) + "\n")
    _write(place / "compare.md", tables.compared_markdown(report))
    _write(place / "compare.html", compare_page(report))
    for name, x, words in (
        ("compare.svg", "reduction", "times fewer FLOPs, against unpadded inputs (real)"),
        ("compare-latency.svg", "faster", f"times faster, {' over '.join(RACE)}, 1 thread"),
    ):
        if lines := curves(report, x):
            _write(place / name, _chart(report, lines, words))


def _report(settings: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """The rows, and what they say by the metric that the task is judged by, in the mean over
    seeds."""
    done = [row for row in rows.values() if "error" not in row]
    about: dict[str, Any] = {"task": settings["task"]}
    if done:
        about["examples"] = done[0]["examples"]
        about["max_length"] = max(row["max_length"] for row in done)  # some methods cut texts
        about["metric"] = _metric(done[0])
        dense = {row["seed"]: _figures(row, about["metric"])["dense"] for row in done}
        about["dense"] = _mean(list(dense.values()))
    cells: dict[tuple[str, str], list[Row]] = {}
    for name, budget, seed in rows:
        cells.setdefault((name, budget), []).append(rows[name, budget, seed])
    return about | {
        "settings": settings,
        "environment": environment(),
        "means": [
            {"name": name, "budget": budget} | _means(own, about.get("metric", ""))
            for (name, budget), own in cells.items()
        ],
        "rows": list(rows.values()),
    }


def _metric(row: Row) -> str:
    """What the task is judged by; without labels, how much a model says what the dense one says."""
    glue = glue_of(row)
    if "difference" not in row:
        return "agreement"
    return glue.metrics[0] if glue else TASKS[row["task"]].METRICS[0]


def _means(rows: Sequence[Row], metric: str) -> dict[str, Any]:
    """Of one method at one budget, over the seeds with which it could be pruned."""
    done = [row for row in rows if "error" not in row]
    if not done:
        return {}
    figures = [_figures(row, metric) for row in done]
    times = [faster for row in done if (faster := _faster(row)) is not None]
    return {
        "seeds": len(done),
        **{part: _mean([own[part] for own in figures]) for part in figures[0]},
        "executed": _mean([row["executed"] for row in done]),
        "faster": float(np.mean(times)) if times else None,
    }


def _figures(row: Row, metric: str) -> dict[str, dict[str, float]]:
    if "difference" in row:
        return {part: row[part][metric] for part in ("dense", "pruned", "difference")}
    said = float(row["agreement"])
    values = {"dense": 1.0, "pruned": said, "difference": said - 1}
    return {part: {"value": value} for part, value in values.items()}


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Number by number; of intervals that is their ends."""
    names = [name for name in figures[0] if name != "p"]
    return {name: float(np.mean([figure[name] for figure in figures])) for name in names}


def _faster(row: Row) -> float | None:
    ratios = row["latency"]["rows"][0]["ratios"] if "latency" in row else []
    return next((one["value"] for one in ratios if (one["who"], one["over"]) == RACE), None)


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


def _time(place: Path, settings: dict[str, Any], rows: Rows, data: Data, say: Say) -> None:
    """Every bundle beside its dense partner, fp32 and int8, on the same texts."""
    left = [row for row in rows.values() if "error" not in row and "latency" not in row]
    if not left:
        return
    texts = _texts(settings["model"], data, left[0])
    say("Times are taken now: nothing else may run on this machine meanwhile.")
    for number, row in enumerate(left, 1):
        say(f"{number} of {len(left)}: {row['bundle']}")
        folder = place / row["bundle"]
        try:
            if not (folder / PLACE).exists():
                export(folder, int8=True, say=say)
            row["latency"] = bench(folder, texts=texts, threads=1, rounds=15, seconds=45, say=say)
        except UserError as error:  # the times of the others stay worth having
            row["not_timed"] = " ".join(str(error).split())
            say(row["not_timed"])
        _publish(place, settings, rows)


def _texts(model: str, data: Data, row: Row) -> list[Any]:
    """Some of the set that is evaluated on; of data that are one set, of all."""
    texts = load_texts(
        data.source,
        task=row["task"],
        glue=glue_of(row),
        columns=replace(data.columns, images=family_named(read_config(model)).images),
        skip_bad_rows=data.skip_bad_rows,
    )
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:TIMED]]


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}; choose another --out") from error


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8", newline="\n")
    draft.replace(path)
