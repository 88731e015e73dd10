"""Budgets in milliseconds: the curve before a run, the measured time and one correction after it.

Times do not depend on the weights, only on the plan and the machine. So a plan is written as a file
and timed; if it takes another time than the curve predicted, its ratios are repaired once more,
towards a target that makes up for the difference.
"""

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toprune.bundle.bundle import Bundle
from toprune.errors import OutOfReach, UserError
from toprune.export.profile import Bench, Clock, Feeds, Say, counts_to, measure_curve
from toprune.io.atomic import write_text
from toprune.io.progress import console
from toprune.models.families import family_of, max_positions, sizes_of
from toprune.models.heads import restore_of
from toprune.plan.budget import HIGH, MEDIAN, Lengths, Precision
from toprune.plan.cost import dense_cost, plan_cost
from toprune.plan.curve import Curve, shape_of
from toprune.plan.plan import Plan, Score
from toprune.plan.schedule import largest_reduction, repair
from toprune.report.environment import environment
from toprune.run.dial import Keep, keep_input
from toprune.run.engines import OnnxRuntime
from toprune.run.manifest import GRAPHS
from toprune.run.timing import interleave, middle, pinned, steady
from toprune.training.dial import dial_of
from toprune.training.job import Job, Outcome, dense_plan
from toprune.training.stages import check_reach, once

QUANTILES = {"p50": MEDIAN, "p95": HIGH}
ROUNDS, SECONDS = 60, 10.0  # of the final measurement, whichever ends first
CLOSE = 0.01  # relative difference from the budget that needs no correction

Times = dict[str, dict[str, float]]  # by name of the quantile: length, held, value, low, high


def _tell(line: str) -> None:
    """Progress in lines, for a terminal: the thread of a bar would run on the cores that are
    timed."""
    if console.is_terminal:
        console.print(line)


def with_curve(
    job: Job,
    profile: str | Path | None = None,
    *,
    clock: Clock = time.perf_counter,
    say: Say = _tell,
) -> Job:
    """The job with the curve of its model here, and its budget as a reduction of time.

    The curve is stored: a resumed run, and other runs that share the dense model's outputs,
    continue with the same one.

    Args:
        job: is returned as it is if its budget is in FLOPs.
        profile: a curve that `toprune profile` wrote; None: measure it now.
        clock: returns the time in seconds.
        say: gets a line about each part of the work.
    """
    if job.budget.milliseconds is None:
        if profile is not None:
            raise UserError("a profile is for a budget in milliseconds, like 12ms")
        return job
    n, budget = job.lengths.quantile(job.budget.quantile), job.budget
    name = f"curve-{n}-{budget.precision}-{budget.threads}-{job.score}.json"
    path = (job.teacher_folder if profile is None else job.work) / name

    def compute() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if profile is None:
            bench = _bench(job, clock)
            measure_curve(bench, job.blank(), counts_to(n), say).save(path)
        else:
            Curve.load(profile).save(path)

    once(path, compute)
    curve = Curve.load(path)
    curve.check(
        {
            "machine": environment()["machine"],
            "threads": job.budget.threads,
            "precision": job.budget.precision,
            "model": shape_of(family_of(job.model).name, sizes_of(job.model)),
            "score": job.score,
            "restore": job.restore,
        },
        n,
    )
    dense = dense_cost(curve, job.lengths.at(job.budget.quantile), job.restore)
    budgets = tuple(budget.against(dense) for budget in job.budgets)
    job = replace(job, curve=curve, budget=job.budget.against(dense), budgets=budgets)
    check_reach(job)
    return job


def meet_time(
    outcome: Outcome,
    path: Path,
    *,
    clock: Clock = time.perf_counter,
    say: Say = _tell,
) -> Outcome:
    """Time the plan, of a dial every plan, and correct it once.

    Args:
        outcome: with plans that meet their budgets on the curve of its job. Without a curve it is
            returned as it is.
        path: where the result is stored: one process does the work for all.
        clock: returns the time in seconds.
        say: gets a line about each part of the work.
    """
    job, dial = outcome.job, outcome.dial
    if job.curve is None:
        return outcome
    budgets = job.budgets or (job.budget,)  # the first is the default

    def compute() -> None:
        found: list[dict[str, Any]] = []
        for budget in budgets:
            plan = outcome.plan if dial is None else dial.plan(budget)
            plan, report = _corrected(replace(job, budget=budget), plan, clock, say)
            found.append({"plan": plan.to_json(), "time": report})
        write_text(path, json.dumps(found))

    once(path, compute)
    found = json.loads(path.read_text(encoding="utf-8"))
    plans = [Plan.from_json(one["plan"]) for one in found]
    times = {budget.asked: one["time"] for budget, one in zip(budgets, found, strict=True)}
    time = times[budgets[0].asked] | {"curve": job.curve.to_json()}
    if dial is not None:
        dial = dial_of(job, dict(zip(budgets, plans, strict=True)))
        time["dial"] = times
    return replace(outcome, plan=plans[0], dial=dial, extra=outcome.extra | {"time": time})


