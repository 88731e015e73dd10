"""GLUE by name: every official format as it is published, and the hub's."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from support.glue_files import HEADS, OFFICIAL, STS, write
from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.data.glue import GLUE
from toprune.data.sets import load_preset, load_texts
from toprune.errors import UserError
from toprune.tasks import TASKS
from toprune.tasks.classify import Classify


def load_glue(name: str, source: Any = None, **options: Any) -> dict[str, Examples]:
    return load_preset(GLUE[name], source, reads=TASKS[GLUE[name].task].READS, **options)


def plain(loaded: dict[str, Examples]) -> dict[str, Examples]:
    return {name: Examples(e.texts, e.pairs, e.labels) for name, e in loaded.items()}


# -- official files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GLUE)
def test_official_files(name: str, tmp_path: Path):
    files, expected = OFFICIAL[name]
    folder = write(tmp_path / GLUE[name].title, files)
    loaded = load_glue(name, folder)
    assert plain(loaded) == expected
    names = list(GLUE[name].classes) or None
    assert all(e.label_names == names for e in loaded.values())
    assert load_glue(name, tmp_path) == loaded  # the folder above
    assert load_glue(name, str(folder / "train.tsv")) == {"train": loaded["train"]}
    for split, examples in loaded.items():
        assert load_glue(name, folder, split=split) == {split: examples}


def test_windows_line_ends(tmp_path: Path):
    files, expected = OFFICIAL["rte"]
    folder = write(
        tmp_path, {name: [f"{line}\r" for line in lines] for name, lines in files.items()}
    )
    assert plain(load_glue("rte", folder)) == expected


@pytest.mark.parametrize("name", ["mrpc", "stsb"])
def test_a_labelled_test_set_is_read(name: str, tmp_path: Path):
    files, expected = OFFICIAL[name]
    write(tmp_path, files | {"test.tsv": files["dev.tsv"]})
    assert plain(load_glue(name, tmp_path)) == expected | {"test": expected["validation"]}
    assert load_glue(name, tmp_path, split="test")["test"].labels


def test_other_columns_of_official_files(tmp_path: Path):
    write(tmp_path, OFFICIAL["mrpc"][0])
    swapped = load_glue("mrpc", tmp_path, columns=Columns("#2 String", "#1 String"))
    assert swapped["validation"] == Examples(
        ["b", "d"], ["a", "c"], [1, 0], ["not_equivalent", "equivalent"]
    )


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (None, [1, 0, 2]),
        (["Contradiction", "ENTAILMENT", "neutral"], [2, 1, 0]),  # the model's order
        (["LABEL_A", "LABEL_B", "LABEL_C"], [1, 0, 2]),  # names that say nothing
    ],
)
def test_names_of_the_model(names: list[str] | None, ids: list[int], tmp_path: Path):
    write(tmp_path, OFFICIAL["mnli"][0])
    assert load_glue("mnli", tmp_path, label_names=names)["train"].labels == ids


def test_ids_follow_the_names_of_the_model(tmp_path: Path):
    write(tmp_path, OFFICIAL["cola"][0])
    turned = load_glue("cola", tmp_path, label_names=["acceptable", "unacceptable"])
    assert turned["train"].labels == [0, 1]


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("mrpc", OFFICIAL["rte"][0], "no column '#1 String', but index, sentence1"),
        ("rte", OFFICIAL["stsb"][0], "no column 'label'"),
        ("cola", OFFICIAL["sst2"][0], "not a file of CoLA"),
        ("mnli", OFFICIAL["rte"][0], "no column 'gold_label'"),
        ("qnli", {"train.tsv": ["question\tlabel", "a\tentailment"]}, "no column 'sentence'"),
        ("mrpc", {"other.txt": ["a"]}, "none of MRPC's files (train.tsv, dev.tsv, test.tsv)"),
        ("rte", {"train.tsv": ["sentence1\tsentence2\tlabel", "a\tb"]}, "line 2 has 2 fields"),
        ("qqp", {"dev.tsv": [HEADS["qqp"], *["0\t1"] * 101]}, "line 102 has 2 fields"),
        ("sst2", {"dev.tsv": [HEADS["sst2"], "a\t0", "b\t2"]}, "0 negative, 1 positive"),
        (
            "rte",
            {"dev.tsv": [HEADS["rte"], "0\ta\tb\tentailment", "1\ta\tb\tmaybe"]},
            "'maybe' in row 2 of the validation set",
        ),
        ("stsb", {"dev.tsv": [HEADS["stsb"], f"0\t{STS}\ta\tb\thigh"]}, "not a number"),
        ("sst2", {"dev.tsv": [HEADS["sst2"], " \t1", "b\t0"]}, "empty in row 1"),
    ],
)
def test_bad_folders(name: str, files: dict[str, list[str]], message: str, tmp_path: Path):
    with pytest.raises(UserError) as error:
        load_glue(name, write(tmp_path / "data", files))
    assert message in str(error.value)


def test_splits_that_are_not_there(tmp_path: Path):
    write(tmp_path, OFFICIAL["mrpc"][0])
    with pytest.raises(UserError, match="test set of MRPC has no labels"):
        load_glue("mrpc", tmp_path, split="test")
    write(tmp_path / "RTE", OFFICIAL["rte"][0])
    with pytest.raises(
        UserError, match="no test set with labels in these files of RTE, only: train"
    ):
        load_glue("rte", tmp_path, split="test")


# -- the hub and other sources ---------------------------------------------------------------------


def on_the_hub(name: str) -> datasets.DatasetDict:
    """What `load_dataset("nyu-mll/glue", name)` gives: the same rows, test sets without labels."""
    preset, expected = GLUE[name], OFFICIAL[name][1]
    columns = preset.hub_columns
    feature = (
        datasets.ClassLabel(names=list(preset.classes))
        if preset.classes
        else datasets.Value("float32")
    )
    parts = dict(expected)
    parts["test"] = Examples(["a"], ["b"], [-1])
    if name == "mnli":
        parts["validation_matched"] = parts.pop("validation")
        parts |= {
            "test_matched": parts.pop("test"),
            "test_mismatched": Examples(["a"], ["b"], [-1]),
        }
    sets = {}
    for split, examples in parts.items():
        rows: dict[str, Any] = {str(columns.text): examples.texts}
        if columns.pair:
            rows[columns.pair] = examples.pairs
        rows |= {"label": examples.labels, "idx": list(range(len(examples)))}
        sets[split] = datasets.Dataset.from_dict(rows).cast_column("label", feature)
    return datasets.DatasetDict(sets)


@pytest.mark.parametrize("name", GLUE)
def test_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    requests = []

    def load_dataset(*names: Any) -> datasets.DatasetDict:
        requests.append(names)
        return on_the_hub(name)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded = load_glue(name)
    assert requests == [("nyu-mll/glue", name)]
    official = load_glue(name, write(tmp_path, OFFICIAL[name][0]))
    assert list(loaded) == list(official)
    for split, examples in official.items():
        here = loaded[split]
        assert (here.texts, here.pairs) == (examples.texts, examples.pairs)
        assert here.labels == pytest.approx(examples.labels)
        assert here.label_names == examples.label_names


def test_offline_is_one_line():
    with pytest.raises(UserError, match="cannot load the data set 'nyu-mll/glue'"):
        load_glue("mrpc")


def test_rows_and_guessed_columns():
    rows = [
        {"text": "a", "text_pair": "b", "label": 1},
        {"text": "c", "text_pair": "d", "label": 0},
    ]
    loaded = load_glue("mrpc", {"test": rows})["test"]
    assert loaded == Examples(["a", "c"], ["b", "d"], [1, 0], ["not_equivalent", "equivalent"])
    named = [{"first": "a", "second": "b", "label": "equivalent"}, {"first": "c", "second": "d"}]
    named[1]["label"] = "not_equivalent"
    assert load_glue("mrpc", named, columns=Columns("first", "second"))["train"].labels == [1, 0]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("mrpc", {"text": "a", "label": 1}, "MRPC is about pairs; name the columns with --text"),
        ("sst2", {"text": "a", "text_pair": "b", "label": 1}, "SST-2 is about single texts"),
        ("cola", {"words": "a", "label": 1}, "which column is the text"),
    ],
)
def test_columns_that_do_not_fit(name: str, row: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        load_glue(name, [row, row | {"label": 0}])
    assert message in str(error.value)


def test_texts_alone(tmp_path: Path):
    write(tmp_path, OFFICIAL["cola"][0])
    loaded = load_texts(tmp_path, reads=Classify.READS, preset=GLUE["cola"])
    assert loaded == ["Them left.", "They left."]
    write(tmp_path / "RTE", OFFICIAL["rte"][0])
    loaded = load_texts(tmp_path, reads=Classify.READS, preset=GLUE["rte"])
    assert loaded == [("a", "b"), ("c", "d")]
