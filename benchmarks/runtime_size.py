"""What `pip install toprune` weighs and how soon it answers: a fresh environment, no extras.

    python benchmarks/runtime_size.py

Megabytes (10^6 bytes) beyond Python and pip, in all and by package, that nothing of training is
among them, and the seconds from `import toprune` to the first prediction of a MiniLM bundle, each
time in a new process. The bundle is made in this environment. Writes results/runtime_size.json.
"""

import json
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toprune.report.environment import environment

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "runtime_size.json"
MAKE_BUNDLE = ROOT / "consumers" / "make_bundle.py"
ABSENT = ("torch", "transformers", "onnx", "scipy", "sklearn", "datasets", "pandas", "pyarrow")
ROUNDS = 5
AIMS = {"mb": 150, "seconds": 1.5}
TEXT = "A quiet film about a winter that never ends, and worth every minute of it."

# These run in the new environment, with what is in it.
PACKAGES = """
import json
from importlib.metadata import distributions
print(json.dumps({
    f"{d.name} {d.version}": sum(f.locate().stat().st_size for f in d.files if f.locate().is_file())
    for d in distributions()
}))
"""
FOUND = f"""
import json
from importlib.util import find_spec
print(json.dumps([name for name in {ABSENT} if find_spec(name) is not None]))
"""
FIRST = f"""
import json, sys, time
clock = [time.perf_counter()]
import toprune
toprune.Runner
clock.append(time.perf_counter())
run = toprune.Runner(sys.argv[1])
clock.append(time.perf_counter())
answer = run.predict([{TEXT!r}])
clock.append(time.perf_counter())
loaded = [name for name in {ABSENT} if name in sys.modules]
print(json.dumps([b - a for a, b in zip(clock, clock[1:])] + [answer, loaded]))
"""


def ask(python: Path, code: str, *arguments: str) -> Any:
    """What the code says, in a process that sees nothing but the new environment."""
    process = subprocess.run(
        [python, "-I", "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout)


def weight(folder: Path, pattern: str = "*") -> int:
    return sum(p.lstat().st_size for p in folder.rglob(pattern) if not p.is_dir())


def megabytes(count: float) -> float:
    return round(count / 1e6, 2)


def first_prediction(python: Path, bundle: Path) -> dict[str, Any]:
    rounds = []
    for _ in range(ROUNDS):
        *parts, _, loaded = ask(python, FIRST, str(bundle))
        assert not loaded, f"running a bundle has loaded {loaded}"
        rounds.append(parts)
    names = ("import", "runner", "predict")
    return {
        "median": statistics.median(map(sum, rounds)),
        "rounds": [sum(parts) for parts in rounds],
        "parts": {
            name: statistics.median(column)
            for name, column in zip(names, zip(*rounds, strict=True), strict=True)
        },
    }


def measure(folder: Path) -> dict[str, Any]:
    home = folder / "venv"
    venv.create(home, with_pip=True, symlinks=True)
    python = home / "bin" / "python"
    bare, bytecode = weight(home), weight(home, "*.pyc")
    before = ask(python, PACKAGES)
    subprocess.run([python, "-m", "pip", "install", "--quiet", ROOT], check=True)
    modules = ask(python, FOUND)
    assert not modules, f"{modules} came along"
    packages = {
        name: megabytes(count)
        for name, count in sorted(ask(python, PACKAGES).items(), key=lambda item: -item[1])
        if name not in before
    }
    mb = megabytes(weight(home) - bare)
    mb_of_bytecode = megabytes(weight(home, "*.pyc") - bytecode)
    subprocess.run([sys.executable, MAKE_BUNDLE, folder / "bundles", "classify"], check=True)
    return {
        "mb": mb,
        "mb_of_bytecode": mb_of_bytecode,  # which pip compiles; --no-compile leaves it out
        "mb_by_package": packages,
        "absent": list(ABSENT),
        "seconds_to_first_prediction": first_prediction(python, folder / "bundles" / "classify"),
        "aims": AIMS,
        "environment": environment(),
    }


def main() -> None:
    with TemporaryDirectory() as folder:
        text = json.dumps(measure(Path(folder)), indent=1)
    OUT.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
