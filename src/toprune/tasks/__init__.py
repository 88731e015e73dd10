"""Tasks: what the labels mean. One module each, with the same functions; see `classify`."""

from types import ModuleType

from toprune.tasks import classify, regress

TASKS: dict[str, ModuleType] = {classify.NAME: classify, regress.NAME: regress}
