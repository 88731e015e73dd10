"""GLUE by name: every official format as it is published, the hub's, and the way to a bundle."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from toprune import cli
from toprune.api import Data
from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.data.glue import GLUE
from toprune.data.presets import find_preset, recipe_of, with_preset
from toprune.data.recipes import SHORT
from toprune.data.sets import load_preset, load_texts
from toprune.errors import UserError
from toprune.methods.top import Top
from toprune.tasks import TASKS
from toprune.tasks.classify import Classify
from toprune.training.settings import FINETUNE, Training


def load_glue(name: str, source: Any = None, **options: Any) -> dict[str, Examples]:
    return load_preset(GLUE[name], source, reads=TASKS[GLUE[name].task].READS, **options)


# The official files, a few rows of each: quotation marks that open and never close, letters beyond
# ASCII, the byte order mark of MRPC, CoLA without a header.
HEADS = {
    "sst2": "sentence\tlabel",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    "\tscore",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
}
STS = "main-captions\tMSRvid\t2012test\t0001\tnone\tnone"
MNLI = "31193\t31193n\tgovernment\t( a )\t( b )\t(ROOT a)\t(ROOT b)"
MNLI_DEV_HEAD = HEADS["mnli"].replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5")
MNLI_DEV = "neutral\tneutral\tneutral\tneutral"
OFFICIAL: dict[str, tuple[dict[str, list[str]], dict[str, Examples]]] = {
    "cola": (
        {
            "train.tsv": ['gj04\t1\t\tHe said "no.', "ks08\t0\t*\tThe naïve — him saw."],
            "dev.tsv": ["l-93\t0\t*\tThem left.", "l-93\t1\t\tThey left."],
            "test.tsv": ["index\tsentence", "0\tBill whistled past the house."],
        },
        {
            "train": Examples(['He said "no.', "The naïve — him saw."], None, [1, 0]),
            "validation": Examples(["Them left.", "They left."], None, [0, 1]),
        },
    ),
    "sst2": (
        {
            "train.tsv": [HEADS["sst2"], "hide `` new '' secretions \t0", '" a café \t1'],
            "dev.tsv": [HEADS["sst2"], "charming \t1", "bleak \t0"],
            "test.tsv": ["index\tsentence", "0\tuneasy mishmash "],
        },
        {
            "train": Examples(["hide `` new '' secretions ", '" a café '], None, [0, 1]),
            "validation": Examples(["charming ", "bleak "], None, [1, 0]),
        },
    ),
    "mrpc": (
        {
            "train.tsv": [
                HEADS["mrpc"],
                '1\t702876\t702977\t"He called\t"the witness',
                "0\t2108705\t2108831\tYucaipa™\tSafeway",
            ],
            "dev.tsv": [HEADS["mrpc"], "1\t1\t2\ta\tb", "0\t3\t4\tc\td"],
            "test.tsv": ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tPCCW's\tSo"],
        },
        {
            "train": Examples(['"He called', "Yucaipa™"], ['"the witness', "Safeway"], [1, 0]),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 0]),
        },
    ),
    "stsb": (
        {
            "train.tsv": [
                HEADS["stsb"],
                f'0\t{STS}\tA "plane\tAn air plane\t5.000',
                f"1\t{STS}\tA flûte\tA flute\t3.800",
            ],
            "dev.tsv": [HEADS["stsb"], f"0\t{STS}\ta\tb\t0.25", f"1\t{STS}\tc\td\t4.75"],
            "test.tsv": [HEADS["stsb"].removesuffix("\tscore"), f"0\t{STS}\ta\tb"],
        },
        {
            "train": Examples(['A "plane', "A flûte"], ["An air plane", "A flute"], [5.0, 3.8]),
            "validation": Examples(["a", "c"], ["b", "d"], [0.25, 4.75]),
        },
    ),
    "qqp": (
        {
            "train.tsv": [
                HEADS["qqp"],
                '133273\t213221\t213222\tWhy "x?\tWhat is π?\t0',
                "402555\t536040\t536041\tDid Muhammad live? ",  # a line break in a question
                '"\tWas Muhammad a real historical figure?\t0',
                "360472\t364011\t490273\tHow can I develop an app?\t\t0",  # no second question
                "150662\t155721\t7256\tWhat?\tWhich?\t1",
            ],
            "dev.tsv": [HEADS["qqp"], "0\t1\t2\ta\tb\t1", "1\t3\t4\tc\td\t0"],
            "test.tsv": ["id\tquestion1\tquestion2", "0\ta\tb"],
        },
        {
            "train": Examples(
                ['Why "x?', "How can I develop an app?", "What?"],
                ["What is π?", "", "Which?"],
                [0, 0, 1],
            ),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 0]),
        },
    ),
    "mnli": (
        {
            "train.tsv": [
                HEADS["mnli"],
                f'0\t{MNLI}\tŒuvre "so\tGood\tneutral\tneutral',
                f"1\t{MNLI}\tYes\tYes, yes\tentailment\tentailment",
                f"2\t{MNLI}\tYes\tNo\tcontradiction\tcontradiction",
            ],
            "dev_matched.tsv": [
                MNLI_DEV_HEAD,
                f"0\t{MNLI}\ta\tb\tneutral\t{MNLI_DEV}\tneutral",
                f"1\t{MNLI}\tc\td\tentailment\t{MNLI_DEV}\tcontradiction",
            ],
            "dev_mismatched.tsv": [
                MNLI_DEV_HEAD,
                f"0\t{MNLI}\te\tf\tneutral\t{MNLI_DEV}\tentailment",
                f"1\t{MNLI}\tg\th\tneutral\t{MNLI_DEV}\tneutral",
            ],
            "test_matched.tsv": ["index\tsentence1\tsentence2", "0\ta\tb"],
        },
        {
            "train": Examples(['Œuvre "so', "Yes", "Yes"], ["Good", "Yes, yes", "No"], [1, 0, 2]),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 2]),
            "validation_mismatched": Examples(["e", "g"], ["f", "h"], [0, 1]),
        },
    ),
    "qnli": (
        {
            "train.tsv": [
                HEADS["qnli"],
                '0\tWhen did "Zürich?\tIn 1351.\tentailment',
                "1\tWho?\tNobody.\tnot_entailment",
            ],
            "dev.tsv": [HEADS["qnli"], "0\ta\tb\tnot_entailment", "1\tc\td\tentailment"],
            "test.tsv": ["index\tquestion\tsentence", "0\ta\tb"],
        },
        {
            "train": Examples(['When did "Zürich?', "Who?"], ["In 1351.", "Nobody."], [0, 1]),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 0]),
        },
    ),
    "rte": (
        {
            "train.tsv": [
                HEADS["rte"],
                '0\tNo "weapons.\tWeapons.\tnot_entailment',
                "1\tPope Jean-Paul Ⅱ\tA pope.\tentailment",
            ],
            "dev.tsv": [HEADS["rte"], "0\ta\tb\tentailment", "1\tc\td\tnot_entailment"],
            "test.tsv": ["index\tsentence1\tsentence2", "0\ta\tb"],
        },
        {
            "train": Examples(
                ['No "weapons.', "Pope Jean-Paul Ⅱ"], ["Weapons.", "A pope."], [1, 0]
            ),
            "validation": Examples(["a", "c"], ["b", "d"], [0, 1]),
        },
    ),
}


def write(folder: Path, files: dict[str, list[str]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    return folder


def plain(found: dict[str, Examples]) -> dict[str, Examples]:
    return {name: Examples(e.texts, e.pairs, e.labels) for name, e in found.items()}


# -- official files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GLUE)
def test_official_files(name: str, tmp_path: Path):
    files, expected = OFFICIAL[name]
    folder = write(tmp_path / GLUE[name].title, files)
    found = load_glue(name, folder)
    assert plain(found) == expected
    names = list(GLUE[name].classes) or None
    assert all(e.label_names == names for e in found.values())
    assert load_glue(name, tmp_path) == found  # the folder above
    assert load_glue(name, str(folder / "train.tsv")) == {"train": found["train"]}
    for split, examples in found.items():
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
    ("own", "ids"),
    [
        (None, [1, 0, 2]),
        (["Contradiction", "ENTAILMENT", "neutral"], [2, 1, 0]),  # the model's order
        (["LABEL_A", "LABEL_B", "LABEL_C"], [1, 0, 2]),  # names that say nothing
    ],
)
def test_names_of_the_model(own: list[str] | None, ids: list[int], tmp_path: Path):
    write(tmp_path, OFFICIAL["mnli"][0])
    assert load_glue("mnli", tmp_path, label_names=own)["train"].labels == ids


def test_ids_follow_the_names_of_the_model(tmp_path: Path):
    write(tmp_path, OFFICIAL["cola"][0])
    turned = load_glue("cola", tmp_path, label_names=["acceptable", "unacceptable"])
    assert turned["train"].labels == [0, 1]


@pytest.mark.parametrize(
    ("name", "files", "told"),
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
def test_bad_folders(name: str, files: dict[str, list[str]], told: str, tmp_path: Path):
    with pytest.raises(UserError) as error:
        load_glue(name, write(tmp_path / "data", files))
    assert told in str(error.value)


def test_splits_that_are_not_there(tmp_path: Path):
    write(tmp_path, OFFICIAL["mrpc"][0])
    with pytest.raises(UserError, match="test set of MRPC has no labels"):
        load_glue("mrpc", tmp_path, split="test")
    write(tmp_path / "RTE", OFFICIAL["rte"][0])
    with pytest.raises(
        UserError, match="no test set with labels in these files of RTE, only: train"
    ):
        load_glue("rte", tmp_path, split="test")


def test_other_names_are_no_presets():
    assert find_preset("wnli") is None
    assert find_preset("classify") is None


@pytest.mark.parametrize(
    ("written", "name"),
    [("sst-2", "sst2"), ("SST-2", "sst2"), ("sts-b", "stsb"), ("sts_b", "stsb"), ("MRPC", "mrpc")],
)
def test_names_as_users_write_them(written: str, name: str):
    assert find_preset(written) is GLUE[name]


# -- the hub and other sources ---------------------------------------------------------------------


def on_the_hub(name: str) -> datasets.DatasetDict:
    """What `load_dataset("nyu-mll/glue", name)` gives: the same rows, test sets without labels."""
    glue, expected = GLUE[name], OFFICIAL[name][1]
    columns = glue.hub_columns
    kind = (
        datasets.ClassLabel(names=list(glue.classes)) if glue.classes else datasets.Value("float32")
    )
    parts = dict(expected)
    parts["test"] = Examples(["a"], ["b"], [-1])
    if name == "mnli":
        parts["validation_matched"] = parts.pop("validation")
        parts |= {
            "test_matched": parts.pop("test"),
            "test_mismatched": Examples(["a"], ["b"], [-1]),
        }
    made = {}
    for split, examples in parts.items():
        rows: dict[str, Any] = {str(columns.text): examples.texts}
        if columns.pair:
            rows[columns.pair] = examples.pairs
        rows |= {"label": examples.labels, "idx": list(range(len(examples)))}
        made[split] = datasets.Dataset.from_dict(rows).cast_column("label", kind)
    return datasets.DatasetDict(made)


@pytest.mark.parametrize("name", GLUE)
def test_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def load_dataset(*words: Any) -> datasets.DatasetDict:
        asked.append(words)
        return on_the_hub(name)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = load_glue(name)
    assert asked == [("nyu-mll/glue", name)]
    official = load_glue(name, write(tmp_path, OFFICIAL[name][0]))
    assert list(found) == list(official)
    for split, examples in official.items():
        here = found[split]
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
    found = load_glue("mrpc", {"test": rows})["test"]
    assert found == Examples(["a", "c"], ["b", "d"], [1, 0], ["not_equivalent", "equivalent"])
    named = [{"first": "a", "second": "b", "label": "equivalent"}, {"first": "c", "second": "d"}]
    named[1]["label"] = "not_equivalent"
    assert load_glue("mrpc", named, columns=Columns("first", "second"))["train"].labels == [1, 0]


@pytest.mark.parametrize(
    ("name", "row", "told"),
    [
        ("mrpc", {"text": "a", "label": 1}, "MRPC is about pairs; name the columns with --text"),
        ("sst2", {"text": "a", "text_pair": "b", "label": 1}, "SST-2 is about single texts"),
        ("cola", {"words": "a", "label": 1}, "which column is the text"),
    ],
)
def test_columns_that_do_not_fit(name: str, row: dict[str, Any], told: str):
    with pytest.raises(UserError) as error:
        load_glue(name, [row, row | {"label": 0}])
    assert told in str(error.value)


def test_texts_alone(tmp_path: Path):
    write(tmp_path, OFFICIAL["cola"][0])
    found = load_texts(tmp_path, reads=Classify.READS, preset=GLUE["cola"])
    assert found == ["Them left.", "They left."]
    write(tmp_path / "RTE", OFFICIAL["rte"][0])
    found = load_texts(tmp_path, reads=Classify.READS, preset=GLUE["rte"])
    assert found == [("a", "b"), ("c", "d")]


# -- recipes and metrics ---------------------------------------------------------------------------


def test_short_is_what_the_library_does():
    soft = SHORT.epochs * SHORT.soft
    assert (
        Training(soft_epochs=soft, hard_epochs=SHORT.epochs - soft, **SHORT.training) == Training()
    )
    assert Top(**SHORT.methods.get("top", {})) == Top()
    assert SHORT.soft == cli.SOFT_SHARE
    assert SHORT.score == Top.SCORES[0]
    options = inspect.signature(cli.finetune).parameters
    assert FINETUNE.hard_epochs == options["epochs"].default
    assert FINETUNE.lr == options["lr"].default


@pytest.mark.parametrize("name", GLUE)
def test_every_task_is_whole(name: str):
    glue = GLUE[name]
    assert set(glue.metrics) <= set(TASKS[glue.task].METRICS)
    paper = glue.paper
    Top(**paper.methods["top"])
    Training(**paper.training)
    replace(FINETUNE, **paper.finetune)
    assert paper.training["sparsity_warmup"] < 1


def test_the_recipe_of_the_paper():
    """The README's table: bins, top-k, warm-up and all epochs; SST-2's rate."""
    table = {
        "cola": (20, 10, 50, 100),
        "rte": (100, 20, 50, 80),
        "qqp": (50, 20, 10, 40),
        "mrpc": (50, 20, 150, 200),
        "sst2": (25, 20, 10, 40),
        "mnli": (50, 20, 10, 40),
        "qnli": (50, 20, 10, 40),
        "stsb": (30, 20, 50, 150),
    }
    for name, (bins, top_k, warmup, epochs) in table.items():
        recipe = recipe_of(name, "paper")
        top = recipe.methods["top"]
        assert (top["bins"], top["top_k"]) == (bins, top_k)
        assert (recipe.epochs, recipe.soft) == (epochs, 1)
        assert recipe.training["sparsity_warmup"] * epochs == pytest.approx(warmup)
    assert recipe_of("sst2", "paper").training["lr"] == 1e-5
    lengths = {name: glue.max_length for name, glue in GLUE.items()}
    assert lengths == {n: 128 for n in lengths} | {"cola": 64, "sst2": 64, "stsb": 64, "rte": 256}


def test_schedules_are_for_glue():
    assert recipe_of("classify", None) is recipe_of("mrpc", "short") is SHORT
    with pytest.raises(UserError, match="tasks of GLUE"):
        recipe_of("classify", "short")
    with pytest.raises(UserError, match="use short or paper"):
        recipe_of("mrpc", "long")


def test_the_task_is_judged_by_its_metric_first():
    report = {"metrics": {"accuracy": 1, "f1": 2, "matthews": 3}}
    assert list(with_preset(report, GLUE["cola"])["metrics"]) == ["matthews", "accuracy", "f1"]
    assert list(with_preset(report, GLUE["mrpc"])["metrics"]) == ["f1", "accuracy", "matthews"]
    assert with_preset(report, GLUE["mrpc"])["glue"] == "mrpc"
    assert with_preset(report, None) == report


# -- from end to end -------------------------------------------------------------------------------


def call(*words: Any) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def succeed(*words: Any) -> dict[str, Any]:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(done: Result, names: str) -> None:
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("toprune: ")
    assert names in line


def mrpc_lines(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    found = [HEADS["mrpc"]]
    for i, row in enumerate(synthetic.rows(count, seed)):
        other = " ".join(f"w{j}" for j in rng.integers(10, 60, 20))
        found.append(f"{row['label']}\t{i}\t{i}\t{row['text']}\t{other}")
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a folder of MRPC that are in order; tests must not change them."""
    place = tmp_path_factory.mktemp("place")
    make_model().save_pretrained(place / "model")
    make_tokenizer().save_pretrained(place / "model")
    files = {"train.tsv": mrpc_lines(40, 0), "dev.tsv": mrpc_lines(20, 1)}
    write(place / "MRPC", files | {"test.tsv": mrpc_lines(30, 2)})
    write(place / "SST-2", OFFICIAL["sst2"][0])
    write(place / "STS-B", OFFICIAL["stsb"][0])
    return place


