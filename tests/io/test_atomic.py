"""Two processes that write the same at the same time, step by step: neither sees half of it."""

import subprocess
import sys
from pathlib import Path

import pytest

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
