"""Faults: malformed requests, engines that fail, a log on a full disk, bundles replaced under load.
No request gets a 500 or a wrong answer."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from starlette.testclient import TestClient

from support.request_fuzz import BUNDLES, Fuzz, send
from support.serving import on_loopback
from support.toy_bundle import make_bundle
from toprune.io.atomic import replace_directory
from toprune.run.runner import Runner
from toprune.serve.bundles import Shelf
from toprune.serve.requests import Limits
from toprune.serve.server import make_app
from toprune.serve.settings import Settings

CASES = 400  # benchmarks/serve_fuzz.py sends 10,000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("faults")
    for name in BUNDLES:
        make_bundle(place / name, task=name)
    return place


@pytest.fixture(scope="module")
def port(place: Path) -> Iterator[int]:
    limits = Limits(max_body=100_000, max_texts=64, max_chars=2000)
    app = make_app([str(place / name) for name in BUNDLES], Settings(workers=1, limits=limits))
    with on_loopback(app) as address:
        yield int(address.rstrip("/").rpartition(":")[2])


def test_nothing_malformed_is_a_500_or_spoils_an_answer(port: int):
    fuzz = Fuzz(0)
    statuses: Counter[int | None] = Counter()
    answers: dict[str, bytes] = {}
    for number in range(CASES):
        content, may_wait = fuzz.draw()
        status, _ = send(port, content, is_all=may_wait)
        statuses[status] += 1
        assert status is None or status < 500, content[:500]
        if number % 10 == 0:
            path, good = fuzz.good()
            status, body = send(port, good)
            assert status == 200, (path, body)
            assert answers.setdefault(path, body) == body, path
    assert {200, 400, 404, 405, 413, 415, 422} <= statuses.keys()
    assert statuses[None] < CASES / 5  # those that the server waits for


class Broken(BaseException):
    """Not even an `Exception`."""


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, SystemExit, Broken])
def test_a_worker_outlives_whatever_an_engine_does(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    answers = Runner.answers

    def fail_once(self: Runner, texts: Any) -> Iterator[Any]:
        monkeypatch.setattr(Runner, "answers", answers)
        raise error("broken")

    lines: list[str] = []
    app = make_app([str(place / "embed")], Settings(workers=1), log=lines.append)
    with TestClient(app, base_url="http://localhost") as client:
        monkeypatch.setattr(Runner, "answers", fail_once)
        reply = client.post("/embed", json={"inputs": "w1"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert lines == [f"/embed failed: {error.__name__}"]
        assert client.post("/embed", json={"inputs": "w1"}).status_code == 200


def test_a_batch_that_fails_runs_text_by_text(place: Path, monkeypatch: pytest.MonkeyPatch):
    """Too large for the memory, for example."""
    answers = Runner.answers

    def small_only(self: Runner, texts: Any) -> Iterator[Any]:
        if len(texts) > 1:
            raise MemoryError
        return answers(self, texts)

    monkeypatch.setattr(Runner, "answers", small_only)
    app = make_app([str(place / "embed")], Settings(workers=1))
    with TestClient(app, base_url="http://localhost") as client:
        reply = client.post("/embed", json={"inputs": ["w1", "w2"]})
    assert reply.status_code == 200
    expected = Runner(place / "embed", threads=1)
    monkeypatch.setattr(Runner, "answers", answers)
    assert reply.json() == expected(["w1", "w2"]).tolist()


def test_a_log_on_a_full_disk_stops_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("toprune.serve.bundles.EVERY", 0.0)
    monkeypatch.setattr("toprune.serve.server.Shelf", partial(Shelf, spawn=lambda load: load()))
    live = tmp_path / "live"
    shutil.copytree(place / "embed", live)
    app = make_app([str(live)], Settings(workers=1), log=full)
    with TestClient(app, base_url="http://localhost") as client:
        for seed in (5, 6):  # also the second one is loaded
            before = client.post("/embed", json={"inputs": "w1 w2"}).json()
            replace_directory(make_bundle(tmp_path / "next", task="embed", seed=seed), live)
            assert client.post("/embed", json={"inputs": "w1 w2"}).json() != before
        before = client.post("/embed", json={"inputs": "w1 w2"}).json()
        (live / "onnx" / "model.onnx").write_bytes(b"")  # a copy for which there was no room
        (live / "onnx" / "export.json").touch()
        for _ in range(3):
            assert client.post("/embed", json={"inputs": "w1 w2"}).json() == before
        assert 'result="refused"} 1\n' in client.get("/metrics").text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_command_serves_while_stderr_is_full(place: Path, tmp_path: Path):
    live = tmp_path / "live"
    shutil.copytree(place / "embed", live)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "toprune", "serve", str(live), "--json", "--workers", "1"]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [*words, "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            env=os.environ | {"TOPRUNE_API_KEY": ""},
        )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    replace_directory(make_bundle(tmp_path / "next", task="embed", seed=7), live)
    expected = Runner(live, threads=1)(["w1 w2"]).tolist()
    assert any(ask(address, "embed", {"inputs": "w1 w2"}) == expected for _ in range(20_000))
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def ask(address: str, path: str, body: Any) -> Any:
    data = json.dumps(body).encode()
    request = Request(address + path, data, {"content-type": "application/json"})
    with urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())


def test_a_bundle_is_replaced_under_load(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every answer is that of one of the bundles, and the last one comes to be served."""
    monkeypatch.setattr("toprune.serve.bundles.EVERY", 0.0)
    live, texts = tmp_path / "live", ["w1 w2", "w3 w4 w5"]
    shutil.copytree(place / "embed", live)
    known = [Runner(live, threads=1)(texts).tolist()]
    over, seen, errors = threading.Event(), Counter[int](), list[Any]()

    def load(address: str) -> None:
        while not over.is_set():
            try:
                seen[known.index(ask(address, "embed", {"inputs": texts}))] += 1
            except Exception as error:
                errors.append(error)
                return

    with on_loopback(make_app([str(live)], Settings(workers=1))) as address:
        clients = [threading.Thread(target=load, args=(address,)) for _ in range(3)]
        for client in clients:
            client.start()
        for seed in (5, 6, 7):
            new = make_bundle(tmp_path / "next", task="embed", seed=seed)
            known.append(Runner(new, threads=1)(texts).tolist())  # before it can be served
            replace_directory(new, live)
            assert any(
                ask(address, "embed", {"inputs": texts}) == known[-1] or errors
                for _ in range(20_000)
            )
        over.set()
        for client in clients:
            client.join(60)
    assert errors == []
    assert sum(seen.values()) > 0