def test_from_name_to_bundle(place: Path, tmp_path: Path):
    small = tmp_path / "small"
    report = succeed(
        *("prune", "--model", place / "model", "--task", "MRPC", "--data", place / "MRPC"),
        *("--budget", "2x", "--epochs", 0, "--out", small),
    )
    assert (report["task"], report["glue"]) == ("classify", "mrpc")
    assert report["examples"] == 20  # validation, though there is a test set
    assert report["max_length"] == 66  # the model cannot take the paper's 128
    assert list(report["difference"]) == ["f1", "accuracy", "matthews"]
    settings = report["provenance"]["settings"]
    assert (settings["glue"], settings["schedule"]) == ("mrpc", "short")
    assert settings["examples"] == 40

    again = succeed("eval", small, "--data", place / "MRPC")
    assert again["metrics"] == report["pruned"]
    assert next(iter(again["metrics"])) == "f1"
    assert succeed("eval", small, "--data", place / "MRPC", "--split", "test")["examples"] == 30
    assert succeed("eval", small, "--data", place / "MRPC" / "dev.tsv") == again
    refused(call("eval", small, "--data", place / "SST-2"), "not a file of MRPC")

    rows = [{"text": "w1 w2", "text_pair": "w3", "label": i % 2} for i in range(4)]
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert succeed("eval", small, "--data", own)["examples"] == 4

    exported = succeed("export", small, "--data", place / "MRPC")
    onnx = succeed("eval", small, "--data", place / "MRPC", "--runtime", "onnx")
    assert onnx["metrics"] == exported["measured"]["fp32"]["metrics"] == again["metrics"]
    assert list(onnx["metrics"]) == list(again["metrics"])


