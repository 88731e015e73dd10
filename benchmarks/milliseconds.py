"""How near a budget in milliseconds comes: requested, predicted from the curve, and measured.

    python benchmarks/milliseconds.py                                 # about 12 minutes, all cells
    python benchmarks/milliseconds.py --models minilm --precisions fp32 --threads 1

MiniLM (6 layers, 384 wide) and gte-small (12 layers) on a text of 168 tokens, and BERT-base's shape
with random weights on 128; fp32 and int8, 1 and 2 threads: twelve cells. Each cell measures the
curve of the model and asks for three times: 60 %, 40 % and 25 % of the dense model's (what the
plan's layers cannot reach: their least and 10 %). As in `prune`, a plan is repaired under the
curve, timed and corrected once, and the nearer one of the two is kept. Nothing is trained: time
does not depend on weights, so the schedule is geometric and the probes are random.

What counts is one more measurement of the kept file, after all others of its cell: it selects
nothing. `drift` is the change of a fixed workload (dense MiniLM) over the cell; repeat a cell where
it is large. Writes results/milliseconds.json after every cell and skips the cells that it has;
`--again` measures them once more. A cell that the machine is too noisy for is left out.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from gte_small import gte_small_directory
from toprune.cli.demo import model_directory
from toprune.errors import OutOfReach, UserError
from toprune.export.graph import save_graph, write_onnx
from toprune.export.milliseconds import CLOSE, corrected_budget, time_file
from toprune.export.profile import Bench, counts_to, measure_curve, stepped
from toprune.export.quantize import quantize
from toprune.methods.top import Top
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget, Lengths, Precision
from toprune.plan.cost import dense_cost, plan_cost
from toprune.plan.dial import KEEP, numerators
from toprune.plan.plan import DENOMINATOR, Plan
from toprune.plan.schedule import repair
from toprune.report.environment import environment
from toprune.run.engines import OnnxRuntime
from toprune.run.timing import CALLS, pinned, quickest
from toprune.tasks import make_task
from toprune.training.job import Job, dense_plan
from toprune.training.settings import Training

OUT = Path(__file__).parent / "results" / "milliseconds.json"
SEED = 0
LENGTHS = {"minilm": 168, "gte-small": 168, "bert-base": 128}  # tokens
SHARES = (0.6, 0.4, 0.25)  # of the dense model's time
SLACK = 1.1  # above the least time, for shares that are out of reach
SECONDS = 3.0  # of one measurement of a plan

Row = dict[str, Any]


def say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


@cache
def load(name: str) -> tuple[Any, Any]:
    """A model and its tokenizer; BERT-base's shape takes that of MiniLM."""
    torch.manual_seed(SEED)
    folder = gte_small_directory() if name == "gte-small" else model_directory()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if name == "bert-base":
        return BertForSequenceClassification(BertConfig()).eval(), tokenizer
    return BertForSequenceClassification.from_pretrained(folder).eval(), tokenizer


