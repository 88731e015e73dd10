"""One Runner, eight threads, ten thousand calls: no answer wrong or lost, and memory flat.

    python benchmarks/soak.py                             # some minutes on two cores
    python benchmarks/soak.py --requests 1000             # to try it: writes no result

Calls of one to eight texts and pairs of 3 to 256 tokens, more short ones than long ones, drawn from
a pool whose answers were computed before, one text at a time. Writes results/soak.json; exits with
1 if an answer is wrong or missing.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from toprune import Runner
from toprune.report.environment import environment
from toprune.tasks.tokenize import Text

OUT = Path(__file__).parent / "results" / "soak.json"
MAKE_BUNDLE = Path(__file__).parents[1] / "consumers" / "make_bundle.py"
REQUESTS, THREADS, POOL, MOST = 10_000, 8, 2000, 8
PAIRS = 0.25  # share of the pool
LONGEST = 256  # tokens, as the bundle takes
LARGEST = 6  # of the largest calls in every thread, before the others
TOLERANCE = 1e-4
EVERY = 250  # requests between two looks at memory
SEED = 0
# one token each, so that words count tokens
WORDS = ("the", "film", "river", "never", "bright", "doctor", "because", "market", "!", "seven")


def pool() -> list[Text]:
    rng = np.random.default_rng(SEED)

    def draw(length: int) -> str:
        return " ".join(rng.choice(WORDS, length))

    texts: list[Text] = []
    for _ in range(POOL):
        length = 1 + int(rng.random() ** 2 * (LONGEST - 2))  # two of the tokens are special
        if rng.random() < PAIRS and length > 2:  # three
            cut = int(rng.integers(1, length - 1))
            texts.append((draw(cut), draw(length - 1 - cut)))
        else:
            texts.append(draw(length))
    return texts


def resident() -> float:
    """Megabytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Soak:
    """What the threads share. Each request has its place in `off`; NaN: not answered."""

    def __init__(self, run: Runner, texts: list[Text], expected: np.ndarray, requests: int):
        self.run, self.texts, self.expected = run, texts, expected
        rng = np.random.default_rng(SEED + 1)
        self.calls = [
            rng.integers(0, len(texts), rng.integers(1, MOST + 1)) for _ in range(requests)
        ]
        self.off = np.full(requests, np.nan)
        self.memory = np.full(-(-requests // EVERY), np.nan)
        self.problems: list[str] = []
        self._next = itertools.count()  # one step of it is atomic

    def serve(self) -> None:
        for i in self._next:
            if i >= len(self.calls):
                return
            rows = self.calls[i]
            try:
                logits = self.run([self.texts[row] for row in rows])
                self.off[i] = np.abs(logits - self.expected[rows]).max()
            except Exception as problem:  # whatever it was, that request has no answer
                self.problems.append(f"request {i}: {problem!r}")
            if i % EVERY == 0:
                self.memory[i // EVERY] = resident()


def in_threads(task: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=task) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def soak(bundle: Path, requests: int) -> dict[str, Any]:
    run = Runner(bundle, threads=1)
    texts = pool()
    expected = np.concatenate([run([text]) for text in texts])  # (POOL, C)
    work = Soak(run, texts, expected, requests)
    before = resident()
    # The runtime keeps the memory of the most that was ever under way at a time. Once it has had
    # the largest calls in all threads, growth is a leak and not a new mark.
    largest = [" ".join(WORDS[:1] * (LONGEST - 2))] * MOST
    in_threads(lambda: [run(largest) for _ in range(LARGEST)])
    marked, start = resident(), time.perf_counter()
    in_threads(work.serve)
    seconds = time.perf_counter() - start
    off = work.off
    return {
        "requests": requests,
        "threads": THREADS,
        "texts": sum(len(rows) for rows in work.calls),
        "wrong": int((off > TOLERANCE).sum()),
        "lost": int(np.isnan(off).sum()),
        "worst": float(np.nanmax(off)),
        "problems": work.problems[:5],
        "seconds": seconds,
        "resident_mb": {
            "start": before,
            "after_the_largest": marked,
            "after_1000": float(work.memory[1000 // EVERY]) if requests > 1000 else None,
            "end": resident(),
        },
        "resident_mb_over_time": work.memory.tolist(),
        "environment": environment(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    requests = parser.parse_args().requests
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, MAKE_BUNDLE, folder, "classify"], check=True)
        result = soak(Path(folder) / "classify", requests)
    text = json.dumps(result, indent=1)
    sys.stdout.write(text + "\n")
    if requests == REQUESTS:
        OUT.write_text(text + "\n", encoding="utf-8")
    sys.exit(1 if result["wrong"] or result["lost"] else 0)


if __name__ == "__main__":
    main()