def test_the_paper_in_the_settings(place: Path, tmp_path: Path):
    """Seen in the report; what is said on the command line wins."""
    words = ("prune", "--model", place / "model", "--task", "mrpc", "--data", place / "MRPC")
    words += ("--budget", "1.5x", "--epochs", 0, "--schedule", "paper")
    settings = succeed(*words, "--out", tmp_path / "a")["provenance"]["settings"]
    assert (settings["schedule"], settings["score"]) == ("paper", "received")
    assert settings["training"]["lr"] == 2e-5
    assert settings["training"]["sparsity_warmup"] == 0.75
    assert (settings["method_settings"]["first"], settings["method_settings"]["constraint"]) == (
        1,
        "lagrangian",
    )
    more = ("--score", "probe", "--lr", 3e-5, "--bins", 10, "--first-layer", 0)
    settings = succeed(*words, *more, "--out", tmp_path / "b")["provenance"]["settings"]
    assert settings["score"] == "probe"
    assert settings["training"]["lr"] == 3e-5
    assert (settings["method_settings"]["bins"], settings["method_settings"]["first"]) == (10, 0)
    assert settings["method_settings"]["top_k"] == 20


def test_the_epochs_of_the_paper(place: Path, monkeypatch: pytest.MonkeyPatch):
    """200, or as many as are said; masks are learned in all of them, unless that is said, too."""
    seen: list[dict[str, Any]] = []

    def prune(*words: Any, **how: Any) -> Any:
        seen.append(how)
        raise UserError("enough")

    monkeypatch.setattr(toprune, "prune", prune)
    words = ("prune", "--model", "m", "--task", "mrpc", "--budget", "2x", "--out", "o")
    for more in ((), ("--epochs", 30), ("--epochs", 30, "--soft-epochs", 10)):
        refused(call(*words, "--schedule", "paper", *more), "enough")
    refused(call(*words), "enough")
    epochs = [(how["training"].soft_epochs, how["training"].hard_epochs) for how in seen]
    assert epochs == [(200, 0), (30, 0), (10, 20), (1, 4)]
    assert seen[-1]["training"] == Training()
    assert seen[-1]["method"] == Top()


