"""Ten thousand spoiled bundles and two thousand hostile texts: one line or an answer, never more.

    python benchmarks/fuzz.py                       # half an hour on two cores
    python benchmarks/fuzz.py --cases 200           # to try it: writes no result
    python benchmarks/fuzz.py --number 4711         # one case again, in this process

Every case is a good bundle with one thing spoiled (tests/support/fuzzing.py), mostly signed again,
read by `Runner` and, where it reads that file, by torch (`evaluate`, `explain`, the report's page).
Right are a refusal in one line and a finite answer. Cases run in processes of their own: one that
dies or does not come back is counted and replaced. Texts go through a real pruned bundle, alone and
among the others. Writes results/fuzz.json; exits with 1 if anything else was seen.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}

OUT = HERE / "results" / "fuzz.json"
MAKE_BUNDLE = HERE.parent / "consumers" / "make_bundle.py"
CASES, TEXTS, SEED = 10_000, 2000, 0
SECONDS, LOST = 20, 300  # for one case; and until a process that says nothing is ended
TOGETHER = 50  # texts of a batch
TOLERANCE = 1e-5
RIGHT = ("worked", "refused")
# How often of each kind in a round; others once: torch takes ten times as long.
ROUND = {"export.json": 10, "plan.json and graph": 10, "graph": 8, "external data": 4}
ROUND |= {"links": 2, "names of files": 2}


def kind_of(number: int) -> str:
    from support.fuzzing import KINDS  # pyright: ignore[reportMissingImports]

    order = [kind for kind in KINDS for _ in range(ROUND.get(kind, 1))]
    return order[number % len(order)]


def tried(numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    """What came of these cases."""
    from support.fuzz_case import Hang, Watch, make_victim, run_case  # pyright: ignore[reportMissingImports]
    from toprune.cli.console import hush
    from toprune.tasks import intervals

    def alarm(*_: Any) -> None:
        raise Hang

    hush(debug=False)
    intervals.DRAWS = 20
    signal.signal(signal.SIGALRM, alarm)
    watch = Watch()
    with TemporaryDirectory() as folder:
        victim = make_victim(Path(folder, "victim"))
        for number in numbers:
            kind = kind_of(number)
            found: list[dict[str, Any]] = []
            signal.alarm(SECONDS)
            try:
                for case in run_case(victim, kind, np.random.default_rng((SEED, number)), watch):
                    found.append(vars(case))
            except Hang:
                found.append({"kind": kind, "side": "", "outcome": "hang", "said": ""})
            finally:
                signal.alarm(0)
            yield {"number": number, "found": found}


class Worker:
    """A process that takes every second case, or so; started anew behind one that ended it."""

    def __init__(self, numbers: range):
        self.numbers, self.process = numbers, None
        self.start()

    def start(self) -> None:
        command = [sys.executable, __file__, "--worker", *map(str, _ends(self.numbers))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def results(self) -> Iterator[dict[str, Any]]:
        """Of the next case; empty when there is none left."""
        while self.numbers:
            line = self._line()
            if not line.endswith(b"\n"):
                assert self.process is not None
                self.process.kill()
                how = "hang" if self.process.wait() == -signal.SIGKILL else "crash"
                number, kind = self.numbers[0], kind_of(self.numbers[0])
                lost = {"kind": kind, "side": "", "outcome": how, "said": f"{self.process.wait()}"}
                self.numbers = self.numbers[1:]
                self.start()
                yield {"number": number, "found": [lost]}
                continue
            self.numbers = self.numbers[1:]
            yield json.loads(line)

    def _line(self) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LOST)
        return self.process.stdout.readline() if ready else b""


def _ends(numbers: range) -> tuple[int, int, int]:
    return numbers.start, numbers.stop, numbers.step


def bundles(count: int, workers: int) -> dict[str, Any]:
    """Counts by kind and side, and what was wrong."""
    counts: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    running = [Worker(range(i, count, workers)).results() for i in range(workers)]
    done = 0
    while running:
        for worker in list(running):
            result = next(worker, None)
            if result is None:
                running.remove(worker)
                continue
            done += 1
            if done % 500 == 0:
                sys.stderr.write(f"{done} of {count}: {dict(total)}\n")
            for case in result["found"]:
                place = f"{case['kind']}, {case['side']}".rstrip(", ")
                counts.setdefault(place, Counter())[case["outcome"]] += 1
                total[case["outcome"]] += 1
                if case["outcome"] not in RIGHT:
                    wrong.append({"number": result["number"]} | case)
                    sys.stderr.write(f"{wrong[-1]}\n")
    never = ("traceback", "several lines", "not finite", "hang", "crash", "outside")
    return {
        "cases": done,
        "outcomes": {name: total[name] for name in (*RIGHT, *never)},
        "by_kind": {place: dict(counts[place]) for place in sorted(counts)},
        "wrong": wrong,
    }


def texts(count: int) -> dict[str, Any]:
    """How far the answer to a text alone is from that among the others."""
    from support.hostile import LONGEST, hostile_texts  # pyright: ignore[reportMissingImports]
    from toprune import Runner
    from toprune.export.export import export
    from toprune.run.manifest import Precision

    drawn = [*hostile_texts(count - 1, SEED), ("ten megabytes", "w1 " * (LONGEST // 3))]
    order = np.random.default_rng(SEED).permutation(len(drawn))
    shuffled = [drawn[i] for i in order]
    found: dict[str, Any] = {"texts": len(shuffled), "kinds": len({kind for kind, _ in shuffled})}
    with TemporaryDirectory() as folder:
        made = Path(folder, "bundles")
        subprocess.run([sys.executable, MAKE_BUNDLE, made, "classify"], check=True)
        export(made / "classify", int8=True)
        # int8 measures the numbers of a whole batch to round them: neighbours count, unless each
        # text is a batch of its own.
        ways: list[tuple[Precision, int]] = [("fp32", 2048), ("int8", 1), ("int8", 2048)]
        for precision, budget in ways:
            run = Runner(made / "classify", precision=precision, batch_tokens=budget)
            name = precision if budget > 1 else f"{precision}, one text a batch"
            off = dict.fromkeys((kind for kind, _ in shuffled), 0.0)
            for start in range(0, len(shuffled), TOGETHER):
                part = shuffled[start : start + TOGETHER]
                together = run(text for _, text in part)
                alone = np.concatenate([run([text]) for _, text in part])
                for (kind, _), one in zip(part, np.abs(together - alone).max(1), strict=True):
                    off[kind] = max(off[kind], float(one))
            found[name] = {"furthest": max(off.values()), "by_kind": dict(sorted(off.items()))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--number", type=int)
    parser.add_argument("--worker", type=int, nargs=3)
    args = parser.parse_args()
    if args.worker or args.number is not None:
        numbers = range(*args.worker) if args.worker else [args.number]
        with os.fdopen(os.dup(1), "w") as stream:
            os.dup2(2, 1)  # what libraries print is not ours
            for result in tried(iter(numbers)):
                stream.write(json.dumps(result) + "\n")
                stream.flush()
        return
    from toprune.report.environment import environment

    found = {"bundles": bundles(args.cases, args.workers), "texts": texts(args.texts)}
    text = json.dumps(found | {"seed": SEED, "environment": environment()}, indent=1)
    if (args.cases, args.texts) == (CASES, TEXTS):
        OUT.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    apart = (found["texts"][name]["furthest"] for name in ("fp32", "int8, one text a batch"))
    sys.exit(bool(found["bundles"]["wrong"]) or max(apart) > TOLERANCE)


if __name__ == "__main__":
    main()
