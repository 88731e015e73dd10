"""report.html, from report.json alone: what was requested, what runs, what it costs and gains.

A section appears if the report has its numbers: reports of older bundles, of data without labels
and of fine-tuned models have fewer of them.
"""

from collections.abc import Mapping
from typing import Any

from toprune.data.presets import preset_name
from toprune.errors import UserError
from toprune.report.html.budget import budget
from toprune.report.html.compared import curve, front
from toprune.report.html.dial import dial
from toprune.report.html.failures import classes, examples
from toprune.report.html.fallback import fallback
from toprune.report.html.kept import kept
from toprune.report.html.origin import origin
from toprune.report.html.parts import number, paragraph, section, user_text
from toprune.report.html.quality import quality, verdict
from toprune.report.html.shell import escape, page, read_asset
from toprune.report.html.speed import fastest, speed
from toprune.report.html.training import training

Report = dict[str, Any]


def report_page(report: Report, compared: Mapping[str, Any] | None = None) -> str:
    """One HTML document.

    Args:
        report: report.json.
        compared: compare.json, for a curve with this bundle in it.
    """
    try:
        body = "\n".join(filter(None, _body(report, compared)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise UserError(
            f"report.json is not one that toprune wrote ({problem!r}); prune the model again"
        ) from problem
    return page(_title(report), body, style=read_asset(__package__, "report.css"))


def _body(report: Report, compared: Mapping[str, Any] | None) -> list[str]:
    return [
        _head(report),
        section("FLOPs", budget(report)),
        section("Quality", quality(report)),
        section("Safety net", fallback(report)),
        section("The dial", dial(report)),
        section("Speed", speed(report)),
        section("Tokens kept", kept(report)),
        section(
            "Accuracy against FLOPs", curve(compared, report) if compared else "", front(report)
        ),
        section("Class by class", classes(report)),
        section("Where it fails", examples(report)),
        section("Training", training(report)),
        section("Where the numbers come from", origin(report)),
    ]


def _title(report: Report) -> str:
    if "budget" not in report:
        return f"Fine-tuning report: {_task(report)}"
    return f"Pruning report: {_task(report)} at {report['budget']['asked']}"


def _task(report: Report) -> str:
    return str(preset_name(report) or report.get("task", "an unnamed task"))


def _head(report: Report) -> str:
    method = report.get("provenance", {}).get("method")
    facts = [f"method {method}"] if method else []
    if "examples" in report:
        facts.append(f"{report['examples']:,} examples that training never saw")
    return "\n".join(
        [
            f"<h1>{escape(_title(report))}</h1>",
            paragraph(user_text(" \u00b7 ".join(facts)), soft=True),
            f'<p class="lead">{verdict(report)}</p>' if "difference" in report else "",
            _tiles(report),
        ]
    )


def _tiles(report: Report) -> str:
    tiles: list[tuple[str, str, str]] = []
    if "budget" in report:
        executed = number(report, "budget", "executed", "unpadded", unit="x")
        asked = user_text(report["budget"]["asked"])
        tiles.append(("Times fewer FLOPs", executed, f"requested: {asked}"))
    for part in ("pruned", "metrics"):
        if report.get(part):
            name = next(iter(report[part]))
            value = number(report, part, name, "value", form=".1f", times=100)
            dense = ""
            if part == "pruned":
                dense = f"dense: {number(report, 'dense', name, 'value', form='.1f', times=100)}"
            tiles.append((name, value, dense))
    if "agreement" in report:
        same = number(report, "agreement", form=".1f", times=100)
        tiles.append(("Agreement with dense", same, "out of 100"))
    if (best := fastest(report)) is not None:
        ratio = number(report, *best, "value", unit="x")
        tiles.append(("Faster, measured", ratio, "pruned over dense, fp32"))
    cells = (
        f'<div><dt>{user_text(name)}</dt><dd class="big">{value}</dd>'
        + (f'<dd class="small">{note}</dd>' if note else "")
        + "</div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>' if tiles else ""