@pytest.mark.slow
def test_train_by_name(place: Path, tmp_path: Path):
    dense = tmp_path / "dense"
    words = ("finetune", "--model", place / "model", "--task", "mrpc", "--data", place / "MRPC")
    report = succeed(*words, "--schedule", "paper", "--epochs", 1, "--out", dense)
    assert (report["task"], report["glue"], report["examples"]) == ("classify", "mrpc", 20)
    config = json.loads((dense / "config.json").read_text())
    assert config["id2label"] == {"0": "not_equivalent", "1": "equivalent"}
    written = json.loads((dense / "report.json").read_text())
    assert written["max_length"] == 66
    settings = written["provenance"]["settings"]
    assert (settings["glue"], settings["schedule"]) == ("mrpc", "paper")
    assert (settings["training"]["hard_epochs"], settings["training"]["lr"]) == (1, 2e-5)
    found = toprune.evaluate(dense, place / "MRPC")
    assert found["metrics"] == report["metrics"]

    words = ("prune", "--model", dense, "--task", "mrpc", "--data", place / "MRPC")
    words += ("--schedule", "paper", "--epochs", 2, "--budget", "1.5x", "--out", tmp_path / "small")
    report = succeed(*words)
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.01)
    training = report["provenance"]["settings"]["training"]
    assert (training["soft_epochs"], training["hard_epochs"]) == (2, 0)
    assert training["dropout"] is True


