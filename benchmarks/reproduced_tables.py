"""The results of `toprune reproduce` (results/reproduced), in the paper's order.

toprune reproduce table2 --task mrpc --out reproduced
cp reproduced/*.json reproduced/*.svg benchmarks/results/reproduced/   # not its work folder
python benchmarks/table.py
"""

import json
from pathlib import Path
from typing import Any

from accuracy_tables import origin
from toprune.report.terminal import markdown
from toprune.reproduce.targets import TARGETS

RESULTS = Path(__file__).parent / "results" / "reproduced"


def _load() -> dict[str, dict[str, Any]]:
    """The results by the names of their files, tables before figures."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    order = list(TARGETS)
    return dict(sorted(found.items(), key=lambda one: (order.index(one[1]["target"]), one[0])))


def parts() -> dict[str, str]:
    results = _load()
    if not results:
        return {"reproduced": "No result files yet."}
    pages: list[str] = []
    told: set[tuple[str, str]] = set()  # a note stands under the first dataset of its target
    for name, content in results.items():
        pages += [f"### {content['heading']}", markdown(content["table"], content["names"])]
        if (RESULTS / f"{name}.svg").exists():
            pages.append(f"![{content['heading']}](images/{_picture(name)})")
        notes = [note for note in content["notes"] if (content["target"], note) not in told]
        pages += notes
        told |= {(content["target"], note) for note in notes}
    rows = [row for content in results.values() for row in content.get("rows", [])]
    made = [one for one in [*results.values(), *rows] if "environment" in one]
    return {"reproduced": "\n\n".join([*pages, origin(made)])}


def pictures() -> dict[str, str]:
    """The charts by the names of their files in docs/images."""
    return {_picture(path.stem): path.read_text() for path in sorted(RESULTS.glob("*.svg"))}


def _picture(name: str) -> str:
    return f"reproduced-{name}.svg"
