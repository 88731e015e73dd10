"""Commands, called in this process, and what they are given."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from support.models import make_model, make_tokenizer
from toprune import cli


def call(*words: Any) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def succeed(*words: Any) -> str:
    done = call(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def save_model(folder: Path, model: Any = None, tokenizer: Any = None) -> Path:
    (model or make_model()).save_pretrained(folder)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return folder


def refused(done: Result, names: str) -> str:
    """Exit code 2 and one line on stderr, with the fix in it; stdout silent. Returns the line."""
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    *progress, line = done.stderr.splitlines()
    assert progress == []
    assert line.startswith("toprune: ")
    assert names in line
    return line
