"""Reports as tables for people. Layers count from one, metrics are in points (times 100)."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from toprune.plan.budget import Budget
from toprune.report.counts import about_budgets, count_of, named_reductions, reduction_of
from toprune.report.differences import selected
from toprune.report.fallback import fallback_line
from toprune.report.times import ratios_table, time_rows, timed_here
from toprune.tasks import TASKS

MISSED = 0.03  # a method that misses its budget by a larger share is marked
Figure = dict[str, float]  # value; low and high where known; p where two models are compared


def pruned(report: dict[str, Any]) -> Group:
    """The report of `prune`: metrics side by side, then the requested and the executed budget."""
    parts: list[Any] = []
    if "difference" in report:
        parts.append(_comparison(report))
    else:
        parts.append(Text("There are no labels, so there are no metrics."))
    parts += [Text(line) for line in selected(report)]
    parts += [_agreement(report), _budget(report), _kept(report)]
    if "fallback" in report:
        parts.append(Text(fallback_line(report)))
    if "dial" in report:
        parts.append(_dial(report["dial"]))
    if "time" in report:
        parts.append(ratios_table(*time_rows(report["time"])))
    return Group(*parts)


def demo(report: dict[str, Any]) -> Group:
    """The report of `demo`: accuracy, files, speed."""
    return Group(pruned(report), exported(report["exported"]), bench(report["bench"]))


def evaluated(report: dict[str, Any]) -> Group:
    """The report of `eval` or `finetune`; for a bundle with a plan also its FLOPs."""
    table = Table(title=f"{report['examples']} examples", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    table.add_column("value [95 % interval]", justify="right")
    for name, figure in report.get("metrics", {}).items():
        table.add_row(name, in_points(figure))
    parts: list[Any] = [table]
    if "fallback" in report:
        fallen, share = report["fallback"]["fallen"], report["fallback"]["share"]
        parts.append(Text(f"The dense model answered {fallen} texts, {in_points(share)} %."))
    if "executed" in report:
        costs = ratios_table(
            "fewer FLOPs", named_reductions(report["executed"], report["max_length"])
        )
        parts += [costs, _kept(report)]
    return Group(*parts)


def exported(report: dict[str, Any]) -> Group:
    """The report of `export`: files, checks and, with data, metrics."""
    parts = [_files(report), *([_files(report["dense"])] if "dense" in report else [])]
    parts += [timed_here(report["time"])] if "time" in report else []
    return Group(*parts, *(_measured(report["measured"]) if "measured" in report else ()))


def _files(report: dict[str, Any]) -> Table:
    table = Table(title=report["bundle"], title_justify="left", box=SIMPLE_HEAD)
    table.add_column("file")
    for name in ("MB", "differs by"):
        table.add_column(name, justify="right")
    checked, sizes = report["checked"], report["bytes"]
    references = {"model.onnx": ("fp32", "torch"), "model_int8.onnx": ("int8", "fp32")}
    references["openvino_int8.xml"] = "int8 openvino", "fp32"
    for name, size in sizes.items():
        precision, other = references.get(name, ("", ""))
        difference = f"{checked[precision]['difference']:.1e} from {other}" if precision else ""
        table.add_row(name, f"{size / 1e6:.1f}", difference)
    return table


def _measured(reports: dict[str, Any]) -> list[Table]:
    first = next(iter(reports.values()))
    table = Table(title=f"{first['examples']} examples", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    for precision in reports:
        table.add_column(f"{precision}\n[95 % interval]", justify="right")
    for name in first["metrics"]:
        table.add_row(name, *(in_points(report["metrics"][name]) for report in reports.values()))
    return [table]


def bench(report: dict[str, Any]) -> Group:
    """The report of `bench`: how many times faster, then the times, then a verdict."""
    return Group(_faster(report), _times(report), Text(report["verdict"]))


def _faster(report: dict[str, Any]) -> Table:
    threads = f"{report['threads']} thread{'s' if report['threads'] > 1 else ''}"
    table = Table(title=f"times faster, {threads}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("inputs")
    for name in ("ratio\n[95 % interval]", "fewer\nFLOPs", "share\nrealised"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["rows"]:
        table.add_row(row["name"])
        for ratio in row["ratios"]:
            value, low, high = (f"{ratio[key]:.2f}" for key in ("value", "low", "high"))
            cells = [f"  {ratio['who']} over {ratio['over']}", f"{value}x [{low}, {high}]"]
            if ratio["flops"] is not None:
                cells += [f"{ratio['flops']:.2f}x", f"{ratio['realised']:.0%}"]
            table.add_row(*cells)
        table.add_section()
    return table


def _times(report: dict[str, Any]) -> Table:
    title = "milliseconds per text, medians"
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
    """The report of `compare`: methods as rows, budgets as columns."""
    header, *rows = _compared(report)
    table = Table(box=SIMPLE_HEAD)
    table.add_column(header[0], no_wrap=True)
    for name in header[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(cell.replace(" (", "\n(") for cell in row))
    return Group(*map(Text, _about_compared(report)), table, *map(Text, refusals(report)))


def compared_markdown(report: dict[str, Any]) -> str:
    """The report of `compare` as Markdown."""
    table = markdown(_compared(report))
    refused = "\n".join(f"- {line}" for line in refusals(report))
    return "\n\n".join(filter(None, [*_about_compared(report), table, refused])) + "\n"


def markdown(rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """A Markdown table.

    Args:
        rows: the header and the rows.
        names: how many of the first columns hold names, not numbers.
    """
    header, *rest = rows
    rule = [*["---"] * names, *["---:"] * (len(header) - names)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rest))


def _compared(report: dict[str, Any]) -> list[list[str]]:
    """The header and a row for each method: the metric, and its difference to dense."""
    means = {(mean["name"], mean["budget"]): mean for mean in report["means"]}
    names, budgets = (list(dict.fromkeys(key[i] for key in means)) for i in (0, 1))
    return [
        ["method", *budgets],
        *([name, *(reached(means.get((name, budget))) for budget in budgets)] for name in names),
    ]


def reached(mean: dict[str, Any] | None) -> str:
    """The mean metric of a method, and the reduction it has where it misses the budget."""
    if mean is None:
        return "-"  # not requested
    if "pruned" not in mean:
        return "none, see below"
    value, executed = f"{100 * mean['pruned']['value']:.1f}", reduction_of(mean)
    reduction = Budget.parse(mean["budget"]).reduction  # NaN for a time
    is_met = not abs(executed / reduction - 1) > MISSED
    at = "" if is_met else f" at {executed:.2f}x"
    return f"{value}{at} ({in_points(mean['difference'], sign='+')})"


def _about_compared(report: dict[str, Any]) -> list[str]:
    """What the figures mean; no reduction is printed without its counterpart."""
    done = [mean for mean in report["means"] if "pruned" in mean]
    if not done:
        return ["No method could be measured."]
    seeds = max(mean["seeds"] for mean in done)
    over = f"; means over {seeds} seeds, also of the interval ends" if seeds > 1 else ""
    return [
        f"{report['metric']} in points on {report['examples']} examples that training never saw; "
        f"in parentheses the difference to dense [with its 95 % interval]{over}. "
        f"Dense: {in_points(report['dense'])}.",
        about_budgets(done, report["max_length"]),
    ]


def refusals(report: dict[str, Any]) -> list[str]:
    """A line for each run that could not be done."""
    return [
        f"{row['name']} at {row['budget']}, seed {row['seed']}: {row['error']}"
        for row in report["rows"]
        if "error" in row
    ]


def scores(report: dict[str, Any]) -> Group:
    """The report of `scores`: how unequal attention is, and how answers rank at the first step."""
    title = f"% of the attention that the best-ranked tokens receive, {report['rows']} texts"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    shown = [i for i, share in enumerate(report["tokens"]) if share in (0.1, 0.25, 0.5)]
    for i in shown:
        table.add_column(f"best {report['tokens'][i]:.0%}", justify="right")
    for layer, curve in enumerate(report["attention"], 1):
        table.add_row(str(layer), *(f"{100 * curve[i]:.1f}" for i in shown))
    answers = report.get("answers", {})
    lines = [
        Text(
            f"{who}: the median rank of {ranked['tokens']} tokens of right answers is "
            f"{ranked['median_rank'] + 1:g} of {ranked['among']:g} in layer {answers['layer'] + 1} "
            f"(score {answers['score']}); {ranked['kept']:.1%} of them are kept there."
        )
        for who in ("dense", "pruned")
        if (ranked := answers.get(who))
    ]
    return Group(table, *lines)


def stressed(report: dict[str, Any]) -> Group:
    """The report of `stress`: the plan as it is at every place, protections at the worst one."""
    title = f"{report['texts']} texts with filler, in % of them"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("plan and filler")
    names = "tokens\nkept", "dense\nchanged", "pruned\nchanged", "missed\n[95 % interval]"
    for name in (*names, "fewer\nFLOPs"):
        table.add_column(name, justify="right", no_wrap=True)
    for protection in report["protections"]:
        bare = f"{protection['own']['unpadded']:.2f}x"
        table.add_row(protection["name"], "", "", "", "your texts, no filler", bare)
        for row in protection["rows"]:
            if protection is report["protections"][0] or row["place"] == "worst":
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
        f"Tokens kept: share of the {report['decisive']:.1f} tokens per text that the plan keeps "
        "to the end without filler. Missed: dense gives the class that both gave without filler, "
        "pruned does not. Worst: at the worst place for each text.",
        f"Dense: {report['dense']}. Filler: {report['filler']}; reached within "
        f"{report['max_length']} tokens: {', '.join(reached.values())} for {', '.join(reached)}.",
        f"Left out: {out['no_room']} texts without room for filler, {out['disagree']} on which "
        f"dense and pruned disagree without it{others}.",
        "FLOPs are real ones, against unpadded inputs. Against inputs padded to the maximum, your "
        f"texts take {first['own']['padded']:.2f}x fewer with the plan as pruned.",
    ]


def gated(report: dict[str, Any]) -> Group:
    """The result of a gate: a row for each check, then what could not be checked."""
    title = f"{report['bundle']} on {report['examples']} examples"
    title += "" if report["dense"] is None else f", against {report['dense']}"
    frame: Any = {"title_justify": "left", "box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    table = Table(title=Text(title), **frame)
    for name in ("check", "texts", "file"):
        table.add_column(name, no_wrap=name != "texts")
    for name in ("limit", "measured\n[95 % interval]", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for check in report["checks"]:
        ends = f"{check['value']:.2f} [{check['low']:.2f}, {check['high']:.2f}]"
        unit = {"points": "pts"}.get(check["unit"], check["unit"])
        limit, result = f"{check['limit']:g} {unit}", check["status"].upper()
        words = (check["name"], Text(check["group"]), check["file"], limit, ends, str(check["n"]))
        table.add_row(*words, "pass" if result == "PASS" else result)
    lines = [f"- {check['line']}" for check in report["checks"] if check["status"] != "pass"]
    for file, kept in report["keeps"].items():
        targets = (f"{name} {'yes' if met else 'no'}" for name, met in kept["reaches"].items())
        lines.append(
            f"{file} keeps {kept['value']:.2f} % [{kept['low']:.2f}, {kept['high']:.2f}] of the "
            f"dense {report['metric']} ({kept['dense']:.2f}); MLPerf's targets: "
            f"{', '.join(targets)}."
        )
    lines += [f"Not checked: {one['what']} ({one['why']})." for one in report["not_checked"]]
    return Group(table, *map(Text, lines), Text(report["verdict"]))


def families(report: dict[str, Any]) -> Group:
    """The report of `families`: supported tasks, reasons where one is not, and known models."""
    table = Table(title="families", title_justify="left", box=SIMPLE_HEAD)
    tasks = dict.fromkeys(task for family in report["families"] for task in family["tasks"])
    for name in ("family", "since", *tasks):
        table.add_column(name, no_wrap=True)
    models = Table(title="models, among others", title_justify="left", box=SIMPLE_HEAD)
    models.add_column("family", no_wrap=True)
    models.add_column("models")
    reasons: dict[str, list[str]] = {}
    for family in report["families"]:
        supported = ["yes" if task in family["tasks"] else "-" for task in tasks]
        table.add_row(family["family"], family["since"], *supported)
        models.add_row(family["family"], family["models"])
        for task, reason in family["missing"].items():
            reasons.setdefault(reason, []).append(f"{family['family']} {task}")
    lines = [Text(f"- {reason}: {', '.join(names)}") for reason, names in reasons.items()]
    return Group(table, *lines, Text("multilabel and rank use the head of classify.\n"), models)


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
    """A metric as `92.0 [91.1, 92.9]`. sign: "+" for differences."""
    keys = [key for key in ("value", "low", "high") if key in figure]
    value, *ends = (f"{100 * figure[key]:{sign}.1f}" for key in keys)
    return f"{value} [{', '.join(ends)}]" if ends else value


def _agreement(report: dict[str, Any]) -> Text:
    return Text(TASKS[report["task"]].AGREEMENT.format(100 * report["agreement"]))


def _budget(report: dict[str, Any]) -> Table:
    budget = report["budget"]
    expected = "not learned" if budget["expected"] is None else f"{budget['expected']:.2f}x"
    count = count_of(budget)
    rows = {"requested": budget["asked"] + ("" if count == "executed" else f" (--count {count})")}
    if "time" not in report:  # there the masks expect a time
        rows["expected by the learned masks"] = expected
    return ratios_table(
        "fewer FLOPs", rows | named_reductions(budget["executed"], report["max_length"])
    )


def _dial(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="the budgets of the dial", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("budget")
    names = list(rows[0].get("difference", {}))[:1]  # the task's main metric
    headers = [f"{name}, difference\n[95 % interval]" for name in names]
    for name in ("fewer\nFLOPs", "agreement", *headers):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        executed, agreement = row["executed"]["unpadded"], 100 * row["agreement"]
        gaps = (in_points(row["difference"][name], sign="+") for name in names)
        table.add_row(row["asked"], f"{executed:.2f}x", f"{agreement:.1f}", *gaps)
    return table


def _kept(report: dict[str, Any]) -> Text:
    entering = report["kept_per_layer"]
    counts = " ".join(map(str, entering))
    return Text(
        f"Tokens that enter layers 1 to {len(entering)}, for a text of {entering[0]} tokens "
        f"(the mean): {counts}"
    )
