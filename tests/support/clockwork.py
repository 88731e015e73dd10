"""A machine whose times are known: an engine that moves a clock by a curve in place of running."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from toprune.plan.budget import Lengths
from toprune.plan.cost import plan_cost
from toprune.plan.curve import Curve
from toprune.plan.plan import Plan, held_tokens
from toprune.run.engines import PLAN

COUNTS = (1, 2, 4, 8, 16, 32, 64)
SLOPES = {"entry": 0.01, "attend": 0.03, "feed": 0.05, "head": 0.02, "step": 0.002}


def true_curve(layers: int, **fixed: float) -> Curve:
    """Straight lines of the parts; `fixed`: milliseconds of a part beside them (default: 0.1)."""
    return Curve(
        counts=COUNTS,
        milliseconds={
            name: tuple(fixed.get(name, 0.1) + slope * n for n in COUNTS)
            for name, slope in SLOPES.items()
        },
        shape={"family": "bert", "layers": layers, "width": 32},
        score="probe",
        restore="none",
        threads=1,
        precision="fp32",
        environment={"machine": "made of numbers"},
    )


class Machine:
    """Time passes only while an engine runs.

    Args:
        curve: what its parts take.
        noise: factor of a run, by the number of runs before it.
        drag: factor of the files that drop tokens: what a curve cannot foresee.
    """

    def __init__(
        self,
        curve: Curve,
        noise: Callable[[int], float] = lambda run: 1.0,
        drag: float = 1.0,
    ):
        self.curve, self.noise, self.drag = curve, noise, drag
        self.now, self.runs = 0.0, 0

    def clock(self) -> float:
        return self.now

    def open(self, path: Path, threads: int | None = None) -> "Engine":
        """In place of `OnnxRuntime`."""
        return Engine(self, path)

    def milliseconds(self, plan: Plan | None, feeds: dict[str, np.ndarray]) -> float:
        if plan is None:  # the feed-forward parts alone
            (states,) = feeds.values()
            line = np.interp(len(states), COUNTS, self.curve.milliseconds["feed"])
            return self.curve.layers * float(line)
        ids = feeds["input_ids"][0].tolist()
        n, held = len(ids), held_tokens(ids, plan.protect, plan.protect_until)
        if plan.n_layers == 1:
            parts = (self.curve.milliseconds[name] for name in ("entry", "head"))
            return sum(float(np.interp(n, COUNTS, part)) for part in parts)
        drag = self.drag if plan.lengths(n, held)[-1] < n else 1.0
        return drag * float(plan_cost(self.curve, plan, Lengths.of([n], [held])))


class Engine:
    def __init__(self, machine: Machine, path: Path):
        props = onnx.load(path, load_external_data=False).metadata_props
        texts = [prop.value for prop in props if prop.key == PLAN]
        self.machine, self.plan = machine, Plan.from_json(texts[0]) if texts else None

    def run(self, feeds: dict[str, np.ndarray]) -> Any:
        machine = self.machine
        factor = machine.noise(machine.runs)
        machine.now += factor * machine.milliseconds(self.plan, feeds) / 1000
        machine.runs += 1
