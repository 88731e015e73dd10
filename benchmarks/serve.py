"""The server under load: batches by executed cost, against dense, one text a call, and by count.

    toprune demo --out demo                               # or any two exported bundles of a task
    python benchmarks/serve.py --dense demo/dense --pruned demo/pruned      # about 7 minutes
    python benchmarks/serve.py --dense D --pruned P --seconds 1   # to try it: writes no result

Requests of one text arrive at random times (open loop), whether or not earlier ones are answered;
a latency counts from the moment at which the request was to be sent. The texts are IMDB's reviews,
or words of the same lengths where they are not there.

dense   the dense file in the same server
naive   the pruned file, one text a call
count   the pruned file, batches of up to eight texts in the order of arrival
cost    the pruned file, batches by executed cost: what toprune serve does
shed    the same with --shed, for a pruned bundle with a dial: name its budgets, --shed 2x,3x,5x

Capacity is what a closed loop of 16 clients reaches. `dense` gets arrivals at 50, 80, 100 and 150 %
of its own capacity, the others at the same shares of that of `cost`. The client shares the
machine with the server. Writes results/serve.json; modes that are in the file already are not
measured again unless --again is given.
"""

import argparse
import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from toprune.report.environment import environment
from toprune.serve import server
from toprune.serve.queue import Batch, Queue
from toprune.serve.settings import Settings
from toprune.serve.shed import parse_shed

ROOT = Path(__file__).resolve().parents[1]
OUT = Path(__file__).parent / "results" / "serve.json"
REVIEWS = ROOT.parent / "shared" / "data" / "imdb" / "test.jsonl.gz"
MODES = ("cost", "dense", "naive", "count")  # cost first: its capacity sets the others' load
LOADS = (0.5, 0.8, 1.0, 1.5)
SECONDS, CLIENTS, POOL, COUNT = 15.0, 16, 2000, 8
SEED = 0
HOST = "127.0.0.1"


class ByCount(Queue):
    """Batches of up to `most` texts, first come, first served, whatever their lengths."""

    most = COUNT

    def take(self, level: int = 0) -> Batch | None:
        if not self._items:
            return None
        self._items.sort(key=lambda one: one.order[1])  # by arrival, not by deadline
        chosen, self._items = self._items[: self.most], self._items[self.most :]
        self._count_waiting()
        return Batch(chosen[0].job.engine, chosen, sum(item.macs[level] for item in chosen))


class OneByOne(ByCount):
    """One text a call."""

    most = 1


QUEUES: dict[str, type[Queue]] = {"naive": OneByOne, "count": ByCount}


def run_server(mode: str, bundle: Path, port: int, shed: str) -> None:
    """The server of one mode, in a process of its own."""
    server.Queue = QUEUES.get(mode, Queue)
    budgets = parse_shed(shed) if mode == "shed" else ()
    server.serve([f"model={bundle}"], Settings(port=port, shed=budgets))


@dataclass
class Client:
    """Connections that stay open; plain sockets, because a client must not need the processor."""

    port: int
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def post(self, path: str, body: bytes) -> int:
        """Send a request; returns the status."""
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        return await self._send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def get(self, path: str) -> int:
        return await self._send(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())

    async def _send(self, content: bytes) -> int:
        while True:
            is_used = bool(self.idle)
            pair = self.idle.pop() if is_used else await asyncio.open_connection(HOST, self.port)
            reader, writer = pair
            writer.write(content)
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                break
            except (asyncio.IncompleteReadError, ConnectionError):
                if not is_used:  # the server may close a connection that was idle for long
                    raise
        length = head.partition("content-length:")[2].partition("\r\n")[0]
        await reader.readexactly(int(length))
        self.idle.append(pair)
        return int(head.split()[1])


async def closed_loop(client: Client, path: str, bodies: Sequence[bytes], seconds: float) -> float:
    """Requests per second of CLIENTS that each wait for an answer before they ask again."""
    end, done = time.perf_counter() + seconds, 0

    async def ask(number: int) -> None:
        nonlocal done
        i = number
        while time.perf_counter() < end:
            if await client.post(path, bodies[i % len(bodies)]) == 200:
                done += 1
            i += CLIENTS

    started = time.perf_counter()
    await asyncio.gather(*map(ask, range(CLIENTS)))
    return done / (time.perf_counter() - started)


