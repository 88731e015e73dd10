"""Filler in a model whose every number is set by hand: a probe that likes some words more than the
one that decides, so that what is pushed out, and what brings it back, can be worked out."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from typer.testing import CliRunner

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from support.tables import write_rows
from toprune.bundle.bundle import Bundle
from toprune.cli import app
from toprune.errors import UserError
from toprune.inspection.explain.explain import SAME_WEIGHTS, explain
from toprune.inspection.stress.filler import PLACES, PLAIN, Filler, Padding, read_sentences
from toprune.inspection.stress.stress import AS_PRUNED, WORST, stress, verdict
from toprune.plan.plan import Plan, Step
from toprune.report.terminal import stressed
from toprune.tasks.intervals import share
from toprune.training.settings import Training

LAYERS, WIDTH, LIMIT = 4, 32, 64
BAD, FINE = ("w0", "w1"), ("w2", "w3")  # words that decide
NOISE, COLD, HOT = range(10, 40), range(40, 50), range(50, 60)
SCORES = dict.fromkeys((0, 1, 2, 3), 2.0) | dict.fromkeys(HOT, 3.0) | dict.fromkeys(COLD, -1.0)
PLAN = Plan(
    "bert",
    LAYERS,
    WIDTH,
    "probe",
    (Step(0, Fraction(1, 10)),),
    probe=(1.0, -1.0, *[0.0] * (WIDTH - 2)),
)


def hand_made() -> Any:
    """Every layer but the last hands its tokens on as they are; the last takes the mean of all that
    are left. Coordinates 0 and 1 of a word say what the probe thinks of it (SCORES, else 0), 2 and
    3 which class it speaks for; without such a word the answer is `fine`."""
    model = make_model()
    model.config.id2label, model.config.label2id = {0: "fine", 1: "bad"}, {"fine": 0, "bad": 1}
    eye = torch.eye(WIDTH)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "LayerNorm.weight" not in name:
                tensor.zero_()
        words = model.bert.embeddings.word_embeddings.weight
        words[:, 4], words[:, 5] = 2.0, -2.0  # lengths that are alike, so that norms change little
        for word, at in make_tokenizer().get_vocab().items():
            score = SCORES.get(int(word[1:]), 0.0) if word[0] == "w" else 0.0
            side = float(word in BAD) - float(word in FINE)
            words[at, :4] = torch.tensor([score, -score, side, -side])
        last = model.bert.encoder.layer[-1].attention
        last.self.value.weight.copy_(eye)
        last.output.dense.weight.copy_(20 * eye)
        model.bert.pooler.dense.weight.copy_(eye)
        model.classifier.weight[1, 2] = 10.0
        model.classifier.bias[1] = -0.01
    return model


def text(word: str, seed: int = 0, noise: int = 9) -> str:
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in rng.choice(NOISE, noise)]
    return " ".join([*words[:4], word, *words[4:]])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle; data with as many of each class; filler of words that rank high and of others."""
    folder = tmp_path_factory.mktemp("stress")
    report = {"task": "classify", "max_length": LIMIT}
    Bundle(hand_made(), make_tokenizer(), PLAN, report).save(folder / "small")
    rows = [
        {"text": text(w, i), "label": n} for i in range(4) for n, ws in SAID.items() for w in ws
    ]
    write_rows(folder / "data.jsonl", rows)
    write_rows(folder / "bare.jsonl", [{"text": row["text"]} for row in rows])
    for name, words in {"hot": HOT, "cold": COLD}.items():
        (folder / f"{name}.txt").write_text("\n".join(f"w{i}" for i in words) + "\n\n")
    return folder


SAID = {"bad": BAD, "fine": FINE}


def tried(place: Path, filler: str = "hot", **options: Any) -> dict[str, Any]:
    options = {"doses": (1, 3), "floors": ()} | options
    return stress(place / "small", place / "data.jsonl", filler=place / f"{filler}.txt", **options)


def row_of(report: dict[str, Any], name: str = AS_PRUNED, dose: int = 3, place: str = WORST) -> Any:
    rows = next(one for one in report["protections"] if one["name"] == name)["rows"]
    return next(row for row in rows if (row["dose"], row["place"]) == (dose, place))


# -- what filler does ------------------------------------------------------------------------------


