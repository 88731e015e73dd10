"""The server on Ray Serve: the same answers, and no accepted request is lost with a replica."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("ray")
pytest.importorskip("fastapi", reason="needs toprune[ray-serve]")

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from starlette.requests import Request as StarletteRequest
from starlette.testclient import TestClient

from support.toy_bundle import make_bundle
from toprune.io.ray import cluster
from toprune.run.runner import Runner
from toprune.serve.ray import NAME, TRIES, Door, Got, Sent, application
from toprune.serve.settings import Scale, Settings

TEXTS = ["w1 w2", "w3 w4 w5"]
SECONDS = 120.0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("ray") / "live", task="embed")


@pytest.fixture(scope="module")
def address(bundle: Path) -> Iterator[str]:
    """Two replicas on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with cluster(cpus=2):
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        deploy(bundle)
        yield f"http://127.0.0.1:{port}/"
        serve.shutdown()


def deploy(bundle: Path) -> None:
    settings = Settings(workers=1, timeout=60.0)
    serve.run(application([f"live={bundle}"], settings, Scale(replicas=2)), name=NAME)


def ask(address: str, path: str, body: Any) -> tuple[int, Any]:
    data = json.dumps(body).encode()
    request = Request(address + path, data, {"content-type": "application/json"})
    try:
        with urlopen(request, timeout=SECONDS) as reply:
            return reply.status, json.loads(reply.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def replicas() -> list[Any]:
    """The actors of the model's replicas."""
    names: Any = ray.util.list_named_actors(all_namespaces=True)
    return [ray.get_actor(**one) for one in names if "#model#" in one["name"]]


class Load:
    """Clients that ask without a pause; keeps what was not as expected."""

    def __init__(self, address: str, known: list[Any], clients: int = 4):
        self._address, self._known = address, known
        self.answers, self.bad = 0, list[Any]()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        while not self._over.is_set():
            status, answer = ask(self._address, "embed", {"inputs": TEXTS})
            if status == 200 and answer in self._known:
                self.answers += 1
            else:
                self.bad.append((status, answer))

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def wait(self, count: int) -> None:
        """Until so many more requests were answered, or one was not."""
        until = self.answers + count
        while self.answers < until and not self.bad:
            self._over.wait(0.05)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(SECONDS)


class Replicas:
    """A handle of replicas that die, or are busy, so many times."""

    def __init__(self, *errors: Exception):
        self._errors = list(errors)

    async def remote(self, sent: Sent) -> Got:
        if self._errors:
            raise self._errors.pop()
        return Got(200, [(b"content-type", b"text/plain")], sent.body)


def through_the_door(*errors: Exception, content: bytes = b"body") -> Any:
    door = Door(Replicas(*errors), max_body=8, timeout=60.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        response = await door(StarletteRequest(scope, receive))
        await response(scope, receive, send)

    return TestClient(app).post("/embed", content=content)


def test_the_door_keeps_a_request_until_it_is_answered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toprune.serve.ray.PAUSE", 0.0)
    assert through_the_door().content == b"body"
    died = [RayActorError() for _ in range(TRIES)]
    assert through_the_door(*died[1:]).status_code == 200
    lost = through_the_door(*died)
    assert (lost.status_code, lost.headers["retry-after"]) == (503, "1")
    busy = through_the_door(BackPressureError(num_queued_requests=1, max_queued_requests=1))
    assert (busy.status_code, busy.json()["error_type"]) == (429, "overloaded")
    assert through_the_door(content=b"too large").status_code == 413


@pytest.mark.slow
def test_the_same_answers_and_refusals(address: str, bundle: Path):
    expected = Runner(bundle, threads=1)(TEXTS).tolist()
    assert ask(address, "embed", {"inputs": TEXTS}) == (200, expected)
    status, error = ask(address, "embed", {"inputs": []})
    assert (status, error["error_type"]) == (422, "validation")
    assert ask(address, "nothing", {})[0] == 404


@pytest.mark.slow
def test_a_replica_is_killed_under_load(address: str, bundle: Path):
    known = [Runner(bundle, threads=1)(TEXTS).tolist()]
    with Load(address, known) as load:
        load.wait(50)
        before = replicas()
        assert len(before) == 2
        ray.kill(before[0])  # at once: what it was answering is lost in it
        load.wait(200)
    assert load.bad == []


@pytest.mark.slow
def test_a_rolling_update_under_load(address: str, bundle: Path, tmp_path: Path):
    """Another bundle is deployed; every answer is that of the old or of the new one."""
    new = make_bundle(tmp_path / "new", task="embed", seed=5)
    known = [Runner(one, threads=1)(TEXTS).tolist() for one in (bundle, new)]
    with Load(address, known) as load:
        load.wait(50)
        deploy(new)
        load.wait(50)
    assert load.bad == []
    assert ask(address, "embed", {"inputs": TEXTS}) == (200, known[1])


@pytest.mark.slow
def test_the_command_serves_and_stops(bundle: Path):
    """With a Ray of its own, and no message of Ray."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "toprune", "serve", str(bundle), "--engine", "ray", "--json"]
    process = subprocess.Popen(
        [*words, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TOPRUNE_API_KEY": ""},
    )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    expected = Runner(bundle, threads=1)(TEXTS).tolist()
    assert ask(address, "embed", {"inputs": TEXTS}) == (200, expected)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
