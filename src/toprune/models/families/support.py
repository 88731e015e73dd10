"""Which tasks each family supports: one table for the parity matrix of the tests, the page
`docs/families.md` and the command `toprune families`."""

from dataclasses import dataclass
from typing import Any

import transformers
from transformers.models.auto import modeling_auto as auto

from toprune import tasks
from toprune.models.families.family import Family
from toprune.models.families.registry import FAMILIES

# The names of transformers' classes by model type, for each kind of head (`Task.HEAD`).
HEADS: dict[str, Any] = {
    "sequence": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "answer": auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "tokens": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "encoder": auto.MODEL_MAPPING_NAMES,
}
TASKS = tuple(name for name, task in tasks.TASKS.items() if task.SAME_HEAD_AS is None)


@dataclass(frozen=True)
class Support:
    family: Family
    missing: dict[str, str]  # of TASKS: why not
    checkpointing: bool  # does the stock model have gradient checkpointing?

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(task for task in TASKS if task not in self.missing)

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": self.family.name,
            "since": self.family.since,
            "input": "images" if self.family.images else "texts",
            "tasks": list(self.tasks),
            "missing": self.missing,
            "gradient_checkpointing": self.checkpointing,
            "models": self.family.note.models,
            "positions": self.family.note.positions,
        }


def support_of(family: Family) -> Support:
    """Look the family up in the tables of the installed transformers; no model is built."""
    missing: dict[str, str] = {}
    names: list[str] = []
    for name in TASKS:
        task = tasks.TASKS[name]
        images = auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
        classes: Any = images if family.images else HEADS[task.HEAD]
        if family.images and not task.READS_IMAGES:
            missing[name] = "not for images"
        elif family.name not in classes:
            missing[name] = "transformers has no head"
        else:
            names.append(classes[family.name])
    checkpointing = bool(names) and getattr(transformers, names[0]).supports_gradient_checkpointing
    return Support(family, missing, checkpointing)


def all_support() -> list[Support]:
    """The support of every family, in the order of the table."""
    return [support_of(family) for family in FAMILIES.values()]
