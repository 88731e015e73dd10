"""Presets by their names, and as the reports and settings of runs name them.

The only presets are the tasks of GLUE; other folders know no more of them than is here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from toprune.data.glue import GLUE, KEY, TITLE
from toprune.data.recipes import SHORT, Preset, Recipe
from toprune.errors import UserError
from toprune.io.untrusted import read_json

PRESETS = GLUE
PRESET_KEY = KEY  # in report.json and in the settings of a run
PRESET_NAMES = f"{TITLE}: {', '.join(PRESETS)}"  # for messages
Schedule = Literal["short", "paper"]


def find_preset(name: str) -> Preset | None:
    """Find a preset by its name, also by one like `SST-2` or `sts_b`; None for other names."""
    return PRESETS.get(name.lower().replace("-", "").replace("_", ""))


def preset_name(report: Mapping[str, Any]) -> str | None:
    """Return the name of the preset in a report or in settings, as it is written there."""
    return report.get(PRESET_KEY)


def preset_of(report: Mapping[str, Any]) -> Preset | None:
    """Return the preset that a report names, if it names one."""
    return find_preset(str(preset_name(report) or ""))


def preset_in(bundle: str | Path) -> Preset | None:
    """Return the preset that the report of a bundle on disk names; a bundle may have no report."""
    try:
        report = read_json(Path(bundle) / "report.json")
    except UserError:
        return None
    return preset_of(report) if isinstance(report, dict) else None


def hub_dataset(report: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the dataset of a report as model cards name it; None where it is not a preset."""
    name = preset_name(report)
    return {"type": KEY, "config": name, "name": f"{TITLE} {name}"} if name else None


def with_preset(report: Mapping[str, Any], preset: Preset | None) -> dict[str, Any]:
    """Add the preset's name to a report, and put the metrics first that it is judged by."""
    if preset is None:
        return dict(report)
    result = {**report, PRESET_KEY: preset.name}
    for part in ("metrics", "dense", "pruned", "difference"):
        if part in result:
            metrics = result[part]
            names = dict.fromkeys([*preset.metrics, *metrics])
            result[part] = {name: metrics[name] for name in names}
    return result


def preset_settings(preset: Preset | None, schedule: str | None) -> dict[str, str]:
    """Return what the settings of a run record of its preset."""
    return {} if preset is None else {PRESET_KEY: preset.name, "schedule": schedule or "short"}


def recipe_of(task: str, schedule: str | None) -> Recipe:
    """Return the recipe to train with.

    Args:
        task: the name of a task or of a preset.
        schedule: `short`, or `paper` for that of the preset's paper; None stands for `short`.
    """
    if schedule is None:
        return SHORT
    preset = find_preset(task)
    if preset is None:
        raise UserError(
            f"--schedule {schedule} is for the tasks of GLUE ({', '.join(PRESETS)}), not for "
            f"{task}; leave it out and set --epochs and the like"
        )
    recipes = {"short": SHORT, "paper": preset.paper}
    if schedule not in recipes:
        raise UserError(f"the schedule {schedule!r} is not known; use {' or '.join(recipes)}")
    return recipes[schedule]
