"""One case of the fuzzer: a bundle that both sides take, what each makes of a spoiled copy of it,
and whether anything outside of the bundle is touched meanwhile."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import toprune
from support.fuzzing import GRAPH, KINDS, spoil
from support.models import make_model, make_tokenizer
from support.report_case import make_report
from support.toy_bundle import write_graph, write_manifest
from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.inspection.explain.explain import explain
from toprune.models.sentence_transformers import write_pooling
from toprune.plan.plan import Plan, Step
from toprune.report.html.files import write_report_page
from toprune.run.runner import Runner
from toprune.tasks import Embed

PLAN = Plan(
    "bert",
    4,
    32,
    "probe",
    (Step(0, Fraction(1, 2)), Step(2, Fraction(1, 4))),
    probe=tuple(i / 32 for i in range(32)),
    provenance={"seed": 3},
)
TEXTS: list[Any] = ["w1 w2 w3", ("w4", "w5 [CLS]"), "\ud800 \x00 w6"]
ROWS = [{"text": f"w{i} w{i + 1} w{i + 2}", "label": i % 3} for i in range(6)]


def make_victim(folder: Path) -> Path:
    """A bundle that both sides take: a real tiny model for torch, a graph of arithmetic to run."""
    model, tokenizer = make_model(num_labels=3), make_tokenizer()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text('{"unk_token": "[UNK]", "sep_token": "[SEP]"}')
    (folder / "added_tokens.json").write_text('{"[UNK]": 3}')
    write_pooling(folder, Embed(), 32, 24)
    (folder / "report.json").write_text(json.dumps(make_report("classify") | {"max_length": 24}))
    PLAN.save(folder / "plan.json")
    write_graph(folder / GRAPH, plan=PLAN.to_json())
    write_manifest(folder)
    (folder.parent / "trap").mkdir(exist_ok=True)
    (folder.parent / "trap" / "file").write_text("{}")
    return folder


@dataclass(frozen=True)
class Case:
    kind: str
    side: str  # run, torch
    outcome: str  # worked, refused; or what must not be: see `outcome`, and "outside"
    said: str = ""


def run_case(victim: Path, kind: str, rng: np.random.Generator, watch: "Watch") -> Iterator[Case]:
    """A spoiled copy beside the victim, seen by each side that reads what was spoiled."""
    trap = victim.parent / "trap"
    bundle = victim.parent / "spoiled"
    shutil.rmtree(bundle, ignore_errors=True)
    shutil.copytree(victim, bundle)
    for path in trap.iterdir():
        if path.name != "file":
            path.unlink()
    spoil(bundle, kind, rng)
    _, by_torch, by_runner = KINDS[kind]
    works: dict[str, Callable[[], Any]] = {}
    if by_runner:
        works["run"] = lambda: Runner(bundle, threads=1).predict(TEXTS)
    if by_torch:
        works["torch"] = lambda: toprune.evaluate(bundle, ROWS)
    if kind == "pooling":  # vectors have no metrics here
        works["torch"] = lambda: Bundle.load(bundle).report
    if kind == "report.json":
        works["page"] = lambda: [write_report_page(bundle)]
    if by_torch and rng.random() < 0.2:
        works["explain"] = lambda: explain(bundle, TEXTS[:1]).to_dict()
    for side, work in works.items():
        set_trap(trap)
        with watch.looking(bundle) as seen:
            found, said = outcome(work)
        if seen or is_sprung(trap):
            found, said = "outside", f"{seen[:3]} {sorted(p.name for p in trap.iterdir())}"
        yield Case(kind, side, found, said)


def set_trap(trap: Path) -> None:
    """Files that were never read: the file system notes the first time (relatime)."""
    for path in trap.iterdir():
        os.utime(path, (0, path.stat().st_mtime))


def is_sprung(trap: Path) -> bool:
    """Native code opens files that no audit hook hears of."""
    return any(path.stat().st_atime != 0 for path in trap.iterdir())


class Hang(BaseException):
    """Raised by an alarm; no Exception, so that nobody takes it for one of a library's."""


def outcome(work: Callable[[], Any]) -> tuple[str, str]:
    """("worked" | "refused" | "traceback" | "not finite" | "several lines", what was said)"""
    try:
        found = work()
    except UserError as error:
        line = str(error)
        return ("refused" if line.isprintable() else "several lines"), line
    except BaseException as error:  # tokenizers' panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | Hang):
            raise
        return "traceback", f"{type(error).__name__}: {error}"[:500]
    numbers = [x for x in _leaves(found) if isinstance(x, float)]
    return ("worked" if np.isfinite(numbers).all() else "not finite"), ""


def _leaves(found: Any) -> Iterator[Any]:
    if isinstance(found, dict | list | tuple):
        for part in found.values() if isinstance(found, dict) else found:
            yield from _leaves(part)
    else:
        yield found


class Watch:
    """What this process opens, lists, starts and connects to, by the interpreter's own audit hooks,
    which nobody can take away; `looking` at a folder, all that lies elsewhere is kept."""

    OWN = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/usr/lib", "/usr/share/zoneinfo")

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        source = str(Path(__file__).parents[2] / "src")
        found = [place for place in sys.path if place]  # where imports look
        self.own = (*map(os.path.realpath, self.OWN), *self.OWN, source, *found)
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in (
            "socket.connect",
            "subprocess.Popen",
            "os.system",
            "os.exec",
            "os.posix_spawn",
        ):
            self.seen.append(f"{event} {given[:2]!r}"[:300])
        elif event in ("open", "os.listdir", "os.scandir", "os.remove", "os.mkdir"):
            if not isinstance(given[0], str | bytes) or not given[0]:
                return
            path = os.path.abspath(os.fsdecode(given[0]))
            if not path.startswith((self.folder, *self.own)):
                self.seen.append(f"{event} {path}")

    @contextmanager
    def looking(self, folder: Path) -> Iterator[list[str]]:
        """The list is filled while it lasts."""
        self.seen, self.folder = [], str(folder)
        try:
            yield self.seen
        finally:
            self.folder = None
