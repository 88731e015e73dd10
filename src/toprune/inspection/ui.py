"""A small local web app: type a text, see what a bundle does with it.

Pages are made here and sent complete; the browser runs nothing but the explanation's script. Only
this machine can connect, unless --host names another address: there is no login.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs

import torch

from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.inspection.explain import page as explain_page
from toprune.inspection.explain.explain import Reading, check_plan, explain_loaded
from toprune.inspection.explain.explanation import Explained
from toprune.models.heads import task_outputs
from toprune.pruning.attach import attach, detach
from toprune.report.html.shell import escape, page, read_asset
from toprune.run.timing import interleave, ratio

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LARGEST = 1 << 20  # bytes of a form
ROUNDS, SECONDS = 15, 4.0  # for timing a text


@dataclass(frozen=True)
class Form:
    """What is typed in."""

    bundles: Sequence[str]  # names to choose from
    chosen: int
    labels: Sequence[str]  # of the text fields: one, or two for a pair
    texts: Sequence[str] = ("", "")


@dataclass(frozen=True)
class Speed:
    """Pruned over dense, both in torch and in turns, with its 95 % interval."""

    value: float
    low: float
    high: float
    rounds: int


class Desk:
    """The loaded bundles; one text at a time, because a model is attached and detached for it."""

    def __init__(self, folders: Sequence[str | Path]):
        self.names = [str(folder) for folder in folders]
        self.bundles = [Bundle.load(folder) for folder in folders]
        self.plans = list(map(check_plan, self.bundles, self.names))
        self._lock = Lock()

    def page(self, fields: dict[str, str]) -> str:
        """The HTML page for the fields of a sent form; empty: for the first visit."""
        form = self._form(fields)
        if not fields:
            return ui_page(form)
        text = form.texts[0] if len(form.labels) == 1 else tuple(form.texts)
        bundle, name = self.bundles[form.chosen], self.names[form.chosen]
        try:
            with self._lock:
                explained = explain_loaded(bundle, name, [text])
                return ui_page(form, explained, self._time(form.chosen, text))
        except UserError as error:
            return ui_page(form, error=str(error))

    def _form(self, fields: dict[str, str]) -> Form:
        number = fields.get("bundle", "0")
        chosen = int(number) if number.isdecimal() and int(number) < len(self.names) else 0
        task = self.bundles[chosen].task
        labels = ["Text"]
        if task.PAIR_ROLES or "pair" in fields:
            labels = [role.capitalize() for role in explain_page.pair_roles(task.NAME)]
        return Form(self.names, chosen, labels, (fields.get("text", ""), fields.get("pair", "")))

    def _time(self, chosen: int, text: Any) -> Speed:
        """Time dense and pruned in turns; each attaches or detaches the plan first."""
        bundle, plan = self.bundles[chosen], self.plans[chosen]
        model, batches = bundle.model, list(Reading(bundle, [text]).batches("timing"))

        def read() -> None:
            for batch in batches:
                task_outputs(model, bundle.task, batch)

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
        faster = ratio(times["dense"], times["pruned"])
        return Speed(faster["value"], faster["low"], faster["high"], len(times["dense"]))


def make_app(folders: Sequence[str | Path], hosts: Sequence[str] = LOOPBACK) -> Any:
    """An ASGI application for these bundles.

    Args:
        folders: directories that `prune` wrote.
        hosts: names that the app answers to. Others are refused, so that no page of the web can
            reach it by a name that it made up.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    desk = Desk(folders)

    async def index(request: Request) -> Response:
        fields: dict[str, str] = {}
        if request.method == "POST":
            if int(request.headers.get("content-length") or LARGEST + 1) > LARGEST:
                return PlainTextResponse("the text is larger than a megabyte; shorten it", 413)
            query = parse_qs((await request.body()).decode("utf-8", "replace"))
            fields = {name: values[0].replace("\r\n", "\n") for name, values in query.items()}
        return HTMLResponse(await run_in_threadpool(desk.page, fields))

    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=["[::1]", *hosts])
    return Starlette(routes=[Route("/", index, methods=["GET", "POST"])], middleware=[trusted])


def check_installed() -> None:
    """Refuse to go on without the packages of the web app."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise UserError("the web app is an extra; pip install 'toprune[train,ui]'")


def serve(
    folders: Sequence[str | Path],
    *,
    host: str = LOOPBACK[0],
    port: int = 8000,
    ready: Callable[[], Any] = lambda: None,
) -> None:
    """Serve the app until it is interrupted. ready: called when the bundles are loaded."""
    import uvicorn

    hosts = LOOPBACK if host in LOOPBACK else ("*",)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # uvicorn would end the process with its own messages
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}, port {port} ({error.strerror}); choose another --port"
        ) from error
    app = make_app(folders, hosts)
    ready()
    uvicorn.run(app, host=host, port=port, log_level="warning")


# -- the page --------------------------------------------------------------------------------------


def ui_page(
    form: Form, explained: Explained | None = None, speed: Speed | None = None, error: str = ""
) -> str:
    """The form alone, or with one explanation or one error message below it."""
    body = [
        "<h1>What does it drop?</h1>",
        "<p>Type a text to see the answers of the pruned and the dense model, which tokens leave "
        "in which layer, and how much time that saves. Nothing leaves this machine.</p>",
        _form(form),
    ]
    if error:
        body.append(f'<p class="error" role="alert">{escape(error)}</p>')
    if explained is not None:
        body += [_speed(speed) if speed is not None else "", explain_page.explanations(explained)]
    script = explain_page.script() if explained is not None else ""
    style = explain_page.style() + read_asset(__package__, "ui.css")
    return page("toprune", "\n".join(body), script=script, style=style, form=True)


def _form(form: Form) -> str:
    fields = [
        f'<label>{label}<textarea name="{name}" rows="6" required>'
        f"\n{escape(text)}</textarea></label>"
        for name, label, text in zip(("text", "pair"), form.labels, form.texts, strict=False)
    ]
    if len(form.bundles) > 1:
        options = "".join(
            f'<option value="{i}"{" selected" * (i == form.chosen)}>{escape(name)}</option>'
            for i, name in enumerate(form.bundles)
        )
        fields.append(f'<label>Bundle<select name="bundle">{options}</select></label>')
    return f'<form method="post" action="/">{"".join(fields)}<button>Look</button></form>'


def _speed(speed: Speed) -> str:
    return (
        f'<p class="speed"><b>{speed.value:.2f}x</b> the speed of dense on this text '
        f"<span>[{speed.low:.2f}, {speed.high:.2f}]</span></p>"
        f'<p class="soft">Median of {speed.rounds} turns of each in torch, on one thread. '
        "<code>toprune bench</code> times the exported file.</p>"
    )
