"""Milliseconds in reports: a budget in milliseconds, and the curve of a model on a machine."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

PARTS = {  # of a curve, by their names for people
    "attend": "attention",
    "feed": "FFN",
    "step": "a step",
    "head": "last\nlayer",
    "entry": "the rest",
}


def how(timed: dict[str, Any]) -> str:
    """Precision and threads of a measurement."""
    return f"{timed['precision']}, {timed['threads']} thread{'s' if timed['threads'] > 1 else ''}"


def time_rows(timed: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """The title and rows of a budget in milliseconds: requested, predicted, measured."""
    title = f"milliseconds of one text, {how(timed)}"
    rows = {
        "machine": timed["curve"]["environment"]["machine"],
        f"dense, {timed['length']} tokens": f"{timed['dense']:.2f}",
        f"requested, {timed['length']} tokens": f"{timed['milliseconds']:.2f}",
        "predicted from the curve": f"{timed['predicted']:.2f}",
    }
    if timed["before_correction"] is not None:
        rows["measured before the correction"] = f"{timed['before_correction']:.2f}"
    return title, rows | _measured(timed)


def timed_here(time: dict[str, Any]) -> Table:
    """What `export` measured on this machine for a budget in milliseconds."""
    where = "machine" if time["same_machine"] else "machine (not that of the budget)"
    rows = {where: time["machine"], "requested": time["asked"]}
    return ratios_table(f"milliseconds here, {how(time)}", rows | _measured(time))


def _measured(timed: dict[str, Any]) -> dict[str, str]:
    """The measured times with their intervals; of a dial at each of its budgets."""
    rows: dict[str, str] = {}
    for asked, one in timed.get("dial", {"": timed}).items():
        for name, time in one["measured"].items():
            value, low, high = (f"{time[key]:.2f}" for key in ("value", "low", "high"))
            at = f"measured at {asked}" if asked else "measured"
            rows[f"{at}, {name}, {time['length']} tokens"] = f"{value} [{low}, {high}]"
    return rows


def profiled(report: dict[str, Any]) -> Group:
    """The report of `profile`: the curve, then the dense and the least time."""
    curve = report["curve"]
    title = f"milliseconds, {how(curve)}, {curve['environment']['machine']}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("tokens", justify="right")
    for name in PARTS.values():
        table.add_column(name, justify="right")
    for i, n in enumerate(curve["counts"]):
        table.add_row(str(n), *(f"{curve['milliseconds'][name][i]:.3f}" for name in PARTS))
    rows = {
        f"{row['name']}, {row['length']} tokens": f"{row['dense']:.2f} dense, "
        f"{row['least']:.2f} at least"
        for row in report["rows"]
    }
    return Group(table, ratios_table(f"a text, {report['layers']} layers", rows))


def ratios_table(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("how much", justify="right")
    for row in rows.items():
        table.add_row(*row)
    return table
