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
HEAVY |= {"ray"}


def test_public_names_without_torch():
    names = "toprune.Plan, toprune.Budget, toprune.Runner"
    assert run(f"import sys, toprune; {names}; print({HEAVY} & sys.modules.keys())") == "set()"


METRICS = """
import sys, numpy as np
from toprune.data.examples import Examples
from toprune.tasks import TASKS, intervals, make_task
from toprune.tasks.tokenize import Row
intervals.DRAWS = 20
texts, pairs = ["w1", "w2", "w1", "w2"], ["w3 w4"] * 4
labels = {"multilabel": [[0], [1], [0, 1], []], "answer": [[("w3", 0)], [], [("w4", 3)], []]}
labels |= {"tokens": [[0, 1]] * 4} | dict.fromkeys(("regress", "rank", "embed"), [0., 1., 1., 0.])
words = [["w1", "w2"]] * 4
places = {"answer": [[-1, -1], [0, 2], [3, 5]], "tokens": [[-1, -1], [0, 0], [1, 0]]}
rng = np.random.default_rng(0)
for name in TASKS:
    task = make_task(name)
    examples = Examples(words if name == "tokens" else texts, pairs, labels.get(name, [0, 1, 1, 0]))
    width = 1 if name in ("regress", "rank") else 2
    shape = (3, width) if name in places else (width,)
    count = 8 if name == "embed" else 4
    where = np.array(places.get(name, [[-1, -1]] * 3))
    rows = [Row(np.arange(3), None, i, where) for i in range(count)]
    said = [rng.normal(size=shape) for _ in rows]
    statistics = task.statistics(said, rows, examples)
    assert intervals.with_intervals(task, statistics).keys() >= set(task.METRICS)
    assert intervals.paired(task, statistics, statistics)[task.METRICS[0]]["value"] == 0
    assert task.agreement(said, said, rows, examples) > 0.99
    given = {"answer": list(zip(texts, pairs)), "tokens": words, "embed": texts + pairs}
    assert len(task.predictions(said, rows, given.get(name, texts), None)) == count
"""


def test_metrics_without_torch():
    """Of every task: all that the runtime asks of them."""
    assert run(METRICS + f"print({HEAVY} & sys.modules.keys())") == "set()"


@pytest.mark.parametrize("name", toprune.__all__)
def test_public_name(name: str):
    value = getattr(toprune, name)
    assert value.__name__ == name
    assert name in dir(toprune)


def test_attach_is_the_function_after_its_file_is_imported():
    code = (
        "from toprune.pruning.attach import attach; import toprune; print(toprune.attach is attach)"
    )
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