def test_the_model_is_as_told(place: Path):
    found = explain(place / "small", [text("w0"), text("w2"), text("w10"), text("w0") + " w50"])
    assert [one.pruned["label"] for one in found.texts] == ["bad", "fine", "fine", "fine"]
    assert [one.dense["label"] for one in found.texts] == ["bad", "fine", "fine", "bad"]
    kept = [token.name for token in found.texts[0].windows[0].tokens if token.last == LAYERS - 1]
    assert kept == ["[CLS]", "w0"]  # ceil(12 / 10) tokens


def test_filler_that_ranks_high_pushes_the_decisive_word_out(place: Path):
    report = tried(place)
    assert report["texts"] == 16
    assert report["decisive"] == 1
    assert report["dense"] == SAME_WEIGHTS
    assert report["left_out"] == {"no_room": 0, "other_class": 0, "disagree": 0}
    (only,) = report["protections"]
    assert [(row["dose"], row["place"]) for row in only["rows"]] == [
        (dose, where) for dose in (1, 3) for where in (*PLACES, WORST)
    ]
    for row in only["rows"]:
        assert row["reached"] == row["dose"]  # one word, one token, and all fit
        assert row["recall"] == 0
        assert row["changed"] == {"dense": 0, "pruned": 0.5}  # who says nothing says fine
        assert row["missed"] == share(8, 16)


def test_filler_that_ranks_low_does_not(place: Path):
    report = tried(place, "cold", floors=(16,))
    for found in report["protections"]:
        for row in found["rows"]:
            assert row["recall"] == 1
            assert row["changed"] == {"dense": 0, "pruned": 0}
            assert row["missed"]["value"] == 0
            assert row["missed"]["high"] == pytest.approx(0.1936, abs=1e-3)
    assert "no reason to protect more" in report["verdict"]


def test_a_floor_brings_it_back_and_costs(place: Path):
    """A text of 10 words with as many of filler: [CLS], 10 hot words, then the one that decides."""
    report = tried(place, doses=(1,), floors=(11, 12, 20, 1))
    names = [one["name"] for one in report["protections"]]
    assert names == [AS_PRUNED, *(f"a floor of {n} tokens" for n in (11, 12, 20))]
    recalls = [row_of(report, name, 1)["recall"] for name in names]
    assert recalls == [0, 0, 1, 1]
    assert row_of(report, names[1], 1)["missed"]["value"] == 0.5
    assert row_of(report, names[2], 1)["missed"]["value"] == 0
    costs = [one["own"]["unpadded"] for one in report["protections"]]
    assert costs[1] < costs[0]
    assert costs[2] == costs[3] == pytest.approx(1, abs=0.01)  # texts of 12 tokens stay whole
    fewer = [row_of(report, name, 1)["executed"]["unpadded"] for name in names]
    assert fewer == sorted(fewer, reverse=True)
    assert fewer[3] > 1  # 22 tokens with filler: [CLS], 20 words, [SEP]
    assert "a floor of 12 tokens brings that to 0.0 % [0.0, 19.4]" in report["verdict"]
    assert f"costs {costs[0]:.2f}x -> {costs[2]:.2f}x" in report["verdict"]
    assert "miss 50.0 % [28.0, 72.0]" in report["verdict"]


def test_protected_words_stay(place: Path):
    report = tried(place, protect=BAD, floors=(11,))
    names = [one["name"] for one in report["protections"]]
    assert names == [AS_PRUNED, "protecting these words", "a floor of 11 tokens and these words"]
    ids = sorted(make_tokenizer().get_vocab()[word] for word in BAD)
    assert [one["protect"] for one in report["protections"]] == [[], ids, ids]
    for name in names[1:]:
        assert row_of(report, name)["recall"] == 0.5  # w2 and w3 are pushed out still
        assert row_of(report, name)["missed"]["value"] == 0  # but nobody misses them
    costs = [one["own"]["unpadded"] for one in report["protections"]]
    assert costs[1] == costs[0]  # they were kept anyway
    assert "protecting these words brings that to 0.0 %" in report["verdict"]


def test_nothing_helps(place: Path):
    report = tried(place, floors=(3,))
    assert "none of the protections that were tried lowers that" in report["verdict"]


def made_up(**missed: tuple[int, int]) -> list[dict[str, Any]]:
    """Plans by name, of which so many of 200 texts are missed at each of two doses."""
    return [
        {
            "name": name,
            "own": {"unpadded": 3.0 - i},
            "rows": [
                {"dose": dose, "place": where, "reached": float(dose), "missed": share(yes, 200)}
                for dose, yes in zip((1, 3), counts, strict=True)
                for where in (*PLACES, WORST)
            ],
        }
        for i, (name, counts) in enumerate(missed.items())
    ]


