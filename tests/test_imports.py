"""The runtime must start without torch, and the public names must be the public names."""

import subprocess
import sys

import pytest

import toprune


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "name", ["toprune", "toprune.plan", "toprune.budget", "toprune.cost", "toprune.cli"]
)
def test_leaves_torch_out(name: str):
    heavy = "{'torch', 'transformers', 'datasets'}"
    assert run(f"import sys, {name}; print({heavy}.isdisjoint(sys.modules))") == "True"


def test_public_names_without_torch():
    code = "import sys, toprune; toprune.Plan, toprune.Budget; print('torch' in sys.modules)"
    assert run(code) == "False"


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
