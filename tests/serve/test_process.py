"""The command in a process of its own: no torch, a clean stop, and clients that leave."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from support.serving import on_loopback
from support.toy_bundle import make_bundle
from toprune.serve.server import make_app
from toprune.serve.settings import Settings

TRIES = 2000  # requests until something is seen: no test waits for ever


def ask(address: str, path: str, body: Any = None) -> str:
    with urlopen(request(address, path, body), timeout=30) as reply:
        return reply.read().decode()


def request(address: str, path: str, body: Any) -> Request:
    data = None if body is None else json.dumps(body).encode()
    return Request(address + path, data, {"content-type": "application/json"})


def until(is_so: Callable[[], bool]) -> None:
    assert any(is_so() for _ in range(TRIES))


def test_the_command_serves_and_stops(tmp_path: Path):
    make_bundle(tmp_path / "small")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = (
        "import sys, toprune.cli\n"
        "try: toprune.cli.main()\n"
        "finally: print({'torch', 'transformers', 'onnx'} & sys.modules.keys(), file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, "serve", str(tmp_path / "small"), "--json"]
    process = subprocess.Popen(
        [*words, "--port", str(port), "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TOPRUNE_API_KEY": ""},
    )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]

    assert len(json.loads(ask(address, "predict", {"inputs": "w1 w2"}))) == 3
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert errors == "set()\n"
    assert process.returncode == 0


def test_a_client_that_leaves_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toprune.serve.workers.Workers.start", lambda self: None)
    app = make_app([str(make_bundle(tmp_path / "small"))], Settings(workers=1, timeout=30.0))
    with on_loopback(app) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        body = json.dumps({"inputs": "w1"}).encode()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(
                b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                + f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            until(lambda: "toprune_queue_texts 1\n" in ask(address, "metrics"))
        until(lambda: "toprune_cancelled_texts_total 1\n" in ask(address, "metrics"))
        assert "toprune_queue_texts 0\n" in ask(address, "metrics")
