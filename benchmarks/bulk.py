"""A hundred thousand rows, two workers of Ray, one of them killed half-way: every row once.

    python benchmarks/bulk.py                             # some minutes on two cores
    python benchmarks/bulk.py --rows 10000                # to try it: writes no result

One process scores the file first, with the command; then Ray's workers do it, driven from here, and
a worker gets SIGKILL when half of the rows are written. The two files must be equal byte for byte,
and the memory of this process, which reads nothing but answers, flat. Writes results/bulk.json;
exits with 1 if a row is missing, there twice, or another.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from soak import MAKE_BUNDLE, WORDS, resident
from toprune.io.ray import Cluster
from toprune.report.environment import environment
from toprune.run.ray_bulk import score_file
from toprune.run.runner import AHEAD

OUT = Path(__file__).parent / "results" / "bulk.json"
ROWS, WORKERS, LONGEST = 100_000, 2, 16  # words
SHARES = (0.1, 0.5, 1.0)
SEED = 0
WORKER = "ray::MapWorker"  # how Ray names the processes that hold a model


def write_rows(path: Path, rows: int) -> None:
    rng = np.random.default_rng(SEED)
    with path.open("w", encoding="utf-8") as file:
        for i in range(rows):
            text = " ".join(rng.choice(WORDS, int(rng.integers(1, LONGEST + 1))))
            file.write(json.dumps({"id": i, "text": text}) + "\n")


def shared() -> float:
    """Megabytes of this process that it shares with Ray's store: part of what is resident."""
    pages = int(Path("/proc/self/statm").read_text().split()[2])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def workers() -> list[int]:
    """Processes with a model that descend from this one: others may use Ray here, too."""
    parents: dict[int, int] = {}
    named: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            name = (folder / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        parents[int(folder.name)] = int(status[1])
        if name.startswith(WORKER) and status[0] != "Z":
            named.append(int(folder.name))

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid in named if is_ours(pid)]


class Watch:
    """Counts rows as they are written; half-way, it kills."""

    def __init__(self, rows: int):
        self.rows, self.done = rows, 0
        self.before: list[int] = []  # workers when one is killed, and later on
        self.after: list[int] = []
        self.memory: dict[str, float] = {}
        self.over_time: list[float] = []

    def __call__(self, count: int = 1) -> None:
        self.done += count
        if self.done % AHEAD == 0:
            self.over_time.append(round(resident(), 1))
        for share in SHARES:
            if self.done == int(share * self.rows):
                self.memory[f"after_{share:.0%}"] = resident()
        if self.done == self.rows // 2:
            self.before = workers()
            os.kill(self.before[0], signal.SIGKILL)
        if self.done == int(0.9 * self.rows):
            self.after = workers()


def one_process(bundle: Path, source: Path, out: Path) -> None:
    args = ["eval", bundle, "--data", source, "--out", out, "--runtime", "onnx", "--threads", "1"]
    subprocess.run([sys.executable, "-m", "toprune", *map(str, args)], check=True)


def bulk(folder: Path, rows: int) -> dict[str, Any]:
    bundle, source = folder / "classify", folder / "in.jsonl"
    alone, out = folder / "alone.jsonl", folder / "out.jsonl"
    write_rows(source, rows)
    start = time.perf_counter()
    one_process(bundle, source, alone)
    seconds = {"one_process": time.perf_counter() - start}
    watch, before = Watch(rows), resident()
    start = time.perf_counter()
    score_file(bundle, source, out, Cluster(workers=WORKERS), threads=1, progress=watch)
    seconds["ray"] = time.perf_counter() - start
    with out.open(encoding="utf-8") as lines:
        result = Counter(json.loads(line)["id"] for line in lines)
    return {
        "rows": rows,
        "workers": WORKERS,
        "rows_in_a_window": AHEAD,
        "killed": {
            "workers": len(set(watch.before) - set(watch.after)),
            "of": len(watch.before),
            "after_rows": rows // 2,
            "started_again": len(set(watch.after) - set(watch.before)),
        },
        "missing": sum(result[i] == 0 for i in range(rows)),
        "twice": sum(count > 1 for count in result.values()),
        "same_bytes": out.read_bytes() == alone.read_bytes(),
        "seconds": seconds,
        "driver_mb": {"start": before} | watch.memory,
        "driver_shared_mb": shared(),
        "driver_mb_over_time": watch.over_time,
        "ray": version("ray"),
        "environment": environment(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, MAKE_BUNDLE, folder, "classify"], check=True)
        result = bulk(Path(folder), rows)
    text = json.dumps(result, indent=1)
    sys.stdout.write(text + "\n")
    if rows == ROWS:
        OUT.write_text(text + "\n", encoding="utf-8")
    sys.exit(1 if result["missing"] or result["twice"] or not result["same_bytes"] else 0)


if __name__ == "__main__":
    main()
