"""Tasks: what a text is asked. One frozen dataclass each; its fields are the task's settings, which
go into the bundle, so that the runtime reads, pools and decides as was measured."""

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

TASKS: dict[str, Any] = {
    kind.NAME: kind for kind in (Classify, Regress, Multilabel, Rank, Answer, Tags, Embed)
}


def make_task(name: str, settings: Mapping[str, Any] | None = None) -> Task:
    """The task of that name; settings that it does not have are refused."""
    if name not in TASKS:
        raise UserError(f"task '{name}' is not known; there are: {', '.join(TASKS)}")
    try:
        return TASKS[name](**(settings or {}))
    except TypeError as problem:
        known = [field.name for field in fields(TASKS[name])]
        odd = [key for key in settings or {} if key not in known] or list(settings or {})
        raise UserError(
            f"the task {name} has no such setting ({', '.join(odd)}); "
            f"it has: {', '.join(known) or 'none'}"
        ) from problem


def settings_of(task: Task) -> dict[str, Any]:
    """The task's settings as plain JSON."""
    made: Any = task
    return json.loads(json.dumps(asdict(made)))


def task_for(report: Mapping[str, Any], config: Any) -> Task:
    """The task of a bundle, as its report says; of any other model, what its head is made for."""
    if "task" in report:
        return make_task(str(report["task"]), report.get("task_settings"))
    kind = (config.architectures or [""])[0]
    if kind.endswith("ForQuestionAnswering"):
        return Answer()
    if kind.endswith("ForTokenClassification"):
        return Tags()
    if kind.endswith("Model"):
        return Embed()
    if config.problem_type == "multi_label_classification":
        return Multilabel(classes=config.num_labels)
    return Regress() if config.num_labels == 1 else Classify()
