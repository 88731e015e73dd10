"""What a target gives: content for programs, a table for people, and a chart for a figure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from toprune.io.atomic import write_text
from toprune.plan.budget import Count
from toprune.plan.counts import MEANINGS
from toprune.report.svg import Line, Point, chart
from toprune.report.terminal import markdown
from toprune.reproduce.paper import ABSENT

COUNTED = {  # reductions of a run, by how they are counted
    "paper_padded": "equation 4, padded",
    "authors_padded": "authors' code, padded",
    "padded": "executed, padded",
    "unpadded": "executed, unpadded",
}
COLUMNS = 7  # that a terminal has room for
EMPTY = ""  # a figure that our copy of the paper does not have


@dataclass(frozen=True)
class Result:
    """The result of a target."""

    content: dict[str, Any]
    table: list[list[str]]  # the header and the rows
    names: int = 1  # how many of the first columns hold names
    notes: list[str] = field(default_factory=list[str])
    svg: str | None = None

    def markdown(self) -> str:
        parts = [f"# {self.title}", markdown(self.table, self.names), *self.notes]
        return "\n\n".join(parts) + "\n"

    def terminal(self) -> Group:
        """The table and the notes. A wide table is turned: its columns become lines."""
        is_wide = len(self.table[0]) > COLUMNS
        header, *rows = zip(*self.table, strict=True) if is_wide else self.table
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        for i, name in enumerate(header):
            justify = "left" if i < self.names or is_wide else "right"
            table.add_column(name, justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*row)
        return Group(table, *map(Text, self.notes))

    @property
    def title(self) -> str:
        content = self.content
        name = content["target"].replace("table", "Table ").replace("figure", "Figure ")
        return f"{name}: {content['title']}, {content['dataset']} (scale {content['scale']})"

    def write(self, folder: Path) -> list[Path]:
        """Write the files; returns their paths."""
        stem = f"{self.content['target']}-{self.content['task']}"
        texts = {"json": json.dumps(self.content, indent=1) + "\n", "md": self.markdown()}
        texts |= {} if self.svg is None else {"svg": self.svg}
        paths = [folder / f"{stem}.{ending}" for ending in texts]
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            write_text(path, text)
        return paths


def number(value: float | None, form: str = ".1f", unit: str = "") -> str:
    """A figure, or nothing where there is none."""
    return EMPTY if value is None else f"{value:{form}}{unit}"


def counting_note(count: Count) -> str:
    """How the budgets of the runs were counted."""
    return (
        f"Budgets of ToP, LTP and Transkimmer are the paper's factors, counted as {count}: "
        f"{MEANINGS[count]}. All four counts are of the same plan; each compares with the dense "
        f"model. An empty cell of the paper: {ABSENT}."
    )


# -- tables of runs --------------------------------------------------------------------------------


def score_table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The paper's score and ours, dense and pruned, and all reductions."""
    header = ["row", "run", "paper: dense", "paper: score", "paper: fewer FLOPs"]
    header += ["ours: dense", "ours: score", *(f"ours: {name}" for name in COUNTED.values())]
    return [header, *map(_score_row, rows)]


def _score_row(row: dict[str, Any]) -> list[str]:
    paper, ours = row["paper"], row["ours"]
    score = number(paper.get("score"))
    if paper.get("loss") is not None:
        score = f"{paper['loss']:.1f} below its dense"
    cells = [str(row["row"]), row["name"], number(paper.get("dense")), score]
    cells.append(number(paper.get("reduction"), ".2f", "x"))
    if "error" in ours:
        return [*cells, f"none: {ours['error']}", *[EMPTY] * (1 + len(COUNTED))]
    counts = [number(ours["reductions"][key], ".2f", "x") for key in COUNTED]
    return [*cells, number(ours["dense"]["value"]), with_interval(ours), *counts]


def with_interval(ours: dict[str, Any]) -> str:
    """Our score, and the interval of its difference to dense."""
    gap = ours["difference"]
    return f"{ours['score']['value']:.1f} ({gap['low']:+.1f} to {gap['high']:+.1f})"


def done(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows whose runs succeeded."""
    return [row for row in rows if "error" not in row["ours"]]


def score_chart(rows: Sequence[dict[str, Any]], title: str) -> str | None:
    """Our scores over the real reduction, a line for each method."""
    lines: dict[str, list[Point]] = {}
    for row in done(rows):
        ours = row["ours"]
        point = Point(ours["reductions"]["unpadded"], ours["score"]["value"], name=row["name"])
        lines.setdefault(row["method"], []).append(point)
    if not lines:
        return None
    dense = done(rows)[0]["ours"]["dense"]["value"]
    return chart(
        [Line(name, points) for name, points in lines.items()],
        title=title,
        x="times fewer FLOPs, executed, against unpadded inputs (real)",
        y="score (points)",
        start=1.0,
        level=("dense", dense),
    )


def sparsity_chart(rows: Sequence[dict[str, Any]], title: str) -> str | None:
    """Figure 4: scores over the share of the real FLOPs that is removed."""
    lines: dict[str, list[Point]] = {}
    for row in done(rows):
        ours = row["ours"]
        x = 100 * (1 - 1 / ours["reductions"]["unpadded"])
        gap, dense = ours["difference"], ours["dense"]["value"]
        ends = dense + gap["low"], dense + gap["high"]
        lines.setdefault(row["name"], []).append(Point(x, ours["score"]["value"], *ends))
    if not lines:
        return None
    level = done(rows)[0]["ours"]["dense"]["value"]
    return chart(
        [Line(name, points) for name, points in lines.items()],
        title=title,
        x="FLOPs sparsity: % of the executed FLOPs removed, unpadded",
        y="score (points); bars: difference to dense, 95 %",
        start=0.0,
        level=("dense", level),
    )


def kept_chart(rows: Sequence[dict[str, Any]], title: str) -> str | None:
    """Figure 5: the share of tokens that enters each layer."""
    lines = [
        Line(
            f"{row['name']} ({row['ours']['reductions']['unpadded']:.2f}x)",
            [Point(i, 100 * kept / entering[0]) for i, kept in enumerate(entering, 1)],
        )
        for row in done(rows)
        for entering in [row["ours"]["kept_per_layer"]]
    ]
    if not lines:
        return None
    return chart(lines, title=title, x="layer", y="% of the tokens that enter it", start=1.0)


def kept_table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The tokens that enter each layer, for a text of mean length."""
    most = max((len(row["ours"]["kept_per_layer"]) for row in done(rows)), default=0)
    header = ["run", *(f"ours: {name}" for name in COUNTED.values())]
    header += [f"layer {i}" for i in range(1, most + 1)]
    table = [header]
    for row in rows:
        ours = row["ours"]
        if "error" in ours:
            table.append([row["name"], f"none: {ours['error']}", *[EMPTY] * (len(header) - 2)])
            continue
        counts = [number(ours["reductions"][key], ".2f", "x") for key in COUNTED]
        table.append([row["name"], *counts, *map(str, ours["kept_per_layer"])])
    return table
