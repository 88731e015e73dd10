"""The fallback of a bundle in words, for the terminal, the model card and the page."""

from typing import Any

from toprune.tasks.fallback import Fallback

FIELDS = ("threshold", "requested", "agreement", "low", "share", "cost", "texts")


def fallback_line(report: dict[str, Any]) -> str:
    """What was requested and reached, from report.json."""
    entry = report["fallback"]
    chosen = Fallback(**{name: entry[name] for name in FIELDS})
    seen = entry["held_out"]
    return (
        f"Fallback: {chosen.describe()}. Pruned alone: {entry['pruned_reduction']:.2f}x fewer "
        f"FLOPs, both together: {chosen.reduction:.2f}x. On the {seen['texts']:,} reported texts: "
        f"{100 * seen['agreement']:.1f} % agree, {100 * seen['share']['value']:.1f} % fell back."
    )
