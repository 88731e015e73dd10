"""Start the server: load the bundles, listen, and stop without losing a request."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toprune.errors import UserError
from toprune.io.untrusted import read_text
from toprune.run.manifest import Precision
from toprune.run.runner import Runner
from toprune.serve.bundles import LARGE, Loaded, Shelf, parse_places
from toprune.serve.metrics import Metrics
from toprune.serve.queue import Queue
from toprune.serve.requests import Limits
from toprune.serve.workers import Workers

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY = "TOPRUNE_API_KEY"


@dataclass(frozen=True)
class Settings:
    """How bundles are served."""

    host: str = LOOPBACK[0]
    port: int = 8080
    precision: Precision = "fp32"
    workers: int | None = None  # batches at a time; None: cores / threads
    threads: int = 1  # of one batch
    max_queue: float = 16.0  # full batches that may wait
    max_batch_cost: float | None = None  # billions of MACs; None: one text of full length
    timeout: float = 30.0  # seconds
    limits: Limits = field(default_factory=Limits)
    key: str | None = None

    @property
    def worker_count(self) -> int:
        return self.workers or max(1, (os.cpu_count() or 1) // self.threads)


def check_installed() -> None:
    """Refuse to go on without the packages of the server."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise UserError("the server is an extra; pip install 'toprune[serve]'")


def read_key(path: Path | None) -> str | None:
    """The key from a file, or else from the environment; None: no key is needed."""
    if path is None and not os.environ.get(KEY):
        return None
    key = os.environ[KEY] if path is None else read_text(path, "name a file with the key")
    if len(key.split()) != 1 or not key.isascii():
        raise UserError(f"{path or KEY} must hold one key: ASCII characters without blanks")
    return key.strip()


def make_app(
    bundles: Sequence[str], settings: Settings, log: Callable[[str], None] = lambda line: None
) -> Any:
    """Load bundles and make the ASGI application; a UserError names what cannot be served.

    Args:
        bundles: `PATH` or `NAME=PATH` of each.
        settings: of the server.
        log: gets a line when a bundle was replaced; never a text.
    """
    check_installed()
    return _build(bundles, settings, log)[0].starlette()


def _build(
    bundles: Sequence[str], settings: Settings, log: Callable[[str], None]
) -> tuple[Any, Workers]:
    from toprune.serve.app import App, Policy

    metrics = Metrics()
    macs = settings.max_batch_cost

    def load(name: str, place: Path) -> Loaded:
        runner = Runner(
            place, precision=settings.precision, threads=settings.threads, batch_tokens=LARGE
        )
        return Loaded(name, runner, None if macs is None else max(1, round(macs * 1e9)))

    shelf = Shelf(parse_places(bundles), load, metrics, log=log)
    count = settings.worker_count
    workers = Workers(Queue(settings.max_queue, count), count, metrics)
    hosts = ["[::1]", *LOOPBACK] if settings.host in LOOPBACK else ["*"]
    policy = Policy(settings.limits, settings.timeout, settings.key, hosts)
    return App(shelf, workers, metrics, policy, log=log), workers


def serve(
    bundles: Sequence[str],
    settings: Settings,
    *,
    ready: Callable[[], Any] = lambda: None,
    log: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that were accepted are answered first.

    Args:
        bundles: `PATH` or `NAME=PATH` of each.
        settings: of the server.
        ready: called when the bundles are loaded.
        log: gets a line when a bundle was replaced; never a text.
    """
    check_installed()
    import uvicorn

    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:  # uvicorn would end the process with its own messages
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        raise UserError(
            f"cannot listen at {settings.host}, port {settings.port} ({error.strerror}); "
            "choose another --port"
        ) from error
    app, workers = _build(bundles, settings, log)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            workers.close()  # connections that stay open get 503 from now on
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app.starlette(),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(settings.timeout) + 1,
    )
    ready()
    Server(config).run()