def test_a_protection_must_help_at_every_dose():
    """Whoever pads a text chooses how much: less at one dose for more at another is no help."""
    text = verdict(made_up(bare=(8, 9), floor=(16, 4)))
    assert "Filler 3.0 times" in text
    assert "none of the protections that were tried lowers that" in text
    text = verdict(made_up(bare=(9, 8), floor=(2, 4), other=(4, 4)))
    assert "Filler 1.0 times" in text
    assert "floor brings that to 2.0 % [0.8, 5.0]" in text
    assert "3.00x -> 2.00x" in text
    assert "The intervals overlap" in text
    assert "overlap" not in verdict(made_up(bare=(60, 80), floor=(2, 4)))


def test_as_explain_sees_it(place: Path):
    """Recall, counted again by another way: the names of the tokens that explain says are kept."""
    report = tried(place, floors=(9,), doses=(3,))
    texts = [json.loads(line)["text"] for line in (place / "data.jsonl").read_text().splitlines()]
    padding = Padding(
        make_tokenizer().backend_tokenizer, read_sentences(place / "hot.txt"), LIMIT, 0
    )
    bundle = Bundle.load(place / "small")
    bundle.plan = replace(PLAN, min_tokens=9)
    bundle.save(place / "floor")
    for where in PLACES:
        padded = [made.text for made in padding.pad(texts, where, 3)]
        counts = [
            sum(t.last == LAYERS - 1 and t.name in (*BAD, *FINE) for t in one.windows[0].tokens)
            for one in explain(place / "floor", padded).texts
        ]
        found = row_of(report, "a floor of 9 tokens", 3, where)
        assert found["recall"] == sum(counts) / len(texts)


# -- which texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["data.jsonl", "bare.jsonl"])
def test_one_class_alone(place: Path, data: str):
    hot = place / "hot.txt"
    report = stress(place / "small", place / data, filler=hot, of_class="bad", floors=())
    assert report["class_by"] == ("label" if data == "data.jsonl" else "dense")
    assert report["texts"] == report["left_out"]["other_class"] == 8
    assert row_of(report)["missed"] == share(8, 8)


def test_limit_and_seed(place: Path):
    one, same, other = (tried(place, limit=5, seed=seed) for seed in (0, 0, 3))
    assert one["texts"] == 5
    assert one == same
    assert row_of(one)["missed"] != row_of(other)["missed"]


def test_who_disagrees_without_filler_is_left_out(place: Path, tmp_path: Path):
    rows = [text("w0", i) for i in range(6)] + [text("w0", i) + " w50" for i in range(4)]
    write_rows(tmp_path / "data.jsonl", [{"text": row} for row in rows])
    report = stress(place / "small", tmp_path / "data.jsonl", filler=place / "hot.txt")
    assert (report["texts"], report["left_out"]["disagree"]) == (6, 4)


def test_filler_never_cuts_a_text_off(place: Path, tmp_path: Path):
    """Of 64 tokens, 40 words leave no room for as many, 25 do for one dose but not for three."""
    rows = [text("w0", i, 24) for i in range(3)] + [text("w0", i, 39) for i in range(2)]
    write_rows(tmp_path / "data.jsonl", [{"text": row} for row in rows])
    cold = place / "cold.txt"
    report = stress(place / "small", tmp_path / "data.jsonl", filler=cold, floors=())
    assert (report["texts"], report["left_out"]["no_room"]) == (3, 2)
    for where in PLACES:
        assert row_of(report, dose=1, place=where)["reached"] == 1
        assert row_of(report, dose=3, place=where)["reached"] == pytest.approx(37 / 25)
        assert row_of(report, dose=3, place=where)["recall"] == 1
    assert "Filler 1.5 times as long" in report["verdict"]


def test_half_a_character(place: Path, tmp_path: Path):
    rows = [{"text": text("w0", i) + " \ud800"} for i in range(2)]
    write_rows(tmp_path / "data.jsonl", rows)
    report = stress(place / "small", tmp_path / "data.jsonl", filler=place / "cold.txt", floors=())
    assert row_of(report)["recall"] == 1


