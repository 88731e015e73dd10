"""One text at a time, explained and timed with the weights of a bundle: for the server's page."""

from pathlib import Path
from threading import Lock
from typing import Any

import torch

from toprune.bundle.bundle import Bundle
from toprune.inspection.explain.explain import Reading, check_plan, explain_loaded
from toprune.inspection.explain.explanation import Explained, Speed
from toprune.models.heads import task_outputs
from toprune.pruning.attach import attach, detach
from toprune.run.timing import interleave, ratio

ROUNDS, SECONDS = 15, 4.0  # for timing a text


class Live:
    """A loaded bundle; a lock, because its model is attached and detached for every text."""

    def __init__(self, folder: str | Path, budget: str | None = None):
        """Load the weights of a bundle.

        Args:
            folder: the directory that `prune` wrote.
            budget: of a bundle with a dial; None: its default.
        """
        self._name = str(folder)
        self._bundle = Bundle.load(folder).at(budget)
        self._plan = check_plan(self._bundle, self._name)
        self._lock = Lock()

    def explain(self, text: Any) -> tuple[Explained, Speed]:
        """Find what becomes of every token of a text, and how much time that saves."""
        with self._lock:
            return explain_loaded(self._bundle, self._name, [text]), self._time(text)

    def _time(self, text: Any) -> Speed:
        """Time dense and pruned in turns; each attaches or detaches the plan first."""
        model, batches = self._bundle.model, list(Reading(self._bundle, [text]).batches("timing"))

        def read() -> None:
            for batch in batches:
                task_outputs(model, self._bundle.task, batch)

        def dense() -> None:
            detach(model)
            read()

        def pruned() -> None:
            attach(model, self._plan)
            read()

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                times = interleave(
                    {"dense": dense, "pruned": pruned}, rounds=ROUNDS, seconds=SECONDS
                )
        finally:
            detach(model)
            torch.set_num_threads(threads)
        faster = ratio(times["dense"], times["pruned"])
        return Speed(faster["value"], faster["low"], faster["high"], len(times["dense"]))
