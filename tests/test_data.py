import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.data import Columns, Examples, load, split_validation
from toprune.errors import UserError

ROWS = [
    {"text": 'He said "no", twice', "label": 0},
    {"text": "null", "label": 1},
    {"text": "007", "label": 1},
]
TEXTS = [row["text"] for row in ROWS]
PACKED = gzip.compress(b"text,label\na,0\n" * 99, mtime=0)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the format of the path's ending, by other code than ours."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    frame = pd.DataFrame(rows)
    match plain.suffix:
        case ".csv":
            frame.to_csv(plain, index=False)
        case ".tsv":
            lines = [frame.columns, *frame.astype(str).itertuples(index=False)]
            plain.write_text("".join("\t".join(line) + "\n" for line in lines))
        case ".jsonl":
            frame.to_json(plain, orient="records", lines=True)
        case ".json":
            frame.to_json(plain, orient="records")
        case ".parquet":
            frame.to_parquet(plain)
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def dataset(rows: list[dict[str, Any]], classes: list[str] | None = None) -> datasets.Dataset:
    made = datasets.Dataset.from_list(rows)
    return made.cast_column("label", datasets.ClassLabel(names=classes)) if classes else made


def splits(**parts: datasets.Dataset) -> datasets.DatasetDict:
    return datasets.DatasetDict(parts.items())


def labels(cells: list[Any], task: str = "classify", **options: Any) -> Examples:
    rows = [{"text": f"w{i}", "label": cell} for i, cell in enumerate(cells)]
    return load(rows, task=task, **options)["train"]


# Sources


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_files(tmp_path: Path, ending: str, packed: str):
    found = load(write(tmp_path / f"set{ending}{packed}", ROWS), task="classify")
    assert found == {"train": Examples(TEXTS, labels=[0, 1, 1])}


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_file_without_header(tmp_path: Path, ending: str):
    path = tmp_path / f"cola{ending}"
    comma = {".csv": ",", ".tsv": "\t"}[ending]
    path.write_text("".join(comma.join(line) + "\n" for line in ["g1ab", "g0cd"]))
    found = load(path, task="classify", columns=Columns(text="2", label="1"))["train"]
    assert found == Examples(["a", "c"], labels=[1, 0])


def test_json_with_one_record_per_line(tmp_path: Path):
    path = tmp_path / "set.json"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    assert load(str(path), task="classify")["train"].texts == TEXTS


def test_bom_blank_lines_and_line_breaks_in_quotes(tmp_path: Path):
    path = tmp_path / "set.csv"
    path.write_bytes(b'\xef\xbb\xbftext,label\r\n"a\nb",0\r\n\r\nc,1\r\n')
    assert load(path, task="classify")["train"].texts == ["a\nb", "c"]


def test_long_cells(tmp_path: Path):
    rows = [{"text": "w " * 100_000, "label": 0}, {"text": "w", "label": 1}]
    assert (
        load(write(tmp_path / "set.csv", rows), task="classify")["train"].texts[0] == "w " * 100_000
    )


def test_parquet_keeps_class_names(tmp_path: Path):
    path = tmp_path / "set.parquet"
    dataset(ROWS, ["no", "yes"]).to_parquet(path)
    assert load(path, task="classify")["train"].label_names == ["no", "yes"]


@pytest.mark.parametrize(
    "make", [list, dataset, pd.DataFrame, lambda rows: (dict(row) for row in rows)]
)
def test_objects(make):
    assert load(make(ROWS), task="classify") == {"train": Examples(TEXTS, labels=[0, 1, 1])}


def test_dataset_with_a_format():
    assert load(dataset(ROWS).with_format("numpy"), task="classify")["train"].labels == [0, 1, 1]


def test_dataset_dict_and_mapping(tmp_path: Path):
    expected = {name: Examples(TEXTS, labels=[0, 1, 1]) for name in ("train", "validation", "test")}
    made = splits(
        train=dataset(ROWS), dev=dataset(ROWS), test=dataset(ROWS), unsupervised=dataset(ROWS)
    )
    assert load(made, task="classify") == expected
    mixed = {"train": ROWS, "val": pd.DataFrame(ROWS), "test": write(tmp_path / "x.csv", ROWS)}
    assert load(mixed, task="classify") == expected


def test_saved_directories(tmp_path: Path):
    dataset(ROWS, ["no", "yes"]).save_to_disk(tmp_path / "one")
    splits(train=dataset(ROWS), test=dataset(ROWS)).save_to_disk(tmp_path / "two")
    assert load(tmp_path / "one", task="classify")["train"].label_names == ["no", "yes"]
    assert list(load(str(tmp_path / "two"), task="classify")) == ["train", "test"]


