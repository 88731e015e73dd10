"""report.json and report.html in a bundle's folder: two views of one thing, written together."""

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
    """Both files, each whole at any time; the page first made, so that a report that it cannot
    show changes nothing."""
    page = report_page(report)
    write_text(folder / JSON, json.dumps(report, indent=1) + "\n")
    write_text(folder / HTML, page)


def write_report_page(folder: str | Path, compared: str | Path | None = None) -> Path:
    """report.html anew from report.json. compared: compare.json of `toprune compare`, for the
    accuracy-FLOPs curve."""
    folder = Path(folder)
    report = _read(folder / JSON, "give the directory that prune wrote")
    other = None if compared is None else _read(Path(compared), "give what compare wrote")
    try:
        page = report_page(report, other)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"  # a file from elsewhere may lack anything
        raise UserError(
            f"{folder / JSON} is no report that this toprune can show ({why}); prune anew"
        ) from error
    write_text(folder / HTML, page)
    return folder / HTML


def save_timings(folder: str | Path, result: Mapping[str, Any]) -> Path:
    """What `bench` measured goes into the bundle's report, with the date, and onto its page."""
    folder = Path(folder)
    report = _read(folder / JSON, "give the directory that prune wrote")
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_report(folder, report | {"latency": {**result, "date": date}})
    return folder / HTML


def _read(path: Path, advice: str) -> dict[str, Any]:
    found = read_json(path, advice)
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a report: a JSON object is expected")
    return found