def test_regression_by_name():
    rows = [
        {"sentence1": row["text"], "sentence2": "w1 w2", "label": i / 8}
        for i, row in enumerate(synthetic.rows(40, 0))
    ]
    bundle = toprune.prune(
        make_model(num_labels=1),
        Data({"train": rows, "validation": rows}, max_length=32),
        "1.5x",
        task="sts-b",
        tokenizer=make_tokenizer(),
        training=Training(soft_epochs=0, hard_epochs=0),
    )
    assert (bundle.report["task"], bundle.report["glue"]) == ("regress", "stsb")
    assert bundle.report["max_length"] == 32
    assert list(bundle.report["pruned"]) == ["pearson", "spearman"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "wrong folder": ({"data": "SST-2"}, "not a file of MRPC"),
    "no folder": ({"data": "model/none"}, "check the path"),
    "unknown task": ({"task": "wnli"}, "of GLUE: cola, sst2, mrpc"),
    "no data, no task": ({"data": None, "task": "classify"}, "--data"),
    "no data, no hub": ({"data": None}, "nyu-mll/glue"),
    "schedule without a task": ({"task": "classify", "schedule": "paper"}, "tasks of GLUE"),
    "unknown schedule": ({"schedule": "long"}, "'short', 'paper'"),
    "too long": ({"max_length": 512}, "66"),
}


def test_head_for_classes(place: Path, tmp_path: Path):
    words = ("prune", "--model", place / "model", "--task", "stsb", "--data", place / "STS-B")
    refused(call(*words, "--budget", "2x", "--out", tmp_path / "out"), "use the task classify")


@pytest.mark.parametrize("command", ["prune", "finetune"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, command: str, place: Path, tmp_path: Path):
    asked, names = BAD[case]
    given = {"model": place / "model", "data": "MRPC", "task": "mrpc", "out": tmp_path / "out"}
    given |= {"budget": "2x", "epochs": 0} if command == "prune" else {}
    given |= asked
    if given["data"]:
        given["data"] = place / given["data"]
    words = [
        word
        for name, value in given.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    refused(call(command, *words), names)
    assert not list(tmp_path.iterdir())