async def open_loop(
    client: Client, path: str, bodies: Sequence[bytes], rate: float, seconds: float
) -> dict[str, Any]:
    """Requests at random times, `rate` a second on average."""
    rng = np.random.default_rng(SEED)
    times = np.cumsum(rng.exponential(1 / rate, int(rate * seconds) + 1)).tolist()
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    started = time.perf_counter()

    async def ask(i: int) -> None:
        status = await client.post(path, bodies[i % len(bodies)])
        statuses[status] += 1
        if status == 200:
            latencies.append(time.perf_counter() - started - times[i])

    tasks: list[asyncio.Task[None]] = []
    for i, at in enumerate(times):
        await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(i)))
    await asyncio.gather(*tasks)
    took = time.perf_counter() - started
    p50, p95, p99 = np.percentile(latencies or [float("nan")], [50, 95, 99]).tolist()
    return {
        "requests_per_second": rate,
        "answered_per_second": len(latencies) / took,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "milliseconds": {"p50": 1e3 * p50, "p95": 1e3 * p95, "p99": 1e3 * p99},
    }


async def wait_for(client: Client, process: "subprocess.Popen[bytes]") -> None:
    """Until the server answers."""
    for _ in range(600):
        try:
            assert await client.get("/health") == 200
            return
        except OSError:
            assert process.poll() is None, "the server did not start"
            await asyncio.sleep(0.1)
    raise TimeoutError("the server does not answer")


async def measure(
    words: Sequence[str],
    path: str,
    bodies: Sequence[bytes],
    seconds: float,
    base: float | None,
) -> dict[str, Any]:
    """Start the server of a mode and measure it.

    Args:
        words: mode, bundle and budgets of the server.
        path: of the requests.
        bodies: of the requests.
        seconds: of each load.
        base: requests per second that the loads are shares of; None: the capacity.
    """
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, "--run", *words, str(port)])
    try:
        client = Client(port)
        await wait_for(client, process)
        await closed_loop(client, path, bodies, seconds / 5)  # to warm up
        capacity = await closed_loop(client, path, bodies, seconds / 2)
        rows = [
            {"load": load}
            | await open_loop(client, path, bodies, load * (base or capacity), seconds)
            for load in LOADS
        ]
    finally:
        process.terminate()
        process.wait(60)
    return {"capacity": capacity, "loads": rows}


def texts() -> tuple[list[str], str]:
    """Reviews, or words of the same lengths; and what they are."""
    if REVIEWS.exists():
        with gzip.open(REVIEWS, "rt", encoding="utf-8") as lines:
            reviews = [
                json.loads(line)["text"] for line, _ in zip(lines, range(POOL), strict=False)
            ]
        np.random.default_rng(SEED).shuffle(reviews)
        return reviews, "IMDB, test"
    lengths = np.random.default_rng(SEED).lognormal(5.15, 0.6, POOL).astype(int)
    return [" ".join(["film"] * max(1, int(n))) for n in lengths], "words"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dense", type=Path)
    parser.add_argument("--pruned", type=Path)
    parser.add_argument("--path", default="/predict")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--shed", default="")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        mode, bundle, shed, port = args.run
        run_server(mode, Path(bundle), int(port), shed)
        return
    if args.dense is None or args.pruned is None:
        parser.error("name two exported bundles with --dense and --pruned")
    found, source = texts()
    bodies = [json.dumps({"inputs": text}).encode() for text in found]
    is_trial = args.seconds != SECONDS
    result: dict[str, Any] = {"modes": {}}
    if OUT.exists() and not args.again and not is_trial:
        result = json.loads(OUT.read_text(encoding="utf-8"))
    for mode in (*MODES, "shed") if args.shed else MODES:
        if mode in result["modes"]:
            continue
        bundle = args.dense if mode == "dense" else args.pruned
        base = None if mode in ("cost", "dense") else result["modes"]["cost"]["capacity"]
        row = asyncio.run(
            measure([mode, str(bundle), args.shed], args.path, bodies, args.seconds, base)
        )
        result["modes"][mode] = row
        sys.stdout.write(json.dumps({mode: row}) + "\n")
        result |= {"texts": source, "seconds": args.seconds, "cores": os.cpu_count()}
        result["environment"] = environment()
        if not is_trial:
            OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
