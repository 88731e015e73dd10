"""The commands that serve bundles over HTTP: for programs, and with a page for people."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from toprune.cli import options as o
from toprune.cli.console import hush, print_result, warn_in_one_line
from toprune.errors import UserError
from toprune.serve.requests import Limits
from toprune.serve.settings import QUEUE, Scale, Settings, check_installed, read_key
from toprune.serve.shed import parse_shed

DEFAULTS, LIMITS = Settings(), Limits()
SERVING = "Serving at {} (Ctrl-C stops it)."
DEPLOYED = "Deployed at {}. The same command again is a rolling update; serve shutdown ends it."


def serve(
    bundles: Annotated[
        list[str],
        typer.Argument(help="Exported bundles: DIRECTORY or NAME=DIRECTORY.", metavar="BUNDLE..."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default admits this machine only.")
    ] = DEFAULTS.host,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = DEFAULTS.port,
    precision: Annotated[
        Literal["fp32", "int8"], typer.Option(help="Which of the exported files to run.")
    ] = "fp32",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Batches that run at a time (default: cores / threads)."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of one batch.")] = DEFAULTS.threads,
    max_queue: Annotated[
        float | None,
        typer.Option(
            min=1,
            help=f"Full batches that may wait (default: {QUEUE} for each worker); more requests "
            "get 429.",
        ),
    ] = DEFAULTS.max_queue,
    max_batch_cost: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            help="Billions of multiply-accumulates of a batch (default: those of one text of full "
            "length that keeps all its tokens).",
        ),
    ] = None,
    shed: Annotated[
        str | None,
        typer.Option(
            help="Budgets of a bundle with a dial, the loosest first, like 2x,3x,5x: the server "
            "takes the next one as the queue grows."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request that waits gets 503.")
    ] = DEFAULTS.timeout,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = LIMITS.max_body,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = LIMITS.max_texts,
    max_chars: Annotated[int, typer.Option(min=1, help="Characters of a text.")] = LIMITS.max_chars,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a key that clients must send (default: TOPRUNE_API_KEY, if set)."
        ),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="In this process, or in replicas on Ray Serve (needs toprune[ray-serve]).",
            rich_help_panel=o.RAY,
        ),
    ] = "local",
    address: o.Address = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, help="Replicas at least (default: 1), with a model each.", rich_help_panel=o.RAY
        ),
    ] = None,
    max_replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Replicas at most (default: as many as at least); the queue decides.",
            rich_help_panel=o.RAY,
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="The page /ui also shows which tokens leave; loads the weights "
            "(needs toprune[train]).",
        ),
    ] = DEFAULTS.explain,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Serve bundles over HTTP, as TEI, OpenAI, Cohere and Jina do (needs toprune[serve]).

    Example: **toprune serve reviews ranker=models/ranker-3x --port 8080**

    Waiting texts are batched by what they will cost under the plan. Replace a bundle's directory
    and the server loads the new one.

    On several machines: add **--engine ray --address auto --replicas 2 --max-replicas 8**
    """
    if engine == "local" and (address or replicas or max_replicas):
        raise UserError("--address, --replicas and --max-replicas need --engine ray; add it")
    if engine == "ray" and explain:
        raise UserError("--explain is for one process; leave --engine ray out")
    if max_replicas is not None and max_replicas < (replicas or 1):
        raise UserError(f"--max-replicas {max_replicas} is below --replicas; raise it")
    if explain:
        hush(debug)
    elif not debug:
        warn_in_one_line()
    settings = Settings(
        host=host,
        port=port,
        precision=precision,
        workers=workers,
        threads=threads,
        max_queue=max_queue,
        max_batch_cost=max_batch_cost,
        timeout=timeout,
        shed=() if shed is None else parse_shed(shed),
        explain=explain,
        limits=Limits(max_body, max_texts, max_chars),
        key=read_key(api_key_file),
    )
    if engine == "ray":
        scale = Scale(address, replicas or 1, max_replicas, debug)
        _run(bundles, settings, as_json, DEPLOYED if address else SERVING, scale=scale)
    else:
        _run(bundles, settings, as_json, SERVING)


def ui(
    bundles: Annotated[
        list[str],
        typer.Argument(help="Exported bundles: DIRECTORY or NAME=DIRECTORY.", metavar="BUNDLE..."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default admits this machine only.")
    ] = DEFAULTS.host,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Open the page of the server: type a text, see the prediction, the kept tokens and the saving.

    Example: **toprune ui small smaller** (needs toprune[train,serve])

    The same as **toprune serve small smaller --explain**, whose page is /ui.
    """
    hush(debug)
    settings = Settings(host=host, port=port, explain=True, key=read_key(None))
    _run(bundles, settings, as_json, "Open {} (Ctrl-C stops it).", page="ui")


def _run(
    bundles: list[str],
    settings: Settings,
    as_json: bool,
    line: str,
    *,
    page: str = "",
    scale: Scale | None = None,
) -> None:
    """Serve; `line` is what people read when the address is ready."""
    check_installed()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{settings.port}/{page}"
    ready = partial(print_result, {"address": address}, as_json, line.format(address))
    if scale is not None:
        from toprune.serve.ray import serve_on_ray

        serve_on_ray(bundles, settings, scale, ready=ready)
        return
    from toprune.serve.server import serve as run_server

    run_server(bundles, settings, ready=ready, log=lambda line: typer.echo(line, err=True))
