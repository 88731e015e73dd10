"""How much of its FLOPs factor a file realises, before and after a change of the exporter.

    git worktree add /tmp/before 9995692
    python benchmarks/realised.py --before /tmp/before      # about 6 minutes, on a quiet machine

MiniLM (6 layers, 384 wide) on texts of 168 tokens at 3x and 5x, and BERT-base's shape on 512 tokens
under the strong schedule of latency.py: fp32 and int8, one thread, one text a call. The old code
exports the same models and plans, in a process of its own; old and new files, dense and pruned,
take turns in the same rounds. A last pass has ONNX Runtime profile MiniLM's files by operator.
Writes results/realised.json.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from transformers import BertConfig, BertForSequenceClassification

from toprune.cli.demo import model_directory
from toprune.export.graph import write_onnx
from toprune.export.quantize import quantize
from toprune.models.families import sizes_of
from toprune.plan.budget import Lengths
from toprune.plan.cost import reduction
from toprune.plan.plan import Plan, Step
from toprune.report.environment import environment
from toprune.run.engines import OnnxRuntime

OUT = Path(__file__).parent / "results" / "realised.json"
SEED = 0
LENGTHS = {"minilm": 168, "bert-base": 512}  # tokens
# Texts of a contender in a round, one after the other: so most calls find MiniLM's weights in the
# cache, as when its file runs alone. BERT-base's never fit.
TEXTS = {"minilm": 16, "bert-base": 1}
ROUNDS = {"minilm": 30, "bert-base": 15}
SECONDS = 150.0  # limit of the rounds of a model
PROFILED = 40  # runs
# The steps at layers 0 to 3 that training learned on IMDB: results/accuracy/imdb-minilm-*-top-1.
LEARNED = {
    "3x": ("571/1000", "67/200", "209/1000", "149/1000"),
    "5x": ("43/200", "33/200", "121/1000", "47/500"),
}
# The share of tokens that enters each layer, as in latency.py, which old code cannot import.
STRONG = "1 .40 .22 .12 .08 .06 .04 .03 .03 .03 .02 .02"
PRECISIONS = ("fp32", "int8")


def load(name: str) -> Any:
    torch.manual_seed(SEED)
    if name == "minilm":
        return BertForSequenceClassification.from_pretrained(model_directory()).eval()
    return BertForSequenceClassification(BertConfig()).eval()


def plans(name: str, sizes: Any) -> dict[str, Plan]:
    """The plans of a model; the dense one has no steps."""
    made = {"dense": Plan("bert", sizes.layers, sizes.width, "received", ())}
    if name == "bert-base":
        shares = [Fraction(share) for share in STRONG.split()]
        pairs = enumerate(pairwise(shares))
        steps = tuple(Step(i, after) for i, (before, after) in pairs if after < before)
        probe = tuple(np.random.default_rng(SEED).standard_normal(sizes.width))
        return made | {"strong": Plan("bert", sizes.layers, sizes.width, "probe", steps, probe)}
    for budget, ratios in LEARNED.items():
        steps = tuple(Step(layer, Fraction(keep)) for layer, keep in enumerate(ratios))
        probe = tuple(np.random.default_rng(SEED).standard_normal(len(steps) * sizes.width))
        made[budget] = Plan("bert", sizes.layers, sizes.width, "probes", steps, probe=probe)
    return made


def write(name: str, folder: Path) -> dict[str, float]:
    """Export every plan of a model, fp32 and int8; return the FLOPs factor of each plan."""
    model = load(name)
    sizes, only = sizes_of(model), Lengths.of([LENGTHS[name]])
    factors: dict[str, float] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for who, plan in plans(name, sizes).items():
        write_onnx(model, plan, folder / f"{who} fp32.onnx")
        quantize(folder / f"{who} fp32.onnx", folder / f"{who} int8.onnx")
        factors[who] = reduction(sizes, plan, only).unpadded
    return factors


def write_before(name: str, folder: Path, code: Path) -> None:
    """Do the same with the code of another commit, which must have the functions used here."""
    paths = [code / "src", Path(__file__).parent]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, __file__, "--write", name, str(folder)]
    subprocess.run(command, check=True, env=os.environ | variables)


def texts(name: str) -> list[dict[str, np.ndarray]]:
    from latency import batch

    rng = np.random.default_rng(SEED)
    return [batch([rng.integers(1000, 20000, LENGTHS[name])]) for _ in range(TEXTS[name])]


def race(name: str, files: dict[str, Path], factors: dict[str, float], rounds: int | None) -> Any:
    from latency import run_all
    from toprune.compare.bench import compare, milliseconds
    from toprune.run.timing import interleave, pinned

    feeds = texts(name)
    with pinned(1):
        engines = {who: OnnxRuntime(path, threads=1) for who, path in files.items()}
        for who in files:
            if (
                who.startswith("new")
                and who.endswith("fp32")
                and who.replace("new", "old") in files
            ):
                one, other = (engines[w].run(feeds[0]) for w in (who, who.replace("new", "old")))
                if np.abs(one - other).max() > 1e-3:
                    raise SystemExit(f"{name} {who} gives other logits than before")
        runs = {who: partial(run_all, engine, feeds) for who, engine in engines.items()}
        times = interleave(runs, rounds=rounds or ROUNDS[name], warmup=1, seconds=SECONDS)
    ratios = [
        compare(times, who, who.replace(plan, "dense"), flops=factor)
        for plan, factor in factors.items()
        for who in files
        if plan != "dense" and who.split()[1] == plan
    ]
    # int8 and pruned over dense fp32; and new over old.
    ratios += [
        compare(times, who, f"{who.split()[0]} dense fp32", flops=None)
        for who in files
        if who.endswith("int8")
    ]
    ratios += [
        compare(times, who, who.replace("new", "old"), flops=None)
        for who in files
        if who.startswith("new") and who.replace("new", "old") in files
    ]
    ms = milliseconds(times, TEXTS[name])
    return {
        "model": name,
        "length": LENGTHS[name],
        "threads": 1,
        "flops": factors,
        "ratios": ratios,
        "ms_per_text": ms,
        "rounds": len(next(iter(times.values()))),
    }


def profile(path: Path, feed: dict[str, np.ndarray], runs: int) -> dict[str, dict[str, float]]:
    """Milliseconds and number of nodes by operator: for each node the median of its faster half of
    runs. The profiler itself costs about a microsecond a node. `If` is not counted: its nodes are.
    """
    with TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = False
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for _ in range(runs):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times[event["args"]["op_name"], event["name"]].append(event["dur"])
    result: dict[str, dict[str, float]] = defaultdict(lambda: {"ms": 0.0, "nodes": 0})
    for (operator, _), spent in times.items():
        if operator != "If":
            faster = sorted(spent)[: max(1, len(spent) // 2)]
            result[operator]["ms"] += float(np.median(faster)) / 1000
            result[operator]["nodes"] += 1
    return dict(sorted(result.items(), key=lambda item: -item[1]["ms"]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a checkout of the code to compare with")
    parser.add_argument("--models", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, help="of every model; fewer to try the script")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--write", nargs=2, metavar=("MODEL", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.write:
        write(args.write[0], Path(args.write[1]))
        return
    rows: list[Any] = []
    profiles: dict[str, Any] = {}
    with TemporaryDirectory(prefix="toprune-realised-") as folder:
        for name in args.models:
            factors = write(name, Path(folder, "new", name))
            ages = ["new"]
            if args.before:
                write_before(name, Path(folder, "old", name), args.before)
                ages.append("old")
            files = {
                f"{age} {plan} {precision}": Path(folder, age, name, f"{plan} {precision}.onnx")
                for age in ages
                for plan in factors
                for precision in PRECISIONS
            }
            rows.append(race(name, files, factors, args.rounds))
            if name == "minilm":
                feed, runs = texts(name)[0], args.rounds or PROFILED
                profiles = {who: profile(path, feed, runs) for who, path in files.items()}
    result = {"rows": rows, "profiles": profiles, "seed": SEED, "environment": environment()}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