class Files:
    """The files of a model's plans, which differ only in the shares that they keep.

    Tracing BERT-base takes as long as timing it. So one file of each precision is written, with the
    shares as an input (a dial); a plan's file is that one with the shares as a constant again.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.template = cache(self._template)

    def _template(self, name: str, precision: Precision) -> onnx.ModelProto:
        path = self.folder / f"{name} {precision}.onnx"
        if precision == "fp32":
            say(f"writing {name}")
            write_onnx(load(name)[0], stepped(blank(name)), path, dial=True)
        else:
            self.template(name, "fp32")
            quantize(self.folder / f"{name} fp32.onnx", path)
        return onnx.load(path)

    def write(self, name: str, precision: Precision, plan: Plan, stem: str) -> Path:
        model, path = self.template(name, precision), self.folder / f"{stem}.onnx"
        shares = numerators([step.keep for step in plan.steps])
        constant = onnx.numpy_helper.from_array(torch.tensor(shares).numpy(), KEEP)
        next(x for x in model.graph.initializer if x.name == KEEP).CopyFrom(constant)
        for i, one in enumerate(model.graph.input):
            if one.name == KEEP:  # of the template as it was loaded
                del model.graph.input[i]
                break
        save_graph(model, path)
        return path


def blank(name: str) -> Plan:
    return replace(dense_plan(load(name)[0]), score="probes")


def sentinel(folder: Path) -> float:
    """Milliseconds of a fixed workload: dense MiniLM, the quickest of several runs."""
    path, plan = folder / "sentinel.onnx", blank("minilm")
    model, tokenizer = load("minilm")
    bench = Bench(model, tokenizer, make_task("classify"))
    if not path.exists():
        write_onnx(model, plan, path, bench.names)
    with pinned(1):
        run = partial(OnnxRuntime(path, threads=1).run, bench.text(plan, LENGTHS["minilm"], 1))
        run()
        return 1000 * quickest(run, 4 * CALLS)


def cell(name: str, precision: Precision, threads: int, files: Files) -> Row:
    """Measure one model in one precision, with so many threads."""
    start, before = time.perf_counter(), sentinel(files.folder)
    model, tokenizer = load(name)
    bench = Bench(model, tokenizer, make_task("classify"), threads, precision)
    only, full = Lengths.of([LENGTHS[name]]), stepped(blank(name))
    curve = measure_curve(bench, blank(name), counts_to(only.max), lambda line: None)
    dense = float(dense_cost(curve, only, full.restore))
    steps = tuple(replace(step, keep=Fraction(1, DENOMINATOR)) for step in full.steps)
    least = float(plan_cost(curve, replace(full, steps=steps), only))
    say(f"  dense {dense:.2f} ms, {least:.2f} at least")
    budgets = sorted({round(max(x * dense, SLACK * least), 2) for x in SHARES}, reverse=True)
    rows: list[Row] = []
    kept: list[tuple[Plan, Path]] = []
    for asked in budgets:
        job = Job(
            model=model,
            tokenizer=tokenizer,
            task=bench.task,
            features=(),
            lengths=only,
            budget=Budget(f"{asked}ms", threads=threads, precision=precision).against(dense),
            method=Top(),
            score="probes",
            training=Training(),
            work=files.folder,
            curve=curve,
        )
        row, best = meet(job, bench, partial(files.write, name, precision))
        rows.append(row)
        kept.append(best)
    for row, (plan, path) in zip(rows, kept, strict=True):
        row["measured"] = timed(bench, path, plan, only)
        row["error"] = row["measured"]["value"] / row["asked"] - 1
        path.unlink()
        say(
            f"  {row['asked']:.2f} ms asked, {row['predicted']:.2f} predicted, "
            f"{row['first']['value']:.2f} first, {row['measured']['value']:.2f} measured: "
            f"{row['error']:+.1%}"
        )
    return {
        "model": name,
        "precision": precision,
        "threads": threads,
        "length": only.max,
        "dense": dense,
        "least": least,
        "budgets": rows,
        "drift": sentinel(files.folder) / before - 1,
        "curve": {"counts": curve.counts, "milliseconds": curve.milliseconds},
        "minutes": (time.perf_counter() - start) / 60,
        "environment": environment(),
    }


def meet(job: Job, bench: Bench, write: Any) -> tuple[Row, tuple[Plan, Path]]:
    """Repair a plan to a budget, time it, correct it once; returns the nearer one and its file."""
    asked, only = job.budget.milliseconds, job.budget_lengths
    assert asked is not None
    rng = torch.Generator().manual_seed(SEED)
    sizes = sizes_of(job.model)
    plan = job.geometric(0, None, torch.randn(sizes.layers - 1, sizes.width, generator=rng))

    def tried(plan: Plan, what: str) -> tuple[Plan, Path, dict[str, float]]:
        path = write(plan, f"{asked} {what}")
        return plan, path, timed(bench, path, plan, only)

    tries = [tried(plan, "first")]
    ratio = tries[0][2]["value"] / asked
    if abs(ratio - 1) > CLOSE:
        with suppress(OutOfReach):
            budget = corrected_budget(job, plan, ratio)
            tries.append(tried(repair(job.cost, plan, only, budget), "corrected"))
    best = min(tries, key=lambda one: abs(one[2]["value"] / asked - 1))
    for _, path, _ in tries:
        if path != best[1]:
            path.unlink()
    row = {
        "asked": asked,
        "predicted": float(plan_cost(job.cost, plan, only)),
        "first": tries[0][2],
        "corrected": tries[1][2] if len(tries) > 1 else None,
        "tokens": best[0].lengths(only.max),
    }
    return row, best[:2]


def timed(bench: Bench, path: Path, plan: Plan, lengths: Lengths) -> dict[str, float]:
    """The median in milliseconds and its interval."""
    return time_file(bench, path, plan, lengths, seconds=SECONDS)["p50"]


def key_of(row: Row) -> tuple[str, Precision, int]:
    return row["model"], row["precision"], row["threads"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "int8"))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--again", action="store_true", help="measure cells that the file has")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # of whole tokens that are coarser than 1 %
    rows: list[Row] = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    wanted = product(args.models, args.precisions or ("fp32", "int8"), args.threads)
    with TemporaryDirectory(prefix="toprune-milliseconds-") as folder:
        files = Files(Path(folder))
        for key in wanted:
            others = [
                row for row in rows if (row["model"], row["precision"], row["threads"]) != key
            ]
            if len(others) < len(rows) and not args.again:
                say(f"{' '.join(map(str, key))}: there already")
                continue
            say(f"{key[0]}, {key[1]}, {key[2]} thread{'s' if key[2] > 1 else ''}")
            try:
                row = cell(*key, files)
            except UserError as error:
                say(f"  left out: {error}")
                continue
            rows = [*others, row]
            say(f"  {row['minutes']:.1f} minutes, sentinel {row['drift']:+.1%}")
            text = json.dumps({"rows": rows, "seed": SEED}, indent=1)
            args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
