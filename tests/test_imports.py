"""The runtime must start without torch, and the public names must be the public names."""

import subprocess
import sys

import pytest

import toprune


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = {"torch", "transformers", "onnx", "scipy", "sklearn", "datasets", "pandas", "pyarrow"}


@pytest.mark.parametrize(
    "name",
    [
        "toprune",
        "toprune.plan",
        "toprune.budget",
        "toprune.cost",
        "toprune.cli",
        "toprune.data",
        "toprune.glue",
        "toprune.intervals",
        "toprune.measure",
        "toprune.progress",
        "toprune.report",
        "toprune.run.bulk",
        "toprune.run.runner",
        "toprune.tasks",
    ],
)
def test_leaves_torch_out(name: str):
    assert run(f"import sys, {name}; print({HEAVY} & sys.modules.keys())") == "set()"


def test_public_names_without_torch():
    names = "toprune.Plan, toprune.Budget, toprune.Runner"
    assert run(f"import sys, toprune; {names}; print({HEAVY} & sys.modules.keys())") == "set()"


def test_metrics_without_torch():
    code = (
        "import sys, numpy as np\n"
        "from toprune.intervals import paired, with_intervals\n"
        "from toprune.tasks import TASKS\n"
        "labels, one = np.array([0, 1, 1, 0]), np.array([[.2], [.9], [.4], [.1]])\n"
        "logits = {'regress': one, 'classify': np.hstack([1 - one, one])}\n"
        "for name, task in TASKS.items():\n"
        "    with_intervals(task, logits[name], labels)\n"
        "    paired(task, logits[name], logits[name], labels)\n"
        f"print({HEAVY} & sys.modules.keys())"
    )
    assert run(code) == "set()"


@pytest.mark.parametrize("name", toprune.__all__)
def test_public_name(name: str):
    value = getattr(toprune, name)
    assert value.__name__ == name
    assert name in dir(toprune)


def test_attach_is_the_function_after_its_file_is_imported():
    code = "from toprune.attachment import attach; import toprune; print(toprune.attach is attach)"
    assert run(code) == "True"


def test_missing_extra_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None; import toprune\n"
        "try: toprune.attach\n"
        "except ImportError as problem: print(problem)"
    )
    assert run(code) == "toprune.attach needs torch; install it with: pip install 'toprune[train]'"


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'pruna'"):
        toprune.pruna  # noqa: B018