def test_pairs_have_filler_in_the_second_text(place: Path, tmp_path: Path):
    rows = [{"text": "w11 w12", "text_pair": text("w0", i)} for i in range(3)]
    write_rows(tmp_path / "data.jsonl", rows)
    data, small = tmp_path / "data.jsonl", place / "small"
    hot, cold = (stress(small, data, filler=place / f"{name}.txt") for name in ("hot", "cold"))
    assert hot["texts"] == 3
    assert row_of(hot)["missed"] == share(3, 3)
    assert row_of(cold)["recall"] == 1
    assert row_of(cold)["reached"] == 3  # of ten words


def test_the_original_model_is_asked(place: Path, tmp_path: Path):
    """One that calls everything fine: nobody agrees on what is bad, so nothing can be missed."""
    model = hand_made()
    with torch.no_grad():
        model.classifier.bias[1] = -100
    Bundle(model, make_tokenizer(), None, {"task": "classify"}).save(tmp_path / "dense")
    report = tried(place, dense=tmp_path / "dense")
    assert (report["texts"], report["left_out"]["disagree"]) == (8, 8)
    assert row_of(report)["missed"]["value"] == 0
    assert str(tmp_path / "dense") in report["dense"]


def test_several_labels(tmp_path: Path, place: Path):
    model = hand_made()
    model.config.problem_type = "multi_label_classification"
    report_json = {"task": "multilabel", "task_settings": {"classes": 2}, "max_length": LIMIT}
    with torch.no_grad():
        model.classifier.bias[0] = -1
    Bundle(model, make_tokenizer(), PLAN, report_json).save(tmp_path / "small")
    write_rows(
        tmp_path / "data.jsonl", [{"text": text(w, i)} for i, w in enumerate(("w0", "w2") * 3)]
    )
    hot = place / "hot.txt"
    report = stress(tmp_path / "small", tmp_path / "data.jsonl", filler=hot, floors=())
    assert row_of(report)["missed"] == share(3, 6)
    report = stress(tmp_path / "small", tmp_path / "data.jsonl", filler=hot, of_class="bad")
    assert report["texts"] == 3


# -- a floor from the start ------------------------------------------------------------------------

NO_TRAINING = Training(soft_epochs=0, hard_epochs=0)
ROWS = {"train": synthetic.rows(64, 0), "test": synthetic.rows(32, 1)}


def test_prune_with_a_floor(tmp_path: Path):
    """The budget is met with it, and the page tells how to do it again."""
    how: Any = {"tokenizer": make_tokenizer(), "training": NO_TRAINING, "min_tokens": 12}
    bundle = toprune.prune(make_model(), ROWS, "1.5x", out=tmp_path / "small", **how)
    assert bundle.plan is not None
    assert bundle.plan.min_tokens == 12
    assert all(min(bundle.plan.lengths(n)) >= min(n, 12) for n in range(1, 33))
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.01)
    assert bundle.report["provenance"]["settings"]["min_tokens"] == 12
    assert "--min-tokens 12" in (tmp_path / "small" / "report.html").read_text()
    with pytest.raises(UserError, match=r"out of reach.* or for a lower --min-tokens"):
        toprune.prune(make_model(), ROWS, "3x", **how)


# -- filler ----------------------------------------------------------------------------------------


def raw() -> Tokenizer:
    return make_tokenizer().backend_tokenizer


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("original", ["w1 w2. w3 w4! w5", "w1", " w1 w2\n\nw3 ", "w1. "])
@pytest.mark.parametrize("count", [0, 1, 4, 25])
def test_every_character_is_found_again(where: str, original: str, count: int):
    made = Filler(["w6 w7", "w8"], raw()).pad(original, where, count, (0, 1))
    for i, letter in enumerate(original):
        assert made.text[made.where(i)] == letter
    words = make_tokenizer().tokenize
    added = [word for word in words(made.text) if word in ("w6", "w7", "w8")]
    assert len(added) == count
    rest = [word for word in words(made.text) if word not in ("w6", "w7", "w8")]
    assert rest == words(original)


def test_places():
    def padded(where: str, count: int) -> str:
        return Filler(["w9"], raw()).pad("w1 w2. w3. w4", where, count, (0,)).text

    assert padded("before", 2) == "w9 w9 w1 w2. w3. w4"
    assert padded("after", 2) == "w1 w2. w3. w4 w9 w9"
    assert padded("around", 4) == "w9 w9 w1 w2. w3. w4 w9 w9"
    assert padded("scattered", 4) == "w9 w1 w2. w9 w3. w9 w4 w9"