def test_directory_of_files(tmp_path: Path):
    for name in ("train.tsv", "dev.jsonl.gz", "test.csv", "notes.csv"):
        write(tmp_path / name, ROWS)
    (tmp_path / "train.txt").write_text("not data")
    found = load(tmp_path, task="classify")
    assert list(found) == ["train", "validation", "test"]
    assert found["validation"].texts == TEXTS


def test_directory_that_datasets_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "repo" / "data").mkdir(parents=True)
    for split in ("train", "validation"):
        dataset(ROWS).to_parquet(tmp_path / "repo" / "data" / f"{split}-00000-of-00001.parquet")
    found = load(tmp_path / "repo", task="classify")
    assert {name: part.texts for name, part in found.items()} == {
        "train": TEXTS,
        "validation": TEXTS,
    }


def test_hub_name_with_config(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def load_dataset(*names):
        asked.append(names)
        return splits(train=dataset(ROWS))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    load("nyu-mll/glue:mrpc", task="classify")
    load("stanfordnlp/imdb", task="classify")
    assert asked == [("nyu-mll/glue", "mrpc"), ("stanfordnlp/imdb", None)]


def test_one_split(tmp_path: Path):
    path = write(tmp_path / "reviews.csv", ROWS)
    made = splits(train=dataset(ROWS), unsupervised=dataset(ROWS))
    assert list(load(path, task="classify", split="test")) == ["test"]
    assert list(load(made, task="classify", split="train")) == ["train"]
    assert list(load(made, task="classify", split="unsupervised")) == ["unsupervised"]
    with pytest.raises(UserError, match="no test set; the source has: train, unsupervised"):
        load(made, task="classify", split="test")


# Bad sources


@pytest.mark.parametrize("name", ["no.csv", "data/no.csv", "nowhere", "/no/such/place", "a b/c"])
def test_missing_file(name: str):
    with pytest.raises(UserError, match=f"no file or directory '{name}'; check the path"):
        load(name, task="classify")


def test_missing_file_in_a_directory_is_not_looked_up_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no file or directory"):
        load("data/train", task="classify")


def test_hub_name_that_fails():
    with pytest.raises(UserError, match=r"cannot load the data set 'no-such/thing'.*give a file"):
        load("no-such/thing", task="classify")


def test_unknown_ending(tmp_path: Path):
    (tmp_path / "set.xlsx").write_text("x")
    with pytest.raises(UserError, match=r"unknown ending '.xlsx'; known: .csv .tsv .jsonl"):
        load(tmp_path / "set.xlsx", task="classify")


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
        ("set.csv.gz", b"text,label\na,0\n", "Not a gzipped file"),
        ("set.csv.gz", PACKED[:-12], "end-of-stream"),
    ],
)
def test_broken_file(tmp_path: Path, name: str, content: bytes, reason: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"not a good .*{reason}") as caught:
        load(tmp_path / name, task="classify")
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
        load(source, task="classify")


def test_split_that_is_a_directory_of_splits(tmp_path: Path):
    write(tmp_path / "train.csv", ROWS)
    with pytest.raises(UserError, match="holds several splits"):
        load({"train": tmp_path}, task="classify")


# Columns


@pytest.mark.parametrize(
    ("others", "text", "pair", "label"),
    [
        ("idx", "sentence", None, "label"),
        ("", "Text", None, "Label"),
        ("title", "content", None, "labels"),
        ("", "review", None, "score"),
        ("", "sentence1", "sentence2", "label"),
        ("", "premise", "hypothesis", "gold_label"),
        ("", "question", "sentence", "label"),
        ("", "question1", "question2", "class"),
        ("", "query", "document", "target"),
        ("sentence score", "text", "text_pair", "label"),
    ],
)
def test_guessed_columns(others: str, text: str, pair: str | None, label: str):
    words = {name: name for name in [*others.split(), text, *filter(None, [pair])]}
    found = load([words | {label: i} for i in (0, 1)], task="classify")["train"]
    assert found.texts == [text, text]
    assert found.pairs == (pair and [pair, pair])
    assert found.labels == [0, 1]


