"""Reports as tables for people. Layers count from one here, metrics are in points (times 100)."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from toprune.plan.budget import Budget
from toprune.tasks import TASKS

MISSED = 0.03  # of a budget: what is further off is told
Figure = dict[str, float]  # value, and where known low, high; p where two models are compared


def pruned(report: dict[str, Any]) -> Group:
    """What `prune` found: the metrics side by side, then what was asked for and what runs."""
    parts: list[Any] = []
    if "difference" in report:
        parts.append(_comparison(report))
    else:
        parts.append(Text("No labels, no metrics: the pruned model is only compared to the dense."))
    parts += [_agreement(report), _budget(report), _kept(report)]
    return Group(*parts)


def demo(report: dict[str, Any]) -> Group:
    """The whole job: what was lost, what was written, what was won."""
    return Group(pruned(report), exported(report["exported"]), bench(report["bench"]))


def evaluated(report: dict[str, Any]) -> Group:
    """What `eval` or `finetune` measured; for a bundle with a plan also what it costs."""
    table = Table(title=f"{report['examples']} examples", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    table.add_column("value [95 % interval]", justify="right")
    for name, figure in report.get("metrics", {}).items():
        table.add_row(name, in_points(figure))
    parts: list[Any] = [table]
    if "executed" in report:
        costs = _ratios("fewer FLOPs", _executed(report["executed"], report["max_length"]))
        parts += [costs, _kept(report)]
    return Group(*parts)


def exported(report: dict[str, Any]) -> Group:
    """What `export` wrote and checked, and what it measured where it was given data."""
    table = Table(title="exported", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("file")
    for name in ("MB", "differs by"):
        table.add_column(name, justify="right")
    checked, sizes = report["checked"], report["bytes"]
    of = {"model.onnx": ("fp32", "torch"), "model_int8.onnx": ("int8", "fp32")}
    for name, size in sizes.items():
        precision, other = of.get(name, ("", ""))
        apart = f"{checked[precision]['difference']:.1e} from {other}" if precision else ""
        table.add_row(name, f"{size / 1e6:.1f}", apart)
    return Group(table, *(_measured(report["measured"]) if "measured" in report else ()))


def _measured(found: dict[str, Any]) -> list[Table]:
    first = next(iter(found.values()))
    table = Table(title=f"{first['examples']} examples", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    for precision in found:
        table.add_column(f"{precision}\n[95 % interval]", justify="right")
    for name in first["metrics"]:
        table.add_row(name, *(in_points(report["metrics"][name]) for report in found.values()))
    return [table]


def bench(report: dict[str, Any]) -> Group:
    """What `bench` measured: how many times faster first, then the times, then what that means."""
    return Group(_faster(report), _times(report), Text(report["verdict"]))


def _faster(report: dict[str, Any]) -> Table:
    threads = f"{report['threads']} thread{'s' if report['threads'] > 1 else ''}"
    table = Table(title=f"times faster, {threads}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("inputs")
    for name in ("ratio\n[95 % interval]", "fewer\nFLOPs", "of that\nrealised"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["rows"]:
        table.add_row(row["name"])
        for found in row["ratios"]:
            value, low, high = (f"{found[key]:.2f}" for key in ("value", "low", "high"))
            cells = [f"  {found['who']} over {found['over']}", f"{value}x [{low}, {high}]"]
            if found["flops"] is not None:
                cells += [f"{found['flops']:.2f}x", f"{found['realised']:.0%}"]
            table.add_row(*cells)
        table.add_section()
    return table


def _times(report: dict[str, Any]) -> Table:
    title = "milliseconds a text, medians"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("inputs")
    names = dict.fromkeys(name for row in report["rows"] for name in row["ms_per_text"])
    for name in names:
        table.add_column(name.replace(" ", "\n", 1), justify="right")
    for row in report["rows"]:
        ms = row["ms_per_text"]
        table.add_row(row["name"], *(f"{ms[name]:.1f}" if name in ms else "" for name in names))
    return table


def compared(report: dict[str, Any]) -> Group:
    """What `compare` found: methods as rows, budgets as columns."""
    header, *rows = _compared(report)
    table = Table(box=SIMPLE_HEAD)
    table.add_column(header[0], no_wrap=True)
    for name in header[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(cell.replace(" (", "\n(") for cell in row))
    return Group(*map(Text, _about_compared(report)), table, *map(Text, refusals(report)))


def compared_markdown(report: dict[str, Any]) -> str:
    """The same table for a page."""
    table = markdown(_compared(report))
    refused = "\n".join(f"- {line}" for line in refusals(report))
    return "\n\n".join(filter(None, [*_about_compared(report), table, refused])) + "\n"


def markdown(rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """A table whose first row is the header, and whose first `names` columns are not numbers."""
    header, *rest = rows
    rule = [*["---"] * names, *["---:"] * (len(header) - names)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rest))


def _compared(report: dict[str, Any]) -> list[list[str]]:
    """The header and a row for each method: what the pruned model reaches, and how far that is from
    the dense one."""
    found = {(mean["name"], mean["budget"]): mean for mean in report["means"]}
    names, budgets = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    return [
        ["method", *budgets],
        *([name, *(reached(found.get((name, budget))) for budget in budgets)] for name in names),
    ]


def reached(mean: dict[str, Any] | None) -> str:
    """What a method reaches in the mean; and where it did not meet the budget, at what instead."""
    if mean is None:
        return "-"  # not asked for
    if "pruned" not in mean:
        return "none, see below"
    value, met = f"{100 * mean['pruned']['value']:.1f}", mean["executed"]["unpadded"]
    is_met = abs(met / Budget.parse(mean["budget"]).reduction - 1) <= MISSED
    at = "" if is_met else f" at {met:.2f}x"
    return f"{value}{at} ({in_points(mean['difference'], sign='+')})"


def _about_compared(report: dict[str, Any]) -> list[str]:
    """What the figures are; and never one reduction without the other."""
    done = [mean for mean in report["means"] if "pruned" in mean]
    if not done:
        return ["No method could be measured."]
    seeds = max(mean["seeds"] for mean in done)
    over = f", means over {seeds} seeds (also of the intervals' ends)" if seeds > 1 else ""
    return [
        f"{report['metric']} in points on {report['examples']} examples that training never saw, "
        f"and in parentheses the difference to dense [with its 95 % interval]{over}. "
        f"Dense: {in_points(report['dense'])}.",
        "Budgets are of real FLOPs, against unpadded inputs. Against inputs padded to the maximum "
        f"({report['max_length']}) they are about {padded(done)}.",
    ]


def padded(means: Sequence[dict[str, Any]]) -> str:
    """What the budgets are against padded inputs, by the middle one of the methods."""
    found: dict[str, list[float]] = {}
    for mean in means:
        found.setdefault(mean["budget"], []).append(mean["executed"]["padded"])
    return ", ".join(f"{median(x):.2f}x for {name}" for name, x in found.items())


def refusals(report: dict[str, Any]) -> list[str]:
    return [
        f"{row['name']} at {row['budget']}, seed {row['seed']}: {row['error']}"
        for row in report["rows"]
        if "error" in row
    ]


def scores(report: dict[str, Any]) -> Group:
    """How unequal attention is, and where answers stand in the first ranking."""
    title = f"% of the attention that the best-ranked tokens receive, {report['rows']} texts"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    told = [i for i, share in enumerate(report["tokens"]) if share in (0.1, 0.25, 0.5)]
    for i in told:
        table.add_column(f"best {report['tokens'][i]:.0%}", justify="right")
    for layer, curve in enumerate(report["attention"], 1):
        table.add_row(str(layer), *(f"{100 * curve[i]:.1f}" for i in told))
    answers = report.get("answers", {})
    lines = [
        Text(
            f"{who}: the median rank of {found['tokens']} tokens of right answers is "
            f"{found['median_rank'] + 1:g} of {found['among']:g} in layer {answers['layer'] + 1} "
            f"(score {answers['score']}); {found['kept']:.1%} of them stay there."
        )
        for who in ("dense", "pruned")
        if (found := answers.get(who))
    ]
    return Group(table, *lines)


def stressed(report: dict[str, Any]) -> Group:
    """What `stress` found: the plan as it is at every place, then protections at the worst one."""
    title = f"{report['texts']} texts with filler, in % of them"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("plan and filler")
    names = "tokens\nkept", "dense\nchanged", "pruned\nchanged", "missed\n[95 % interval]"
    for name in (*names, "fewer\nFLOPs"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in report["protections"]:
        bare = f"{found['own']['unpadded']:.2f}x"
        table.add_row(found["name"], "", "", "", "your texts, no filler", bare)
        for row in found["rows"]:
            if found is report["protections"][0] or row["place"] == "worst":
                table.add_row(
                    f"  {row['dose']}x {row['place']}",
                    "-" if row["recall"] is None else f"{100 * row['recall']:.1f}",
                    *(f"{100 * row['changed'][who]:.1f}" for who in ("dense", "pruned")),
                    in_points(row["missed"]),
                    f"{row['executed']['unpadded']:.2f}x",
                )
        table.add_section()
    return Group(table, *map(Text, _about_stressed(report)), Text(report["verdict"]))


def _about_stressed(report: dict[str, Any]) -> list[str]:
    first, out = report["protections"][0], report["left_out"]
    reached = {f"{row['dose']}x": f"{row['reached']:.1f}x" for row in first["rows"]}
    others = f", {out['other_class']} of another class" if report["class"] else ""
    return [
        f"Tokens kept: of the {report['decisive']:.1f} a text that the plan keeps to the end "
        "without filler. Missed: dense says what both said without filler, pruned does not. "
        "Worst: at the worst place for each text.",
        f"Dense: {report['dense']}. Filler: {report['filler']}; reached within "
        f"{report['max_length']} tokens: {', '.join(reached.values())} for {', '.join(reached)}.",
        f"Left out: {out['no_room']} texts without room for filler, {out['disagree']} on which "
        f"both disagree without it{others}.",
        "FLOPs are real ones, against unpadded inputs. Against inputs padded to the maximum your "
        f"texts take {first['own']['padded']:.2f}x fewer, as pruned.",
    ]


def families(report: dict[str, Any]) -> Group:
    """What is supported for which tasks, why not where it is not, and what models these are."""
    table = Table(title="families", title_justify="left", box=SIMPLE_HEAD)
    tasks = dict.fromkeys(task for found in report["families"] for task in found["tasks"])
    for name in ("family", "since", *tasks):
        table.add_column(name, no_wrap=True)
    models = Table(title="models, among others", title_justify="left", box=SIMPLE_HEAD)
    models.add_column("family", no_wrap=True)
    models.add_column("models")
    reasons: dict[str, list[str]] = {}
    for found in report["families"]:
        told = ["yes" if task in found["tasks"] else "-" for task in tasks]
        table.add_row(found["family"], found["since"], *told)
        models.add_row(found["family"], found["models"])
        for task, reason in found["missing"].items():
            reasons.setdefault(reason, []).append(f"{found['family']} {task}")
    lines = [Text(f"- {reason}: {', '.join(those)}") for reason, those in reasons.items()]
    return Group(table, *lines, Text("multilabel and rank have the head of classify.\n"), models)


def _comparison(report: dict[str, Any]) -> Table:
    title = f"{report['examples']} examples that training never saw"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    for name in ("dense", "pruned", "difference"):
        table.add_column(f"{name}\n[95 % interval]", justify="right")
    table.add_column("p", justify="right")
    for name, difference in report["difference"].items():
        figures = [in_points(report["dense"][name]), in_points(report["pruned"][name])]
        p = f"{difference['p']:.3f}"
        table.add_row(name, *figures, in_points(difference, sign="+"), p)
    return table


def in_points(figure: Figure, sign: str = "") -> str:
    told = [f"{100 * figure[key]:{sign}.1f}" for key in ("value", "low", "high") if key in figure]
    return f"{told[0]} [{', '.join(told[1:])}]" if len(told) > 1 else told[0]


def _agreement(report: dict[str, Any]) -> Text:
    return Text(TASKS[report["task"]].AGREEMENT.format(100 * report["agreement"]))


def _budget(report: dict[str, Any]) -> Table:
    budget = report["budget"]
    expected = "not learned" if budget["expected"] is None else f"{budget['expected']:.2f}x"
    rows = {"asked for": budget["asked"], "expected by the learned masks": expected}
    return _ratios("fewer FLOPs", rows | _executed(budget["executed"], report["max_length"]))


def _executed(executed: dict[str, float], max_length: int) -> dict[str, str]:
    """Never one reduction without the other, nor without its name."""
    return {
        "executed, against unpadded inputs (real)": f"{executed['unpadded']:.2f}x",
        f"executed, against inputs padded to the maximum ({max_length})": (
            f"{executed['padded']:.2f}x"
        ),
    }


def _ratios(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("how much", justify="right")
    for row in rows.items():
        table.add_row(*row)
    return table


def _kept(report: dict[str, Any]) -> Text:
    entering = report["kept_per_layer"]
    counts = " ".join(map(str, entering))
    return Text(
        f"Tokens that enter layers 1 to {len(entering)}, for a text of {entering[0]} tokens "
        f"(the mean): {counts}"
    )
