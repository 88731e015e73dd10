"""Where numbers were measured: machine, versions, commit."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

VECTOR_UNITS = ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2")  # widest first
RESULTS = "benchmarks/results"
PACKAGES = ("toprune", "torch", "transformers", "accelerate", "numpy", "onnxruntime")


def environment() -> dict[str, Any]:
    """The machine, the versions of installed packages and the commit of the source tree."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"machine": _machine(), "versions": versions, "commit": _commit()}


def _machine() -> str:
    try:
        return describe_cpu(Path("/proc/cpuinfo").read_text()) or platform.processor()
    except OSError:
        return platform.processor()


def describe_cpu(cpuinfo: str) -> str:
    """Name, number of cores, and the widest vector unit: processors of one name differ by it.

    Args:
        cpuinfo: the text of /proc/cpuinfo.
    """
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    names = [value.strip() for key, _, value in lines if key.strip() == "model name"]
    flags = next((value.split() for key, _, value in lines if key.strip() == "flags"), [])
    widest = [name for name in VECTOR_UNITS if name in flags][:1]
    return ", ".join([names[0], f"{len(names)} cores", *widest]) if names else ""


def _commit() -> str | None:
    """The commit of the source tree that toprune runs from, with '+' if files changed since.

    Results that a benchmark writes do not count: the next one runs the same sources.
    """
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "--short", "HEAD")
        changed = _git(here, "diff", "HEAD", "--name-only", "--", ":/", f":(top,exclude){RESULTS}")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changed else commit or None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10
    )
    return done.stdout.strip()
