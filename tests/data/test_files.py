import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

from support.tables import write_rows
from toprune.data.columns import Columns
from toprune.data.examples import Examples, load
from toprune.errors import UserError
from toprune.tasks import TASKS
from toprune.tasks.classify import Classify
from toprune.tasks.tags import Tags

ROWS = [
    {"text": 'He said "no", twice', "label": 0},
    {"text": "null", "label": 1},
    {"text": "007", "label": 1},
]
TEXTS = [row["text"] for row in ROWS]
PACKED = gzip.compress(b"text,label\na,0\n" * 99, mtime=0)


def dataset(rows: list[dict[str, Any]], classes: list[str] | None = None) -> datasets.Dataset:
    hub_set = datasets.Dataset.from_list(rows)
    return hub_set.cast_column("label", datasets.ClassLabel(names=classes)) if classes else hub_set


def splits(**parts: datasets.Dataset) -> datasets.DatasetDict:
    return datasets.DatasetDict(parts.items())


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_files(tmp_path: Path, ending: str, packed: str):
    found = load(write_rows(tmp_path / f"set{ending}{packed}", ROWS), reads=Classify.READS)
    assert found == {"train": Examples(TEXTS, labels=[0, 1, 1])}


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_file_without_header(tmp_path: Path, ending: str):
    path = tmp_path / f"cola{ending}"
    comma = {".csv": ",", ".tsv": "\t"}[ending]
    path.write_text("".join(comma.join(line) + "\n" for line in ["g1ab", "g0cd"]))
    found = load(path, reads=Classify.READS, columns=Columns(text="2", label="1"))["train"]
    assert found == Examples(["a", "c"], labels=[1, 0])


def test_json_with_one_record_per_line(tmp_path: Path):
    path = tmp_path / "set.json"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    assert load(str(path), reads=Classify.READS)["train"].texts == TEXTS


def test_bom_blank_lines_and_line_breaks_in_quotes(tmp_path: Path):
    path = tmp_path / "set.csv"
    path.write_bytes(b'\xef\xbb\xbftext,label\r\n"a\nb",0\r\n\r\nc,1\r\n')
    assert load(path, reads=Classify.READS)["train"].texts == ["a\nb", "c"]


def test_long_cells(tmp_path: Path):
    rows = [{"text": "w " * 100_000, "label": 0}, {"text": "w", "label": 1}]
    assert (
        load(write_rows(tmp_path / "set.csv", rows), reads=Classify.READS)["train"].texts[0]
        == "w " * 100_000
    )


def test_parquet_keeps_class_names(tmp_path: Path):
    path = tmp_path / "set.parquet"
    dataset(ROWS, ["no", "yes"]).to_parquet(path)
    assert load(path, reads=Classify.READS)["train"].label_names == ["no", "yes"]


@pytest.mark.parametrize(
    "make", [list, dataset, pd.DataFrame, lambda rows: (dict(row) for row in rows)]
)
def test_objects(make):
    assert load(make(ROWS), reads=Classify.READS) == {"train": Examples(TEXTS, labels=[0, 1, 1])}


