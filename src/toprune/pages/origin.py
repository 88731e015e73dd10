"""Machine, versions and settings, and the command that would do it again."""

import json
import shlex
from typing import Any

from toprune.pages.parts import command, facts, paragraph, words
from toprune.pages.shell import escape

Report = dict[str, Any]
QUERY_STAYS = ("rank", "answer")  # tasks that protect the first text unless told otherwise


def origin(report: Report) -> str:
    found = report.get("provenance") or {}
    parts: list[str] = []
    if "budget" in report and "training" in found.get("settings", {}):
        parts.append(
            paragraph(
                "To do it again, with MODEL the dense model's directory and DATA the data, which "
                "the report does not name:"
            )
        )
        parts.append(command(*_options(report, found["settings"])))
    told = {"machine": found.get("machine"), "commit": found.get("commit")}
    told |= found.get("versions", {})
    parts.append(facts((name, words(value)) for name, value in told.items() if value))
    if found.get("settings"):
        settings = {k: v for k, v in found["settings"].items() if k != "lengths"}
        text = escape(json.dumps(settings, indent=1))
        parts.append(f"<details><summary>All settings</summary><pre>{text}</pre></details>")
    return "".join(parts)


def _options(report: Report, settings: dict[str, Any]) -> list[str]:
    """As words of a shell. What the command line has no option for is in the settings."""
    training, method = settings["training"], settings.get("method", "top")
    task = settings.get("glue") or settings["task"]
    given: dict[str, Any] = {
        "model": "MODEL",
        "data": None if "glue" in settings else "DATA",
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
    }
    own = settings.get("method_settings") or {}
    if method == "top":
        names = ("bins", "top_k", "first", "constraint", "distill", "distill_weight")
        told = {"first": "first-layer", "top_k": "top-k", "distill_weight": "distill-weight"}
        given |= {told.get(name, name): own.get(name) for name in names}
    flags = ["--no-gates"] if own.get("gates") is False else []
    is_held = settings.get("protect_until") is not None
    if is_held != (settings["task"] in QUERY_STAYS):
        flags.append("--protect-first" if is_held else "--no-protect-first")
    given["seed"] = training["seed"]
    options = [f"--{key} {shlex.quote(str(v))}" for key, v in given.items() if v is not None]
    return ["toprune prune", *options, *flags, "--out BUNDLE"]
