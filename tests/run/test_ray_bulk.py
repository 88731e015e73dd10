"""Bulk work by Ray's workers: the file that one process writes, whoever dies on the way."""

import datetime
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.tables import write_rows
from support.toy_bundle import make_bundle, mixed_texts
from toprune.errors import UserError
from toprune.io.ray import Cluster, cluster, load_ray
from toprune.run import bulk, ray_bulk
from toprune.run.ray_bulk import share
from toprune.run.runner import Runner

ROWS = 9000  # five windows
ONE, TWO = Cluster(workers=1), Cluster(workers=2)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file for each process that has answered something."""
    return tmp_path_factory.mktemp("pids")


@pytest.fixture(scope="module", autouse=True)
def ray(pids: Path) -> Iterator[Any]:
    """Two cores, whatever the machine has. A text "die FILE" kills the worker that answers it,
    unless FILE is there; it is there from then on. "die always" does so always."""

    def watch() -> None:
        from toprune.run import runner

        plain = runner.Runner.predictions

        def predictions(self: Any, texts: Any, *, first: int = 0) -> Iterator[Any]:
            (pids / str(os.getpid())).touch()
            for text, answer in zip(texts, plain(self, texts, first=first), strict=True):
                marker = Path(text.removeprefix("die "))
                if text.startswith("die ") and not marker.exists():
                    if text != "die always":
                        marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield answer

        runner.Runner.predictions = predictions  # type: ignore[method-assign]

    ray = load_ray("ray")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": watch},
    )
    yield ray
    ray.shutdown()


def rows_of(count: int) -> list[dict[str, Any]]:
    texts = [text for text in mixed_texts(2 * count) if isinstance(text, str)]
    return [{"id": i, "text": texts[i % len(texts)]} for i in range(count)]


def alone(bundle: Path, source: Path, **how: Any) -> bytes:
    """What one process writes."""
    out = source.with_name("alone.jsonl")
    bulk.score_file(Runner(bundle, threads=1), source, out, **how)
    return out.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_worker_is_killed_and_the_file_is_the_same(
    bundle: Path, pids: Path, tmp_path: Path, ray: Any
):
    rows = rows_of(ROWS)
    marker = tmp_path / "died"
    rows[ROWS // 2]["text"] = f"die {marker}"
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    progressed: list[int] = []
    count = ray_bulk.score_file(
        bundle, source, out, TWO, progress=lambda count=1: progressed.append(count)
    )
    assert count == sum(progressed) == ROWS
    assert marker.exists()
    assert len(names(pids)) >= 3  # two, and who took the place of the dead one
    assert out.read_bytes() == alone(bundle, source)
    assert names(tmp_path) == ["alone.jsonl", "died", "in.jsonl", "out.jsonl"]
    assert ray.is_initialized()  # it was there before


def test_unordered_and_killed(bundle: Path, tmp_path: Path):
    rows = rows_of(ROWS)
    rows[ROWS // 2]["text"] = f"die {tmp_path / 'died'}"
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    where = Cluster(workers=2, ordered=False)
    assert ray_bulk.score_file(bundle, source, out, where) == ROWS
    assert (tmp_path / "died").exists()
    assert sorted(out.read_bytes().splitlines()) == sorted(alone(bundle, source).splitlines())


def test_rows_that_kill_everyone(bundle: Path, tmp_path: Path):
    """Not for ever: the caller gets an error."""
    rows = rows_of(10)
    rows[5]["text"] = "die always"
    source = write_rows(tmp_path / "in.jsonl", rows)
    with pytest.raises(UserError, match=r"a worker died 4 times over the same rows"):
        ray_bulk.score_file(bundle, source, tmp_path / "out.jsonl", ONE)
    assert names(tmp_path) == ["in.jsonl"]


def test_parquet_with_labels_and_bad_rows(bundle: Path, tmp_path: Path):
    """Everything that is decided once for a file, and cells that JSON does not know."""
    rows: list[dict[str, Any]] = rows_of(5000)
    for i, row in enumerate(rows):
        row |= {"label": "yes", "day": datetime.date(2026, 11, 1 + i % 28)}
    for i in (3, 2500, 4999):  # at the end, too
        rows[i]["text"] = None
    source, out = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    pd.DataFrame(rows).to_parquet(source, row_group_size=700)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        count = ray_bulk.score_file(bundle, source, out, TWO, skip_bad_rows=True)
    assert count == 4997
    messages = [str(w.message) for w in caught if "left out" in str(w.message)]
    with pytest.warns(UserWarning, match="no text in row") as wanted:
        assert out.read_bytes() == alone(bundle, source, skip_bad_rows=True)
    assert messages == [str(w.message) for w in wanted]
    assert json.loads(out.read_text().splitlines()[0]).keys() == {
        *("id", "text", "label", "day", "predicted_label", "predicted_score")
    }


def test_the_first_thing_that_is_wrong_is_told(bundle: Path, tmp_path: Path):
    """A row that clashes comes before a row without a text, although that one is read sooner than
    the other is answered."""
    rows = rows_of(6000)
    rows[2500]["label"] = "mine"  # later than what is looked at for such fields
    rows[5000]["text"] = ""
    source = write_rows(tmp_path / "in.jsonl", rows)
    messages: list[str] = []
    for score in (alone, by_two):
        with pytest.raises(UserError) as problem:
            score(bundle, source)
        messages.append(str(problem.value))
    assert messages == ["row 2501 already has a field label; rename it"] * 2
    assert names(tmp_path) == ["in.jsonl"]


def by_two(bundle: Path, source: Path) -> None:
    ray_bulk.score_file(bundle, source, source.with_name("out.jsonl"), TWO)


def test_ctrl_c_and_what_a_worker_says(bundle: Path, tmp_path: Path):
    source, out = write_rows(tmp_path / "in.jsonl", rows_of(20)), tmp_path / "out.jsonl"

    def stop(count: int = 1) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ray_bulk.score_file(bundle, source, out, ONE, progress=stop)
    with pytest.raises(UserError, match="a maximum length of 999 is not in 1 to 24"):
        ray_bulk.score_file(bundle, source, out, ONE, max_length=999)
    assert names(tmp_path) == ["in.jsonl"]


# -- without Ray's workers -------------------------------------------------------------------------


def test_a_worker_without_the_bundle(bundle: Path, tmp_path: Path):
    """On a machine that does not see it. The end of the file goes by."""
    worker = ray_bulk._Worker(tmp_path / "gone", (), {"threads": 1})  # pyright: ignore[reportPrivateUsage]
    window = bulk.Window(0, [(1, {"text": "w1"})], ["w1"], [])
    number, result = ray_bulk._unpack(worker(ray_bulk._pack(7, window)))  # pyright: ignore[reportPrivateUsage]
    assert (number, type(result)) == (7, UserError)
    assert "put the bundle where every machine of the cluster sees it" in str(result)
    assert ray_bulk._unpack(worker(ray_bulk._pack(8, None))) == (8, None)  # pyright: ignore[reportPrivateUsage]


def test_before_ray_is_asked(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray: Any
):
    source, out = write_rows(tmp_path / "in.jsonl", [{"body": "w1"}]), tmp_path / "out.jsonl"
    monkeypatch.setattr(ray_bulk, "cluster", None)  # is not called
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"bundle": tmp_path / "none"}, "none"),
        ({}, "which column is the text"),
        ({"text": "body", "where": Cluster(workers=10**6)}, "do not fit"),
        ({"out": tmp_path / "out.csv"}, "ends with .jsonl"),
        ({"source": tmp_path / "gone.jsonl"}, "no file"),
    ]
    for changed, message in cases:
        arguments: dict[str, Any] = {"bundle": bundle, "source": source, "out": out, "where": TWO}
        with pytest.raises(UserError, match=message):
            ray_bulk.score_file(**arguments | changed)


def test_without_ray(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(UserError) as problem:
        ray_bulk.score_file(bundle, source, tmp_path / "out.jsonl", TWO)
    assert str(problem.value) == "the engine ray is not installed; pip install 'toprune[ray]'"


@pytest.mark.parametrize(
    ("nodes", "requested", "wanted"),
    [
        ([8], (None, None), (8, 1)),
        ([8], (3, None), (3, 2)),  # three of 2 are 6; of 3 there is room for two
        ([8], (None, 4), (2, 4)),
        ([8, 8, 4], (None, 4), (5, 4)),
        ([8, 8, 4], (3, None), (3, 4)),
        ([8, 8, 4], (2, None), (2, 8)),
        ([0, 2], (2, 1), (2, 1)),  # a head that does no work
    ],
)
def test_cores_are_shared(nodes: list[int], requested: Any, wanted: tuple[int, int]):
    assert share(nodes, *requested) == wanted


@pytest.mark.parametrize("requested", [(3, None), (2, 2), (None, 3)])
def test_more_than_there_is(requested: Any):
    with pytest.raises(UserError, match=r"do not fit 2 cores .*fewer --workers or --threads"):
        share([2], *requested)


def test_each_window_once():
    """Should Ray give one twice, or lose one."""
    once = ray_bulk._each_once  # pyright: ignore[reportPrivateUsage]
    one: ray_bulk.Lines = (["a"], [])
    two: ray_bulk.Lines = (["b"], [])
    assert list(once([(0, one), (1, two), (0, one), (2, None)])) == [one, two]
    with pytest.raises(RuntimeError, match="1 windows of 2"):
        list(once([(0, one), (2, None)]))
    with pytest.raises(RuntimeError, match="of None"):
        list(once([(0, one)]))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "run toprune on a node of the cluster with --address auto"),
        ("head", "give host:port"),
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1"),
        ("127.0.0.1:99999999", "no Ray cluster at"),
    ],
)
def test_bad_addresses(address: str, message: str, monkeypatch: pytest.MonkeyPatch, ray: Any):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UserError, match=message), cluster(address):
        pass


# -- the command -----------------------------------------------------------------------------------


def toprune(folder: Path, *words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """In another process; neither it nor its children have torch."""
    (folder / "blocked").mkdir(exist_ok=True)
    (folder / "blocked" / "torch.py").write_text("raise ImportError('no torch here')\n")
    start = (
        f"import sys; from toprune.cli import app\ntry: app({list(words)})\nfinally: {code or 0}"
    )
    return subprocess.run(
        [sys.executable, "-c", start],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "blocked")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command(bundle: Path, tmp_path: Path):
    """From start to end, without torch: Ray starts and prints nothing."""
    source = write_rows(tmp_path / "in.jsonl", rows_of(5000))
    words = ["eval", str(bundle), "--data", "in.jsonl", "--out", "out.jsonl", "--runtime", "onnx"]
    done = toprune(tmp_path, *words, "--engine", "ray", "--workers", "1", "--threads", "1")
    assert (done.returncode, done.stdout) == (0, "5000 answers are in out.jsonl.\n"), done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("scoring")] == []
    assert (tmp_path / "out.jsonl").read_bytes() == alone(bundle, source)


def test_the_command_without_the_engine(bundle: Path, tmp_path: Path):
    write_rows(tmp_path / "in.jsonl", rows_of(3))
    words = ["eval", str(bundle), "--data", "in.jsonl", "--out", "out.jsonl", "--runtime", "onnx"]
    done = toprune(tmp_path, *words, code="print('ray' in sys.modules)")
    assert done.stdout == "3 answers are in out.jsonl.\nFalse\n", done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2", "--out", "out.jsonl", "--runtime", "onnx"], "need --engine ray"),
        (["--unordered", "--out", "out.jsonl", "--runtime", "onnx"], "need --engine ray"),
        (["--engine", "ray", "--runtime", "onnx"], "name a file for the answers with --out"),
        (["--engine", "ray", "--out", "out.jsonl"], "--out needs an exported file"),
    ],
)
def test_options_that_do_not_fit(bundle: Path, words: list[str], message: str):
    from typer.testing import CliRunner

    from toprune.cli import app

    done = CliRunner().invoke(app, ["eval", str(bundle), "--data", "in.jsonl", *words])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