def _corrected(job: Job, plan: Plan, clock: Clock, say: Say) -> tuple[Plan, dict[str, Any]]:
    """The plan, and what the report says about its time."""
    assert job.budget.milliseconds is not None
    bench, asked, name = _bench(job, clock), job.budget.milliseconds, _name(job.budget.quantile)
    say("timing the pruned model")
    tried = [(plan, time_plan(bench, plan, job.lengths))]
    ratio = tried[0][1][name]["value"] / asked
    if abs(ratio - 1) > CLOSE:
        say(f"it takes {ratio * asked:.2f} ms; correcting the plan once")
        target = corrected_budget(job, plan, ratio)
        try:
            corrected = repair(job.cost, plan, job.budget_lengths, target)
        except OutOfReach:
            warnings.warn(
                f"budget {job.budget.asked}: the pruned model takes {ratio * asked:.2f} ms, and "
                "the layers of its plan cannot drop more tokens; ask for more time",
                stacklevel=2,
            )
        else:
            tried.append((corrected, time_plan(bench, corrected, job.lengths)))
    best, times = min(tried, key=lambda one: abs(one[1][name]["value"] / asked - 1))
    lengths = job.budget_lengths
    report = {
        "milliseconds": asked,
        "quantile": job.budget.quantile,
        "threads": job.budget.threads,
        "precision": job.budget.precision,
        "length": lengths.max,
        "dense": float(dense_cost(job.cost, lengths, best.restore)),
        "predicted": float(plan_cost(job.cost, best, lengths)),
        "before_correction": tried[0][1][name]["value"] if len(tried) > 1 else None,
        "measured": times,
    }
    return best, report


def corrected_budget(job: Job, plan: Plan, ratio: float) -> Any:
    """The budget that makes up for a plan that takes `ratio` times what was asked."""
    return replace(job.budget, reduction=job.reduction(plan) * ratio)


def time_plan(bench: Bench, plan: Plan, lengths: Lengths) -> Times:
    """Write the file of a plan and time it."""
    with TemporaryDirectory(prefix="toprune-time-") as folder:
        return time_file(bench, bench.write(plan, Path(folder), "pruned"), plan, lengths)


def time_file(
    bench: Bench,
    path: Path,
    plan: Plan,
    lengths: Lengths,
    seconds: float = SECONDS,
    keep: Keep | None = None,
) -> Times:
    """Time a file on a text of the median length and on one of the 95th percentile.

    Args:
        bench: how the file is timed.
        path: the file.
        plan: of the file.
        lengths: of the user's texts.
        seconds: limit of the measurement.
        keep: turns the file of a dial to the plan; None: it has this plan.

    Returns:
        For each the median in milliseconds with a 95 % interval, and the length.
    """
    rows = {name: lengths.at(q).rows[0] for name, q in QUANTILES.items()}
    texts: dict[str, Feeds] = {
        name: bench.text(plan, n, held) | (keep or {}) for name, (n, held, _) in rows.items()
    }
    with pinned(bench.threads):
        engine = OnnxRuntime(path, threads=bench.threads)
        runs = {name: partial(engine.run, text) for name, text in texts.items()}
        runs["p50"]()
        times = steady(
            partial(interleave, runs, rounds=ROUNDS, seconds=seconds, clock=bench.clock),
            runs["p50"],
            clock=bench.clock,
            insist=False,  # a model was trained: its interval shows the noise
        )
        del engine
    return {
        name: {"length": n, "held": held}
        | {key: 1000 * value for key, value in middle(times[name]).items()}
        for name, (n, held, _) in rows.items()
    }


