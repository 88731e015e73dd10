"""The same server on Ray Serve: replicas of the application that scale by their queue.

Two deployments. `Model` is a replica: the application of `toprune serve` with its own queue and
batches. `Door` takes requests from Ray's proxy and keeps each until a replica has answered it. When
a replica dies, the door sends its requests to another one: texts have no side effects, so a request
may run twice. Nothing here imports Ray before it is needed.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toprune.errors import UserError
from toprune.io.ray import cluster, load_ray
from toprune.serve.bundles import parse_places
from toprune.serve.settings import Scale, Settings, check_installed

NAME = "toprune"  # of the application on the cluster
TRIES = 5  # replicas that a request is sent to, one after the other, when they die
PAUSE = 0.2  # seconds between two of them: Ray needs a moment to see that one died
BUSY = 64  # requests that a replica holds: what waits is batched
TARGET = 8  # requests that a replica is to have; with more of them Ray starts another one
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Sent:
    """A request on its way to a replica."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class Got:
    """A response on its way back."""

    status: int
    headers: Headers
    body: bytes


class Model:
    """A replica. Ray calls it with many requests at a time."""

    def __init__(self, bundles: Sequence[str], settings: Settings):
        from toprune.serve.server import build

        app, self._workers = build(bundles, settings, _log)
        self._app, self._timeout = app.starlette(), settings.timeout
        self._workers.start()

    async def __call__(self, sent: Sent) -> Got:
        return await run_asgi(self._app, sent)

    def stop(self) -> None:
        """Finish what was accepted."""
        self._workers.stop(self._timeout)

    def __del__(self) -> None:  # Ray calls it when a replica leaves, in a rolling update too
        if hasattr(self, "_workers"):
            self.stop()


class Door:
    """Keeps a request until a replica has answered it."""

    def __init__(self, model: Any, max_body: int, timeout: float):
        self._model, self._max_body, self._timeout = model, max_body, timeout

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import Response

        got = await self._answer(request)
        response = Response(got.body, got.status)
        response.raw_headers = got.headers
        return response

    async def _answer(self, request: Any) -> Got:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._max_body:
                return _refusal(413, f"the body has more than {self._max_body} bytes")
        scope = request.scope
        sent = Sent(
            request.method, scope["path"], scope["query_string"], scope["headers"], bytes(body)
        )
        try:
            async with asyncio.timeout(self._timeout):
                return await self._send(sent)
        except TimeoutError:
            return _refusal(503, f"no answer within {self._timeout:g} s; try again later")

    async def _send(self, sent: Sent) -> Got:
        """Send a request to one replica after the other, until one answers."""
        from ray.exceptions import RayActorError, RayTaskError
        from ray.serve.exceptions import BackPressureError

        for _ in range(TRIES):
            try:
                return await self._model.remote(sent)
            except BackPressureError:
                return _refusal(429, "too many requests wait; try again in 1 s")
            except (RayActorError, RayTaskError):  # it died, or was stopped while it answered
                await asyncio.sleep(PAUSE)
        return _refusal(503, "no replica could answer; try again in 1 s")


def _refusal(status: int, message: str) -> Got:
    from toprune.serve.app import error_response

    response = error_response("tei", message, status, retry_after=None if status == 413 else 1)
    return Got(status, response.raw_headers, bytes(response.body))


async def run_asgi(app: Any, sent: Sent) -> Got:
    """Give one request to an ASGI application in this process."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": sent.path,
        "raw_path": sent.path.encode("utf-8", "replace"),
        "root_path": "",
        "query_string": sent.query,
        "headers": sent.headers,
        "client": None,
        "server": None,
    }
    parts: list[dict[str, Any]] = []
    messages = [{"type": "http.request", "body": sent.body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # a client that leaves cancels the task
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        parts.append(message)

    await app(scope, receive, send)
    start, *rest = parts
    body = b"".join(part.get("body", b"") for part in rest)
    return Got(start["status"], [tuple(one) for one in start["headers"]], body)


def application(bundles: Sequence[str], settings: Settings, scale: Scale) -> Any:
    """The application that Ray Serve runs (`serve.run`).

    Args:
        bundles: `PATH` or `NAME=PATH` of each, the same on every machine of the cluster.
        settings: of the server; host and port are those of Ray's proxy.
        scale: how many replicas.
    """
    serve = load_ray("ray.serve", debug=scale.debug)
    places = [f"{name}={place.resolve()}" for name, place in parse_places(bundles).items()]
    most = max(scale.replicas, scale.max_replicas or 0)
    settings = replace(settings, workers=settings.workers or 1)
    model = serve.deployment(Model).options(
        name="model",
        ray_actor_options={"num_cpus": settings.worker_count * settings.threads},
        max_ongoing_requests=BUSY,
        max_queued_requests=BUSY * most,
        graceful_shutdown_timeout_s=settings.timeout + 1,
        health_check_period_s=1.0,
        autoscaling_config={
            "min_replicas": scale.replicas,
            "max_replicas": most,
            "target_ongoing_requests": TARGET,
        },
    )
    door = serve.deployment(Door).options(
        name="door",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=4 * BUSY * most,  # more than the replicas hold and let wait
        max_queued_requests=BUSY,
        graceful_shutdown_timeout_s=settings.timeout + 1,
    )
    return door.bind(model.bind(places, settings), settings.limits.max_body, settings.timeout)


def serve_on_ray(
    bundles: Sequence[str],
    settings: Settings,
    scale: Scale,
    *,
    ready: Callable[[], Any] = lambda: None,
    stopped: threading.Event | None = None,
) -> None:
    """Serve on a Ray that starts here, until SIGTERM or Ctrl-C; or deploy on a cluster and return.

    On a cluster, calling it again is a rolling update: Ray starts new replicas, sends them the new
    requests, and ends the old ones when they have answered theirs.

    Args:
        bundles: `PATH` or `NAME=PATH` of each.
        settings: of the server.
        scale: where, and how many replicas.
        ready: called when the replicas run.
        stopped: set when the server is to end, in place of a signal.
    """
    check_installed()
    _check_bundles(bundles, settings)
    if scale.address is None:
        from toprune.serve.server import check_port

        check_port(settings)
    serve = load_ray("ray.serve", debug=scale.debug)
    if not scale.debug:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with cluster(scale.address, debug=scale.debug):
        options = {"host": settings.host, "port": settings.port}
        try:
            serve.start(http_options=options)
            serve.run(application(bundles, settings, scale), name=NAME)
        except RuntimeError as error:
            line = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(
                f"Ray Serve cannot start the server ({line}); see ray status"
            ) from error
        ready()
        if scale.address is not None:
            return
        try:
            _wait(stopped)
        finally:
            serve.shutdown()


def _check_bundles(bundles: Sequence[str], settings: Settings) -> None:
    """Refuse here, in one line, what a replica would refuse somewhere else."""
    from toprune.run.manifest import GRAPHS, Manifest

    for place in parse_places(bundles).values():
        Manifest.load(place).verify(place, GRAPHS[settings.precision])


def _wait(stopped: threading.Event | None) -> None:
    """Until the event, or a signal."""
    stopped = stopped or threading.Event()
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, lambda *_: stopped.set())
    stopped.wait()


def _log(line: str) -> None:
    logging.getLogger("ray.serve").warning(line)
