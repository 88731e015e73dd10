"""What is told of every token is what another execution does with it."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from support.explain_case import LAYERS, TEXT, make_bundle, make_plan
from support.models import make_model, make_tokenizer
from support.tables import write_rows
from toprune.bundle.bundle import Bundle
from toprune.cli import app
from toprune.errors import UserError
from toprune.inspection.explain.explain import SAME_WEIGHTS, explain
from toprune.inspection.explain.explanation import Explained, Window, prediction_text, verdict
from toprune.inspection.explain.terminal import explain_text, seen_by, shades_of
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan, Step
from toprune.pruning.attach import attach, attached, detach

ADAPTIVE = (Step(0, Fraction(1), threshold=0.08), Step(2, Fraction(1, 2), threshold=0.1))
PLANS: dict[str, Plan] = {
    "probe": make_plan("probe"),
    "received": make_plan(),
    "accumulated": make_plan("accumulated"),
    "random": make_plan("random"),
    "predicted": make_plan("predicted", predictor=8),
    "pooled": make_plan("pooled"),
    "adaptive": make_plan(steps=ADAPTIVE),
    "protected": make_plan(protect=(2, 9), min_tokens=3),
    "nothing leaves": make_plan(steps=()),
}


def simulated(folder: Path, text: Any) -> tuple[list[set[int]], torch.Tensor, torch.Tensor]:
    """The positions that are alive in each layer when rows are masked, not gathered; and what the
    model says then, and without the plan."""
    bundle = Bundle.load(folder)
    batch = dict(
        bundle.tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")
    )
    assert bundle.plan is not None
    with torch.inference_mode():
        attach(bundle.model, bundle.plan, gather=False)
        pruned = task_outputs(bundle.model, bundle.task, batch)[0]
        run = attached(bundle.model)
        assert run is not None
        alive = [set(tokens.index[0][tokens.alive[0]].tolist()) for tokens in run.entered]
        dense = task_outputs(detach(bundle.model), bundle.task, batch)[0]
    return alive, pruned[0], dense[0]


def only(explained: Explained) -> Window:
    (text,) = explained.texts
    (window,) = text.windows
    return window


@pytest.mark.parametrize("name", PLANS)
def test_as_masked(name: str, tmp_path: Path):
    folder = make_bundle(tmp_path / "small", PLANS[name])
    explained = explain(folder, [TEXT])
    window = only(explained)
    alive, pruned, dense = simulated(folder, TEXT)
    n = len(window.tokens)
    assert n == 12
    for layer, there in enumerate(alive):
        assert {i for i in range(n) if window.tokens[i].last >= layer} == there
    assert list(window.entering) == list(map(len, alive))
    if name != "adaptive":
        assert list(window.entering) == PLANS[name].lengths(n, held=3 if name == "protected" else 1)
    for prediction, logits in (
        (explained.texts[0].pruned, pruned),
        (explained.texts[0].dense, dense),
    ):
        assert prediction["label"] == int(logits.argmax())
        assert prediction["score"] == pytest.approx(float(logits.softmax(0).max()), abs=1e-4)
    assert explained.dense == SAME_WEIGHTS


def test_characters_and_names(tmp_path: Path):
    folder = make_bundle(tmp_path / "small", make_plan())
    text = "  w1   w22\nw3 "
    explained = explain(folder, [(text, "w4 w5")])
    window = only(explained)
    names = [token.name for token in window.tokens]
    assert names == ["[CLS]", "w1", "w22", "w3", "[SEP]", "w4", "w5", "[SEP]"]
    assert [token.part for token in window.tokens] == [None, 0, 0, 0, None, 1, 1, None]
    for token in window.tokens:
        if token.part is not None:
            assert explained.texts[0].parts[token.part][token.start : token.end] == token.name
    pieces = list(explained.texts[0].pieces(window))
    assert "".join(p.text for p in pieces) == "[CLS]w1   w22\nw3 [SEP]w4 w5[SEP]"
    assert [p.token for p in pieces if p.token is not None] == list(range(8))


def test_what_is_cut_off_is_told(tmp_path: Path):
    folder = make_bundle(tmp_path / "small", make_plan(), max_length=6)
    explained = explain(folder, [TEXT])
    shown = "".join(piece.text for piece in explained.texts[0].pieces(only(explained)))
    assert shown == "[CLS]w1 w2 w3 w4 …[SEP]"


def test_rankings_of_received_attention(tmp_path: Path):
    """Anew at every step, among those who are there; scores are shares of attention."""
    window = only(explain(make_bundle(tmp_path / "small", make_plan()), [TEXT]))
    for layer in (0, 2):
        ranked = {
            i: r
            for i, token in enumerate(window.tokens)
            for r in token.rankings
            if r.layer == layer
        }
        assert len(ranked) == window.entering[layer]
        assert sum(r.score for r in ranked.values()) == pytest.approx(1, abs=1e-5)
        assert sorted(r.rank for r in ranked.values()) == list(range(len(ranked)))
        assert ranked[0].rank == 0  # the first token, whatever its score
        by_score = sorted((i for i in ranked if i), key=lambda i: -ranked[i].score)
        assert sorted((i for i in ranked if i), key=lambda i: ranked[i].rank) == by_score
        kept = {i for i in ranked if window.tokens[i].last > layer}
        assert kept == {i for i in ranked if ranked[i].rank < window.entering[layer + 1]}
    assert all(not token.rankings for token in window.tokens if token.last < 0)


def test_one_ranking_for_good(tmp_path: Path):
    window = only(explain(make_bundle(tmp_path / "small", make_plan("random")), [TEXT]))
    for i, token in enumerate(window.tokens):
        (ranked,) = token.rankings
        assert (ranked.layer, ranked.score) == (0, (i + 12345) ** 3 % 65519)


def test_merged_tokens_stand_together(tmp_path: Path):
    """12 tokens become 8 in layer 1, 4 in layer 3: [CLS] alone, the others in runs."""
    explained = explain(make_bundle(tmp_path / "small", make_plan("pooled")), [TEXT])
    window = only(explained)
    merged = {i: token for i, token in enumerate(window.tokens) if token.into is not None}
    stay = [i for i, token in enumerate(window.tokens) if token.last == LAYERS - 1]
    assert len(stay) == window.entering[-1] == 4
    assert merged.keys() == set(range(12)) - set(stay)  # nobody is lost
    for i, token in merged.items():
        assert token.into is not None
        assert token.into < i
        assert window.tokens[token.into].last > token.last
        assert not token.rankings
    # Layer 1: eleven go to seven places, the j-th to j * 7 // 11; layer 3: seven to three.
    assert {i: token.into for i, token in merged.items() if token.last == 0} == {
        2: 1,
        4: 3,
        7: 6,
        10: 9,
    }
    assert {i: token.into for i, token in merged.items() if token.last == 2} == {
        3: 1,
        5: 1,
        8: 6,
        11: 9,
    }
    assert seen_by(explained.texts[0], window, 1) == ("[CLS] w1+w2 w3+w4 w5 w6+w7 w8 w9+w10 [SEP]")


def test_windows_of_an_answer(tmp_path: Path):
    plan = make_plan(restore="last", protect_until=2)
    settings = {"stride": 4, "max_answer": 5}
    folder = make_bundle(
        tmp_path / "small", plan, "answer", "answer", max_length=16, task_settings=settings
    )
    context = " ".join(f"w{i}" for i in range(20, 50))
    explained = explain(folder, [("w1 w2", context), ("w1", "w20 w21")])
    first, second = explained.texts
    assert len(first.windows) > 2
    assert len(second.windows) == 1
    for window in first.windows:
        assert [token.name for token in window.tokens[:4]] == ["[CLS]", "w1", "w2", "[SEP]"]
        assert all(token.protected and token.last == LAYERS - 1 for token in window.tokens[:4])
        pieces = [p.text for p in first.pieces(window)]
        assert pieces.count("… ") == (window is not first.windows[0])
    read = {token.start for window in first.windows for token in window.tokens if token.part == 1}
    assert len(read) == 30
    assert first.pruned["answer"] == context[first.pruned["start"] : first.pruned["end"]]


def test_words_and_their_tags(tmp_path: Path):
    folder = make_bundle(tmp_path / "small", make_plan(restore="last"), "tokens", "tokens")
    explained = explain(folder, ["w1 w2  w3", ["w4", "w5"]])
    assert [text.parts for text in explained.texts] == [("w1 w2 w3",), ("w4 w5",)]
    spans = [(token.start, token.end) for token in explained.texts[0].windows[0].tokens[1:-1]]
    assert spans == [(0, 2), (3, 5), (6, 8)]
    assert len(explained.texts[0].pruned["tags"]) == 3


def test_vectors_are_compared(tmp_path: Path):
    plan = make_plan(restore="last")
    folder = make_bundle(tmp_path / "small", plan, "encoder", "embed")
    (text,) = explain(folder, [TEXT]).texts
    one, other = (torch.tensor(p["vector"]) for p in (text.pruned, text.dense))
    assert text.cosine == pytest.approx(float(one @ other), abs=1e-5)  # of length one both
    assert "cosine" in verdict(text)[0]


def test_the_original_model_speaks_when_it_is_given(tmp_path: Path):
    small = make_bundle(tmp_path / "small", make_plan(steps=()))
    model = make_model(seed=7)
    Bundle(model, make_tokenizer(), None, {"task": "classify"}).save(tmp_path / "dense")
    explained = explain(small, [TEXT], dense=tmp_path / "dense")
    with torch.inference_mode():
        logits = model(**make_tokenizer()(TEXT, return_tensors="pt")).logits[0]
    assert explained.texts[0].dense["score"] == pytest.approx(
        float(logits.softmax(0).max()), abs=1e-5
    )
    assert str(tmp_path / "dense") in explained.dense
    assert explained.texts[0].pruned["score"] != pytest.approx(explained.texts[0].dense["score"])


def test_no_plan(tmp_path: Path):
    folder = make_bundle(tmp_path / "dense", None)
    with pytest.raises(UserError, match=r"no plan\.json"):
        explain(folder, [TEXT])


# -- in the terminal -------------------------------------------------------------------------------


def test_told_by_layer(tmp_path: Path):
    explained = explain(make_bundle(tmp_path / "small", make_plan("random")), ["w1 w2 w3 w4"])
    text, window = explained.texts[0], only(explained)
    assert seen_by(text, window, 0) == "[CLS] w1 w2 w3 w4 [SEP]"
    kept = {token.name for token in window.tokens if token.last >= 3}
    last = seen_by(text, window, 3)
    assert kept == set(last.replace("…", " ").split())
    assert last.count("…") >= 1
    console = Console(width=100, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(explain_text(explained, console))
    output = console.export_text()
    assert "[CLS] w1 w2 w3 w4 [SEP]" in output
    assert last in output
    assert f"dense: {SAME_WEIGHTS}" in output


def test_fades_on_a_terminal(tmp_path: Path):
    explained = explain(make_bundle(tmp_path / "small", make_plan("random")), [TEXT])
    shades = shades_of(LAYERS, light=False)
    assert shades[-1] == "bold"
    greys = [int(shade[4:].split(",")[0]) for shade in shades[:-1]]
    assert greys == sorted(greys)
    assert shades_of(LAYERS, light=True)[0] > shades_of(LAYERS, light=True)[2]
    console = Console(width=200, force_terminal=True, color_system="truecolor", no_color=False)
    with console.capture() as output:
        console.print(explain_text(explained, console))
    for token in only(explained).tokens:
        style = (
            "1" if token.last == LAYERS - 1 else f"38;2;{';'.join([str(greys[token.last])] * 3)}"
        )
        assert f"\x1b[{style}m{token.name}\x1b[0m" in output.get()
    plain = Console(width=200, force_terminal=True, color_system="truecolor", no_color=True)
    with plain.capture() as output:
        plain.print(explain_text(explained, plain))
    assert "\x1b[38" not in output.get()
    assert "what it sees" in output.get()


def test_a_text_gives_no_orders_to_the_terminal(tmp_path: Path):
    explained = explain(make_bundle(tmp_path / "small", make_plan()), ["w1 \x1b[31mw2\x07"])
    console = Console(force_terminal=True, color_system="truecolor", no_color=False)
    with console.capture() as output:
        console.print(explain_text(explained, console))
    assert "\x1b[31m" not in output.get()
    assert "\x07" not in output.get()


def test_predictions_prediction_text():
    assert prediction_text({"label": "good", "score": 0.5}) == "good (50.0%)"
    assert prediction_text({"labels": []}) == "no label"
    assert prediction_text({"answer": "", "score": 0.25}) == "no answer (25.0%)"
    assert prediction_text({"tags": ["B-X"], "entities": [{"text": "a", "type": "X"}]}) == "a (X)"
    assert prediction_text({"tags": [0, 2]}) == "0 2"
    assert prediction_text({"value": 1.5}) == "1.5000"
    assert prediction_text({"score": 0.125}) == "0.1250"


# -- the command -----------------------------------------------------------------------------------


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_command(tmp_path: Path):
    folder = make_bundle(tmp_path / "small", make_plan())
    done = call(folder, TEXT, "w3 w4", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    output = json.loads(done.stdout)
    assert output == json.loads(json.dumps(explain(folder, [TEXT, "w3 w4"]).to_dict()))
    done = call(folder, TEXT)
    assert "what it sees" in done.stdout
    assert "\x1b" not in done.stdout


def test_command_reads_files_and_writes_a_page(tmp_path: Path):
    folder = make_bundle(tmp_path / "small", make_plan())
    rows = [{"first": f"w{i} w2", "second": "w3"} for i in range(5)]
    data = tmp_path / "data.jsonl"
    write_rows(data, rows)
    page = tmp_path / "page.html"
    arguments = (folder, "--data", data, "--text", "first", "--pair", "second", "--rows", 3)
    output = json.loads(call(*arguments, "--json", "--html", page).stdout)
    assert [text["parts"] for text in output["texts"]] == [[f"w{i} w2", "w3"] for i in range(3)]
    assert page.read_text().count("<article") == 3
    refused = call(*arguments, "--html", page)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    done = call(*arguments, "--html", page, "--overwrite")
    assert f"The page is in {page}." in done.stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), "give a text"),
        (("a", "b", "--pair", "c"), "one --pair for each text"),
        (("a", "--data", "x.csv"), "not both"),
    ],
)
def test_command_refuses(arguments: tuple[str, ...], names: str, tmp_path: Path):
    done = call(make_bundle(tmp_path / "small", make_plan()), *arguments)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert names in line
