"""A hundred thousand requests to one server: no wrong answer, no 500, and memory stays flat.

    python benchmarks/serve_soak.py                     # some minutes on one core
    python benchmarks/serve_soak.py --requests 2000     # to try it: writes no result

One `toprune serve` with a tiny bundle on loopback, and 16 clients. Requests have one to eight
texts of random lengths, drawn from a pool whose answers `Runner` computed before. One in fifty is
malformed, one in fifty leaves before its answer, and the bundle is replaced by an equal one at
every tenth of the way. A request may be refused with 429, never with a 500. Writes
results/serve_soak.json with the server's resident memory at the start and at every tenth; exits
with 1 if an answer is wrong, or memory grows by more than a tenth from the first to the last tenth.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadgen import CLIENTS, Client, free_port, running
from toprune import Runner
from toprune.io.atomic import replace_directory
from toprune.report.environment import environment

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
OUT = HERE / "results" / "serve_soak.json"
REQUESTS, TENTHS, POOL, MOST, SEED = 100_000, 10, 400, 8, 0
RARE = 50  # one request in so many is malformed, and one leaves
TOLERANCE = 1e-4
GROWTH = 0.1


def megabytes(process: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"there is no process {process}")


class Soak:
    """Sends requests and compares the answers."""

    def __init__(self, client: Client, texts: list[str], logits: list[list[float]]):
        self._client, self._texts, self._logits = client, texts, logits
        self._rng = random.Random(SEED)
        self.statuses: Counter[int] = Counter()
        self.wrong = 0

    async def send(self, count: int) -> None:
        """Send so many requests, CLIENTS at a time."""
        numbers = iter(range(count))

        async def client() -> None:
            for _ in numbers:
                await self._one()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    async def _one(self) -> None:
        chosen = [self._rng.randrange(POOL) for _ in range(self._rng.randint(1, MOST))]
        body = json.dumps({"inputs": [self._texts[i] for i in chosen]}).encode()
        luck = self._rng.randrange(RARE)
        if luck == 0:
            status, _ = await self._client.post("/embed", body[: self._rng.randrange(len(body))])
            self.wrong += status not in (400, 429)
        elif luck == 1:
            await self._client.leave("/embed", body)
            return
        else:
            status, answer = await self._client.post("/embed", body)
            if status == 200:
                self.wrong += not _same(json.loads(answer), [self._logits[i] for i in chosen])
        self.statuses[status] += 1


def _same(one: list[list[float]], other: list[list[float]]) -> bool:
    return len(one) == len(other) and all(
        abs(a - b) < TOLERANCE
        for row, row_other in zip(one, other, strict=True)
        for a, b in zip(row, row_other, strict=True)
    )


async def soak(folder: Path, requests: int) -> dict[str, Any]:
    """Send the requests in tenths; returns the counts, and memory after each tenth."""
    from support.toy_bundle import MAX_LENGTH, make_bundle  # pyright: ignore[reportMissingImports]

    bundle = make_bundle(folder / "live", task="embed")
    shutil.copytree(bundle, folder / "copy")
    rng = random.Random(SEED)
    texts = [
        " ".join(f"w{rng.randrange(60)}" for _ in range(rng.randint(1, MAX_LENGTH + 8)))
        for _ in range(POOL)
    ]
    logits = Runner(bundle, threads=1)(texts).tolist()
    port = free_port()
    words = ["-m", "toprune", "serve", str(bundle), "--port", str(port), "--workers", "1", "--json"]
    words += ["--max-queue", "100"]  # of tiny batches
    async with running(words, port) as (client, process):
        work = Soak(client, texts, logits)
        memory, started = [megabytes(process.pid)], time.perf_counter()
        for _ in range(TENTHS):
            await work.send(requests // TENTHS)
            memory.append(megabytes(process.pid))
            seconds = time.perf_counter() - started
            sys.stdout.write(f"{seconds:.0f} s, {memory[-1]:.1f} MB, {dict(work.statuses)}\n")
            sys.stdout.flush()
            shutil.copytree(folder / "copy", folder / "next")
            replace_directory(folder / "next", bundle)
        metrics = (await client.get("/metrics"))[1].decode()
    reloads = [line for line in metrics.splitlines() if line.startswith("toprune_reloads_total{")]
    errors = sum(n for status, n in work.statuses.items() if status >= 500 and status != 503)
    return {
        "requests": requests,
        "statuses": {str(status): count for status, count in sorted(work.statuses.items())},
        "server_errors": errors,
        "wrong": work.wrong,
        "reloads": reloads,
        "megabytes": memory,
        "exit_code": process.returncode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=REQUESTS)
    args = parser.parse_args()
    os.environ["TOPRUNE_API_KEY"] = ""
    with TemporaryDirectory() as folder:
        result = asyncio.run(soak(Path(folder), args.requests))
    result["environment"] = environment()
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if args.requests == REQUESTS:
        OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    grew = result["megabytes"][-1] / result["megabytes"][1] - 1
    raise SystemExit(bool(result["wrong"] or result["server_errors"] or grew > GROWTH))


if __name__ == "__main__":
    main()