# Of every task: rows with lists, the same rows as a CSV file can hold them, and what they are.
CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], Examples]] = {
    "multilabel": (
        [{"text": "u", "labels": ["b", "a"]}, {"text": "v", "labels": ["b"]}],
        [{"text": "u", "labels": "b|a"}, {"text": "v", "labels": "b"}],
        Examples(["u", "v"], None, [[0, 1], [1]], ["a", "b"]),
    ),
    "rank": (
        [{"query": "q", "passage": f"d{i}", "relevance": i} for i in range(2)],
        [{"query": "q", "passage": f"d{i}", "relevance": i} for i in range(2)],
        Examples(["q", "q"], ["d0", "d1"], [0.0, 1.0]),
    ),
    "answer": (
        [
            {"question": "p", "context": "a b a", "answers": {"text": ["a"], "answer_start": [4]}},
            {"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}},
        ],
        [
            {"question": "p", "context": "a b a", "answer": "a", "answer_start": "4"},
            {"question": "q", "context": "c", "answer": "", "answer_start": ""},
        ],
        Examples(["p", "q"], ["a b a", "c"], [[("a", 4)], []]),
    ),
    "tokens": (
        [{"tokens": ["a", "b"], "ner_tags": ["O", "X"]}, {"tokens": ["c"], "ner_tags": ["O"]}],
        [{"tokens": "a b", "ner_tags": "O X"}, {"tokens": "c", "ner_tags": "O"}],
        Examples([["a", "b"], ["c"]], None, [[0, 1], [0]], ["O", "X"]),
    ),
    "embed": (
        [{"sentence1": "u", "sentence2": "v", "score": s} for s in (0.5, 4)],
        [{"sentence1": "u", "sentence2": "v", "score": s} for s in (0.5, 4)],
        Examples(["u", "u"], ["v", "v"], [0.5, 4.0]),
    ),
}


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json.gz", ".parquet"])
@pytest.mark.parametrize("task", CASES)
def test_files_of_the_tasks(tmp_path: Path, task: str, ending: str):
    rows, plain, expected = CASES[task]
    path = write_rows(tmp_path / f"set{ending}", plain if ending in (".csv", ".tsv") else rows)
    assert load(path, reads=TASKS[task].READS) == {"train": expected}


@pytest.mark.parametrize("make", [list, dataset, pd.DataFrame])
@pytest.mark.parametrize("task", CASES)
def test_objects_of_the_tasks(task: str, make: Any):
    rows, _, expected = CASES[task]
    assert load(make(rows), reads=TASKS[task].READS) == {"train": expected}


def test_dataset_with_a_format():
    hub_set = dataset(ROWS).with_format("numpy")
    assert load(hub_set, reads=Classify.READS)["train"].labels == [0, 1, 1]


def test_dataset_dict_and_mapping(tmp_path: Path):
    expected = {name: Examples(TEXTS, labels=[0, 1, 1]) for name in ("train", "validation", "test")}
    hub_set = splits(
        train=dataset(ROWS), dev=dataset(ROWS), test=dataset(ROWS), unsupervised=dataset(ROWS)
    )
    assert load(hub_set, reads=Classify.READS) == expected
    mixed = {"train": ROWS, "val": pd.DataFrame(ROWS), "test": write_rows(tmp_path / "x.csv", ROWS)}
    assert load(mixed, reads=Classify.READS) == expected


def test_saved_directories(tmp_path: Path):
    dataset(ROWS, ["no", "yes"]).save_to_disk(tmp_path / "one")
    splits(train=dataset(ROWS), test=dataset(ROWS)).save_to_disk(tmp_path / "two")
    assert load(tmp_path / "one", reads=Classify.READS)["train"].label_names == ["no", "yes"]
    assert list(load(str(tmp_path / "two"), reads=Classify.READS)) == ["train", "test"]


def test_directory_of_files(tmp_path: Path):
    for name in ("train.tsv", "dev.jsonl.gz", "test.csv", "notes.csv"):
        write_rows(tmp_path / name, ROWS)
    (tmp_path / "train.txt").write_text("not data")
    found = load(tmp_path, reads=Classify.READS)
    assert list(found) == ["train", "validation", "test"]
    assert found["validation"].texts == TEXTS


CONLL = """-DOCSTART- -X- O O

EU NNP B-ORG
rejects VBZ O


-DOCSTART- -X- O O
Don't VB O
"""


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("ending", [".conll", ".bio"])
@pytest.mark.parametrize("content", [CONLL, CONLL.replace(" ", "\t"), CONLL.replace("\n", "\r\n")])
def test_a_word_per_line(tmp_path: Path, content: str, ending: str, packed: str):
    path = tmp_path / f"train{ending}{packed}"
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    expected = Examples([["EU", "rejects"], ["Don't"]], None, [[0, 1], [1]], ["B-ORG", "O"])
    assert load(path, reads=Tags.READS) == load(tmp_path, reads=Tags.READS) == {"train": expected}


def test_words_alone_and_words_with_blanks(tmp_path: Path):
    (tmp_path / "set.conll").write_text("EU\nrejects\n\nall\n")
    assert load(tmp_path / "set.conll", reads=Tags.READS)["train"] == Examples(
        [["EU", "rejects"], ["all"]]
    )
    (tmp_path / "set.bio").write_text("New York\tB\n\u00a0x\u2028y\tO\n")
    assert load(tmp_path / "set.bio", reads=Tags.READS)["train"].texts == [["New York", "x\u2028y"]]


@pytest.mark.parametrize("names", [["train.csv", "train.jsonl"], ["dev.csv", "valid.csv"]])
def test_two_files_for_one_set(tmp_path: Path, names: list[str]):
    for name in names:
        write_rows(tmp_path / name, ROWS)
    with pytest.raises(UserError, match=f"two .* sets: {', '.join(names)}; keep one"):
        load(tmp_path, reads=Classify.READS)


def test_directory_that_datasets_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "repo" / "data").mkdir(parents=True)
    for split in ("train", "validation"):
        dataset(ROWS).to_parquet(tmp_path / "repo" / "data" / f"{split}-00000-of-00001.parquet")
    found = load(tmp_path / "repo", reads=Classify.READS)
    assert {name: part.texts for name, part in found.items()} == {
        "train": TEXTS,
        "validation": TEXTS,
    }


