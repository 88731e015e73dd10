"""The Runner: same answers in any company, in order, from any number of threads, or none at all."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toprune
from support.models import make_tokenizer
from support.refusals import one_line_error
from support.toy_bundle import (
    LABELS,
    MAX_LENGTH,
    PLAN,
    expected,
    make_bundle,
    mixed_texts,
    token_outputs,
    write_graph,
    write_manifest,
)
from toprune.errors import UserError
from toprune.plan.plan import Plan
from toprune.run import engines
from toprune.run import runner as module
from toprune.run.engines import OnnxRuntime
from toprune.run.runner import PADDED, Runner, batches
from toprune.tasks import Answer, Classify, Embed, Tags, make_task


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def run(bundle: Path) -> Runner:
    return Runner(bundle, threads=1)


# Answers


@pytest.mark.parametrize("batch_tokens", [1, 40, 2048])
@pytest.mark.parametrize("family", ["bert", "roberta"])  # with and without segments
def test_equals_row_by_row(tmp_path: Path, family: str, batch_tokens: int):
    run = Runner(make_bundle(tmp_path, family=family), threads=1, batch_tokens=batch_tokens)
    texts = mixed_texts(200)
    logits = run(texts)
    np.testing.assert_array_equal(logits, expected(texts, family=family))
    assert logits.dtype == np.float32


def test_order_over_windows(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AHEAD", 16)
    texts = mixed_texts(100)
    wanted = expected(texts)
    np.testing.assert_array_equal(run(texts), wanted)
    np.testing.assert_array_equal(run(texts[::-1]), wanted[::-1])
    np.testing.assert_array_equal(list(run.stream(texts)), wanted)


def test_outputs_that_only_the_manifest_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "_outputs", lambda *_: None)
    assert Runner(make_bundle(tmp_path))([]).shape == (0, 3)
    write_manifest(tmp_path, labels=None)
    not_run(tmp_path, "has None outputs, the manifest has None")


@pytest.mark.parametrize("task", [Classify(stride=4), Answer(stride=4), Tags(), Embed()])
def test_texts_that_are_tokenized_before(tmp_path: Path, task: Any):
    run = Runner(make_bundle(tmp_path, task=task), threads=1)
    words = ["w1 w2", "w3 " * 40, "w4"]
    texts: list[Any] = [text.split() if task.READS.words else text for text in words]
    if task.FINDS_SPANS:
        texts = [("w5", text) for text in words]
    encoded = run.encode(texts)
    assert [one.text for one in encoded] == texts
    assert [len(one.rows) > 1 for one in encoded] == [False, task.overlap is not None, False]
    assert run.predict([encoded[2], texts[1], encoded[0]]) == run.predict(texts[::-1])
    for prediction, logits in run.answers(encoded):
        assert prediction.keys() == run.predict(texts)[0].keys()
        assert (logits is None) == task.BY_TOKEN
    if not task.BY_TOKEN:
        np.testing.assert_array_equal([row for _, row in run.answers(encoded)], run(texts))


def test_any_iterable(run: Runner):
    texts = mixed_texts(5)
    for kind in (tuple(texts), iter(texts), (text for text in texts)):
        np.testing.assert_array_equal(run(kind), expected(texts))
    np.testing.assert_array_equal(run(np.array(["w1", "w2 w3"])), expected(["w1", "w2 w3"]))


def test_nothing_in_nothing_out(run: Runner):
    assert run([]).shape == (0, 3)
    assert run(iter(())).dtype == np.float32
    assert run.predict([]) == []
    assert list(run.stream([])) == []


def test_precisions_and_lengths(bundle: Path):
    texts = mixed_texts(40)
    run = Runner(bundle, precision="int8", max_length=8)
    np.testing.assert_array_equal(run(texts), expected(texts, seed=1, max_length=8))


def test_predict_classes(run: Runner):
    texts = mixed_texts(20)
    logits = expected(texts).astype(np.float64)
    shares = np.exp(logits - np.logaddexp.reduce(logits, -1)[:, None])
    found = run.predict(texts)
    assert [answer["label"] for answer in found] == [LABELS[i] for i in logits.argmax(-1)]
    np.testing.assert_allclose([answer["score"] for answer in found], shares.max(-1))
    assert all(type(answer["score"]) is float for answer in found)


def test_predict_classes_without_names(tmp_path: Path):
    texts = mixed_texts(5)
    found = Runner(make_bundle(tmp_path, labels=None)).predict(texts)
    assert [answer["label"] for answer in found] == expected(texts).argmax(-1).tolist()


def test_predict_values(tmp_path: Path):
    texts = mixed_texts(5)
    run = Runner(make_bundle(tmp_path, task="regress"))
    wanted = expected(texts, outputs=1)
    assert run.predict(texts) == [{"value": value} for value in wanted[:, 0].tolist()]
    assert run([]).shape == (0, 1)


def test_odd_texts_are_answered(run: Runner):
    odd = ["", "\ud800", "\0", "w1\0", ("", ""), ("\udc00", "w1")]
    assert run(odd).shape == (6, 3)


def test_is_public():
    assert toprune.Runner is Runner


def test_openvino_gives_the_same(bundle: Path):
    pytest.importorskip("openvino")
    texts = mixed_texts(100)
    np.testing.assert_array_equal(Runner(bundle, runtime="openvino")(texts), expected(texts))


# Tasks that read on, or answer by token


def long_text(count: int, first: int = 0) -> str:
    return " ".join(f"w{i % 60}" for i in range(first, first + count))


def windows(*sides: Any, **how: Any) -> list[dict[str, Any]]:
    """Of one text, by transformers."""
    batch = make_tokenizer()(
        *sides,
        max_length=MAX_LENGTH,
        return_overflowing_tokens=True,
        **{"truncation": True} | how,
    )
    names = ("input_ids", "token_type_ids")
    count = len(batch["input_ids"])
    return [{name: batch[name][i] for name in names} for i in range(count)]


LONG: dict[str, list[Any]] = {
    "classify": [long_text(n, n) for n in (3, 50, 22, 1, 23, 41)],
    "tokens": [long_text(n, n).split() for n in (3, 50, 22, 1, 23, 41)],
    "answer": [("w1 w2", long_text(n, n)) for n in (3, 50, 22, 1, 23, 41)],
    "embed": [long_text(n, n) for n in (3, 50, 22, 1)],
}


@pytest.mark.parametrize("batch_tokens", [1, 60, 2048])
def test_a_text_of_many_windows_is_their_mean(
    tmp_path: Path, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "AHEAD", 4)
    run = Runner(make_bundle(tmp_path, task=Classify(stride=4)), batch_tokens=batch_tokens)
    parts = [
        [token_outputs(row).sum(0) for row in windows([text], stride=4)]
        for text in LONG["classify"]
    ]
    assert [len(part) for part in parts] == [1, 3, 1, 1, 2, 3]
    wanted = np.array([np.mean(part, 0, dtype=np.float32) for part in parts])
    found = run(LONG["classify"])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(list(run.stream(LONG["classify"])), found)
    labels = [answer["label"] for answer in run.predict(LONG["classify"])]
    assert labels == [LABELS[i] for i in found.argmax(-1)]


def by_token(task: Any) -> list[list[np.ndarray]]:
    """The graph's output for each window of each long text."""
    if task.NAME == "tokens":
        how: dict[str, Any] = {"is_split_into_words": True, "stride": task.stride}
        return [[token_outputs(row) for row in windows([words], **how)] for words in LONG["tokens"]]
    how = {"truncation": "only_second", "stride": task.stride}
    return [
        [token_outputs(row, outputs=2) for row in windows([q], [c], **how)]
        for q, c in LONG["answer"]
    ]


