"""The ASGI application: checks a request, queues its texts, waits, and answers."""

import asyncio
import base64
import binascii
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from toprune.errors import UserError
from toprune.run.encoded import Encoded
from toprune.serve import about, ui
from toprune.serve.bundles import Loaded, Shelf
from toprune.serve.cost import Levels
from toprune.serve.endpoints import ENDPOINTS, Endpoint, Reply, Style
from toprune.serve.metrics import Metrics
from toprune.serve.queue import Closed, Failed, Full, Job
from toprune.serve.requests import BadRequest, Body, Limits
from toprune.serve.workers import Workers

JSON = "application/json"
GONE = 499  # nginx's number for a client that left; nobody reads the response
READING = 64  # requests that may be tokenized at a time; more are refused as by a full queue
SHORT = 4000  # characters of a request that is tokenized at once: waking a thread costs more


@dataclass(frozen=True)
class Policy:
    """What the application demands of requests."""

    limits: Limits = field(default_factory=Limits)
    timeout: float = 30.0  # seconds
    key: str | None = None  # clients must send it as `Authorization: Bearer KEY`
    hosts: Sequence[str] = ("*",)  # names that the server answers to
    budgets: Sequence[str] = ()  # of `Shed`, if there are several


class App:
    """Holds the bundles and the workers, and answers requests."""

    def __init__(
        self,
        shelf: Shelf,
        workers: Workers,
        metrics: Metrics,
        policy: Policy,
        *,
        explainer: ui.Explainer | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: Callable[[str], None] = lambda line: None,
    ):
        self._shelf, self._workers, self._metrics = shelf, workers, metrics
        self._explainer = explainer
        self._policy, self._clock, self._log = policy, clock, log
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self._reading = 0

    def starlette(self) -> Starlette:
        """The application that uvicorn runs."""
        post = [
            Route(
                one.path,
                self._timed(one.path, one.style, partial(self._answer, one)),
                methods=["POST"],
            )
            for one in ENDPOINTS
        ]
        pages = {
            "/": self._page,
            "/info": self._info,
            "/health": self._health,
            "/metrics": self._metrics_page,
            "/openapi.json": self._openapi,
            "/v1/models": self._models,
        }
        get = [Route(path, self._timed(path, "tei", page)) for path, page in pages.items()]
        form = Route(ui.PATH, self._timed(ui.PATH, "tei", self._ui), methods=["GET", "POST"])
        trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(self._policy.hosts))
        return Starlette(
            routes=[*post, *get, form],
            middleware=[trusted],
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._workers.start()
        yield
        await asyncio.to_thread(self._workers.stop, self._policy.timeout)
        self._readers.shutdown(wait=False)

    def _timed(self, path: str, style: Style, handle: Callable[[Request], Any]) -> Any:
        """Every error becomes a line of JSON, and every request is counted."""

        async def endpoint(request: Request) -> Response:
            started = self._clock()
            try:
                if path != "/health":
                    self._check_key(request)
                response = await handle(request)
            except (BadRequest, UserError) as error:
                response = error_response(style, str(error), getattr(error, "status", 422))
            except Full as error:
                response = error_response(style, str(error), 429, retry_after=error.retry_after)
            except (Closed, TimeoutError) as error:
                response = error_response(style, str(error), 503, retry_after=1)
            except Failed as error:
                self._log(f"{path} failed: {error.reason}")
                response = error_response(style, str(error), 503, retry_after=1)
            except ClientDisconnect:
                response = Response(status_code=GONE)
            except Exception as error:  # a bug of ours: the client gets a line, the log its kind
                self._log(f"{path} failed: {type(error).__name__}")
                response = error_response(style, "the server has a bug; see its log", 500)
            self._metrics.request(path, response.status_code, self._clock() - started)
            return response

        return endpoint

    def _check_key(self, request: Request) -> None:
        """Demand the key; a browser sends it as the password of a login with any name."""
        if self._policy.key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            scheme, key = "bearer", _password(key)
        expected = self._policy.key.encode()
        if not hmac.compare_digest(key.strip().encode(), expected) or scheme.lower() != "bearer":
            raise BadRequest("send the key of this server as 'Authorization: Bearer KEY'", 401)

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        self._check_room()
        body = Body(await self._read(request), self._policy.limits)
        asked = endpoint.parse(body)
        bundle = self._choose(body.name("model"), endpoint)
        job, tokens = await self._run(request, bundle, asked.texts, may_cut=asked.may_cut)
        budgets = self._policy.budgets
        headers = {"X-Toprune-Budget": budgets[job.level]} if budgets else None
        return json_response(asked.respond(Reply(bundle, job.answers, tokens)), headers=headers)

    async def _run(
        self, request: Request, bundle: Loaded, texts: Sequence[Any], *, may_cut: bool = True
    ) -> tuple[Job, int]:
        """Queue texts and wait for the answers; returns the finished job and its tokens."""
        encoded = await self._encode(bundle, texts)
        if not may_cut:
            _check_cut(bundle, [text.rows for text, _ in encoded])
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def done(_: Job) -> None:  # called by a worker
            loop.call_soon_threadsafe(lambda: over.done() or over.set_result(None))

        job = Job(bundle, [text for text, _ in encoded], done)
        self._workers.submit(job, [rows for _, rows in encoded])
        await self._wait(request, job, over)
        if job.error is not None:
            raise job.error
        tokens = sum(text.tokens for text in job.texts)
        fallbacks = sum(bool(one.prediction.get("fallback")) for one in job.answers)
        self._metrics.answered(bundle.name, len(job.texts), tokens, fallbacks)
        return job, tokens

    async def _encode(self, bundle: Loaded, texts: Sequence[Any]) -> list[tuple[Encoded, Levels]]:
        """Tokenize texts; long ones in another thread, so that other requests go on."""
        if _characters(texts) <= SHORT:
            return bundle.encode(texts)
        self._reading += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._readers, bundle.encode, texts)
        finally:
            self._reading -= 1

    async def _wait(self, request: Request, job: Job, over: "asyncio.Future[None]") -> None:
        """Until the job is over, the client leaves, or the time is up."""
        gone = asyncio.ensure_future(request.receive())  # the body is read: only a farewell comes
        try:
            await asyncio.wait(
                {over, gone}, timeout=self._policy.timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if over.done():
                return
            if gone.done():
                raise ClientDisconnect
            raise TimeoutError(f"no answer within {self._policy.timeout:g} s; try again later")
        finally:  # also where this task is cancelled, as Ray does it when a client leaves
            gone.cancel()
            if not over.done():
                self._metrics.cancelled(self._workers.cancel(job))

    async def _read(self, request: Request) -> Any:
        """The JSON of a body."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:  # also keeps out forms that another site's page sends
            raise BadRequest(f"the content type must be {JSON}", 415)
        try:
            return json.loads(await self._content(request))
        except (ValueError, RecursionError) as error:
            raise BadRequest("the body is not JSON", 400) from error

    async def _content(self, request: Request) -> bytes:
        """The bytes of a body."""
        largest = self._policy.limits.max_body
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > largest:
                raise BadRequest(f"the body has more than {largest} bytes", 413)
        return bytes(content)

    def _choose(self, name: str | None, endpoint: Endpoint) -> Loaded:
        """The bundle that a request names, or the only one that suits its path."""
        names = self._shelf.names
        if name is not None and name not in names:
            raise BadRequest(f"there is no model {name[:80]!r}; use {' or '.join(names)}", 404)
        loaded = self._shelf.all() if name is None else [self._shelf.get(name)]
        suitable = [one for one in loaded if endpoint.suits(one.task)]
        if not suitable:
            tasks = ", ".join(f"{one.name} ({one.task.NAME})" for one in loaded)
            raise BadRequest(f"{endpoint.path} suits none of the models here: {tasks}", 400)
        if len(suitable) > 1:
            choice = " or ".join(one.name for one in suitable)
            raise BadRequest(f"several models suit; set model to {choice}", 400)
        return suitable[0]

    def _check_room(self) -> None:
        self._workers.check_room()
        if self._reading >= READING:
            raise Full(1)

    # -- pages ----------------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        if self._workers.is_closed:
            raise Closed
        return Response()

    async def _info(self, request: Request) -> Response:
        name = request.query_params.get("model", self._shelf.names[0])
        if name not in self._shelf.names:
            raise BadRequest(f"there is no such model; use {' or '.join(self._shelf.names)}", 404)
        return json_response(
            about.info(self._shelf.get(name), self._shelf.names, self._policy.limits)
        )

    async def _models(self, _: Request) -> Response:
        return json_response(about.models(self._shelf.all()))

    async def _metrics_page(self, _: Request) -> Response:
        return PlainTextResponse(self._metrics.render(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, _: Request) -> Response:
        return json_response(about.openapi(has_key=self._policy.key is not None))

    async def _page(self, _: Request) -> Response:
        return _html(about.page(self._shelf.all()))

    async def _ui(self, request: Request) -> Response:
        bundles = self._shelf.all()
        page = partial(ui.ui_page, explains=self._explainer is not None)
        if request.method != "POST":
            return _html(page(ui.Form.of(bundles, {})))
        ui.check_site(request.headers.get("sec-fetch-site"))
        self._check_room()
        form = ui.Form.of(bundles, ui.parse_form(await self._content(request)))
        bundle, explanation = bundles[form.chosen], None
        try:
            text = form.input(bundle, self._policy.limits)
            job, _ = await self._run(request, bundle, [text])
            if self._explainer is not None:
                explanation = await asyncio.to_thread(self._explainer.explain, bundle, text)
        except (BadRequest, UserError) as error:
            return _html(page(form, error=str(error)), getattr(error, "status", 422))
        return _html(page(form, answer=job.answers[0], explanation=explanation))


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """JSON in ASCII: half a surrogate pair, which a text may hold, has no other encoding."""
    return Response(json.dumps(content), status, headers, media_type=JSON)


def _html(content: str, status: int = 200) -> Response:
    return Response(content, status, media_type="text/html")


def _password(login: str) -> str:
    """The password of a browser's login; empty if it is none."""
    try:
        return base64.b64decode(login, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def error_response(
    style: Style, message: str, status: int, *, retry_after: int | None = None
) -> Response:
    """One line of JSON in the shape that the clients of an endpoint read."""
    line = " ".join(message.split())
    kind = {401: "authentication", 429: "overloaded", 503: "unhealthy", 500: "backend"}.get(
        status, "validation"
    )
    bodies: dict[Style, dict[str, Any]] = {
        "tei": {"error": line, "error_type": kind},
        "openai": {"error": {"message": line, "type": kind, "param": None, "code": status}},
        "cohere": {"message": line},
    }
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if status == 401:  # so a browser asks for a login
        headers["WWW-Authenticate"] = 'Bearer, Basic realm="toprune"'
    return json_response(bodies[style], status, headers)


async def _http_error(_: Request, error: Exception) -> Response:
    """Paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    response = error_response("tei", str(error.detail), error.status_code)
    response.headers.update(error.headers or {})
    return response


def _characters(texts: Sequence[Any]) -> int:
    """Of texts, pairs of texts, and lists of words."""
    return sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)


def _check_cut(bundle: Loaded, texts: Sequence[Sequence[Any]]) -> None:
    limit = bundle.runner.max_length
    for i, rows in enumerate(texts):
        if any(row.cut for row in rows):
            raise BadRequest(
                f"text {i} has more than the limit of {limit} tokens; set truncate", 413
            )
