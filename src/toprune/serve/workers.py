"""Threads that run batches. ONNX Runtime works outside Python's lock, so threads are enough."""

import threading
import time
from collections.abc import Callable, Sequence

from toprune.errors import UserError
from toprune.serve.cost import Levels
from toprune.serve.metrics import Metrics
from toprune.serve.queue import Batch, Closed, Failed, Job, Queue
from toprune.serve.shed import Shed


class Workers:
    """Takes batches from a queue and runs them; any thread may submit and cancel."""

    def __init__(
        self,
        queue: Queue,
        count: int,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        shed: Shed | None = None,
    ):
        """Prepare the threads; `start` starts them.

        Args:
            queue: belongs to the workers from now on.
            count: batches that run at a time.
            metrics: counts what runs.
            clock: seconds.
            shed: chooses the budget of a batch; None: bundles have one.
        """
        self._queue, self._count, self._metrics, self._clock = queue, count, metrics, clock
        self._shed = shed or Shed([""])
        self._changed = threading.Condition()
        self._running = 0
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for number in range(self._count):
            thread = threading.Thread(target=self._work, name=f"worker-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def check_room(self) -> None:
        """Raise `Full` or `Closed` where a request would be refused."""
        with self._changed:
            self._check()

    def submit(self, job: Job, costs: Sequence[Levels]) -> None:
        """Queue a request, or raise `Full` or `Closed`.

        Args:
            job: the request.
            costs: of the rows of each text, at each budget.
        """
        with self._changed:
            self._check()
            self._queue.push(job, costs, self._clock())
            self._report()
            self._changed.notify_all()

    def cancel(self, job: Job) -> int:
        """Forget a request that nobody waits for; returns how many of its texts did not run."""
        with self._changed:
            dropped = self._queue.drop(job)
            self._report()
            self._changed.notify_all()
        return dropped

    def close(self) -> None:
        """Refuse new requests from now on; those that were accepted still run."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def stop(self, timeout: float) -> None:
        """Close, wait until accepted requests are done, and end the threads.

        Args:
            timeout: seconds; what has not begun by then is refused.
        """
        self.close()
        with self._changed:
            self._changed.wait_for(lambda: not len(self._queue) and not self._running, timeout)
            abandoned = self._queue.clear()
            self._report()
            self._changed.notify_all()
        for job in abandoned:
            job.fail(Closed())
        for thread in self._threads:
            thread.join(timeout)

    def run_next(self) -> bool:
        """Run one batch, if a text waits; returns whether one did."""
        with self._changed:
            level = self._shed.choose(self._queue.fill)
            batch = self._queue.take(level)
            if batch is None:
                return False
            self._running += 1
            self._report()
        started = self._clock()
        macs = batch.macs
        try:
            macs = self._run(batch, level)
        finally:
            with self._changed:
                self._running -= 1
                seconds = self._clock() - started
                self._queue.learn(batch.engine, macs, seconds)
                self._changed.notify_all()
        self._metrics.batch(batch.engine.name, len(batch.items), macs, seconds)
        if len(self._shed.budgets) > 1:
            self._metrics.shed(level, self._shed.budgets[level], len(batch.items))
        return True

    def _work(self) -> None:
        while True:
            if self.run_next():
                continue
            with self._changed:
                self._changed.wait_for(lambda: len(self._queue) or self._is_closed)
                if self._is_closed and not len(self._queue):
                    return

    def _run(self, batch: Batch, level: int) -> int:
        """Run a batch and answer its requests; returns the multiply-accumulates that it took."""
        texts = [item.text for item in batch.items]
        try:
            answers = batch.engine.run(texts, level)
        except BaseException as error:  # a worker must go on, whatever an engine does
            if len(batch.items) > 1:
                alone = [Batch(batch.engine, [item], item.macs[level]) for item in batch.items]
                return sum(self._run(one, level) for one in alone)  # nobody spoils others' answers
            for item in batch.items:
                item.job.fail(error if isinstance(error, UserError) else Failed(error))
                with self._changed:
                    self._queue.drop(item.job)
            return batch.macs
        for item, answer in zip(batch.items, answers, strict=True):
            item.job.answer(item.index, answer, level)
        return batch.engine.executed(texts, answers, level)

    def _check(self) -> None:
        if self._is_closed:
            raise Closed
        self._queue.check_room()

    def _report(self) -> None:
        self._metrics.queue(len(self._queue), self._queue.batches, self._running)
