"""Reports as tables for people. Layers count from one here, metrics are in points (times 100)."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

Figure = dict[str, float]  # value, low, high; p where two models are compared


def pruned(report: dict[str, Any]) -> Group:
    """What `prune` found: the metrics side by side, then what was asked for and what runs."""
    parts: list[Any] = []
    if "difference" in report:
        parts.append(_comparison(report))
    else:
        parts.append(Text("No labels, no metrics: the pruned model is only compared to the dense."))
    parts += [_agreement(report), _budget(report), _kept(report)]
    return Group(*parts)


def evaluated(report: dict[str, Any]) -> Group:
    """What `eval` or `finetune` measured; for a bundle with a plan also what it costs."""
    table = Table(title=f"{report['examples']} examples", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    table.add_column("value [95 % interval]", justify="right")
    for name, figure in report.get("metrics", {}).items():
        table.add_row(name, _figure(figure))
    parts: list[Any] = [table]
    if "executed" in report:
        costs = _ratios("fewer FLOPs", _executed(report["executed"], report["max_length"]))
        parts += [costs, _kept(report)]
    return Group(*parts)


def _comparison(report: dict[str, Any]) -> Table:
    title = f"{report['examples']} examples that training never saw"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    for name in ("dense", "pruned", "difference"):
        table.add_column(f"{name}\n[95 % interval]", justify="right")
    table.add_column("p", justify="right")
    for name, difference in report["difference"].items():
        figures = [_figure(report["dense"][name]), _figure(report["pruned"][name])]
        p = f"{difference['p']:.3f}"
        table.add_row(name, *figures, _figure(difference, sign="+"), p)
    return table


def _figure(figure: Figure, sign: str = "") -> str:
    value, low, high = (f"{100 * figure[key]:{sign}.1f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _agreement(report: dict[str, Any]) -> Text:
    share = 100 * report["agreement"]
    if report["task"] == "classify":
        return Text(f"Dense and pruned predict the same for {share:.1f} % of them.")
    return Text(f"Dense and pruned predictions correlate by {share:.1f} (Pearson).")


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
