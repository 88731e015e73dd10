"""HTTP load on loopback: a client that costs little, closed and open loops, a server for them."""

import asyncio
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOST = "127.0.0.1"
CLIENTS = 16  # of a closed loop
SEED = 0


@dataclass
class Client:
    """Connections that stay open; plain sockets, because a client must not need the processor."""

    port: int
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request; returns the status and the body of the answer."""
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        return await self._send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._send(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())

    async def leave(self, path: str, body: bytes) -> None:
        """Send a request and close the connection before the answer can be there."""
        _, writer = await asyncio.open_connection(HOST, self.port)
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    def close(self) -> None:
        for _, writer in self.idle:
            writer.close()

    async def _send(self, content: bytes) -> tuple[int, bytes]:
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
        body = await reader.readexactly(int(length))
        self.idle.append(pair)
        return int(head.split()[1]), body


def free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        return free.getsockname()[1]


@asynccontextmanager
async def running(
    words: Sequence[str], port: int
) -> AsyncIterator[tuple[Client, "subprocess.Popen[bytes]"]]:
    """A server in a process of its own, from its first answer to a clean end.

    Args:
        words: arguments of Python that start it.
        port: where it listens.
    """
    process = subprocess.Popen([sys.executable, *words])
    client = Client(port)
    try:
        for _ in range(600):
            try:
                assert (await client.get("/health"))[0] == 200
                break
            except OSError:
                assert process.poll() is None, "the server did not start"
                await asyncio.sleep(0.1)
        else:
            raise TimeoutError("the server does not answer")
        yield client, process
    finally:
        client.close()
        process.terminate()
        process.wait(60)


async def closed_loop(client: Client, path: str, bodies: Sequence[bytes], seconds: float) -> float:
    """Requests per second of CLIENTS that each wait for an answer before they ask again."""
    end, done = time.perf_counter() + seconds, 0

    async def ask(number: int) -> None:
        nonlocal done
        i = number
        while time.perf_counter() < end:
            if (await client.post(path, bodies[i % len(bodies)]))[0] == 200:
                done += 1
            else:  # the queue is full; asking again at once would only cost time
                await asyncio.sleep(0.01)
            i += CLIENTS

    started = time.perf_counter()
    await asyncio.gather(*map(ask, range(CLIENTS)))
    return done / (time.perf_counter() - started)


async def open_loop(
    client: Client, path: str, bodies: Sequence[bytes], rate: float, seconds: float
) -> dict[str, Any]:
    """Requests at random times, `rate` a second on average, whether or not earlier ones are
    answered; a latency counts from the moment at which the request was to be sent."""
    rng = np.random.default_rng(SEED)
    times = np.cumsum(rng.exponential(1 / rate, int(rate * seconds) + 1)).tolist()
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    started = time.perf_counter()

    async def ask(i: int) -> None:
        status, _ = await client.post(path, bodies[i % len(bodies)])
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
