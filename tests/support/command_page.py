"""The page of the command line, from what --help says.

make docs    # rewrites docs/command-line.md; a test fails when it is old
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer.main

from toprune.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
BEGIN, END = "<!-- commands: generated -->\n", "\n<!-- commands: end -->"
EVERYWHERE = ("--json", "--debug", "--help")  # told once, above the tables


def commands(group: Any = None, name: str = "toprune") -> Iterator[tuple[str, Any]]:
    """(`toprune plan show`, the command) of all that can be called."""
    group = typer.main.get_command(app) if group is None else group
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def options(command: Any) -> set[str]:
    """All spellings of a command's options."""
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return {name for name in names if name.startswith("-")} | {"--help", "-h"}


def page() -> str:
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    parts = "\n\n".join(_section(name, command) for name, command in commands())
    return f"{head}{BEGIN}{parts}{END}{rest.split(END)[1]}"


def _section(name: str, command: Any) -> str:
    text = re.sub(r"\*\*(.+?)\*\*", _code, command.help, flags=re.DOTALL)
    hints = get_type_hints(inspect.unwrap(command.callback))
    options = [one for one in command.params if not set(one.opts) & set(EVERYWHERE)]
    head = ["| option | default | what |", "|---|---|---|"]
    return "\n".join([f"## {name}", "", text, "", *head, *(_row(one, hints) for one in options)])


def _code(example: re.Match[str]) -> str:
    return f"`{' '.join(example[1].split())}`"


def _row(one: Any, hints: dict[str, Any]) -> str:
    names = [name for name in (*one.opts, *one.secondary_opts) if name.startswith("-")]
    flags = ", ".join(f"`{name}`" for name in names or [one.name.upper()])
    default = (
        "" if one.required or one.default is None or one.default is False else f"`{one.default}`"
    )
    parts = [one.help, "**Needed.**"] if one.required else [one.help]
    kinds = (hints.get(one.name), *get_args(hints.get(one.name)))  # Literal, or Literal | None
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if choices:
        parts.append(f"One of {', '.join(f'`{word}`' for word in choices)}.")
    return f"| {flags} | {default} | {' '.join(parts)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
