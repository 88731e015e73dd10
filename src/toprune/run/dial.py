"""The dial of a loaded graph: the inputs that turn it to another budget."""

from pathlib import Path

import numpy as np

from toprune.errors import UserError
from toprune.plan.budget import Budget
from toprune.plan.dial import FILE, KEEP, Dial, numerators
from toprune.plan.plan import Plan
from toprune.run.engines import Engine
from toprune.run.manifest import Manifest

MAX_KNOWN = 256  # budgets whose plans are remembered

Asked = str | Budget | None  # None: no other budget
Keep = dict[str, np.ndarray]  # what a call feeds beside the texts


class Settings:
    """The budgets that a graph can run. Any number of threads may use it."""

    def __init__(self, bundle: Path, manifest: Manifest, plan: Plan, engine: Engine):
        """Read the dial of a bundle that was verified, if it was exported with one."""
        self.dial = Dial.load(bundle / FILE, plan) if FILE in manifest.files else None
        self._bundle, self._plan, self._engine = bundle, plan, engine
        self._known: dict[str, tuple[Plan, Keep]] = {}

    def turn(self, budget: Asked) -> tuple[Plan, Keep]:
        """Return the plan for a budget (None: the default), and what calls must feed for it."""
        if budget is None:
            return self._plan, {}
        wanted = Budget.parse(budget)
        if wanted.asked in self._known:
            return self._known[wanted.asked]
        if self.dial is None:
            raise UserError(
                f"{self._bundle} has one budget and no dial, so {wanted.asked} cannot be chosen; "
                "prune with several, like --budget 2x,3x,5x"
            )
        plan = self.dial.plan(wanted)
        keep = keep_input(plan)
        if plan.steps == self.dial.default.steps:
            keep = {}
        elif KEEP not in self._engine.overridable:
            raise UserError(
                f"this runtime runs the default budget {self.dial.default_budget.asked} only, not "
                f'{wanted.asked}; use ONNX Runtime (runtime="onnx")'
            )
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[wanted.asked] = plan, keep
        return plan, keep


def keep_input(plan: Plan) -> Keep:
    """The input of a graph with a dial that turns it to this plan."""
    return {KEEP: np.array(numerators([step.keep for step in plan.steps]), np.int64)}
