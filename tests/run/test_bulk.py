"""Files in, files out: a row for each row, nothing lost, nothing half-written, constant memory."""

import datetime
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.tables import write_rows
from support.toy_bundle import make_bundle, mixed_texts
from toprune.errors import UserError
from toprune.run import bulk
from toprune.run import runner as runner_module
from toprune.run.bulk import score_file
from toprune.run.runner import Runner

ROWS: list[dict[str, Any]] = [
    {"id": 7, "text": 'w1, "w2"\nw3', "tags": ["a", None]},
    {"id": 8, "text": "w4 " * 30, "tags": []},
    {"id": 9, "text": "\u4e2d w5", "tags": {"deep": [1.5]}},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(make_bundle(tmp_path_factory.mktemp("bundle")), threads=1)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_json_lines(run: Runner, tmp_path: Path, packed: str):
    source, out = write_rows(tmp_path / f"in.jsonl{packed}", ROWS), tmp_path / "out.jsonl"
    progressed: list[int] = []
    assert score_file(run, source, out, progress=lambda count=1: progressed.append(count)) == 3
    answers = run.predict([row["text"] for row in ROWS])
    assert read(out) == [row | answer for row, answer in zip(ROWS, answers, strict=True)]
    assert sum(progressed) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, "out.jsonl"])


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz", ".parquet"])
def test_tables(run: Runner, tmp_path: Path, ending: str):
    rows = [{"premise": f"w{i}", "hypothesis": "w2 w3", "n": f"0{i}"} for i in range(5)]
    source, out = write_rows(tmp_path / f"in{ending}", rows), tmp_path / "out.jsonl"
    assert score_file(run, source, out) == 5
    answers = run.predict([(row["premise"], row["hypothesis"]) for row in rows])
    assert read(out) == [row | answer for row, answer in zip(rows, answers, strict=True)]


def test_named_columns(run: Runner, tmp_path: Path):
    rows = [{"text": "w1", "a": "w2", "b": "w3"}]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    score_file(run, source, out, text="a")
    assert read(out) == [rows[0] | run.predict(["w2"])[0]]
    score_file(run, source, out, text="a", pair="b")
    assert read(out) == [rows[0] | run.predict([("w2", "w3")])[0]]
    with pytest.raises(UserError, match="no column 'c'; columns here: text, a, b"):
        score_file(run, source, out, text="c")
    assert read(out) == [rows[0] | run.predict([("w2", "w3")])[0]]  # what was there is there


def test_columns_without_a_header(run: Runner, tmp_path: Path):
    (tmp_path / "in.tsv").write_text('7\tw1 "w2\n8\tw3\n')
    score_file(run, tmp_path / "in.tsv", tmp_path / "out.jsonl", text="1")
    first, second = run.predict(['w1 "w2', "w3"])
    wanted = [{"0": "7", "1": 'w1 "w2'} | first, {"0": "8", "1": "w3"} | second]
    assert read(tmp_path / "out.jsonl") == wanted


def test_labels_of_the_data_are_not_lost(run: Runner, tmp_path: Path):
    rows = [{"text": "w1"}, {"text": "w2", "label": "yes"}]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    score_file(run, source, out)
    answers = run.predict(["w1", "w2"])
    assert read(out) == [
        row | {f"predicted_{name}": value for name, value in answer.items()}
        for row, answer in zip(rows, answers, strict=True)
    ]
    with pytest.raises(UserError, match=r"row 1 already has a field predicted_.*; rename it"):
        score_file(run, out, tmp_path / "again.jsonl", text="text")


def test_values(tmp_path: Path):
    run = Runner(make_bundle(tmp_path / "bundle", task="regress"), threads=1)
    source = write_rows(tmp_path / "in.jsonl", [{"sentence": "w1 w2", "label": 3}])
    score_file(run, source, tmp_path / "out.jsonl")
    (row,) = read(tmp_path / "out.jsonl")
    assert row == {"sentence": "w1 w2", "label": 3, "value": float(run(["w1 w2"])[0, 0])}


