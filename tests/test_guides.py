"""The worked examples of docs/add-a-task.md and docs/add-a-method.md run from end to end: a new
task or method is its own file and one entry in a dict."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support import synthetic
from support.commands import call, refused, succeed
from support.tables import write_rows
from toprune.methods import METHODS
from toprune.tasks import TASKS

DOCS = Path(__file__).parents[1] / "docs"


def run_guide(page: str, name: str, **registry: dict[str, Any]) -> Any:
    """Execute the blocks of a page, file first, then entry; returns what the entry holds."""
    file, entry = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    ((key, table),) = registry.items()
    assert name not in table
    scope: dict[str, Any] = {"__name__": "guide", key: {}}
    exec(compile(file, page, "exec"), scope)
    exec(compile(entry, page, "exec"), scope)
    return scope[key][name]


def ratings(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts whose marked word decides a rating of one, two or three stars."""
    rows = synthetic.rows(count, seed)
    for row in rows:
        mark = next(word for word in row["text"].split() if word in synthetic.MARKED)
        row["stars"] = synthetic.MARKED.index(mark) // 2
        del row["label"]
    return rows


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws", "rough_parity")
def test_a_task_is_one_file_and_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TASKS, "stars", run_guide("add-a-task.md", "stars", TASKS=TASKS))
    model = synthetic.save_untrained(tmp_path / "model")
    train, test = write_rows(tmp_path / "t.jsonl", ratings(200, 0)), ratings(50, 1)
    data = ("--task", "stars", "--data", train)
    dense, pruned = tmp_path / "dense", tmp_path / "pruned"
    succeed("finetune", "--model", model, *data, "--epochs", "3", "--out", dense)
    succeed(*("prune", "--model", dense, *data, "--budget", "2x", "--epochs", "2", "--out", pruned))
    succeed("export", pruned)
    held_out = write_rows(tmp_path / "test.jsonl", test)
    for runtime in ("torch", "onnx"):
        shown = succeed("eval", pruned, "--data", held_out, "--runtime", runtime, "--json")
        metrics = json.loads(shown)["metrics"]
        assert list(metrics) == ["near", "accuracy"]
        assert metrics["near"]["value"] >= metrics["accuracy"]["value"]
    report = json.loads((pruned / "report.json").read_text())
    assert (report["task"], report["task_settings"]["tolerance"]) == ("stars", 1)
    assert "text-classification" in (pruned / "README.md").read_text()
    shown = succeed(
        *("prune", "--model", dense, *data, "--budget", "2x", "--epochs", "0"),
        *("--out", tmp_path / "again"),
    )
    assert "give the same rating" in shown
    assert (pruned / "report.html").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws", "rough_parity")
def test_a_method_is_one_file_and_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    method = run_guide("add-a-method.md", "one_cut", METHODS=METHODS)
    monkeypatch.setitem(METHODS, "one_cut", method)
    model = synthetic.save_untrained(tmp_path / "model")
    data = write_rows(tmp_path / "t.jsonl", synthetic.rows(120, 0))
    command = ("prune", "--model", model, "--data", data, "--method", "one_cut", "--epochs", "1")
    out = tmp_path / "pruned"
    succeed(*command, "--budget", "1.5x", "--set", "first=0", "--out", out)
    steps = json.loads((out / "plan.json").read_text())["steps"]
    assert [step["layer"] for step in steps] == [0]
    report = json.loads((out / "report.json").read_text())
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.01)
    succeed("export", out)
    assert "counted from zero" in " ".join(succeed("methods", "one_cut").split())
    refused(call(*command, "--budget", "50x", "--out", tmp_path / "far"), "50x")
    refused(call(*command, "--budget", "1.5x", "--set", "bins=3", "--out", tmp_path / "x"), "first")
