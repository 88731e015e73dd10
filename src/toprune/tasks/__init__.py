"""Tasks: what a model answers about a text.

Each task is a frozen dataclass. Its fields are its settings, which the bundle stores, so that the
runtime reads, pools and decides as was measured.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from toprune.errors import UserError
from toprune.tasks.answer import Answer
from toprune.tasks.base import Task
from toprune.tasks.classify import Classify
from toprune.tasks.embed import Embed
from toprune.tasks.multilabel import Multilabel
from toprune.tasks.rank import Rank
from toprune.tasks.regress import Regress
from toprune.tasks.tags import Tags

TASKS: dict[str, type[Task]] = {
    task.NAME: task for task in (Classify, Regress, Multilabel, Rank, Answer, Tags, Embed)
}


def make_task(name: str, settings: Mapping[str, Any] | None = None) -> Task:
    """Make a task by its name.

    Args:
        name: a key of TASKS.
        settings: fields of the task; a setting that it does not have is refused.
    """
    if name not in TASKS:
        raise UserError(f"task '{name}' is not known; use one of: {', '.join(TASKS)}")
    task: Any = TASKS[name]
    try:
        return task(**(settings or {}))
    except TypeError as problem:
        known = [field.name for field in fields(task)]
        unknown = [key for key in settings or {} if key not in known] or list(settings or {})
        raise UserError(
            f"the task {name} has no such setting ({', '.join(unknown)}); "
            f"it has: {', '.join(known) or 'none'}"
        ) from problem


def settings_of(task: Task) -> dict[str, Any]:
    """The task's settings as plain JSON."""
    fields_of: Any = task
    return json.loads(json.dumps(asdict(fields_of)))


def task_for(report: Mapping[str, Any], config: Any) -> Task:
    """The task of a model directory.

    Args:
        report: of a bundle, which names its task; empty for any other model.
        config: of the model; its head decides where the report has no task.
    """
    if "task" in report:
        return make_task(str(report["task"]), report.get("task_settings"))
    architecture = (config.architectures or [""])[0]
    if architecture.endswith("ForQuestionAnswering"):
        return Answer()
    if architecture.endswith("ForTokenClassification"):
        return Tags()
    if architecture.endswith("Model"):
        return Embed()
    if config.problem_type == "multi_label_classification":
        return Multilabel(classes=config.num_labels)
    return Regress() if config.num_labels == 1 else Classify()
