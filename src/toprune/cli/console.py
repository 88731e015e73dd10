"""How commands print: errors in one line, results as tables or JSON, no chatter of libraries."""

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

from toprune.cli.options import RETIRED
from toprune.errors import UserError

INTERRUPTED = 130  # typer's code for Ctrl-C
RESUME = "; add --resume to continue"
SAME_COMMAND = "; run the same command again to continue"
CONTINUE = {
    "finetune": RESUME,
    "prune": RESUME,
    "compare": SAME_COMMAND,
    "sweep": SAME_COMMAND,
}


class OneLine(TyperGroup):
    """Prints errors as one line; --debug adds the traceback."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        if isinstance(sys.stdout, TextIOWrapper):  # texts contain what no terminal can show
            sys.stdout.reconfigure(errors="backslashreplace")
        extra |= {"prog_name": "toprune", "standalone_mode": False}
        try:
            with warnings.catch_warnings():
                code = super().main(words, *rest, **extra)
            if code == INTERRUPTED:
                typer.echo(f"toprune: stopped{CONTINUE.get(words[0], '')}", err=True)
        except BrokenPipeError:  # the reader closed the pipe, as in `toprune families | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except Exception as error:
            line = retired_option(error, words) or line_of(error)
            if line is None:
                raise
            if "--debug" in words:
                traceback.print_exc()
            typer.echo(f"toprune: {line}", err=True)
            code = 2
        sys.exit(code or 0)


def line_of(error: Exception) -> str | None:
    """The line for an error that the user can fix; None for a bug of ours."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("toprune"):
        return f"this needs {error.name}; install it with: pip install 'toprune[train]'"
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno is not None:  # a full disk names no file
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}; check the path, its permissions, and the disk"
    message = getattr(error, "format_message", None)  # typer's errors: an unknown option and so on
    return None if message is None else " ".join(message().split()).rstrip(".") + "; see --help"


def retired_option(error: Exception, words: Sequence[str]) -> str | None:
    """The line for an option of prune that has become a setting of the method."""
    option = getattr(error, "option_name", None)
    if words[0] != "prune" or option not in RETIRED:
        return None
    key, value = RETIRED[option]
    if value is None:
        index = next(i for i, word in enumerate(words) if word.partition("=")[0] == option)
        value = words[index].partition("=")[2] or next(iter(words[index + 1 :]), "VALUE")
    return f"prune no longer has {option}; use --set {key}={value} (see toprune methods)"


def hush(debug: bool) -> None:
    """Silence what libraries write to stderr; our own warnings stay."""
    if debug:
        return
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warn_in_one_line()


def warn_in_one_line() -> None:
    """Print our own warnings as one line each, and no others."""
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", category=UserWarning, module=r"toprune\b")
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"toprune: {message}", err=True)


def print_result(report: dict[str, Any], as_json: bool, table: Any, last: str = "") -> None:
    """Print the result on stdout, once in a run of several processes.

    Args:
        report: printed with `as_json`.
        table: printed without it; anything that rich can print.
        last: a line below the table.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        typer.echo(json.dumps(report))
        return
    Console().print(table)
    if last:
        typer.echo(last)
