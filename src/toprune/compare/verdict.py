"""The verdict of `bench`: is pruning worth it on this machine?"""

from typing import Any

WORTH = 1.1  # times faster; below that a second model is not worth it
# Only the plan differs.
ALIKE = (
    ("pruned fp32", "dense fp32"),
    ("pruned int8", "dense int8"),
    ("pruned int8 openvino", "dense int8 openvino"),
)


def verdict(report: dict[str, Any]) -> str:
    """One sentence: is pruning worth it, by the ratios in which only the plan differs? Texts that
    fall back take the time of both models."""
    share = report.get("fallback", 0.0)
    worth: list[str] = []
    values: list[float] = []
    others: list[str] = []
    for row in report["rows"]:
        alike = [
            r | {key: 1 / (1 / r[key] + share) for key in ("value", "low")}
            for r in row["ratios"]
            if (r["who"], r["over"]) in ALIKE
        ]
        if all(r["low"] > WORTH for r in alike):
            worth.append(row["name"])
            values += [r["value"] for r in alike]
        else:
            least = min(alike, key=lambda r: r["low"])
            others.append(f"{row['name']} ({least['value']:.2f}x, {least['who']})")
    if not worth:
        return f"Pruning is NOT worth it here: {_listed(others)}; use the dense model."
    low, high = (f"{extreme(values):.1f}x" for extreme in (min, max))
    gain = low if low == high else f"{low} to {high}"
    threads = f"{report['threads']} thread{'s' if report['threads'] > 1 else ''}"
    threads += f" and {report['device']}" if "device" in report else ""
    sentence = f"Pruning is worth it for {_listed(worth)}: {gain} faster than dense, {threads}"
    sentence += f", with {share:.1%} of the texts answered by dense, too" if share else ""
    return f"{sentence}; it is NOT for {_listed(others)}." if others else f"{sentence}."


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