@pytest.mark.parametrize("batch_tokens", [1, 60, 2048])
@pytest.mark.parametrize("task", [Tags(stride=3), Answer(stride=5)])
def test_answers_by_token(
    tmp_path: Path, task: Any, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
):
    """One array for each row that is read, without the outputs for padding."""
    monkeypatch.setattr(module, "AHEAD", 4)
    run = Runner(make_bundle(tmp_path, task=task), batch_tokens=batch_tokens)
    inputs = LONG[task.NAME]
    wanted = by_token(task)
    rows = list(run.read(inputs))
    assert [row.text for row, _ in rows] == [i for i, part in enumerate(wanted) for _ in part]
    flat = [one for part in wanted for one in part]
    for (row, one), other, called in zip(rows, flat, run(inputs), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(called, other)
        assert len(row) == len(one)
    labels = LABELS if task.NAME == "tokens" else None
    predictions = task.predictions(flat, [row for row, _ in rows], inputs, labels)
    assert run.predict(inputs) == list(run.predictions(iter(inputs))) == predictions
    assert len(predictions) == len(inputs)
    assert run([]) == run.predict([]) == []
    with pytest.raises(UserError, match=f"{task.NAME} answers by token; use predictions"):
        run.stream(inputs)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors(tmp_path: Path, pooling: Any, normalize: bool):
    run = Runner(make_bundle(tmp_path, task=Embed(pooling=pooling, normalize=normalize)))
    states = [
        token_outputs(make_tokenizer()(t, truncation=True, max_length=24)) for t in LONG["embed"]
    ]
    wanted = np.array([s.mean(0) if pooling == "mean" else s[0] for s in states])
    if normalize:
        wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    found = run(LONG["embed"])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(list(run.stream(LONG["embed"])), found)
    vectors = [answer["vector"] for answer in run.predict(LONG["embed"])]
    np.testing.assert_allclose(vectors, wanted, rtol=1e-5)
    assert run([]).shape == (0, 3)
    with pytest.raises(UserError, match=r"texts\[1\] is a pair"):
        run(["w1", ("w1", "w2")])


def test_scores_of_pairs(tmp_path: Path):
    run = Runner(make_bundle(tmp_path, task="rank"))
    pairs: list[Any] = [("w1", "w2 w3"), ("w1", "w4")]
    assert run(pairs).tolist() == expected(pairs, outputs=1).tolist()


DOCUMENTS = [f"w{i} w{i // 2} w{(7 * i) % 60}" for i in range(12)]


def test_rank_orders_documents(tmp_path: Path):
    run = Runner(make_bundle(tmp_path, task="rank"))
    pairs = [("w1", document) for document in DOCUMENTS]
    logits, scores = run(pairs)[:, 0], [one["score"] for one in run.predict(pairs)]
    ranked = run.rank("w1", iter(DOCUMENTS))
    order = [one["document"] for one in ranked]
    assert order == np.argsort(-logits, kind="stable").tolist()
    assert [one["score"] for one in ranked] == [scores[i] for i in order]
    assert run.rank("w1", []) == []
    same = run.rank("w1", ["w3 w4"] * 4)
    assert [one["document"] for one in same] == [0, 1, 2, 3]


@pytest.mark.parametrize("rescore", [0, 1, 5, 12, 99])
def test_rank_rescores_the_best_with_the_dense_model(tmp_path: Path, rescore: int):
    pruned, dense = (make_bundle(tmp_path / str(i), task="rank", seed=i) for i in (0, 5))
    run, alone = Runner(pruned, dense=dense), Runner(pruned).rank("w1", DOCUMENTS)
    best, rest = alone[:rescore], alone[rescore:]
    ranked = run.rank("w1", DOCUMENTS, rescore=rescore)
    assert ranked[rescore:] == rest
    chosen = {one["document"] for one in best}
    by_dense = [one for one in Runner(dense).rank("w1", DOCUMENTS) if one["document"] in chosen]
    assert ranked[:rescore] == [one | {"rescored": True} for one in by_dense]


def test_rank_refuses_what_it_cannot_do(tmp_path: Path):
    ranker, classifier = (make_bundle(tmp_path / task, task=task) for task in ("rank", "classify"))
    with one_line_error("orders no documents"):
        Runner(classifier).rank("w1", DOCUMENTS)
    with one_line_error("the bundle for rank"):
        Runner(ranker, dense=classifier)
    with one_line_error("dense="):
        Runner(ranker).rank("w1", DOCUMENTS, rescore=3)
    with one_line_error("0 or more"):
        Runner(ranker, dense=ranker).rank("w1", DOCUMENTS, rescore=-1)
    with one_line_error("list of texts"):
        Runner(ranker).rank("w1", "w2")


def test_any_number_of_classes(tmp_path: Path):
    run = Runner(make_bundle(tmp_path, task="multilabel"))
    texts = mixed_texts(20)
    for answer, logits in zip(run.predict(texts), expected(texts), strict=True):
        assert set(answer["labels"]) == {LABELS[i] for i in np.flatnonzero(logits > 0)}


# Streams


def test_streams_lazily_in_constant_memory(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AHEAD", 32)
    sample = mixed_texts(50)
    wanted = expected(sample)
    taken = 0

    def texts() -> Iterator[Any]:
        nonlocal taken
        while True:  # nobody may try to see the end
            yield sample[taken % 50]
            taken += 1

    stream = run.stream(texts())
    assert taken == 0
    for i in range(500):
        np.testing.assert_array_equal(next(stream), wanted[i % 50])
        assert taken <= i + 32


def test_stream_fails_where_the_texts_fail(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AHEAD", 2)

    def texts() -> Iterator[Any]:
        yield from ["w1", "w2", "w3", "w4"]
        raise OSError("the disk is gone")

    stream = run.stream(texts())
    assert [len(next(stream)) for _ in range(4)] == [3] * 4
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)


# Batches


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 600), max_size=80), budget=st.integers(1, 3000))
def test_batches(lengths: list[int], budget: int):
    found = list(batches(lengths, budget))
    rows = [int(i) for rows in found for i in rows]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[i] for i in rows] == sorted(lengths, reverse=True)
    for chosen in found:
        inside = [lengths[i] for i in chosen]
        assert len(inside) == 1 or sum(inside) <= budget
        assert len(inside) == 1 or len(inside) * max(inside) <= PADDED * budget
    for one, other in pairwise(found):  # and no batch is cut too soon
        live = sum(lengths[i] for i in one) + lengths[other[0]]
        assert live > budget or (len(one) + 1) * lengths[one[0]] > PADDED * budget


