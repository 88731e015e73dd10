"""How the command line speaks: bad input in one line, results as tables or JSON, libraries not."""

import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from toprune.errors import UserError

INTERRUPTED = 130  # typer's code for Ctrl-C
SAME = "; the same command goes on"
GOES_ON = dict.fromkeys(("finetune", "prune"), "; goes on with --resume") | {
    "compare": SAME,
    "sweep": SAME,
}


class OneLine(TyperGroup):
    """Says what is wrong in one line; the traceback is for --debug."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        if isinstance(sys.stdout, TextIOWrapper):  # texts hold what no terminal can show
            sys.stdout.reconfigure(errors="backslashreplace")
        extra |= {"prog_name": "toprune", "standalone_mode": False}
        try:
            with warnings.catch_warnings():
                code = super().main(words, *rest, **extra)
            if code == INTERRUPTED:
                typer.echo(f"toprune: stopped{GOES_ON.get(words[0], '')}", err=True)
        except BrokenPipeError:  # the reader has had enough, as in `toprune families | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except Exception as error:
            line = line_of(error)
            if line is None:
                raise
            if "--debug" in words:
                traceback.print_exc()
            typer.echo(f"toprune: {line}", err=True)
            code = 2
        sys.exit(code or 0)


def line_of(error: Exception) -> str | None:
    """The one line for an error that the user can mend; None for our own faults."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("toprune"):
        return f"this needs {error.name}; install it with: pip install 'toprune[train]'"
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno is not None:  # a full disk names no file
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}; check the path, its rights, and the disk"
    message = getattr(error, "format_message", None)  # typer's own: an unknown option and the like
    return None if message is None else " ".join(message().split()).rstrip(".") + "; see --help"


def hush(debug: bool) -> None:
    """Libraries talk on stderr about what is none of the user's business; our warnings stay."""
    if debug:
        return
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warn_in_one_line()


def warn_in_one_line() -> None:
    """Our own warnings, as we tell errors; nobody else's."""
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", category=UserWarning, module=r"toprune\b")
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"toprune: {message}", err=True)


def tell(report: dict[str, Any], as_json: bool, table: Any, last: str = "") -> None:
    """The result, on stdout, by the first process of a run."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        typer.echo(json.dumps(report))
        return
    Console().print(table)
    if last:
        typer.echo(last)
