"""The model card: README.md of a bundle, as the hub reads it, with the metrics in its header.

It is made from report.json alone and without the hub's library, which a serving machine does not
have; a test reads it back with that library. JSON is YAML, so the header needs no YAML writer.
"""

import json
from pathlib import Path
from typing import Any

from toprune.data.presets import hub_dataset
from toprune.report.differences import selected
from toprune.report.fallback import fallback_line
from toprune.report.times import how
from toprune.tasks import TASKS

CARD = "README.md"


def model_card(folder: Path, report: dict[str, Any]) -> str:
    """The model card of a pruned model.

    Args:
        folder: the directory of the bundle.
        report: its report.json.
    """
    task, metrics = report["task"], report.get("pruned", {})
    is_image = (folder / "preprocessor_config.json").exists()
    tag = "image-classification" if is_image else TASKS[task].HUB_TAG
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": tag,
        "tags": ["toprune", "token-pruning", "onnx"],
    }
    if metrics:
        header["model-index"] = [{"name": _name(report), "results": [_result(tag, report)]}]
    lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in header.items())
    return f"---\n{lines}\n---\n\n{_body(report)}"


def _name(report: dict[str, Any]) -> str:
    return f"{report['task']}, pruned to {report['budget']['asked']}"


def _result(tag: str, report: dict[str, Any]) -> dict[str, Any]:
    """One dataset with all its metrics; the hub calls each an EvalResult."""
    held_out = {"type": "held-out", "name": "held-out examples of the user's data"}
    metrics = [
        {"type": name, "value": figure["value"], "name": f"{name} (pruned)"}
        for name, figure in report["pruned"].items()
    ]
    return {"task": {"type": tag}, "dataset": hub_dataset(report) or held_out, "metrics": metrics}


def _body(report: dict[str, Any]) -> str:
    budget, made = report["budget"], report["provenance"]
    executed = budget["executed"]
    kept = ", ".join(f"{tokens:.0f}" for tokens in report["kept_per_layer"])
    parts = [
        f"# {_name(report)}",
        f"A fine-tuned encoder that drops tokens layer by layer (toprune, method "
        f"`{made['method']}`): {executed['unpadded']:.2f}x fewer FLOPs than the dense model on the "
        f"same unpadded inputs ({executed['padded']:.2f}x against inputs padded to "
        f"{report['max_length']}); {budget['asked']} was requested. Mean number of tokens "
        f"that enter each layer: {kept}.",
        *_times(report.get("time")),
        *_measured(report),
        *_dial(report),
        *_fallback(report),
        _use(report["task"]),
        "Without its plan (`plan.json`) the directory loads in transformers as an ordinary dense "
        "model; only with the plan, or as the exported ONNX file, is it the model that was "
        "measured. Short inputs gain little: see `report.html`.",
        f"Made on {made['machine']}, "
        + ", ".join(f"{name} {version}" for name, version in made["versions"].items())
        + f", commit {made['commit']}. Everything that was measured: `report.json`.",
    ]
    return "\n\n".join(parts) + "\n"


def _times(timed: dict[str, Any] | None) -> list[str]:
    """What was measured for a budget in milliseconds, with the machine that it holds for."""
    if timed is None:
        return []
    measured = "; ".join(
        f"{time['value']:.2f} ms [{time['low']:.2f}, {time['high']:.2f}] at "
        f"{time['length']} tokens ({name})"
        for name, time in timed["measured"].items()
    )
    machine = timed["curve"]["environment"]["machine"]
    return [
        f"Time of one text, measured on {machine} ({how(timed)}): {measured}; dense "
        f"{timed['dense']:.2f} ms at {timed['length']} tokens. Another machine takes another time."
    ]


def _measured(report: dict[str, Any]) -> list[str]:
    if not report.get("pruned"):
        return [f"No labels were given. Agreement with the dense model: {report['agreement']:.3f}"]
    rows = [
        f"| {name} | {report['dense'][name]['value']:.4f} | {figure['value']:.4f} "
        f"| {report['difference'][name]['value']:+.4f} [{report['difference'][name]['low']:+.4f}, "
        f"{report['difference'][name]['high']:+.4f}] |"
        for name, figure in report["pruned"].items()
    ]
    lines = ["| | dense | pruned | difference [95 %] |", "|---|---|---|---|", *rows]
    about = f"On {report['examples']} examples that training never saw."
    return ["\n".join(lines), " ".join([about, *selected(report)])]


def _dial(report: dict[str, Any]) -> list[str]:
    rows = report.get("dial", [])
    if not rows:
        return []
    names = list(rows[0].get("difference", {}))
    header = ["budget", "fewer FLOPs (unpadded)", "agreement", *names]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [row["asked"], f"{row['executed']['unpadded']:.2f}x", f"{row['agreement']:.3f}"]
        cells += [f"{row['difference'][name]['value']:+.4f}" for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return [
        "One file runs at any budget from "
        f'{rows[0]["asked"]} to {rows[-1]["asked"]}: `Runner("BUNDLE", '
        f'budget="{rows[-1]["asked"]}")`; the default is {report["budget"]["asked"]}. Metrics '
        "are differences to the dense model.",
        "\n".join(lines),
    ]


def _fallback(report: dict[str, Any]) -> list[str]:
    if "fallback" not in report:
        return []
    return [f"{fallback_line(report)} The dense model is in `dense/`."]


def _use(task: str) -> str:
    call = f'Runner("BUNDLE").predict({TASKS[task].EXAMPLE})'
    return (
        "```python\n# pip install toprune; if there is no onnx folder yet: toprune export BUNDLE\n"
        f"from toprune import Runner\n\nprint({call})\n```"
    )
