"""README and docs do what they say: every command and every Python block runs, every link leads
somewhere, every option is there, every field of our files is told."""

import contextlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support import architecture_page, command_page
from support.command_page import commands, options
from support.newcomer import ROOT, furnish
from toprune import cli
from toprune.methods import METHODS

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)$")
MARKER = re.compile(r"<!-- (not run|needs): (.+) -->")
RUN = ("bash", "python")
STARTS = re.compile(r"(toprune|python|pip|make|torchrun|docker|pytest|import|from) ")  # a command
# Blocks that no test runs, by page: a new one is to be seen here, with its reason on the page.
NOT_RUN = {
    "README.md": 1,
    "docs/add-a-family.md": 4,
    "docs/add-a-method.md": 2,
    "docs/add-a-task.md": 2,
    "docs/how-to/bulk.md": 3,
    "docs/how-to/dial.md": 1,
    "docs/how-to/gate.md": 1,
    "docs/how-to/gpu.md": 4,
    "docs/how-to/integrations.md": 3,
    "docs/how-to/milliseconds.md": 3,
    "docs/how-to/reranker.md": 1,
    "docs/how-to/openvino-model-server.md": 2,
    "docs/how-to/serving.md": 12,
    "docs/how-to/several-processes.md": 2,
    "docs/how-to/sweeps.md": 1,
    "docs/reproduce.md": 3,
    "docs/tasks.md": 3,
    "docs/tutorial.md": 3,
}
# Options of other programs.
FOREIGN = {"--nproc_per_node", "--nnodes", "--rdzv_backend", "--rdzv_endpoint", "--model-id"}
FOREIGN |= {"--head", "--port"}  # ray's
FOREIGN |= {"--shape", "--batch_size", "--model_name", "--model_path", "--rest_port"}  # OpenVINO's
FOREIGN |= {"--install-completion"}  # typer's own, of toprune itself
# Fields that no bundle has which the docs' commands make: of other methods, of a GLUE export, of a
# budget in milliseconds, or of bench with another exporter's file.
RARE = (
    "front",
    "kept",
    "predictor",
    "returns",
    "threshold",
    "glue",
    "time",
    "dense_onnx",
    "prompts",
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    marker: tuple[str, str] | None  # what, and why or which module

    @property
    def lines(self) -> list[list[str]]:
        """The words of each command."""
        found = (shlex.split(line, comments=True) for line in self.text.splitlines())
        return [words for words in found if words]

    @property
    def skipped(self) -> bool:
        if self.marker is None:
            return False
        what, which = self.marker
        return what == "not run" or importlib.util.find_spec(which) is None


def pages() -> list[Path]:
    """README, then the order of the navigation, which is the order that a newcomer reads in."""
    nav = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    found = [ROOT / "README.md", *(DOCS / name for name in nav)]
    assert sorted(found[1:]) == sorted(DOCS.rglob("*.md")), "mkdocs.yml and docs/ differ"
    return found


def blocks_of(page: Path) -> list[Block]:
    name, found = str(page.relative_to(ROOT)), list[Block]()
    before, opened, inside = "", None, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            marked = MARKER.fullmatch(before)
            opened, inside = (number, fence[1], marked and (marked[1], marked[2])), []
        elif fence:
            assert opened is not None
            assert fence[1] == "", f"{name}:{number}: a block inside a block"
            found.append(Block(name, *opened[:2], "\n".join(inside), opened[2]))
            opened = None
        elif opened is not None:
            inside.append(line)
        if line.strip():
            before = line
    assert opened is None, f"{name}: a block has no end"
    return found


BLOCKS = [block for page in pages() for block in blocks_of(page)]


# -- what runs -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One newcomer, one directory, all pages. In one test: workers would each begin anew."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # random weights (test_export.py)
    monkeypatch.setattr("toprune.tasks.intervals.DRAWS", 20)  # intervals are of no interest here
    wrong, done, names = list[str](), set[tuple[str, ...]](), dict[str, Any]()
    for block in BLOCKS:
        if block.language not in RUN or block.skipped:
            continue
        where = f"{block.page}:{block.line}"
        if block.language == "python":
            own = names.setdefault(block.page, {"__name__": "docs"})
            wrong += _failure(where, exec, compile(block.text, where, "exec"), own)
            continue
        for words in block.lines:
            same = tuple(word.rstrip("/") for word in words)  # told on several pages, done once
            if same not in done:
                done.add(same)
                wrong += _failure(f"{where}: {' '.join(words)}", _call, words)
    assert not wrong, "\n".join(wrong)
    _every_field_is_told(tmp_path)


def _failure(where: str, run: Any, *given: Any) -> list[str]:
    """The error in a line, if there is one."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            run(*given)
    except Exception as error:
        return [f"{where}\n    {type(error).__name__}: {error}"]
    return []


def _call(words: list[str]) -> None:
    """In this process: a new one would load torch each time."""
    program, *rest = words
    assert program in ("toprune", "python"), "not marked as not run, and nobody knows how to run it"
    if program == "toprune":
        done = CliRunner().invoke(cli.app, rest)
        assert done.exit_code == 0, done.output[-400:]
        return
    old, sys.argv = sys.argv, rest
    try:
        runpy.run_path(rest[0])
    finally:
        sys.argv = old


def test_what_is_not_run_says_why(capsys: pytest.CaptureFixture[str]):
    left = [block for block in BLOCKS if block.marker and block.marker[0] == "not run"]
    with capsys.disabled():
        for block in left if sys.stdout.isatty() else ():
            sys.stdout.write(f"\nnot run: {block.page}:{block.line}: {block.marker}")
    assert Counter(block.page for block in left) == NOT_RUN
    assert all(block.language in RUN for block in left)


def test_no_command_hides_in_another_kind_of_block():
    """Indented, or in a block that is not told to be a shell's or Python's."""
    for block in BLOCKS:
        if block.language not in RUN:
            hidden = [line for line in block.text.splitlines() if STARTS.match(line)]
            assert not hidden, f"{block.page}:{block.line}: {hidden}"
    for page in pages():
        for line in _prose(page).splitlines():
            assert not re.match(rf"(    |\t)\s*{STARTS.pattern}", line), f"{page.name}: {line}"


# -- what is named ---------------------------------------------------------------------------------


def test_every_option_is_there():
    known = dict(commands())
    everyone = {option for command in known.values() for option in options(command)} | FOREIGN
    for block in BLOCKS:
        for words in block.lines if block.language == "bash" else ():
            if "toprune.cli" in words:  # of torchrun
                words = ["toprune", *words[words.index("toprune.cli") + 1 :]]
            if words[0] == "toprune":
                name = next(n for n in (" ".join(words[:3]), " ".join(words[:2])) if n in known)
                odd = {word for word in words if word.startswith("-")} - options(known[name])
                assert not odd, f"{block.page}:{block.line}: {name} has no {odd}"
    for page in pages():
        prose = _prose(page)
        odd = set(re.findall(r"(?<![\w<!-])--[a-z][\w-]+", prose)) - everyone
        assert not odd, f"{page.name}: nothing has {odd}"
        for words in re.findall(r"`toprune ([a-z]+)", prose):
            assert any(name.split()[1] == words for name in known), f"{page.name}: {words}"


@pytest.mark.parametrize("generated", [command_page, architecture_page])
def test_a_generated_page_is_up_to_date(generated: Any):
    assert generated.PAGE.read_text(encoding="utf-8") == generated.page(), "run: make docs"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name: str):
    text = (DOCS / "concepts" / f"{name}.md").read_text(encoding="utf-8")
    assert f"`--method {name}`" in text
    for part in ("Idea", "Formula", "What ours does differently", "When"):
        assert f"\n## {part}\n" in text, part


# -- fields ----------------------------------------------------------------------------------------


def _every_field_is_told(place: Path) -> None:
    """Of each bundle that was made on the way, of every task."""
    for page, pattern in (("plan-json", "plan.json"), ("report-json", "report.json")):
        told, *sheet = (
            (DOCS / f"{page}.md").read_text(encoding="utf-8").split("## onnx/export.json")
        )
        _check_fields(_told(told), sorted(place.glob(f"*/{pattern}")))
        for part in sheet:
            _check_fields(_told(part), sorted(place.glob("*/onnx/export.json")))


Path_ = tuple[str, ...]


def _told(text: str) -> list[Path_]:
    """Fields of the tables' first column: `a.b[].c` is ("a", "b", "[]", "c")."""
    firsts = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    names = [name for cell in firsts for name in re.findall(r"`(.+?)`", cell)]
    return [tuple(name.replace("[]", ".[]").split(".")) for name in names]


def _check_fields(told: list[Path_], files: list[Path]) -> None:
    assert files
    met = set[Path_]()
    for file in files:
        for path in _paths(json.loads(file.read_text(encoding="utf-8"))):
            fitting = [one for one in told if _fits(path, one)]
            assert fitting, f"{file.parent.name}/{file.name} has {path}, which docs do not tell"
            met.update(one for one in fitting if len(one) <= len(path))
    never = [one for one in told if one not in met and not {one[0], one[-1]} & {*RARE}]
    assert not never, f"no {files[0].name} has what docs tell: {never}"


def _fits(path: Path_, told: Path_) -> bool:
    """`*` is any name, and at the end all that is below; what is on the way to a field is told."""
    alike = all(b in ("*", a) for a, b in zip(path, told, strict=False))
    return alike and (len(path) <= len(told) or told[-1] == "*")


def _paths(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield (*at, key)
            yield from _paths(below, (*at, key))
    elif isinstance(value, list):
        for below in value:
            yield (*at, "[]")
            yield from _paths(below, (*at, "[]"))


# -- links -----------------------------------------------------------------------------------------


def test_links_lead_somewhere():
    for page in pages():
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
            if re.match(r"https?:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            assert file.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(file), f"{page.name}: {target}"


def _prose(page: Path) -> str:
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def _anchors(page: Path) -> set[str]:
    """Of headings, as GitHub and mkdocs both have them."""
    heads = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    found = {re.sub(r"[^\w\s-]", "", head).strip().lower() for head in heads}
    return {re.sub(r"\s+", "-", head) for head in found}


def test_the_site_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Strictly: dead links and pages that are not in the navigation are errors. Its pages ask
    nobody else for anything."""
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    built = list((tmp_path / "site").rglob("*.html"))
    assert len(built) >= len(pages()) - 1
    for page in built:
        asked = re.findall(
            r"<(?:script|link|img|iframe)[^>]*?=\"?https?://[^>]*>", page.read_text()
        )
        assert not asked, f"{page.name}: {asked}"
