"""The server under load: batches by executed cost, against dense, one text a call, and by count.

    python benchmarks/serve.py                # about 15 minutes, the first time with the bundles
    python benchmarks/serve.py --seconds 1    # to try it: writes no result

Requests of one text arrive at random times (open loop). Two mixes of lengths: IMDB's test reviews,
and TREC-QA's test pairs of a question and a sentence. serve_bundles.py makes a dense bundle, one of
3x, and one with a dial.

dense      the dense file in the same server
naive      the pruned file, one text a call
count      the pruned file, batches of up to eight texts in the order of arrival, padded
cost       the pruned file, batches by executed cost: what toprune serve does, with a thread for
           each core over one session
processes  the same in a process for each core, each with a session and a queue of its own
shed       the bundle with a dial and --shed; `loose` is its capacity at the first budget alone

Capacity is what a closed loop of 16 clients reaches. `dense`, `processes` and `shed` get arrivals
at 50, 80, 100 and 150 % of their own capacity (shed: that of `loose`), the others at the same
shares of that of `cost`. The client shares the machine with the server. Writes results/serve.json,
with the aims and whether they are met; what is in the file already is not measured again unless
--again is given.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen import HOST, closed_loop, free_port, open_loop, running
from toprune.report.environment import environment
from toprune.run.manifest import Manifest
from toprune.serve import server
from toprune.serve.queue import Batch, Queue
from toprune.serve.settings import Settings
from toprune.serve.shed import parse_shed

OUT = Path(__file__).parent / "results" / "serve.json"
MIXES = {"imdb": "IMDB, test", "trecqa": "TREC-QA, test"}
MODES = ("cost", "dense", "naive", "count")  # cost first: its capacity sets the others' load
OWN = ("cost", "dense", "processes", "loose")  # get loads by their own capacity
LOADS = (0.5, 0.8, 1.0, 1.5)
SECONDS, COUNT = 9.0, 8
FASTER, STEADY = 2.5, 2.0  # the aims: throughput over dense; p95 at 150 % over that at 80 %


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


def run_server(
    mode: str, bundle: str, shed: str, max_queue: float | None, cost: float | None, port: int
) -> None:
    """The server of one mode, in a process of its own."""
    server.Queue = QUEUES.get(mode, Queue)
    budgets = parse_shed(shed) if mode in ("shed", "loose") else ()
    if mode == "loose":
        server.Shed = Loosest
    settings = Settings(port=port, shed=budgets, max_queue=max_queue, max_batch_cost=cost)
    if mode == "processes":
        run_processes(bundle, settings)
    else:
        server.serve([f"model={bundle}"], settings)


class Loosest(server.Shed):
    """Never tightens."""

    def choose(self, fill: float) -> int:
        return 0


def run_processes(bundle: str, settings: Settings) -> None:
    """A whole server for each core; whoever is free accepts the next connection."""
    import uvicorn

    listening = socket.create_server((HOST, settings.port), backlog=1024)
    children: list[int] = []
    for _ in range(os.cpu_count() or 1):
        child = os.fork()  # before a session exists: its threads would not survive
        if child == 0:
            app = server.make_app([f"model={bundle}"], replace(settings, workers=1))
            config = uvicorn.Config(app, log_level="warning", access_log=False)
            uvicorn.Server(config).run(sockets=[listening])
            os._exit(0)
        children.append(child)

    def stop(*_: Any) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    for child in children:
        os.waitpid(child, 0)


async def measure(
    words: list[str], path: str, bodies: list[bytes], seconds: float, base: float | None
) -> dict[str, Any]:
    """Start the server of a mode and measure it.

    Args:
        words: mode, bundle, budgets and queue of the server.
        path: of the requests.
        bodies: of the requests.
        seconds: of each load.
        base: requests per second that the loads are shares of; None: the capacity.
    """
    port = free_port()
    async with running([__file__, "--run", *words, str(port)], port) as (client, _):
        await closed_loop(client, path, bodies, seconds / 5)  # to warm up
        capacity = await closed_loop(client, path, bodies, seconds / 2)
        rows = [
            {"load": load}
            | await open_loop(client, path, bodies, load * (base or capacity), seconds)
            for load in (LOADS if words[0] != "loose" else ())
        ]
    return {"capacity": capacity, "loads": rows}


def requests_of(bundle: Path, texts: list[Any]) -> tuple[str, list[bytes]]:
    """The path that suits a bundle, and a body for each text."""
    if Manifest.load(bundle).build_task().RANKS:
        bodies: list[Any] = [{"query": query, "texts": [text]} for query, text in texts]
        return "/rerank", [json.dumps(body).encode() for body in bodies]
    inputs = [text if isinstance(text, str) else [list(text)] for text in texts]
    return "/predict", [json.dumps({"inputs": one}).encode() for one in inputs]


def aims(modes: dict[str, Any]) -> list[dict[str, Any]]:
    """The aims of one mix: what was measured, the limit, and whether it is met."""

    def p95(mode: str, load: float) -> float:
        (row,) = (row for row in modes[mode]["loads"] if row["load"] == load)
        return row["milliseconds"]["p95"]

    def aim(name: str, value: float, limit: float, *, at_least: bool = False) -> dict[str, Any]:
        is_met = value >= limit if at_least else value <= limit
        return {"aim": name, "value": value, "limit": limit, "met": bool(is_met)}

    found: list[dict[str, Any]] = []
    if "dense" in modes:
        most = [modes[mode]["loads"][-1]["answered_per_second"] for mode in ("cost", "dense")]
        ratio = most[0] / most[1]  # of requests that are answered at 150 %
        found.append(aim("throughput over dense", ratio, FASTER, at_least=True))
    if "naive" in modes:
        ratio = p95("cost", 0.5) / p95("naive", 0.5)
        found.append(aim("p95 at 50 % over one text a call", ratio, 1.0))
    for mode, name in (("cost", "without"), ("shed", "with")):
        if mode in modes:
            ratio = p95(mode, 1.5) / p95(mode, 0.8)
            found.append(aim(f"p95 at 150 % over that at 80 %, {name} --shed", ratio, STEADY))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--max-queue", type=float)
    parser.add_argument("--max-batch-cost", type=float)
    parser.add_argument("--run", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        mode, bundle, shed, *limits, port = args.run
        queue, cost = (float(limit) if limit else None for limit in limits)
        run_server(mode, bundle, shed, queue, cost, int(port))
        return
    # Brings torch. In a server its objects would make a full garbage collection take 250 ms.
    from serve_bundles import SHED, bundle_of, texts_of

    is_trial = args.seconds != SECONDS
    result: dict[str, Any] = {"mixes": {}}
    if OUT.exists() and not args.again and not is_trial:
        result = json.loads(OUT.read_text(encoding="utf-8"))
    for mix in MIXES:
        texts, source = texts_of(mix), MIXES[mix]
        plan = [*MODES, "processes", "loose", "shed"] if mix == "imdb" else MODES
        row = result["mixes"].setdefault(mix, {"texts": source, "modes": {}})
        for mode in plan:
            if mode in row["modes"]:
                continue
            kind = {"dense": "dense", "loose": "dial", "shed": "dial"}.get(mode, "pruned")
            bundle = bundle_of(mix, kind)
            path, bodies = requests_of(bundle, texts)
            base = None
            if mode not in OWN:
                base = row["modes"]["loose" if mode == "shed" else "cost"]["capacity"]
            limits = [str(args.max_queue or ""), str(args.max_batch_cost or "")]
            words = [mode, str(bundle), ",".join(SHED), *limits]
            measured = asyncio.run(measure(words, path, bodies, args.seconds, base))
            row["modes"][mode] = measured | {"bundle": bundle.name}
            sys.stdout.write(json.dumps({mix: {mode: measured}}) + "\n")
            row["aims"] = aims(row["modes"])
            result |= {"seconds": args.seconds, "cores": os.cpu_count()}
            result |= {"shed": ",".join(SHED), "max_queue": args.max_queue}
            result["max_batch_cost"] = args.max_batch_cost
            result["environment"] = environment()
            if not is_trial:
                OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        for one in row["aims"]:
            verdict = "met" if one["met"] else "MISSED"
            sys.stdout.write(
                f"{source}: {one['aim']}: {one['value']:.2f}, aim {one['limit']:g}: {verdict}\n"
            )


if __name__ == "__main__":
    main()
