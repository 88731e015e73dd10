"""The bundles of a server by name, and how one is replaced while requests run."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.run.encoded import Encoded
from toprune.run.manifest import PLACE
from toprune.run.runner import Runner
from toprune.serve.cost import Levels, TextCost
from toprune.serve.metrics import Metrics
from toprune.tasks import Task

EVERY = 1.0  # seconds between two looks at the files of a bundle
LARGE = 1 << 14  # tokens of a batch: the queue limits batches, not the Runner


@dataclass(frozen=True)
class Answer:
    """What the model gives for one text."""

    prediction: dict[str, Any]
    logits: np.ndarray | None  # (C,); None if the head answers by token


class Loaded:
    """A bundle that is ready to run."""

    def __init__(
        self,
        name: str,
        runner: Runner,
        batch_macs: int | None = None,
        budgets: Sequence[str] = (),
    ):
        """Wrap a Runner.

        Args:
            name: clients choose the bundle by it.
            runner: of the bundle.
            batch_macs: target for the cost of a batch; None: that of one text of full length whose
                tokens all stay. So a pruned model reads several texts at a time: its last layers
                keep few tokens of each, and would wait for their weights.
            budgets: of its dial, the loosest first; none: the bundle's default alone.
        """
        if runner.manifest.images:
            raise UserError(f"the bundle {name} reads images; toprune serve is for texts")
        self._runners = [runner.at(budget) for budget in budgets] or [runner]
        self.name, self.runner = name, self._runners[0]
        self._cost = TextCost(self._runners)
        self.batch_macs = batch_macs or self._cost.unpruned(runner.max_length)

    @property
    def task(self) -> Task:
        return self.runner.task

    @property
    def labels(self) -> Sequence[str]:
        """Names of the classes or tags; without names, as transformers calls them."""
        return self.runner.manifest.labels or [f"LABEL_{i}" for i in range(self.runner.outputs)]

    def encode(self, texts: Sequence[Any]) -> list[tuple[Encoded, Levels]]:
        """Tokenize texts and count the cost of their rows at each budget."""
        return [(one, self._cost.predict(one.rows)) for one in self.runner.encode(texts)]

    def run(self, texts: Sequence[Encoded], level: int = 0) -> list[Answer]:
        """Answer texts in one batch, at the budget of that number."""
        return [Answer(*answer) for answer in self._runners[level].answers(texts)]

    def executed(self, texts: Sequence[Encoded], answers: Sequence[Answer], level: int) -> int:
        """Count the multiply-accumulates that `run` took for these answers."""
        fell = [bool(answer.prediction.get("fallback")) for answer in answers]
        return self._cost.executed([text.rows for text in texts], fell, level)


Load = Callable[[str, Path], Loaded]
Spawn = Callable[[Callable[[], None]], None]


def spawn_thread(work: Callable[[], None]) -> None:
    """Run something in a thread that does not keep the process alive."""
    threading.Thread(target=work, name="reload", daemon=True).start()


class Shelf:
    """Bundles by name. One that was replaced on disk is loaded beside the old one, which answers
    until the new one is ready; requests that have the old one end with it."""

    def __init__(
        self,
        places: Mapping[str, Path],
        load: Load,
        metrics: Metrics,
        *,
        log: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        spawn: Spawn = spawn_thread,
    ):
        """Load all bundles; a UserError names the first one that cannot be served."""
        self._places, self._load, self._metrics = dict(places), load, metrics
        self._log, self._clock, self._spawn = log, clock, spawn
        self._lock = threading.Lock()
        self._stamps = {name: _stamp(place) for name, place in places.items()}
        self._loaded = {name: load(name, place) for name, place in places.items()}
        self._looked = dict.fromkeys(places, clock())
        self._loading: set[str] = set()

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def place(self, name: str) -> Path:
        """The directory of the bundle of that name."""
        return self._places[name]

    def get(self, name: str) -> Loaded:
        """The bundle of that name, as it is loaded now."""
        self._look(name)
        return self._loaded[name]

    def all(self) -> list[Loaded]:
        return [self.get(name) for name in self._places]

    def _look(self, name: str) -> None:
        with self._lock:
            now = self._clock()
            if name in self._loading or now - self._looked[name] < EVERY:
                return
            self._looked[name] = now
            stamp = _stamp(self._places[name])
            if stamp is None or stamp == self._stamps[name]:
                return
            self._loading.add(name)
        self._spawn(lambda: self._reload(name, stamp))

    def _reload(self, name: str, stamp: tuple[int, ...]) -> None:
        result = "ok"
        try:
            self._loaded[name] = self._load(name, self._places[name])
            self._log(f"the bundle {name} was replaced")
        except Exception as error:  # whatever is wrong with the new one, the old one goes on
            result = "refused"
            line = " ".join(str(error).split()) or type(error).__name__
            self._log(f"the new bundle {name} is refused, the old one stays: {line}")
        with self._lock:
            self._stamps[name] = stamp  # a refused bundle is tried again when it changes
            self._loading.discard(name)
        self._metrics.reload(name, result)


def _stamp(place: Path) -> tuple[int, ...] | None:
    """Changes when another manifest takes the place; None while there is none."""
    try:
        found = (place / PLACE).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size


def parse_places(arguments: Sequence[str]) -> dict[str, Path]:
    """Bundles by name, from `PATH` or `NAME=PATH`; the name of a path is that of its directory."""
    places: dict[str, Path] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name, path = Path(argument).resolve().name, argument
        if not name or not path:
            raise UserError(f"{argument!r} is no bundle; give a directory or NAME=DIRECTORY")
        if name in places:
            raise UserError(f"two bundles have the name {name}; name one of them: other={path}")
        places[name] = Path(path)
    return places
