"""The tables of results/serve.json (serve.py), serve_fuzz.json and serve_soak.json."""

import json
from pathlib import Path
from typing import Any

from accuracy_tables import origin

RESULTS = Path(__file__).parent / "results"
NAMES = {
    "dense": "the dense file",
    "naive": "pruned, one text a call",
    "count": "pruned, batches of eight",
    "cost": "pruned, batches by cost",
    "processes": "the same, a process for each core",
    "shed": "with a dial, `--shed`",
}
NOT_YET = "Not measured yet."


def parts() -> dict[str, str]:
    return {"serve": _load(), "serve-faults": _faults()}


def _read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _load() -> str:
    found = _read("serve.json")
    if found is None:
        return NOT_YET
    lines: list[str] = []
    for mix in found["mixes"].values():
        lines += [
            f"{mix['texts']}: requests a second (closed loop), and p50 / p95 / p99 in milliseconds "
            "at shares of it (open loop); in brackets the share that got 429.",
            "",
            "| server | requests a second | 50 % | 80 % | 100 % | 150 % |",
            "|" + "---|" * 6,
            *(
                f"| {name} | {mix['modes'][mode]['capacity']:.1f} "
                f"| {' | '.join(map(_cell, mix['modes'][mode]['loads']))} |"
                for mode, name in NAMES.items()
                if mode in mix["modes"]
            ),
            "",
            "| aim | measured | limit | |",
            "|---|---|---|---|",
            *(
                f"| {one['aim']} | {one['value']:.2f} | {one['limit']:g} "
                f"| {'met' if one['met'] else '**missed**'} |"
                for one in mix["aims"]
            ),
            "",
        ]
    return "\n".join([*lines, f"{found['cores']} cores. {origin([found])}"])


def _cell(row: dict[str, Any]) -> str:
    times = " / ".join(f"{row['milliseconds'][key]:.0f}" for key in ("p50", "p95", "p99"))
    total, refused = sum(row["statuses"].values()), row["statuses"].get("429", 0)
    return f"{times} ({100 * refused / total:.0f} %)" if refused else times


def _faults() -> str:
    lines: list[str] = []
    fuzz, soak = _read("serve_fuzz.json"), _read("serve_soak.json")
    if fuzz is not None:
        lines.append(
            f"{fuzz['malformed']:,} malformed requests among {fuzz['good']:,} good ones: "
            f"{fuzz['server_errors']} answers of 5xx, {fuzz['wrong']} wrong answers. "
            f"{origin([fuzz])}"
        )
    if soak is not None:
        first, last = soak["megabytes"][1], soak["megabytes"][-1]
        lines.append(
            f"{soak['requests']:,} requests: {soak['server_errors']} answers of 5xx other than "
            f"503, {soak['wrong']} wrong answers; memory {first:.0f} MB after the first tenth, "
            f"{last:.0f} MB at the end. {origin([soak])}"
        )
    return "\n\n".join(lines) or NOT_YET
