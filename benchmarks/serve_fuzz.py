"""Ten thousand malformed requests to a server: no 5xx, and no good answer changes.

    python benchmarks/serve_fuzz.py                 # two minutes or so
    python benchmarks/serve_fuzz.py --cases 300     # to try it: writes no result

One `toprune serve` with five tiny bundles on loopback. Requests are drawn by
tests/support/request_fuzz.py: broken JSON, wrong types, cut bodies, wrong lengths and heads, other
methods, forms, deep nesting. After every fourth one a good request must get the answer that it got
from the untouched server. Writes results/serve_fuzz.json; exits with 1 if anything else was seen.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadgen import free_port, running
from toprune.report.environment import environment

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
OUT = HERE / "results" / "serve_fuzz.json"
CASES, EVERY, SEED = 10_000, 4, 0


async def attack(place: Path, cases: int) -> dict[str, Any]:
    """Send the requests; returns the counts."""
    from support.request_fuzz import BUNDLES, GOOD, Fuzz, request, send  # pyright: ignore[reportMissingImports]
    from support.toy_bundle import make_bundle  # pyright: ignore[reportMissingImports]

    bundles = [str(make_bundle(place / name, task=name)) for name in BUNDLES]
    port = free_port()
    words = ["-m", "toprune", "serve", *bundles, "--port", str(port), "--workers", "1", "--json"]
    words += ["--max-body", "100000", "--max-chars", "2000"]
    statuses: Counter[str] = Counter()
    wrong = good = 0
    errors: list[str] = []
    async with running(words, port) as (_, process):
        answers = {
            path: send(port, request(path, json.dumps(body).encode()))
            for path, body in GOOD.items()
        }
        fuzz = Fuzz(SEED)
        for number in range(cases):
            content, may_wait = fuzz.draw()
            status, _ = send(port, content, is_all=may_wait)
            statuses[str(status)] += 1
            if status is not None and status >= 500:
                errors.append(repr(content[:300]))
            if number % EVERY == 0:
                path, content = fuzz.good()
                good += 1
                wrong += send(port, content) != answers[path]
        assert process.poll() is None, "the server died"
    return {
        "malformed": cases,
        "good": good,
        "statuses": dict(sorted(statuses.items())),
        "server_errors": len(errors),
        "wrong": wrong,
        "first_errors": errors[:5],
        "exit_code": process.returncode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=CASES)
    args = parser.parse_args()
    os.environ["TOPRUNE_API_KEY"] = ""
    with TemporaryDirectory() as folder:
        result = asyncio.run(attack(Path(folder), args.cases))
    result["environment"] = environment()
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if args.cases == CASES:
        OUT.write_text(text, encoding="utf-8")
    raise SystemExit(bool(result["server_errors"] or result["wrong"] or result["exit_code"]))


if __name__ == "__main__":
    main()
