"""The commit beside a number is the one that made it."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

from toprune.report import environment


def test_the_commit_is_marked_where_sources_changed(tmp_path: Path):
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)

    source = tmp_path / "src" / "environment.py"
    result = tmp_path / environment.RESULTS / "one.json"
    for path in (source, result):
        path.parent.mkdir(parents=True)
    shutil.copy(environment.__file__, source)
    result.write_text("{}")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    clean = _commit(source)
    assert len(clean) >= 7
    result.write_text("[]")
    assert _commit(source) == clean
    source.write_text(source.read_text() + "\n")
    assert _commit(source) == f"{clean}+"
    shutil.rmtree(tmp_path / ".git")
    assert _commit(source) is None


def _commit(source: Path) -> Any:
    spec = importlib.util.spec_from_file_location("copied_environment", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.environment()["commit"]