LONG = " ".join(f"w{i % 60}" for i in range(70))
ASKED: dict[str, tuple[list[dict[str, Any]], list[Any]]] = {
    "tokens": (
        [{"tokens": ["w1", "w2"], "id": 1}, {"tokens": LONG.split(), "id": 2}],
        [["w1", "w2"], LONG.split()],
    ),
    "answer": (
        [{"question": "w1", "context": LONG}, {"question": "w2", "context": "w3 w4"}],
        [("w1", LONG), ("w2", "w3 w4")],
    ),
    "rank": ([{"query": "w1", "document": "w2"}], [("w1", "w2")]),
    "embed": ([{"text": LONG}, {"text": "w1"}], [LONG, "w1"]),
    "multilabel": ([{"text": LONG}, {"text": "w1"}], [LONG, "w1"]),
}


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("task", ASKED)
def test_tasks(tmp_path: Path, task: str, ending: str, monkeypatch: pytest.MonkeyPatch):
    """An answer for each row, however many windows it takes."""
    monkeypatch.setattr(runner_module, "AHEAD", 1)
    run = Runner(make_bundle(tmp_path / "bundle", task=task), threads=1)
    rows, texts = ASKED[task]
    source, out = write_rows(tmp_path / f"in{ending}", rows), tmp_path / "out.jsonl"
    assert score_file(run, source, out) == len(rows)
    answers = json.loads(json.dumps(run.predict(texts)))
    assert read(out) == [row | answer for row, answer in zip(rows, answers, strict=True)]


