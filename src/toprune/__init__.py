"""toprune: token pruning for transformer encoders, from a fine-tuned model to a faster one.

The public names are imported on first use, so that `import toprune` costs nothing and never brings
torch into a process that only runs a bundle.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from toprune.api import evaluate, finetune, prune
    from toprune.bundle.bundle import Bundle
    from toprune.data.columns import Columns
    from toprune.data.sets import Data
    from toprune.errors import UserError
    from toprune.inspection.gate.gate import gate
    from toprune.inspection.gate.result import GateResult
    from toprune.plan.budget import Budget
    from toprune.plan.plan import Plan
    from toprune.pruning.attach import attach, detach
    from toprune.run.runner import Runner
    from toprune.training.settings import Training

__all__ = [
    "Budget",
    "Bundle",
    "Columns",
    "Data",
    "GateResult",
    "Plan",
    "Runner",
    "Training",
    "UserError",
    "attach",
    "detach",
    "evaluate",
    "finetune",
    "gate",
    "prune",
]

_HOMES = {
    "Budget": "toprune.plan.budget",
    "Bundle": "toprune.bundle.bundle",
    "Columns": "toprune.data.columns",
    "Data": "toprune.data.sets",
    "GateResult": "toprune.inspection.gate.result",
    "Plan": "toprune.plan.plan",
    "Runner": "toprune.run.runner",
    "Training": "toprune.training.settings",
    "UserError": "toprune.errors",
    "attach": "toprune.pruning.attach",
    "detach": "toprune.pruning.attach",
    "evaluate": "toprune.api",
    "finetune": "toprune.api",
    "gate": "toprune.inspection.gate.gate",
    "prune": "toprune.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toprune' has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("toprune"):
            raise
        raise ImportError(
            f"toprune.{name} needs {problem.name}; install it with: pip install 'toprune[train]'"
        ) from problem
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
