"""A small local web app: type a text, see what a bundle does with it.

Pages are made here and sent whole; the browser runs nothing but the explanation's own script. Only
this machine may ask, unless another --host says otherwise: there is no login.
"""

import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs

import torch

from toprune.bundle.bundle import Bundle
from toprune.compare.timing import interleave, ratio
from toprune.errors import UserError
from toprune.inspection.explain.explain import Reading, check_plan, explained
from toprune.inspection.explain.explanation import Explained
from toprune.inspection.explain.page import PAIR_ROLES
from toprune.inspection.ui_page import Asked, Speed, ui_page
from toprune.models.heads import task_outputs
from toprune.pruning.attach import attach, detach

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LARGEST = 1 << 20  # bytes of a form
ROUNDS, SECONDS = 15, 4.0  # of timing a text


class Desk:
    """The loaded bundles; one text at a time, because a model is attached and detached for it."""

    def __init__(self, folders: Sequence[str | Path]):
        self.names = [str(folder) for folder in folders]
        self.bundles = [Bundle.load(folder) for folder in folders]
        self.plans = list(map(check_plan, self.bundles, self.names))
        self._lock = Lock()

    def asked(self, form: dict[str, str]) -> Asked:
        number = form.get("bundle", "0")
        chosen = int(number) if number.isdecimal() and int(number) < len(self.names) else 0
        roles = self.bundles[chosen].task.PAIR_ROLES
        pairs = roles is not None or "pair" in form
        text, pair = form.get("text", ""), form.get("pair", "")
        return Asked(self.names, chosen, roles or PAIR_ROLES, pairs, text, pair)

    def page(self, form: dict[str, str]) -> str:
        asked = self.asked(form)
        if not form:
            return ui_page(asked, None, None)
        text: Any = (asked.text, asked.pair) if asked.pairs else asked.text
        try:
            with self._lock:
                found = self.explained(asked, text)
                speed = self.timed(asked, text)
        except UserError as error:
            return ui_page(asked, None, None, wrong=str(error))
        return ui_page(asked, found, speed)

    def explained(self, asked: Asked, text: Any) -> Explained:
        return explained(self.bundles[asked.chosen], self.names[asked.chosen], [text])

    def timed(self, asked: Asked, text: Any) -> Speed:
        """Both take turns; the model is told before each what it is to do."""
        own, plan = self.bundles[asked.chosen], self.plans[asked.chosen]
        model, batches = own.model, list(Reading(own, [text]).batches("timing"))

        def read() -> None:
            for batch in batches:
                task_outputs(model, own.task, batch)

        def dense() -> None:
            detach(model)
            read()

        def pruned() -> None:
            attach(model, plan)
            read()

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                times = interleave(
                    {"dense": dense, "pruned": pruned}, rounds=ROUNDS, seconds=SECONDS
                )
        finally:
            detach(model)
            torch.set_num_threads(threads)
        found = ratio(times["dense"], times["pruned"])
        return Speed(found["value"], found["low"], found["high"], len(times["dense"]))


def make_app(folders: Sequence[str | Path], hosts: Sequence[str] = LOOPBACK) -> Any:
    """An ASGI application. hosts: names that it answers to; others are refused, so that no page of
    the web can reach it by a name that it made up."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    desk = Desk(folders)

    async def index(request: Request) -> Response:
        form: dict[str, str] = {}
        if request.method == "POST":
            if int(request.headers.get("content-length") or LARGEST + 1) > LARGEST:
                return PlainTextResponse("a text of more than a megabyte; use less", 413)
            read = parse_qs((await request.body()).decode("utf-8", "replace"))
            form = {name: values[0].replace("\r\n", "\n") for name, values in read.items()}
        return HTMLResponse(await run_in_threadpool(desk.page, form))

    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=["[::1]", *hosts])
    return Starlette(routes=[Route("/", index, methods=["GET", "POST"])], middleware=[trusted])


def check_installed() -> None:
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise UserError("the web app is an extra; pip install 'toprune[train,ui]'")


def serve(
    folders: Sequence[str | Path],
    *,
    host: str = LOOPBACK[0],
    port: int = 8000,
    ready: Callable[[], Any] = lambda: None,
) -> None:
    """Until it is interrupted. ready: called when the bundles are loaded."""
    import uvicorn

    hosts = LOOPBACK if host in LOOPBACK else ("*",)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # uvicorn would end the process with lines of its own
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}, port {port} ({error.strerror}); choose another --port"
        ) from error
    app = make_app(folders, hosts)
    ready()
    uvicorn.run(app, host=host, port=port, log_level="warning")
