"""No number by hand: the tables in README and docs are what the result files say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_tables_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "table.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
