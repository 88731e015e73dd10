"""The training: sparsity, gates and kept shares of the soft stage, and the loss."""

import re
from typing import Any

from toprune.report.html.charts import heat
from toprune.report.html.parts import block, figure, figures, legend, number, paragraph, table
from toprune.report.svg import Line, Point, lines, series_class

Report = dict[str, Any]
OF_LAYER = re.compile(r"(gate|kept)_(\d+)")


def training(report: Report) -> str:
    """The section about training."""
    log = report.get("log") or []
    masks = [_masks(report, mask) for mask in ("gate", "kept")]
    parts = [_sparsity(report), *masks, _loss(report), _ranking(report)]
    if not any(parts):
        return paragraph("Nothing was trained.") if "log" in report and not log else ""
    return figures(*parts)


def _sparsity(report: Report) -> str:
    at = [i for i, line in enumerate(report.get("log") or []) if "sparsity" in line]
    if len(at) < 2:
        return ""
    log = report["log"]
    drawn = [
        Line(name, [Point(log[i]["step"], 100 * log[i][key]) for i in at])
        for key, name in (("sparsity", "expected by the masks"), ("target", "target"))
    ]
    rows = [
        [
            number(report, "log", i, "step", form=","),
            number(report, "log", i, "sparsity", form=".1f", times=100),
            number(report, "log", i, "target", form=".1f", times=100),
        ]
        for i in at
    ]
    first, last = (100 * log[at[end]]["sparsity"] for end in (0, -1))
    return figure(
        "sparsity",
        "FLOPs removed while masks were learned",
        f"Expected share of FLOPs removed, from {first:.0f} % to {last:.0f} %.",
        lines(drawn, x="step", y="% of FLOPs", floor=0.0),
        table("Share of FLOPs removed, in %", ("step", "expected", "target"), rows),
        legend((series_class(i), line.name) for i, line in enumerate(drawn)),
    )


def _masks(report: Report, mask: str) -> str:
    """Gates or kept shares (`mask`: gate or kept), as a strip for each layer."""
    log = report.get("log") or []
    keys = {m[0]: int(m[2]) for line in log for key in line if (m := OF_LAYER.fullmatch(key))}
    layers = sorted((layer, key) for key, layer in keys.items() if key.startswith(mask))
    at = [i for i, line in enumerate(log) if all(key in line for _, key in layers)]
    if not layers or len(at) < 2:
        return ""
    strips = [(f"layer {layer + 1}", [log[i][key] for i in at]) for layer, key in layers]
    rows = [
        [number(report, "log", i, "step", form=",")]
        + [number(report, "log", i, key, form=".0f", times=100) for _, key in layers]
        for i in at
    ]
    header = ("step", *(f"layer {layer + 1}" for layer, _ in layers))
    title, meaning = {
        "gate": ("Gates: where tokens are dropped", "Chance that a layer drops tokens"),
        "kept": ("Ranks: how many stay", "Share of tokens expected after a layer"),
    }[mask]
    ending = ", ".join(f"{name} {100 * values[-1]:.0f} %" for name, values in strips)
    return figure(
        f"masks-{mask}",
        title,
        f"{meaning}, over training. At the end: {ending}.",
        heat(strips, ends=(f"step {log[at[0]]['step']}", f"step {log[at[-1]]['step']}")),
        table(f"{meaning}, in %", header, rows),
        paragraph(f"{meaning}: a stronger colour is nearer to 100 %.", soft=True),
    )


def _loss(report: Report) -> str:
    """The loss of both stages, one after the other."""
    points: dict[str, list[Point]] = {}
    rows: list[list[str]] = []
    before = 0
    for i, line in enumerate(report.get("log") or []):
        stage = "masks and weights" if "sparsity" in line else "weights alone"
        if "loss" in line:
            start = before if stage == "weights alone" else 0
            points.setdefault(stage, []).append(Point(start + line["step"], line["loss"]))
            rows.append(
                [
                    stage,
                    number(report, "log", i, "step", form=","),
                    number(report, "log", i, "loss", form=".4f"),
                ]
            )
        if stage == "masks and weights":
            before = max(before, line.get("step", 0))
    drawn = [Line(stage, series) for stage, series in points.items()]
    if sum(len(line.points) for line in drawn) < 2:
        return ""
    description = "; ".join(
        f"{line.name}: from {line.points[0].y:.3g} to {line.points[-1].y:.3g}" for line in drawn
    )
    return figure(
        "loss",
        "Loss",
        f"{description}.",
        lines(drawn, x="step", y="loss", floor=0.0),
        table("Loss", ("stage", "step", "loss"), rows),
        legend((series_class(i), line.name) for i, line in enumerate(drawn)),
    )


def _ranking(report: Report) -> str:
    """How well each layer ranks tokens, at the start and after each stage."""
    ranking = report.get("ranking") or {}
    layers = ranking.get("layers") or []
    if not layers:
        return ""
    moments = {"start": "at the start", "soft": "after soft stage", "hard": "after hard stage"}
    moments = {key: name for key, name in moments.items() if key in layers[0]}
    rows = [
        [f"layer {line['layer'] + 1}"]
        + [number(report, "ranking", "layers", i, key, form=".2f") for key in moments]
        for i, line in enumerate(layers)
    ]
    target = {
        "last": "the attention that tokens receive in the dense model's last layer",
        "middle": "the attention that tokens receive in the dense model's middle layer",
        "middles": "the attention that tokens receive in the dense model's middle layers",
        "probe": "the dense model's probe scores in the same layer",
    }[ranking["target"]]
    return block(
        table("nDCG of each layer's ranking of tokens", ("layer", *moments.values()), rows),
        paragraph(f"The target is {target}; 1 means the same order.", soft=True),
    )
