"""Presets: well-known datasets that users name in place of a task, and recipes to train on them.

Plain data, because a process that only evaluates has no torch to import the settings classes with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toprune.data.columns import Columns
from toprune.plan.plan import Score


@dataclass(frozen=True)
class Recipe:
    """A schedule: the settings of `Training` and of methods that it changes."""

    epochs: float = 5.0  # of pruning, in all
    soft: float | None = None  # share of the epochs that learns masks; None: counted in steps
    score: Score = "probes"
    training: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by their names
    finetune: Mapping[str, Any] = field(default_factory=dict)  # `Training` of the dense model


SHORT = Recipe()  # the library's defaults: minutes on a CPU


@dataclass(frozen=True)
class Preset:
    """A dataset by name: where it is, how its files look, how it is evaluated and trained on."""

    name: str  # as users write it
    title: str  # also the name of its folder in the official download
    hub: str  # its copy on the hub
    columns: Columns  # of the official files; numbers: the files have no header
    hub_columns: Columns
    metrics: tuple[str, ...]  # the ones that are reported first
    max_length: int  # the paper's
    paper: Recipe  # the paper's schedule
    task: str = "classify"
    classes: tuple[str, ...] = ()  # names by id; none: labels are numbers
    files: Mapping[str, str] = field(
        default_factory=lambda: {"train": "train.tsv", "validation": "dev.tsv"}
    )
    broken: int = 0  # lines of an official file that may be cut in two
