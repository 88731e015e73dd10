"""Start the server: load the bundles, listen, and stop without losing a request."""

import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from toprune.errors import UserError
from toprune.run.runner import Runner
from toprune.serve.bundles import LARGE, Loaded, Shelf, parse_places
from toprune.serve.metrics import Metrics
from toprune.serve.queue import Queue
from toprune.serve.settings import LOOPBACK, Settings, check_installed
from toprune.serve.shed import Shed
from toprune.serve.ui import Explainer, check_explainable
from toprune.serve.workers import Workers

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    return build(bundles, settings, log)[0].starlette()


def build(
    bundles: Sequence[str], settings: Settings, log: Callable[[str], None]
) -> tuple[Any, Workers]:
    """The application, which is not started, and its workers; see `make_app`."""
    from toprune.serve.app import App, Policy

    log = _unbreakable(log)
    metrics = Metrics()
    macs = settings.max_batch_cost

    def load(name: str, place: Path) -> Loaded:
        runner = Runner(
            place, precision=settings.precision, threads=settings.threads, batch_tokens=LARGE
        )
        batch_macs = None if macs is None else max(1, round(macs * 1e9))
        return Loaded(name, runner, batch_macs, settings.shed)

    shelf = Shelf(parse_places(bundles), load, metrics, log=log)
    count = settings.worker_count
    shed = Shed(settings.shed) if settings.shed else None
    workers = Workers(Queue(settings.queue_batches, count), count, metrics, shed=shed)
    hosts = ["[::1]", *LOOPBACK] if settings.host in LOOPBACK else ["*"]
    policy = Policy(settings.limits, settings.timeout, settings.key, hosts, settings.shed)
    explainer = _explainer(shelf, settings) if settings.explain else None
    return App(shelf, workers, metrics, policy, explainer=explainer, log=log), workers


def check_port(settings: Settings) -> None:
    """Refuse an address that cannot be used; uvicorn would end with messages of its own."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        raise UserError(
            f"cannot listen at {settings.host}, port {settings.port} ({error.strerror}); "
            "choose another --port"
        ) from error


def _unbreakable(log: Callable[[str], None]) -> Callable[[str], None]:
    """A log on a full disk must not stop the server: lines are lost, not requests."""

    def write(line: str) -> None:
        with suppress(OSError):
            log(line)

    return write


def _explainer(shelf: Shelf, settings: Settings) -> Explainer:
    check_explainable()

    def load(name: str) -> Any:
        from toprune.inspection.live import Live  # brings torch, when the first text is explained

        return Live(shelf.place(name), settings.shed[0] if settings.shed else None)

    return Explainer(load)


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
        ready: called when the server listens.
        log: gets a line when a bundle was replaced; never a text.
    """
    check_installed()
    import uvicorn

    check_port(settings)
    app, workers = build(bundles, settings, log)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """As uvicorn does it, but a signal that was obeyed is not raised again at the end."""
            before = {one: signal.signal(one, self.handle_exit) for one in SIGNALS}
            try:
                yield
            finally:
                for one, handler in before.items():
                    signal.signal(one, handler)

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
    Server(config).run()
