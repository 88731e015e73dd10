"""Runs that are killed by SIGKILL at random moments of training, caching, writing and exporting,
and resumed: is the bundle old or new at any moment, and the end the same as without?

    python benchmarks/kills.py            # about ten minutes; writes results/kills.json

A tiny model, because what matters is where a process dies: half of the deaths come at a touch of
the file system chosen at random, half after a random time. `tests/bundle/test_kills.py` does a few.
"""

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import killing, synthetic
from support.resuming import ROWS, TRAINING, same
from toprune.api import prune
from toprune.export.export import export
from toprune.report.environment import environment
from toprune.run.runner import Runner

OUT = Path(__file__).parent / "results" / "kills.json"
DEATHS = 40  # of training at least, and as many of exporting
SEED = 0


def moments(
    rng: np.random.Generator, count: int, seconds: float, most: int
) -> Iterator[dict[str, Any]]:
    """At most so many deaths on the way of one run, then peace."""
    for _ in range(most):
        if rng.random() < 0.5:
            yield {"at": int(rng.integers(count))}
        else:
            yield {"after": float(rng.uniform(0, seconds))}


def measure(job: Callable[[], Any], place: Path) -> tuple[int, float]:
    """(touches of the file system, seconds) of a job that nobody disturbs."""
    started = time.monotonic()
    return killing.touches(job, place), time.monotonic() - started


def trained(model: Path, place: Path, rng: np.random.Generator) -> dict[str, Any]:
    """Pruning with an older bundle in its place."""
    whole, out, seen = place / "whole", place / "runs" / "out", Counter[str]()
    job = partial(prune, model, ROWS, "2x", training=TRAINING)
    before = partial(prune, model, ROWS, "3x", training=TRAINING, overwrite=True)
    count, seconds = measure(partial(job, out=whole), place)
    new = killing.content(whole)
    deaths = runs = 0
    while deaths < DEATHS:
        before(out=out)
        old = killing.content(out)

        def look(old: dict[str, str] = old) -> None:
            now = killing.content(out)
            if now == old:
                seen["old"] += 1
                return
            same(whole, out)
            assert now.keys() == new.keys(), "a mixture"
            seen["new"] += 1

        again = partial(job, out=out, overwrite=True, resume=True)
        deaths += killing.kill_often(again, place, look, moments(rng, count, seconds, 8))
        same(whole, out)  # plan and weights, bit by bit
        assert [path.name for path in out.parent.iterdir()] == ["out"], "something was left behind"
        runs += 1
        print(f"pruning: {deaths} deaths, {runs} runs to the end", flush=True)
    return {"deaths": deaths, "runs": runs, "touches": count, "seen": dict(seen)}


def exported(bundle: Path, rng: np.random.Generator) -> dict[str, Any]:
    """Exporting where nothing was exported, and where there are files."""
    bare = killing.content(bundle)
    job = partial(export, bundle, int8=True)
    count, seconds = measure(job, bundle)
    files, deaths, seen = killing.content(bundle), 0, Counter[str]()

    def look() -> None:
        now = killing.content(bundle)
        if now == bare:
            seen["none"] += 1
            return
        manifest = "onnx/export.json"  # says when
        assert now == files | {manifest: now[manifest]}, "a mixture"
        Runner(bundle, precision="int8")
        seen["whole"] += 1

    while deaths < DEATHS:
        shutil.rmtree(bundle / "onnx")
        deaths += killing.kill_often(job, bundle, look, moments(rng, count, seconds, 8))
        print(f"exporting: {deaths} deaths", flush=True)
    return {"deaths": deaths, "touches": count, "seen": dict(seen)}


def main() -> None:
    rng = np.random.default_rng(SEED)
    with TemporaryDirectory() as folder:
        place = Path(folder)
        model = synthetic.save_untrained(place / "model")
        result = {"pruning": trained(model, place, rng)}
        result["exporting"] = exported(place / "whole", rng)
    result |= {"identical": True, "seed": SEED, "environment": environment()}  # or it had failed
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
