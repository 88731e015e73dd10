"""What is written in one step: other processes see the old one or the new one, never half of it."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toprune.io import atomic
from toprune.io.atomic import draft

PROGRAM = """
import sys
from pathlib import Path
from toprune.io.atomic import draft

with draft(Path(sys.argv[1])) as made:
    if sys.argv[2] == "folder":
        made.mkdir()
        made = made / "file"
    with made.open("w") as file:
        file.write("one ")
        file.flush()
        print("half", flush=True)
        sys.stdin.readline()
        file.write("whole")
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_two_writers(kind: str, tmp_path: Path):
    path = tmp_path / "thing.npz"
    command = [sys.executable, "-c", PROGRAM, str(path), kind]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]  # pyright: ignore[reportArgumentType, reportCallIssue]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "half\n"
    assert not path.exists()
    for one in both:  # the second ends when the first has been there
        one.communicate("\n", timeout=60)
        assert one.returncode == 0
        assert (path / "file" if kind == "folder" else path).read_text() == "one whole"
    assert list(tmp_path.iterdir()) == [path]


def test_what_goes_wrong_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "thing"
    path.write_text("old")

    def fail() -> None:
        with draft(path) as made:
            made.write_text("new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_not_lost_where_a_directory_stands(tmp_path: Path):
    (tmp_path / "thing").mkdir()
    with pytest.raises(OSError, match="directory"), draft(tmp_path / "thing") as made:
        made.write_text("a file")
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def make_folder(path: Path, text: str) -> Path:
    path.mkdir()
    for name in ("a", "b"):
        (path / name).write_text(text)
    return path


def texts_in(path: Path) -> set[str]:
    return {file.read_text() for file in path.iterdir()}


def cannot(first: Path, second: Path) -> bool:
    return False


@pytest.mark.parametrize("can", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_the_new_one_takes_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool, there: bool
):
    if not can:
        monkeypatch.setattr(atomic, "exchange", cannot)
    if there:
        make_folder(tmp_path / "place", "old")
    make_folder(tmp_path / "made.old", "left by a killed run")
    atomic.replace_directory(make_folder(tmp_path / "made", "new"), tmp_path / "place")
    assert texts_in(tmp_path / "place") == {"new"}
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_beside_the_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str):
    """There is one step only: before it all is old, after it all is new."""

    class Killed(Exception):
        pass

    def killing(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **how: Any) -> Any:
            if moment == "after":
                step(*args, **how)
            raise Killed

        return run

    place = make_folder(tmp_path / "place", "old")
    made = make_folder(tmp_path / "made", "new")
    monkeypatch.setattr(atomic, "exchange", killing(atomic.exchange))
    monkeypatch.setattr(shutil, "rmtree", killing(shutil.rmtree))
    with pytest.raises(Killed):
        atomic.replace_directory(made, place)
    assert texts_in(place) == {"old" if moment == "before" else "new"}


def test_exchange(tmp_path: Path):
    one, other = make_folder(tmp_path / "one", "1"), make_folder(tmp_path / "other", "2")
    assert atomic.exchange(one, other)  # the systems that we test on can
    assert (texts_in(one), texts_in(other)) == ({"2"}, {"1"})
    assert not atomic.exchange(one, tmp_path / "nowhere")
    assert texts_in(one) == {"2"}


def test_remove(tmp_path: Path):
    make_folder(tmp_path / ".work.gone", "left by a killed run")
    atomic.remove_directory(make_folder(tmp_path / "work", "x"))
    atomic.remove_directory(tmp_path / "work")  # it need not be there
    assert list(tmp_path.iterdir()) == []


def test_write_text_is_utf_8_with_plain_line_ends(tmp_path: Path):
    atomic.write_text(tmp_path / "text", "one\nthr\u00e9e\n")
    assert (tmp_path / "text").read_bytes() == b"one\nthr\xc3\xa9e\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
