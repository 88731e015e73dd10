"""One directory in the place of another: the old one or the new one at any moment, never both."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toprune.io import swap


def folder(path: Path, says: str) -> Path:
    path.mkdir()
    for name in ("a", "b"):
        (path / name).write_text(says)
    return path


def told(path: Path) -> set[str]:
    return {file.read_text() for file in path.iterdir()}


def cannot(one: Path, other: Path) -> bool:
    return False


@pytest.mark.parametrize("can", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_the_new_one_takes_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool, there: bool
):
    if not can:
        monkeypatch.setattr(swap, "exchange", cannot)
    if there:
        folder(tmp_path / "place", "old")
    folder(tmp_path / "made.old", "left by a killed run")
    swap.put(folder(tmp_path / "made", "new"), tmp_path / "place")
    assert told(tmp_path / "place") == {"new"}
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

    place = folder(tmp_path / "place", "old")
    made = folder(tmp_path / "made", "new")
    monkeypatch.setattr(swap, "exchange", killing(swap.exchange))
    monkeypatch.setattr(shutil, "rmtree", killing(shutil.rmtree))
    with pytest.raises(Killed):
        swap.put(made, place)
    assert told(place) == {"old" if moment == "before" else "new"}


def test_exchange(tmp_path: Path):
    one, other = folder(tmp_path / "one", "1"), folder(tmp_path / "other", "2")
    assert swap.exchange(one, other)  # the systems that we test on can
    assert (told(one), told(other)) == ({"2"}, {"1"})
    assert not swap.exchange(one, tmp_path / "nowhere")
    assert told(one) == {"2"}


def test_remove(tmp_path: Path):
    folder(tmp_path / ".work.gone", "left by a killed run")
    swap.remove(folder(tmp_path / "work", "x"))
    swap.remove(tmp_path / "work")  # it need not be there
    assert list(tmp_path.iterdir()) == []