def times_here(bundle: Bundle, folder: Path, timed: dict[str, Any], say: Say) -> dict[str, Any]:
    """Time the exported file of a bundle that has a budget in milliseconds, on this machine.

    Args:
        bundle: with a plan.
        folder: its directory, with the exported files.
        timed: what its report says about the time; it holds for the machine named there alone.
        say: gets a line about each part of the work.

    Returns:
        Under `time`: the machine, what was asked and what was measured here. Nothing if the file
        of that precision was not exported.
    """
    path, plan = folder / GRAPHS[timed["precision"]], bundle.plan
    if plan is None or not path.exists():
        return {}
    machine, before = environment()["machine"], timed["curve"]["environment"].get("machine")
    say("timing the file here" + ("" if machine == before else f"; the budget was for {before}"))
    bench = Bench(bundle.model, bundle.tokenizer, bundle.task, timed["threads"], timed["precision"])
    lengths = Lengths.from_json(bundle.report["lengths"])
    time = {"machine": machine, "asked": bundle.report["budget"]["asked"]}
    time |= {"same_machine": machine == before, "precision": timed["precision"]}
    time |= {"threads": timed["threads"], "measured": time_file(bench, path, plan, lengths)}
    if bundle.dial is not None:
        time["dial"] = {
            asked: {"measured": time_file(bench, path, one, lengths, keep=keep_input(one))}
            for asked, one in bundle.dial.plans().items()
        }
    return {"time": time}


def profile(
    model: str | Path,
    *,
    read: Callable[[str], Sequence[Any]] | None = None,
    lengths: Sequence[int] = (128,),
    task: str | None = None,
    max_length: int | None = None,
    threads: int = 1,
    precision: Precision = "fp32",
    score: Score = "probes",
    clock: Clock = time.perf_counter,
    say: Say = _tell,
) -> dict[str, Any]:
    """Measure the curve of a model directory here.

    Args:
        model: the directory.
        read: returns the texts whose lengths count, by the name of the task; None: `lengths`.
        lengths: in tokens.
        task: name of the task, for a directory whose head is ambiguous.
        max_length: tokens after which texts end; None: the model's limit.
        threads, precision: of the file that is timed.
        score: by which tokens will be ranked.
        clock: returns the time in seconds.
        say: gets a line about each part of the work.

    Returns:
        The curve, and for some lengths the milliseconds of the dense model and the least to which
        it can be pruned.
    """
    bundle = Bundle.load(model, task)
    sizes, limit = sizes_of(bundle.model), max_positions(bundle.model.config)
    limit = min(limit, max_length or bundle.report.get("max_length") or limit)
    counted = Lengths.of(lengths)
    if read is not None:
        counted = _lengths_of(bundle.tokenizer, read(bundle.task.NAME), limit)
    if counted.max > limit:
        raise UserError(f"lengths must be 1 to {limit} for this model, not {counted.max}")
    bench = Bench(bundle.model, bundle.tokenizer, bundle.task, threads, precision, clock)
    restore = restore_of(bundle.task, bundle.model.config)
    shown = {name: counted.quantile(q) for name, q in QUANTILES.items()}
    blank = replace(dense_plan(bundle.model, restore), score=score)
    curve = measure_curve(bench, blank, counts_to(max(shown.values()), *shown.values()), say)
    rows: list[dict[str, Any]] = []
    for name, n in shown.items():
        only = Lengths.of([n])
        dense = float(dense_cost(curve, only, restore))
        most = largest_reduction(curve, only, 0, 2, restore, score)
        rows.append({"name": name, "length": n, "dense": dense, "least": dense / float(most)})
    return {"curve": curve.to_json(), "rows": rows, "layers": sizes.layers}


def _lengths_of(tokenizer: Any, texts: Sequence[Any], limit: int) -> Lengths:
    """The histogram of texts and pairs, with special tokens."""
    pairs = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
    rows = (tokenizer(*pair, truncation=True, max_length=limit)["input_ids"] for pair in pairs)
    return Lengths.of(map(len, rows))


def _bench(job: Job, clock: Clock) -> Bench:
    budget = job.budget
    return Bench(job.model, job.tokenizer, job.task, budget.threads, budget.precision, clock)


def _name(quantile: float) -> str:
    return next(name for name, q in QUANTILES.items() if q == quantile)
