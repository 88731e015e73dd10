"""The figures that the ToP paper prints, as far as our copy has them, and what they are called."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from toprune.errors import UserError

Kind = Literal["base", "roberta", "six"]  # models of the paper

ABSENT = "not in our copy of the paper"
CUT_SHARE = 0.63  # of the maximum length: the mean where many texts are cut, as in 20News


@dataclass(frozen=True)
class Published:
    """What the paper prints about one dataset, and how it was trained there."""

    name: str
    content: dict[str, Any]

    @property
    def title(self) -> str:
        return self.content["title"]

    @property
    def metric(self) -> str:
        return self.content["metric"]

    @property
    def max_length(self) -> int:
        return self.content["max"]

    @property
    def mean_length(self) -> float | None:
        """Tokens of a text; None: not printed."""
        return self.content.get("mean")

    def figure(self, *path: str | int) -> float | None:
        """A printed figure; None where our copy has none.

        Args:
            path: keys of paper.toml; numbers are places in a list.
        """
        value: Any = self.content
        for key in path:
            if isinstance(key, int):
                value = value[key] if isinstance(value, list) and key < len(value) else None
            else:
                value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                return None
        return value


@cache
def _read() -> dict[str, Any]:
    text = files("toprune.reproduce").joinpath("paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def settings() -> dict[str, Any]:
    """The settings that all tasks of the paper share."""
    return _read()["settings"]


def predictors() -> dict[str, float]:
    """Table 1: what Transkimmer's networks cost, in %."""
    return _read()["predictors"]


def task_names() -> list[str]:
    """The datasets by the names that commands take."""
    return list(_read()["tasks"])


def published(name: str) -> Published:
    """What the paper prints about a dataset."""
    key = name.lower().replace("-", "").replace("_", "")
    tasks = _read()["tasks"]
    if key not in tasks:
        raise UserError(f"the task {name!r} is not in the paper; there are: {', '.join(tasks)}")
    return Published(key, tasks[key])
