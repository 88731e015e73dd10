"""How every command behaves: help that teaches, JSON, completion, colours, errors in one line."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from support.report_case import make_report
from toprune.cli import app, options
from toprune.cli import console as terminal
from toprune.methods import METHODS
from toprune.plan.plan import Plan

TOPRUNE = [sys.executable, "-m", "toprune"]
PLAN = Plan("bert", 4, 32, "received", ())


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for word, sub in getattr(command, "commands", {}).items():
            yield from walk(sub, f"{name} {word}".strip())
        if not hasattr(command, "commands"):
            yield name, command

    yield from walk(typer.main.get_command(app), "")


COMMANDS = dict(commands())


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return subprocess.run(
        [*TOPRUNE, *words], capture_output=True, text=True, check=False, env=kept | env
    )


def test_all_are_here():
    assert {"demo", "prune", "explain", "report", "eval", "plan show", "plan check"} <= set(
        COMMANDS
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches(name: str):
    done = CliRunner().invoke(app, [*name.split(), "-h"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert f"toprune {name}" in done.stdout.split("Options", 1)[0].split("Usage", 1)[1]
    assert f"Example: toprune {name}" in " ".join(done.stdout.split())
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None), f"{name} does not explain {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_json_and_debug_everywhere(name: str):
    options = {word for p in COMMANDS[name].params for word in p.opts}
    assert {"--json", "--debug"} <= options


def test_methods_are_listed_without_torch():
    assert set(METHODS) == set(options.method_names())


@pytest.mark.parametrize(
    "name",
    [
        "toprune.cli",
        "toprune.inspection.explain.explanation",
        "toprune.inspection.explain.terminal",
        "toprune.inspection.explain.page",
    ],
)
def test_help_and_pages_come_without_torch(name: str):
    code = f"import sys, {name}; print({{'torch', 'transformers'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_shell_completes():
    bash = {"_TOPRUNE_COMPLETE": "complete_bash"}
    done = run(**bash, COMP_WORDS="toprune ex", COMP_CWORD="1")
    assert done.stdout.split() == ["export", "explain"]
    done = run(**bash, COMP_WORDS="toprune prune --method ", COMP_CWORD="3")
    assert done.stdout.split() == sorted(METHODS)


# -- colours ---------------------------------------------------------------------------------------


def on_a_terminal(*words: str, **env: str) -> str:
    """What the command writes when stdout is a terminal."""
    parent, child = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [*TOPRUNE, *words],
        stdout=child,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=kept | {"TERM": "xterm-256color", "COLUMNS": "80"} | env,
    ):
        os.close(child)
        output = b""
        try:
            while part := os.read(parent, 4096):
                output += part
        except OSError:  # how Linux says that nobody writes any more
            pass
    os.close(parent)
    return output.decode()


def test_colours_on_a_terminal_only():
    assert "\x1b[" in on_a_terminal("--help")
    assert "\x1b[3" not in on_a_terminal("--help", NO_COLOR="1")
    assert "\x1b" not in run("--help").stdout


# -- errors ----------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    PLAN.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_errors_of_the_disk_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "report.html"))

    monkeypatch.setattr("toprune.report.html.files.write_report_page", full)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"toprune: {tmp_path / 'report.html'}: No space left")
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--debug"])
    assert "Traceback" in done.stderr


def test_our_own_faults_keep_their_traceback(monkeypatch: pytest.MonkeyPatch):
    assert terminal.line_of(ValueError("ours")) is None
    assert terminal.line_of(OSError("of no file")) is None
    assert terminal.line_of(ModuleNotFoundError(name="toprune.gone")) is None


def test_what_is_missing_without_torch(tmp_path: Path):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"sys.argv = ['toprune', 'explain', {str(tmp_path)!r}, 'a text']\n"
        "from toprune.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pip install 'toprune[train]'" in line


@pytest.mark.parametrize(
    ("words", "names"),
    [(("prun",), "prun"), (("plan", "shwo"), "shwo"), (("prune", "--budgt", "2x"), "--budgt")],
)
def test_a_slip_is_one_line(words: tuple[str, ...], names: str):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert names in line
    assert "see --help" in line


@pytest.mark.parametrize(
    ("name", "line"),
    [("prune", "stopped; add --resume to continue"), ("report", "stopped")],
)
def test_control_c(name: str, line: str, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toprune.report.html.files.write_report_page", interrupted)
    monkeypatch.setattr("toprune.cli.train.hush", interrupted)
    more = ["--model", "m", "--budget", "2x", "--out", "o"] if name == "prune" else ["folder"]
    done = CliRunner().invoke(app, [name, *more])
    assert done.exit_code == terminal.INTERRUPTED
    assert done.stderr.strip() == f"toprune: {line}"


def test_a_reader_who_leaves_early(plan: Path):
    """As `toprune plan show ... | true`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*TOPRUNE, "plan", "show", str(plan)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


# -- the report ------------------------------------------------------------------------------------


def test_report_is_made_anew(tmp_path: Path):
    (tmp_path / "report.json").write_text(json.dumps(make_report()))
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--json"])
    assert json.loads(done.stdout) == {"out": str(tmp_path / "report.html")}
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()
    done = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "prune wrote" in done.stderr