def test_hub_name_with_config(monkeypatch: pytest.MonkeyPatch):
    requests = []

    def load_dataset(*names):
        requests.append(names)
        return splits(train=dataset(ROWS))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    load("nyu-mll/glue:mrpc", reads=Classify.READS)
    load("stanfordnlp/imdb", reads=Classify.READS)
    assert requests == [("nyu-mll/glue", "mrpc"), ("stanfordnlp/imdb", None)]


def test_one_split(tmp_path: Path):
    path = write_rows(tmp_path / "reviews.csv", ROWS)
    hub_set = splits(train=dataset(ROWS), unsupervised=dataset(ROWS))
    assert list(load(path, reads=Classify.READS, split="test")) == ["test"]
    assert list(load(path, reads=Classify.READS, split="dev")) == ["validation"]
    assert list(load(hub_set, reads=Classify.READS, split="train")) == ["train"]
    assert list(load(hub_set, reads=Classify.READS, split="unsupervised")) == ["unsupervised"]
    with pytest.raises(UserError, match="no test set; the source has: train, unsupervised"):
        load(hub_set, reads=Classify.READS, split="test")


# Bad sources


@pytest.mark.parametrize("name", ["no.csv", "data/no.csv", "nowhere", "/no/such/place", "a b/c"])
def test_missing_file(name: str):
    with pytest.raises(UserError, match=f"no file or directory '{name}'; check the path"):
        load(name, reads=Classify.READS)


def test_missing_file_in_a_directory_is_not_looked_up_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no file or directory"):
        load("data/train", reads=Classify.READS)


def test_hub_name_that_fails():
    with pytest.raises(UserError, match=r"cannot load the data set 'no-such/thing'.*give a file"):
        load("no-such/thing", reads=Classify.READS)


def test_unknown_ending(tmp_path: Path):
    (tmp_path / "set.xlsx").write_text("x")
    with pytest.raises(UserError, match=r"unknown ending '.xlsx'; known: .csv .tsv .jsonl"):
        load(tmp_path / "set.xlsx", reads=Classify.READS)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("set.csv", b"", "it is empty"),
        ("set.csv", b"text,label\na,0\nb,1,2\n", "line 3 has 3 fields, the first 2"),
        ("set.csv", b'text,label\n"a,0\n', "unexpected end of data"),
        ("set.csv", b"text,text\na,0\n", "two columns have the same name"),
        ("set.csv", "text,label\né,0\n".encode("latin-1"), "can't decode"),
        ("set.jsonl", b'{"text": "a", "label": 0}\n{"text": \n', "line 2: Expecting value"),
        ("set.json", b"[1, 2]", "row 1 is a int, not named columns"),
        ("set.parquet", b"not parquet at all", "[Pp]arquet"),
        ("set.conll", b"\n\n", "it is empty"),
        ("set.conll", b"EU O\nrejects\n", "line 2: some lines have a word and a tag"),
        ("set.json", b'{"data": [{"paragraphs": [7]}]}', "row 1 is a int, not named columns"),
        ("set.csv.gz", b"text,label\na,0\n", "Not a gzipped file"),
        ("set.csv.gz", PACKED[:-12], "end-of-stream"),
    ],
)
def test_broken_file(tmp_path: Path, name: str, content: bytes, reason: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"not a good .*{reason}") as caught:
        load(tmp_path / name, reads=Classify.READS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "the source is empty"),
        ({"train": []}, "the source is empty"),
        ({"train": ROWS, "test": datasets.Dataset.from_list(ROWS[:0])}, "test.*has no column"),
        (pd.DataFrame({"text": [], "label": []}), "the train set is empty"),
        (7, "cannot read examples from a int"),
        (["a text"], "row 1 is a str"),
        ({"train": ROWS, "training": ROWS}, "two train sets"),
        ({"rest": ROWS}, "no train or validation or test set; the source has: rest"),
    ],
)
def test_bad_objects(source: Any, message: str):
    with pytest.raises(UserError, match=message):
        load(source, reads=Classify.READS)


def test_split_that_is_a_directory_of_splits(tmp_path: Path):
    write_rows(tmp_path / "train.csv", ROWS)
    with pytest.raises(UserError, match="holds several splits"):
        load({"train": tmp_path}, reads=Classify.READS)
