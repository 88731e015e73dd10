"""The texts that wait, and which of them run next together.

Nothing here knows threads, clocks or HTTP: the time is an argument, so tests decide it.

Texts run in the order of their deadlines. A request gets a deadline in proportion to its own cost:
short texts overtake long ones, but only for a time, because whoever comes later has a later
deadline. A batch begins with the earliest deadline; others join while the predicted cost stays in
the target, and only if they cost little more in the batch than alone, where their attention is not
padded. No batch takes more than one worker's share of what waits: with a short queue nobody waits
for the rest of a large batch while another worker has nothing to do.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol

from toprune.run.encoded import Encoded
from toprune.serve.cost import BatchCost, Levels

STRETCH = 2.0  # a request may be overtaken for so many times the time that it needs itself
WASTE = 1.25  # a text joins a batch if it costs there at most so many times its cost alone
MEMORY = 0.1  # weight of the last batch in the mean pace


class Engine(Protocol):
    """A loaded bundle."""

    name: str
    batch_macs: int  # target for the cost of a batch

    def run(self, texts: Sequence[Encoded], level: int, /) -> list[Any]:
        """The answer to each text, at the budget of that number (`Shed`)."""
        ...

    def executed(self, texts: Sequence[Encoded], answers: list[Any], level: int, /) -> int:
        """The multiply-accumulates that these answers took."""
        ...


class Full(Exception):
    """The queue takes no more texts."""

    def __init__(self, retry_after: int):
        super().__init__(f"too many texts wait; try again in {retry_after} s")
        self.retry_after = retry_after


class Closed(Exception):
    """The server stops and takes no more texts."""

    def __init__(self) -> None:
        super().__init__("the server is stopping; ask another one")


class Failed(Exception):
    """The runtime failed, and not because of a text: out of memory, for example."""

    def __init__(self, error: BaseException):
        super().__init__("the model could not run; try again")
        self.reason = type(error).__name__


@dataclass(eq=False)
class Item:
    """One text of a request."""

    job: "Job"
    index: int  # within the request
    text: Encoded
    levels: Levels  # the cost of its rows at each budget
    macs: tuple[int, ...]  # its cost alone at each budget
    order: tuple[float, int] = (0.0, 0)


@dataclass(eq=False)
class Job:
    """One request: it is done when all of its texts are, or one of them failed."""

    engine: Engine
    texts: Sequence[Encoded]
    done: Callable[["Job"], None]  # called once, from a worker
    answers: list[Any] = field(default_factory=list[Any])
    error: Exception | None = None
    is_over: bool = False  # answered, failed or given up
    left: int = 0
    level: int = 0  # number of the tightest budget that one of its texts got

    def answer(self, index: int, answer: Any, level: int = 0) -> None:
        """Store the answer to one text, and the number of its budget."""
        if self.is_over:
            return
        self.level = max(self.level, level)
        self.answers[index] = answer
        self.left -= 1
        if self.left == 0:
            self._end()

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        if not self.is_over:
            self.error = error
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self.done(self)


@dataclass(frozen=True)
class Batch:
    """Texts that run together."""

    engine: Engine
    items: Sequence[Item]
    macs: int


class Queue:
    """A bounded queue of texts, ordered by deadline."""

    def __init__(self, max_batches: float, workers: int, seconds_per_batch: float = 0.05):
        """Make an empty queue.

        Args:
            max_batches: a request is refused while so many full batches wait.
            workers: batches that run at a time.
            seconds_per_batch: a first guess; `learn` replaces it.
        """
        self.max_batches, self._workers = max_batches, workers
        self.seconds_per_batch = seconds_per_batch
        self._items: list[Item] = []
        self._count = 0  # of all items so far: equal deadlines keep their order
        self.batches = 0.0  # full batches that wait

    def __len__(self) -> int:
        return len(self._items)

    @property
    def fill(self) -> float:
        """The share of the queue that is taken; may exceed 1 by one request."""
        return self.batches / self.max_batches

    def check_room(self) -> None:
        """Raise `Full` where the queue is full."""
        if self.batches >= self.max_batches:
            raise Full(max(1, ceil(self.batches * self.seconds_per_batch / self._workers)))

    def push(self, job: Job, costs: Sequence[Levels], now: float) -> None:
        """Add all texts of a request, or raise `Full` and add none.

        A request that finds room is taken whole, however large: the limit on texts of a request
        bounds by how much it can exceed the queue.
        """
        self.check_room()
        job.answers, job.left = [None] * len(job.texts), len(job.texts)
        items = [
            Item(job, i, text, own, tuple(BatchCost().with_rows(rows).macs for rows in own))
            for i, (text, own) in enumerate(zip(job.texts, costs, strict=True))
        ]
        shares = sum(map(_share, items))
        deadline = now + STRETCH * shares * self.seconds_per_batch
        for item in items:
            self._count += 1
            item.order = deadline, self._count
            insort(self._items, item, key=lambda one: one.order)
        self.batches += shares

    def take(self, level: int = 0) -> Batch | None:
        """Remove and return the texts that run next at a budget; None if none waits."""
        if not self._items:
            return None
        first = self._items[0]
        engine, cost = first.job.engine, BatchCost().with_rows(first.levels[level])
        most = engine.batch_macs * min(1.0, self.batches / self._workers)
        chosen, rest = [first], []
        for item in self._items[1:]:
            joined = cost.with_rows(item.levels[level])
            if (
                item.job.engine is engine
                and joined.macs <= most
                and joined.macs - cost.macs <= WASTE * item.macs[level]
            ):
                chosen.append(item)
                cost = joined
            else:
                rest.append(item)
        self._items = rest
        self._count_waiting()
        return Batch(engine, chosen, cost.macs)

    def drop(self, job: Job) -> int:
        """Remove the texts of a request that nobody waits for; returns how many."""
        before = len(self._items)
        job.is_over = True
        self._items = [item for item in self._items if item.job is not job]
        self._count_waiting()
        return before - len(self._items)

    def clear(self) -> list[Job]:
        """Remove everything; returns the requests that had texts here."""
        jobs = list(dict.fromkeys(item.job for item in self._items))
        self._items, self.batches = [], 0.0
        return jobs

    def learn(self, engine: Engine, macs: int, seconds: float) -> None:
        """Take note of how long a batch of so many multiply-accumulates took."""
        pace = seconds * engine.batch_macs / max(1, macs)
        self.seconds_per_batch += MEMORY * (pace - self.seconds_per_batch)

    def _count_waiting(self) -> None:
        self.batches = sum(map(_share, self._items))


def _share(item: Item) -> float:
    """The part of a full batch that a text takes at the loosest budget: with the budget that runs
    now, a queue would shrink as `Shed` tightens it, and grow again as it relaxes."""
    return item.macs[0] / item.job.engine.batch_macs