def test_one_long_text_does_not_stretch_a_hundred_short_ones():
    found = list(batches([512] + [4] * 300, 2048))
    assert [len(rows) for rows in found] == [8, 293]


# Threads


def test_eight_threads_on_one_runner(bundle: Path):
    run = Runner(bundle)
    texts = mixed_texts(300)
    wanted = expected(texts)
    rng = np.random.default_rng(1)
    requests = [rng.integers(0, 300, rng.integers(0, 6)) for _ in range(3000)]

    def answer(chosen: np.ndarray) -> np.ndarray:
        return run([texts[i] for i in chosen])

    with ThreadPoolExecutor(8) as pool:
        for chosen, logits in zip(requests, pool.map(answer, requests), strict=True):
            np.testing.assert_array_equal(logits, wanted[chosen])


def test_eight_streams_on_one_runner(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AHEAD", 8)
    parts = [mixed_texts(60, seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda part: list(run.stream(iter(part))), parts)
        for part, rows in zip(parts, found, strict=True):
            np.testing.assert_array_equal(rows, expected(part))


# Refusals


def not_run(bundle: Path, message: str, **settings: Any) -> None:
    with one_line_error(message):
        Runner(bundle, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "int4"}, "precision 'int4'"),
        ({"runtime": "abacus"}, "runtime 'abacus'"),
        ({"runtime": "openvino", "providers": ["CPUExecutionProvider"]}, "onnx has providers"),
        ({"providers": ["AbacusExecutionProvider"]}, "no provider Abacus"),
        ({"threads": 0}, "must be 1 or more"),
        ({"batch_tokens": 0}, "must be 1 or more"),
        ({"max_length": 25}, "not in 1 to 24.*export .*again"),
        ({"max_length": 0}, "not in 1 to 24"),
        ({"max_length": 2}, "leaves no room"),
    ],
)
def test_bad_settings(bundle: Path, settings: dict[str, Any], message: str):
    not_run(bundle, message, **settings)


