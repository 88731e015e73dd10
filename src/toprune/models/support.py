"""What each family is supported for: one table for the parity matrix of the tests, the page
`docs/families.md` and the command `toprune families`."""

from dataclasses import dataclass
from typing import Any

import transformers
from transformers.models.auto import modeling_auto as auto

from toprune.models.families import FAMILIES, NOTES, Family

# The names of transformers' classes by model type, for each task that is a column of the matrix;
# `multilabel` and `rank` have the head of `classify`.
HEADS: dict[str, Any] = {
    "classify": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "regress": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "answer": auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "tokens": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "embed": auto.MODEL_MAPPING_NAMES,
}
TASKS = tuple(HEADS)
IMAGES: dict[str, Any] = dict.fromkeys(
    ("classify", "regress"), auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
)


@dataclass(frozen=True)
class Support:
    family: Family
    missing: dict[str, str]  # of TASKS: why not
    checkpointing: bool  # gradient checkpointing: has the stock model any?

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(task for task in TASKS if task not in self.missing)

    def to_dict(self) -> dict[str, Any]:
        note = NOTES[self.family.name]
        return {
            "family": self.family.name,
            "since": self.family.since,
            "input": "images" if self.family.images else "texts",
            "tasks": list(self.tasks),
            "missing": self.missing,
            "gradient_checkpointing": self.checkpointing,
            "models": note.models,
            "positions": note.positions,
        }


def support_of(family: Family) -> Support:
    """From the tables of the installed transformers; no model is built."""
    heads = IMAGES if family.images else HEADS
    missing: dict[str, str] = {}
    for task in TASKS:
        if task not in heads:
            missing[task] = "not for images"
        elif family.name not in heads[task]:
            missing[task] = "transformers has no head"
    names = [names[family.name] for task, names in heads.items() if task not in missing]
    can = bool(names) and getattr(transformers, names[0]).supports_gradient_checkpointing
    return Support(family, missing, can)


def everything() -> list[Support]:
    return [support_of(family) for family in FAMILIES.values()]