def test_named_columns():
    row = {"sentence1": "a", "sentence2": "b", "other": "c", "label": 0, "stars": 3}
    rows = [row, row | {"label": 1, "stars": 4}]
    named = load(rows, task="classify", columns=Columns("sentence1", label="stars"))["train"]
    assert named == Examples(["a", "a"], labels=[3, 4])  # a named text has no guessed pair
    pair = load(rows, task="classify", columns=Columns(pair="sentence2"))
    assert pair["train"] == Examples(["a", "a"], ["b", "b"], [0, 1])
    with pytest.raises(UserError, match="no column 'stras'; columns here: sentence1, sentence2"):
        load(rows, task="classify", columns=Columns(label="stras"))


def test_no_text_column():
    with pytest.raises(UserError, match=r"which column is the text.*columns here: body, label"):
        load([{"body": "a", "label": 0}], task="classify")


def test_text_column_missing_in_one_set():
    sets = {"train": ROWS, "test": [{"body": "a", "label": 0}]}
    with pytest.raises(UserError, match="the test set has no column 'text'; columns there: body"):
        load(sets, task="classify")


def test_labels_may_be_missing():
    texts = [{"text": "a"}, {"text": "b"}]
    assert load(texts, task="classify")["train"] == Examples(["a", "b"])
    found = load({"train": ROWS, "test": texts}, task="classify")
    assert found["train"].labels == [0, 1, 1]
    assert found["test"].labels is None


# Texts


def test_numbers_are_texts():
    found = load([{"text": 7, "label": 0}, {"text": 1.5, "label": 1}], task="classify")["train"]
    assert found.texts == ["7", "1.5"]


@pytest.mark.parametrize("nothing", [None, "", " \n", float("nan")])
def test_empty_texts_are_named(nothing: Any):
    cells = ["a", nothing, nothing, "b", nothing, nothing]
    rows = [{"text": cell, "label": i} for i, cell in enumerate(cells)]
    message = "column 'text' of the train set is empty in rows 2, 3, 5 and 1 more; drop the rows"
    for source in (rows, pd.DataFrame(rows)):
        with pytest.raises(UserError, match=message):
            load(source, task="classify")


def test_lists_are_not_texts():
    with pytest.raises(UserError, match="holds a list in row 1, not a text"):
        load([{"text": ["a", "b"], "label": 0}], task="classify")


# Labels


@pytest.mark.parametrize(
    "cells",
    [
        [0, 2, 1],
        ["0", " 2", "1"],
        [0.0, 2.0, 1.0],
        ["0.0", "2.0", "1.0"],
        list(np.array([0, 2, 1])),
    ],
)
def test_whole_numbers_are_class_ids(cells: list):
    found = labels(cells)
    assert found.labels == [0, 2, 1]
    assert all(type(label) is int for label in found.labels or [])
    assert found.label_names is None


def test_booleans_are_class_ids():
    assert labels([False, True]).labels == [0, 1]


def test_names_are_sorted_over_all_sets():
    rows = {
        name: [{"text": "a", "label": c} for c in cs]
        for name, cs in {"train": "cb", "test": "ab"}.items()
    }
    found = load(rows, task="classify")
    assert found["train"].labels == [2, 1]
    assert found["test"].labels == [0, 1]
    assert found["test"].label_names == found["train"].label_names == ["a", "b", "c"]


def test_names_of_the_model_win():
    model = ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]
    found = labels(["neutral", "contradiction"], label_names=model)
    assert found.labels == [1, 2]
    assert found.label_names == model
    assert labels(["3", "5"], label_names=["5", "3"]).labels == [1, 0]
    assert labels([0, 2], label_names=model).labels == [0, 2]
    with pytest.raises(UserError, match=r"label 'maybe' in row 2.*ENTAILMENT, NEUTRAL, CONTRA"):
        labels(["neutral", "maybe"], label_names=model)


def test_names_of_the_data_set_are_matched_with_the_model():
    made = dataset(ROWS, ["no", "yes"])
    assert load(made, task="classify", label_names=["Yes", "No"])["train"].labels == [1, 0, 0]
    # Other words for the same ids: the ids are all that can be meant.
    assert load(made, task="classify", label_names=["NEG", "POS"])["train"].labels == [0, 1, 1]
    assert load(made, task="classify", label_names=["NEG", "POS"])["train"].label_names == [
        "NEG",
        "POS",
    ]


def test_case_matters_when_names_differ_in_nothing_else():
    assert labels(["US", "us"]).label_names == ["US", "us"]
    assert labels(["US", "us"]).labels == [0, 1]


def test_numbers_for_regression():
    assert labels(["0.5", 2, "3"], task="regress").labels == [0.5, 2.0, 3.0]


