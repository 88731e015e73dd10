"""Tasks x budgets x methods x seeds x weights of the ranking distillation: a comparison for each
task, all of them done together, and one table over all."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprune.compare.comparison import Comparison, Say, go_on, write
from toprune.compare.executors import Executor, in_turn
from toprune.compare.runs import Run, Subject, chosen_method, has_weight, planned
from toprune.compare.swept import pareto, sweep_report, swept_markdown
from toprune.errors import UserError
from toprune.training.distributed import processes


@dataclass(frozen=True)
class Grid:
    """Every method at every budget with every seed, on every task."""

    tasks: Mapping[str, Subject]  # the name is that of the directory
    methods: Sequence[str]
    budgets: Sequence[str]
    seeds: Sequence[int] = (0,)
    weights: Sequence[float] = ()  # of the ranking distillation, for methods that have one

    def runs(self) -> list[Run]:
        """Of each task. A method that distils a ranking is one method for each weight."""
        names: list[str] = []
        for name in self.methods:
            method, _, weight = chosen_method(name)
            many = has_weight(method) and weight is None and self.weights
            names += [f"{name}@{weight!r}" for weight in self.weights] if many else [name]
        return planned(names, self.budgets, self.seeds)


def sweep(
    grid: Grid,
    *,
    out: str | Path,
    engine: Executor = in_turn,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Every task's comparison in a directory of its own, as `compare` writes it and may go on with
    it; over all of them sweep.json, sweep.md and sweep.svg. Returns what sweep.json holds. Called
    again it goes on where it was."""
    if not grid.tasks:
        raise UserError("a sweep needs one task at least")
    place, runs = Path(out), grid.runs()
    try:
        own = [
            Comparison(place / name, subject, runs, f"{name}, ")
            for name, subject in grid.tasks.items()
        ]
        go_on(own, engine, say)
    except UserError:
        if processes().is_main_process:
            with suppress(OSError):  # something is there, or nothing ever was
                place.rmdir()
        raise
    found = {name: one.report() for name, one in zip(grid.tasks, own, strict=True)}
    report = sweep_report(found)
    if processes().is_main_process:
        write(place / "sweep.json", json.dumps(report, indent=1) + "\n")
        write(place / "sweep.md", swept_markdown(report))
        if drawn := pareto(report):
            write(place / "sweep.svg", drawn)
    return report