def test_no_bundle(tmp_path: Path):
    not_run(tmp_path / "nowhere", "there is no bundle")
    not_run(tmp_path, "run 'toprune export")


@pytest.mark.parametrize("texts", ["a text", b"bytes"])
def test_one_text_is_not_a_list_of_letters(run: Runner, texts: Any):
    for call in (run, run.predict, run.stream):  # a stream raises at once, too
        with pytest.raises(UserError, match="give a list of texts"):
            call(texts)


def test_a_bad_text_is_named(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AHEAD", 4)
    with pytest.raises(UserError, match=r"texts\[9\] is a float"):
        run([*["w1"] * 9, float("nan")])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["plan.json", "tokenizer.json", "onnx/model.onnx"])
@pytest.mark.parametrize("how", ["tampered", "truncated", "missing"])
def test_changed_files(tmp_path: Path, name: str, how: str):
    path = make_bundle(tmp_path) / name
    old = path.read_bytes()
    path.write_bytes(old + b" " if how == "tampered" else old[: len(old) // 2])
    if how == "missing":
        path.unlink()
    not_run(tmp_path, f"{name} is (not the file that was exported|missing)")


def test_a_graph_of_another_plan_that_is_signed(tmp_path: Path):
    make_bundle(tmp_path)
    other = replace(PLAN, steps=())
    other.save(tmp_path / "plan.json")
    write_manifest(tmp_path)
    not_run(tmp_path, r"model.onnx was exported with another plan than plan.json")


def test_a_graph_without_a_plan(tmp_path: Path):
    not_run(make_bundle(tmp_path, plan=None), "exported with another plan")


def test_a_plan_that_is_written_otherwise_is_the_same(tmp_path: Path):
    text = PLAN.to_json().replace("\n", "").replace("1/2", "2/4")
    run = Runner(make_bundle(tmp_path, plan=text))
    assert run.plan == Plan.from_json(text) == PLAN


def test_a_plan_of_nonsense(tmp_path: Path):
    not_run(make_bundle(tmp_path, plan="{}"), "plan: schema None")


def test_a_broken_graph_that_is_signed(tmp_path: Path):
    make_bundle(tmp_path)
    path = tmp_path / "onnx/model.onnx"
    path.write_bytes(path.read_bytes().replace(b"ReduceSum", b"ReduceSam"))
    write_manifest(tmp_path)
    not_run(tmp_path, r"ONNX Runtime cannot read .*model.onnx.*export .*again")


def test_a_graph_with_other_inputs(tmp_path: Path):
    not_run(make_bundle(tmp_path, segments=False), "has the inputs input_ids, attention_mask, the")


@pytest.mark.parametrize(("task", "other"), [("answer", "classify"), ("classify", "embed")])
def test_a_graph_with_other_outputs(tmp_path: Path, task: str, other: str):
    make_bundle(tmp_path, task=other)
    write_manifest(tmp_path, task=task)
    names, wanted = (", ".join(make_task(name).OUTPUTS) for name in (other, task))
    not_run(tmp_path, f"has the outputs {names}, the task has {wanted}; export .*again")


def test_a_graph_that_answers_by_token_for_a_task_that_does_not(tmp_path: Path):
    make_bundle(tmp_path, task="tokens")
    write_manifest(tmp_path, task="classify")
    with pytest.raises(UserError, match=r"an answer of shape \(1, 3, 3\)"):
        Runner(tmp_path)(["w1"])


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_a_graph_with_another_number_of_classes(tmp_path: Path, outputs: int):
    not_run(make_bundle(tmp_path, outputs=outputs), f"has {outputs} outputs, the manifest has 3")


@pytest.mark.parametrize("fill", [float("nan"), float("inf")])
def test_nan_is_no_answer(tmp_path: Path, fill: float):
    run = Runner(make_bundle(tmp_path, fill=fill))
    with pytest.raises(UserError, match=r"answer to texts\[0\] is not a number"):
        run(["w1", "w2"])
    with pytest.raises(UserError, match="not a number"):
        next(run.stream(["w1"]))


def test_nan_names_the_text(run: Runner, monkeypatch: pytest.MonkeyPatch):
    """Also in a later window, and behind texts that are fine."""
    monkeypatch.setattr(module, "AHEAD", 2)
    plain = OnnxRuntime.run

    def spoiled(self: OnnxRuntime, feeds: dict[str, np.ndarray]) -> np.ndarray:
        logits = plain(self, feeds)
        logits[(feeds["input_ids"] == 13).any(-1), 1] = np.nan  # w9
        return logits

    monkeypatch.setattr(OnnxRuntime, "run", spoiled)
    assert run(["w1", "w2", "w3"]).shape == (3, 3)
    with pytest.raises(UserError, match=r"texts\[3\]"):
        run(["w1", "w2", "w3 w3 w3", "w9", "w4"])


def test_logits_of_another_shape(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(OnnxRuntime, "run", lambda *_: np.zeros((1, 1), np.float32))
    with pytest.raises(UserError, match=r"an answer of shape \(1, 1\)"):
        run(["w1", "w2"])


class Bomb:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('pickle was loaded')",)


def test_never_pickles_and_needs_no_torch(tmp_path: Path):
    make_bundle(tmp_path)
    for name in ("pytorch_model.bin", "training_args.bin", "onnx/model.pt"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    code = (
        "import sys\n"
        "seen = set()\n"
        "sys.addaudithook(lambda event, _: seen.add(event))\n"
        "import toprune\n"
        f"print(toprune.Runner({str(tmp_path)!r}).predict(['w1', ('w1', 'w2')]))\n"
        "assert 'open' in seen and 'pickle.find_class' not in seen\n"
        "assert {'torch', 'transformers', 'onnx'}.isdisjoint(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("label") == 2


def test_graphs_are_not_what_they_were(tmp_path: Path):
    """A swap inside a bundle: the int8 file in the place of the other."""
    make_bundle(tmp_path)
    write_graph(tmp_path / "onnx/model.onnx", seed=1)
    not_run(tmp_path, "onnx/model.onnx is not the file")