def test_words_in_a_text(tmp_path: Path):
    run = Runner(make_bundle(tmp_path / "bundle", task="tokens"), threads=1)
    source = write_rows(tmp_path / "in.csv", [{"text": "w1  w2"}])
    score_file(run, source, tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl") == [{"text": "w1  w2"} | run.predict([["w1", "w2"]])[0]]
    for bad in ([], " ", None, [""]):
        source = write_rows(tmp_path / "in.jsonl", [{"text": ["w1"]}, {"text": bad}])
        with pytest.raises(UserError, match="row 2 has no words in column 'text'"):
            score_file(run, source, tmp_path / "out.jsonl")


def test_a_context_is_needed(tmp_path: Path):
    run = Runner(make_bundle(tmp_path / "bundle", task="answer"), threads=1)
    source = write_rows(tmp_path / "in.jsonl", [{"question": "w1"}])
    with pytest.raises(UserError, match="which column is the context"):
        score_file(run, source, tmp_path / "out.jsonl")


def test_kinds_of_cells(run: Runner, tmp_path: Path):
    rows = [{"text": 7, "day": datetime.date(2026, 11, 16)}]
    score_file(run, write_rows(tmp_path / "in.parquet", rows), tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl") == [
        {"text": 7, "day": "2026-11-16"} | run.predict(["7"])[0]
    ]
    (tmp_path / "in.jsonl").write_text('{"text": "\\ud800\\u0000", "n": 1e400}\n')
    score_file(run, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl")[0]["text"] == "\ud800\0"


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_no_rows(run: Runner, tmp_path: Path, content: str):
    (tmp_path / "in.jsonl").write_text(content)
    assert score_file(run, tmp_path / "in.jsonl", tmp_path / "out.jsonl") == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_many_rows_in_constant_memory(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At no time are more rows read than answered and one window."""
    monkeypatch.setattr(runner_module, "AHEAD", 50)
    monkeypatch.setattr(bulk, "PEEK", 10)
    texts = [text for text in mixed_texts(1200) if isinstance(text, str)]
    source = write_rows(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    read_rows = answered = ahead = 0
    plain = bulk.stream

    def counted(*args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        nonlocal read_rows, ahead
        for row in plain(*args, **kwargs):
            read_rows += 1
            ahead = max(ahead, read_rows - answered)
            yield row

    def advance(count: int = 1) -> None:
        nonlocal answered
        answered += count

    monkeypatch.setattr(bulk, "stream", counted)
    assert score_file(run, source, tmp_path / "out.jsonl", progress=advance) == len(texts)
    assert answered == len(texts) > 500
    assert ahead <= 60
    labels = [row["label"] for row in read(tmp_path / "out.jsonl")]
    assert labels == [answer["label"] for answer in run.predict(texts)]


@pytest.mark.parametrize("bad", [None, "", " \n", float("nan"), "absent"])
def test_rows_without_a_text(run: Runner, tmp_path: Path, bad: Any):
    rows: list[dict[str, Any]] = [{"text": "w1"}] * 4 + [{"text": bad, "id": 5}]
    if bad == "absent":
        del rows[4]["text"]
    source = write_rows(tmp_path / "in.jsonl", rows)
    with pytest.raises(UserError, match="row 5 has no text in column 'text'"):
        score_file(run, source, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "w1"}\n{"text": \n', r"not a good .jsonl file \(line 2"),
        ('{"text": "w1"}\n["w2"]\n', "row 2 is a list"),
        ('{"text": ["w1"]}\n', "holds a list in row 1, not a text"),
        ('{"body": "w1"}\n', "which column is the text"),
        ("\xff", "not a good .jsonl file"),
    ],
)
def test_bad_rows(run: Runner, tmp_path: Path, content: str, message: str):
    (tmp_path / "in.jsonl").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        score_file(run, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_row_that_is_cut_short(run: Runner, tmp_path: Path):
    (tmp_path / "in.csv").write_text("text,id\nw1,1\nw2\n")
    with pytest.raises(UserError, match="line 3 has 1 fields, the first 2"):
        score_file(run, tmp_path / "in.csv", tmp_path / "out.jsonl")
    packed = gzip.compress(b'{"text": "w1"}\n' * 5000, mtime=0)
    (tmp_path / "in.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=r"in.jsonl.gz is not a good .jsonl file"):
        score_file(run, tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl")


def test_a_late_field_of_the_answer_is_not_overwritten(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bulk, "PEEK", 1)
    source = write_rows(tmp_path / "in.jsonl", [{"text": "w1"}, {"text": "w2", "label": "yes"}])
    with pytest.raises(UserError, match="row 2 already has a field label"):
        score_file(run, source, tmp_path / "out.jsonl")


def test_a_full_disk_leaves_nothing(run: Runner, tmp_path: Path):
    source = write_rows(tmp_path / "in.jsonl", ROWS)

    def full(count: int = 1) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*No space left"):
        score_file(run, source, tmp_path / "out.jsonl", progress=full)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_bad_places(run: Runner, tmp_path: Path):
    source = write_rows(tmp_path / "in.jsonl", ROWS)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(source)
    for out, message in {
        "out.csv": "ends with .jsonl",
        "out.jsonl.gz": "ends with .jsonl",
        "in.jsonl": "is the source file",
        "link.jsonl": "is the source file",
        "folder.jsonl": "is a directory",
        "nowhere/out.jsonl": "directory does not exist",
    }.items():
        with pytest.raises(UserError, match=message):
            score_file(run, source, tmp_path / out)
    with pytest.raises(UserError, match="no file"):
        score_file(run, tmp_path / "nothing.jsonl", tmp_path / "out.jsonl")
    with pytest.raises(UserError, match=r"one by one from .json; known: .csv .tsv .jsonl"):
        score_file(run, tmp_path / "in.json", tmp_path / "out.jsonl")


def test_parquet_without_pyarrow(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_rows(tmp_path / "in.parquet", [{"text": "w1"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"^reading Parquet needs pyarrow; pip install pyarrow"):
        score_file(run, source, tmp_path / "out.jsonl")