@pytest.mark.parametrize("nothing", [-1, -1.0, "-1", None, "", float("nan")])
@pytest.mark.parametrize("task", ["classify", "regress"])
def test_a_set_without_any_label_is_unlabelled(task: str, nothing: Any):
    sets = {"train": ROWS, "test": [{"text": "a", "label": nothing}] * 2}
    found = load(sets, task=task)
    assert found["train"].labels == [0, 1, 1]
    assert found["test"].labels is None
    assert labels([nothing, nothing], task=task) == Examples(["w0", "w1"])


@pytest.mark.parametrize(
    ("task", "cells", "message"),
    [
        ("classify", [0, None, 1, float("nan")], "no label in rows 2, 4; add it"),
        ("classify", ["a", "", "b"], "no label in row 2"),
        ("classify", ["1", "NaN", "2"], "no label in row 2"),
        ("regress", [0.5, float("nan")], "no label in row 2"),
        ("classify", [0, 1, -1], "label -1 in row 3 of the train set.*count from 0"),
        ("classify", [0.5, 1.0], "label 0.5 is not a class.*task regress"),
        ("classify", ["0.5", "3"], "label '0.5' is not a class.*task regress"),
        ("classify", [0, "b"], "label 'b' is not a class"),
        ("classify", [[0], [1]], "is not a class"),
        ("regress", ["1", "high"], "label 'high' in row 2.*not a number.*task classify"),
        ("regress", [1.0, float("inf")], "label inf in row 2"),
        ("classify", [1, 1, 1], "every label of the train set is 1"),
        ("classify", ["a", "a"], "every label of the train set is a"),
        ("regress", [2.5, 2.5], "every label of the train set is 2.5"),
    ],
)
def test_bad_labels(task: str, cells: list, message: str):
    with pytest.raises(UserError, match=message):
        labels(cells, task=task)


def test_class_label_with_gaps_is_refused():
    with pytest.raises(UserError, match="label -1 in row 2"):
        load(
            dataset([*ROWS[:1], {"text": "a", "label": -1}, *ROWS[1:]], ["no", "yes"]),
            task="classify",
        )


# Examples


def test_take():
    examples = Examples(["a", "b", "c"], ["x", "y", "z"], [0, 1, 2], ["p", "q", "r"])
    assert examples.take(np.array([2, 0])) == Examples(
        ["c", "a"], ["z", "x"], [2, 0], ["p", "q", "r"]
    )
    assert Examples(["a", "b"]).take([1]) == Examples(["b"])
    assert len(examples) == 3


def numbered(cells: list[int] | list[float] | None, count: int = 0) -> Examples:
    return Examples([str(i) for i in range(count or len(cells or []))], labels=cells)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=200),
    st.floats(0.05, 0.5),
    st.integers(0, 2**32 - 1),
)
def test_split_is_seeded_stratified_and_whole(cells: list[int], share: float, seed: int):
    counts = Counter(cells)
    if max(counts.values()) == 1:
        return
    examples = numbered(cells)
    train, validation = split_validation(examples, share, seed)
    assert sorted(train.texts + validation.texts) == sorted(examples.texts)
    assert split_validation(examples, share, seed) == (train, validation)
    assert set(train.labels or []) == set(cells)
    pool = sum(count for count in counts.values() if count > 1)
    taken = Counter(validation.labels)
    for label, count in counts.items():
        fair = len(validation) * count / pool if count > 1 else 0
        assert abs(taken[label] - fair) < 1 or (count == 1 and taken[label] == 0)


def test_split_sizes_and_seeds():
    examples = numbered([0] * 90 + [1] * 10)
    train, validation = split_validation(examples, 0.2, seed=1)
    assert Counter(validation.labels) == {0: 18, 1: 2}
    assert validation != split_validation(examples, 0.2, seed=2)[1]
    assert len(train) == 80


@pytest.mark.parametrize("cells", [None, [i / 7 for i in range(50)]])
def test_split_without_classes(cells: list[float] | None):
    examples = numbered(cells, 50)
    train, validation = split_validation(examples, 0.1, seed=3)
    assert (len(train), len(validation)) == (45, 5)
    assert validation != split_validation(examples, 0.1, seed=4)[1]


@pytest.mark.parametrize("share", [0, -0.1, 0.6, 1])
def test_split_share(share: float):
    with pytest.raises(UserError, match="validation share"):
        split_validation(numbered([0, 1, 0, 1]), share, seed=0)


@pytest.mark.parametrize("cells", [[0], [0, 1, 2]])
def test_split_of_too_few(cells: list[int]):
    with pytest.raises(UserError, match="too few examples"):
        split_validation(numbered(cells), 0.2, seed=0)
