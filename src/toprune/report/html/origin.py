"""Machine, versions and settings, and the command that would do it again."""

import json
import shlex
from typing import Any

from toprune.data.presets import preset_name
from toprune.report.html.parts import command, facts, paragraph, words
from toprune.report.html.shell import escape
from toprune.tasks import TASKS, Task

Report = dict[str, Any]


def origin(report: Report) -> str:
    found = report.get("provenance") or {}
    parts: list[str] = []
    if "budget" in report and "training" in found.get("settings", {}):
        parts.append(paragraph(_introduced(report)))
        parts.append(command(*_options(report, found["settings"])))
    told = {"machine": found.get("machine"), "commit": found.get("commit")}
    told |= found.get("versions", {})
    parts.append(facts((name, words(value)) for name, value in told.items() if value))
    if found.get("settings"):
        settings = {k: v for k, v in found["settings"].items() if k != "lengths"}
        text = escape(json.dumps(settings, indent=1))
        parts.append(f"<details><summary>All settings</summary><pre>{text}</pre></details>")
    return "".join(parts)


def _introduced(report: Report) -> str:
    """What came as an object, in Python, has no name that a command could give."""
    told = {"model": "MODEL the dense model's directory", "data": "DATA the data"}
    if preset_name(report["provenance"]["settings"]):  # the hub has it
        del told["data"]
    left = [words for name, words in told.items() if name not in report.get("inputs", {})]
    if not left:
        return "To do it again:"
    return f"To do it again, with {' and '.join(left)}, which the report does not name:"


def _options(report: Report, settings: dict[str, Any]) -> list[str]:
    """As words of a shell. What the command line has no option for is in the settings."""
    training, method = settings["training"], settings.get("method", "top")
    task = preset_name(settings) or settings["task"]
    inputs = report.get("inputs", {})
    given: dict[str, Any] = {
        "model": inputs.get("model", "MODEL"),
        "data": inputs.get("data", None if preset_name(settings) else "DATA"),
        **{name: inputs.get(name) for name in ("text", "pair", "label")},
        "task": task,
        "schedule": settings.get("schedule"),
        "budget": settings["budget"],
        "method": method,
        "score": settings.get("score") if method != "pool" else None,
        "max-length": report.get("max_length") if method != "truncate" else None,
        "epochs": training["soft_epochs"] + training["hard_epochs"],
        "soft-epochs": training["soft_epochs"],
        "lr": training["lr"],
        "mask-lr": training["mask_lr"],
        "sparsity-warmup": training["sparsity_warmup"],
        "batch-size": training["batch_size"],
        "accumulation": training["accumulation"],
        "label-weight": training["label_weight"],
        "min-tokens": settings.get("min_tokens"),
    }
    asked = settings.get("task_settings") or {}
    given |= {name: asked.get(name) for name in ("stride", "pooling", "dropped")}
    own = settings.get("method_settings") or {}
    if method == "top":
        names = ("bins", "top_k", "first", "constraint", "distill", "distill_weight")
        told = {"first": "first-layer", "top_k": "top-k", "distill_weight": "distill-weight"}
        given |= {told.get(name, name): own.get(name) for name in names}
    flags = ["--no-gates"] if own.get("gates") is False else []
    flags += ["--bf16"] if training.get("bf16") else []
    flags += ["--token-states"] if training.get("token_states") else []
    flags += ["--no-answer"] if asked.get("no_answer") else []
    flags += [f"--protect {shlex.quote(str(word))}" for word in inputs.get("protect", ())]
    is_held = settings.get("protect_until") is not None
    if is_held != TASKS.get(settings["task"], Task).KEEPS_FIRST:
        flags.append("--protect-first" if is_held else "--no-protect-first")
    given["seed"] = training["seed"]
    options = [f"--{key} {shlex.quote(str(v))}" for key, v in given.items() if v is not None]
    return ["toprune prune", *options, *flags, "--out BUNDLE"]
