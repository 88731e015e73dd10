"""Writes report.json and report.html of a bundle: two views of one report."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.io.untrusted import read_json
from toprune.report.html.report import report_page

JSON, HTML = "report.json", "report.html"


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """Write both files, each in one step. The page is made first, so that a report that it cannot
    show changes nothing."""
    page = report_page(report)
    write_text(folder / JSON, json.dumps(report, indent=1) + "\n")
    write_text(folder / HTML, page)


def write_report_page(folder: str | Path, compared: str | Path | None = None) -> Path:
    """Write report.html again from report.json.

    Args:
        folder: the directory of a bundle.
        compared: compare.json of `toprune compare`, for the accuracy-FLOPs curve.

    Returns:
        The path of report.html.
    """
    folder = Path(folder)
    report = _read(folder / JSON, "give the directory that prune wrote")
    other = None if compared is None else _read(Path(compared), "give what compare wrote")
    try:
        page = report_page(report, other)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"  # a file from elsewhere may lack anything
        raise UserError(
            f"{folder / JSON} is not a report that this version can show ({why}); prune again"
        ) from error
    write_text(folder / HTML, page)
    return folder / HTML


def save_timings(folder: str | Path, result: Mapping[str, Any]) -> Path:
    """Add what `bench` measured to the report and its page, with the date.

    Args:
        folder: the directory of a bundle.
        result: what `bench` returns.

    Returns:
        The path of report.html.
    """
    folder = Path(folder)
    report = _read(folder / JSON, "give the directory that prune wrote")
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_report(folder, report | {"latency": {**result, "date": date}})
    return folder / HTML


def _read(path: Path, advice: str) -> dict[str, Any]:
    report = read_json(path, advice)
    if not isinstance(report, dict):
        raise UserError(f"{path} is not a report: a JSON object is expected")
    return report