def test_longer_filler_begins_with_the_shorter():
    filler = Filler(PLAIN, raw())
    short, long = (filler.pad("w1", "after", count, (5, 2)).text for count in (20, 300))
    assert long.startswith(short)
    assert not filler.pad("w1", "after", 20, (5, 3)).text.startswith(short)


def test_words_are_not_cut_in_two():
    tokenizer = Tokenizer.from_str(raw().to_str())
    pieces = ["[UNK]", "be", "##nig", "##n", "w1"]
    tokenizer.model = WordPiece({word: i for i, word in enumerate(pieces)}, unk_token="[UNK]")
    filler = Filler(["benign"], tokenizer)
    assert filler.pad("w1", "after", 8, (0,)).text == "w1 benign benign"  # 6 tokens, not 8
    assert filler.pad("w1", "after", 9, (0,)).text == "w1 benign benign benign"


def test_shares():
    """Against the quadratic that Wilson's ends are the roots of."""
    for yes, of in ((0, 7), (3, 200), (5, 5)):
        found = share(yes, of)
        assert found["value"] == yes / of
        for end in (found["low"], found["high"]):
            apart = (end - yes / of) ** 2
            assert apart == pytest.approx(1.959964**2 * end * (1 - end) / of, abs=1e-9)
        assert 0 <= found["low"] <= found["value"] <= found["high"] <= 1


# -- the command -----------------------------------------------------------------------------------


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, ["stress", *map(str, words)])


def test_command(place: Path):
    words = (place / "small", "--data", place / "data.jsonl", "--filler", place / "hot.txt")
    done = call(*words, "--doses", "1", "--floors", "12,16", "--protect", "w0", "--json")
    assert done.exit_code == 0, done.output
    output = json.loads(done.stdout)
    assert output == json.loads(
        json.dumps(tried(place, doses=(1,), floors=(12, 16), protect=("w0",)))
    )
    assert set(output) == {
        *("bundle", "task", "dense", "filler", "class", "class_by", "texts", "left_out"),
        *("decisive", "max_length", "seed", "protections", "verdict"),
    }
    assert set(output["protections"][0]) == {"name", "min_tokens", "protect", "own", "rows"}
    assert set(output["protections"][0]["rows"][0]) == {
        *("dose", "place", "reached", "recall", "changed", "missed", "executed")
    }
    done = call(*words, "--floors", "0", "--limit", "4")
    assert done.exit_code == 0, done.output
    assert "Filler 3.0 times as long" in done.stdout
    assert "scattered" in done.stdout
    assert "\x1b" not in done.stdout


def test_our_own_sentences(place: Path):
    report = stress(place / "small", place / "data.jsonl", limit=2, doses=(1,), floors=())
    assert "plain English" in report["filler"]
    assert stressed(report).renderables
    assert len(set(PLAIN)) == len(PLAIN) == 12


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--doses", "0"), "--doses"),
        (("--doses", "a"), "whole numbers like 1,3"),
        (("--floors", "few"), "whole numbers like 16,32,64"),
        (("--filler", "nowhere.txt"), "nowhere.txt"),
        (("--class", "awful"), "fine, bad"),
        (("--protect", "jailbreak"), "not a token"),
        (("--doses", "60"), "16 leave no room"),
    ],
)
def test_command_refuses(place: Path, words: tuple[str, ...], names: str):
    done = call(place / "small", "--data", place / "data.jsonl", *words)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert names in line


def test_other_bundles_are_refused(place: Path, tmp_path: Path):
    data, empty = place / "data.jsonl", tmp_path / "empty.txt"
    empty.write_text(" \n")
    with pytest.raises(UserError, match="is empty"):
        stress(place / "small", data, filler=empty)
    for plan, names in (
        (None, r"no plan\.json"),
        (replace(PLAN, steps=()), "ranks no tokens"),
        (replace(PLAN, score="pooled", probe=None), "ranks no tokens"),
    ):
        Bundle(hand_made(), make_tokenizer(), plan, {"task": "classify"}).save(tmp_path / "other")
        with pytest.raises(UserError, match=names):
            stress(tmp_path / "other", data)
    model = make_model(num_labels=1)
    Bundle(model, make_tokenizer(), PLAN, {"task": "regress"}).save(tmp_path / "number")
    with pytest.raises(UserError, match="for the task regress"):
        stress(tmp_path / "number", data)
