"""The table of results/openvino_int8.json (openvino_int8.py): two kinds of int8."""

import json
from pathlib import Path
from typing import Any

from accuracy_tables import origin

RESULTS = Path(__file__).parent / "results"
TITLES = {
    "fp32": "fp32, ONNX Runtime",
    "int8": "int8, ONNX Runtime",
    "int8 openvino": "int8, OpenVINO",
}


def parts() -> dict[str, str]:
    path = RESULTS / "openvino_int8.json"
    if not path.exists():
        return {"openvino": "Not measured yet."}
    found = json.loads(path.read_text(encoding="utf-8"))
    threads = [report["threads"] for report in found["time"]]
    columns = [f"over dense fp32, {count} thread{'s' if count > 1 else ''}" for count in threads]
    lines = [
        f"| model | file | accuracy | minus its fp32 (95 %) | same class | {' | '.join(columns)} |",
        "|" + "---|" * (5 + len(columns)),
        *(
            _row(model, file, row, found["time"])
            for model, files in found["quality"].items()
            for file, row in files.items()
        ),
    ]
    about = f"{found['examples']} reviews of test; pruned is {found['budget']}."
    return {"openvino": "\n".join([*lines, "", f"{about} {origin([found])}"])}


def _row(model: str, file: str, row: dict[str, Any], reports: list[dict[str, Any]]) -> str:
    accuracy, gap = row["metrics"]["accuracy"], row["difference"]["accuracy"]
    low, high = (f"{100 * gap[end]:+.1f}" for end in ("low", "high"))
    cells = [
        model,
        TITLES[file],
        f"{100 * accuracy['value']:.1f}",
        "" if file == "fp32" else f"{100 * gap['value']:+.1f} ({low} to {high})",
        "" if file == "fp32" else f"{100 * row['agreement']:.1f} %",
        *(_faster(report["rows"][0], f"{model} {file}") for report in reports),
    ]
    return f"| {' | '.join(cells)} |"


def _faster(row: dict[str, Any], who: str) -> str:
    for ratio in row["ratios"]:
        if (ratio["who"], ratio["over"]) == (who, "dense fp32"):
            return f"{ratio['value']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return "1"  # dense fp32 itself
