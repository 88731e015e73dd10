"""Machine, versions and settings, and the command that repeats the run."""

import json
import shlex
from typing import Any

from toprune.data.presets import preset_name
from toprune.report.html.parts import command, facts, paragraph, user_text
from toprune.report.html.shell import escape
from toprune.tasks import TASKS, Task

Report = dict[str, Any]


def origin(report: Report) -> str:
    """The section about machine and settings."""
    provenance = report.get("provenance") or {}
    parts: list[str] = []
    if "budget" in report and "training" in provenance.get("settings", {}):
        parts.append(paragraph(_introduction(report)))
        parts.append(command(*_options(report, provenance["settings"])))
    names = {"machine": provenance.get("machine"), "commit": provenance.get("commit")}
    names |= provenance.get("versions", {})
    parts.append(facts((name, user_text(value)) for name, value in names.items() if value))
    if provenance.get("settings"):
        settings = {k: v for k, v in provenance["settings"].items() if k != "lengths"}
        text = escape(json.dumps(settings, indent=1))
        parts.append(f"<details><summary>All settings</summary><pre>{text}</pre></details>")
    return "".join(parts)


def _introduction(report: Report) -> str:
    """A model or data that Python passed as an object has no name for a command."""
    missing = {"model": "MODEL the dense model's directory", "data": "DATA the data"}
    if preset_name(report["provenance"]["settings"]):  # the hub has it
        del missing["data"]
    names = [text for name, text in missing.items() if name not in report.get("inputs", {})]
    if not names:
        return "To repeat this run:"
    return f"To repeat this run, with {' and '.join(names)}, which the report does not name:"


def _options(report: Report, settings: dict[str, Any]) -> list[str]:
    """The parts of the command. Settings without an option are in the list of all settings."""
    training = settings["training"]
    task = preset_name(settings) or settings["task"]
    inputs = report.get("inputs", {})
    options: dict[str, Any] = {
        "model": inputs.get("model", "MODEL"),
        "data": inputs.get("data", None if preset_name(settings) else "DATA"),
        **{name: inputs.get(name) for name in ("text", "pair", "label")},
        "task": task,
        "schedule": settings.get("schedule"),
        "budget": settings["budget"],
        "lengths-of": inputs.get("lengths_of"),
        "method": settings.get("method"),
        "score": None if settings.get("score") == "pooled" else settings.get("score"),
        "max-length": None if _is_cut(report) else report.get("max_length"),
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
    task_settings = settings.get("task_settings") or {}
    options |= {name: task_settings.get(name) for name in ("stride", "pooling", "dropped")}
    flags: list[str] = []
    for key, value in (settings.get("method_settings") or {}).items():
        text = value if isinstance(value, str) else json.dumps(value).replace("null", "none")
        flags.append(f"--set {shlex.quote(f'{key}={text}')}")
    flags.append("--bf16" if training.get("bf16") else "--no-bf16")
    states = training.get("token_states")
    flags += [] if states is None else ["--token-states" if states else "--no-token-states"]
    flags += ["--no-answer"] if task_settings.get("no_answer") else []
    for name in ("unlabelled", "protect"):
        flags += [f"--{name} {shlex.quote(str(value))}" for value in inputs.get(name, ())]
    keeps_first = settings.get("protect_until") is not None
    if keeps_first != TASKS.get(settings["task"], Task).KEEPS_FIRST:
        flags.append("--protect-first" if keeps_first else "--no-protect-first")
    options["seed"] = training["seed"]
    words = [f"--{key} {shlex.quote(str(v))}" for key, v in options.items() if v is not None]
    return ["toprune prune", *words, *flags, "--out BUNDLE"]


def _is_cut(report: Report) -> bool:
    """Did the method choose the length that texts are cut to? Then some texts are longer."""
    lengths = [int(key.partition("/")[0]) for key in report.get("lengths", {})]
    return max(lengths, default=0) > report.get("max_length", 0)
