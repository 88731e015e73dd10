"""The server over HTTP: the shapes that clients know, the answers of Runner, and one line for every
mistake."""

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from support.refusals import one_line_error
from support.toy_bundle import LABELS, MAX_LENGTH, make_bundle, mixed_texts
from toprune.io.atomic import replace_directory
from toprune.run.runner import Runner
from toprune.serve.app import SHORT
from toprune.serve.bundles import Loaded, Shelf, parse_places
from toprune.serve.endpoints import ENDPOINTS
from toprune.serve.metrics import Metrics
from toprune.serve.requests import Limits
from toprune.serve.server import make_app
from toprune.serve.settings import Settings, read_key
from toprune.tasks import TASKS, make_task

SETTINGS = Settings(workers=2, limits=Limits(max_body=200_000, max_texts=64, max_chars=2000))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for each task, named after it."""
    place = tmp_path_factory.mktemp("bundles")
    for name in TASKS:
        make_bundle(place / name, task=make_task(name))
    return place


@pytest.fixture(scope="module")
def runners(place: Path) -> dict[str, Runner]:
    return {name: Runner(place / name, threads=1) for name in TASKS}


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[TestClient]:
    app = make_app([str(place / name) for name in TASKS], SETTINGS)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def post(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


# -- shapes ----------------------------------------------------------------------------------------


def test_embed(client: TestClient, runners: dict[str, Runner]):
    vectors = post(client, "/embed", inputs=["w1 w2", "w3"])
    np.testing.assert_allclose(vectors, runners["embed"](["w1 w2", "w3"]), atol=1e-6)
    assert post(client, "/embed", inputs="w3") == vectors[1:]
    assert post(client, "/embed", inputs="w3", truncate=True, normalize=True) == vectors[1:]
    assert client.post("/embed", json={"inputs": "w1", "normalize": False}).status_code == 422


def test_only_long_texts_are_tokenized_in_another_thread(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
):
    threads: list[str] = []
    encode = Loaded.encode

    def spy(self: Loaded, texts: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(self, texts)

    monkeypatch.setattr(Loaded, "encode", spy)
    answers: list[Any] = []
    for characters in (SHORT, 0):
        monkeypatch.setattr("toprune.serve.app.SHORT", characters)
        answers.append(
            [
                post(client, "/embed", inputs=["w1 w2", "w3"]),
                post(client, "/rerank", query="w1", texts=["w2", "w3"]),
                post(client, "/v1/tag", words=["w1", "w2"]),
            ]
        )
    assert answers[0] == answers[1]
    assert [name.startswith("tokenize") for name in threads] == [False] * 3 + [True] * 3


def test_openai_embeddings(client: TestClient, runners: dict[str, Runner]):
    reply = post(client, "/v1/embeddings", input=["w1 w2", "w3"], model="embed", user="someone")
    assert [reply["object"], reply["model"]] == ["list", "embed"]
    assert reply["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [(one["object"], one["index"]) for one in reply["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    packed = post(client, "/v1/embeddings", input=["w1 w2", "w3"], encoding_format="base64")
    for one, other, row in zip(
        reply["data"], packed["data"], runners["embed"](["w1 w2", "w3"]), strict=True
    ):
        np.testing.assert_allclose(one["embedding"], row, atol=1e-6)
        np.testing.assert_array_equal(
            np.frombuffer(base64.b64decode(other["embedding"]), "<f4"), row
        )
    assert post(client, "/v1/embeddings", input="w1", dimensions=3)
    error = client.post("/v1/embeddings", json={"input": "w1", "dimensions": 4}).json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}


def test_tei_rerank(client: TestClient, runners: dict[str, Runner]):
    texts = ["w1", "w2 w3", "w4 w5 w6"]
    ranks = post(client, "/rerank", query="w9", texts=texts, return_text=True)
    expected = runners["rank"].rank("w9", texts)
    assert [(one["index"], one["score"]) for one in ranks] == [
        (one["document"], pytest.approx(one["score"])) for one in expected
    ]
    assert [one["text"] for one in ranks] == [texts[one["index"]] for one in ranks]
    raw = post(client, "/rerank", query="w9", texts=texts, raw_scores=True)
    logits = runners["rank"]([("w9", text) for text in texts])[:, 0]
    assert [one["score"] for one in raw] == sorted(logits.tolist(), reverse=True)
    assert raw[0].keys() == {"index", "score"}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_cohere_and_jina_rerank(client: TestClient, runners: dict[str, Runner], path: str):
    documents = ["w1", {"text": "w2 w3"}, "w4"]
    body = {"model": "rank", "query": "w9", "documents": documents}
    reply = post(client, path, **body, top_n=2, return_documents=True)
    expected = runners["rank"].rank("w9", ["w1", "w2 w3", "w4"])[:2]
    assert [one["index"] for one in reply["results"]] == [one["document"] for one in expected]
    assert [one["relevance_score"] for one in reply["results"]] == [
        pytest.approx(one["score"]) for one in expected
    ]
    assert all(one["document"].keys() == {"text"} for one in reply["results"])
    assert reply["usage"]["total_tokens"] > 0


def test_predict(client: TestClient, runners: dict[str, Runner]):
    alone = post(client, "/predict", inputs="w1 w2", model="classify")
    assert sorted(one["label"] for one in alone) == sorted(LABELS)
    assert sum(one["score"] for one in alone) == pytest.approx(1)
    (expected,) = runners["classify"].predict(["w1 w2"])
    assert alone[0] == {"label": expected["label"], "score": pytest.approx(expected["score"])}
    both = post(client, "/predict", inputs=[["w1 w2"], ["w1", "w2"]], model="classify")
    assert both[0] == alone
    assert both[1] == post(client, "/predict", inputs=["w1", "w2"], model="classify")
    raw = post(client, "/predict", inputs="w1 w2", model="classify", raw_scores=True)
    logits = sorted(runners["classify"](["w1 w2"])[0].tolist(), reverse=True)
    assert [one["score"] for one in raw] == logits
    many = post(client, "/predict", inputs="w1 w2", model="multilabel")
    scores = runners["multilabel"].predict(["w1 w2"])[0]["scores"]
    assert {one["label"]: one["score"] for one in many} == pytest.approx(scores)
    (number,) = post(client, "/predict", inputs="w1", model="regress")
    assert number["score"] == runners["regress"].predict(["w1"])[0]["value"]


def test_classify(client: TestClient, runners: dict[str, Runner]):
    reply = post(
        client, "/v1/classify", input=["w1", {"text": "w2"}, ["w3", "w4"]], model="classify"
    )
    expected = runners["classify"].predict(["w1", "w2", ("w3", "w4")])
    assert [one["prediction"] for one in reply["data"]] == [one["label"] for one in expected]


def test_answers_and_tags(client: TestClient, runners: dict[str, Runner]):
    pairs = [("w1", "w2 w3 w4"), ("w5", "w6 " * 40)]
    expected = runners["answer"].predict(pairs)
    inputs = [{"question": question, "context": context} for question, context in pairs]
    assert post(client, "/v1/answer", inputs=inputs) == expected
    assert post(client, "/v1/answer", **inputs[0]) == expected[0]
    words = [["w1", "w2"], ["w3"]]
    assert post(client, "/v1/tag", inputs=words) == runners["tokens"].predict(words)
    assert post(client, "/v1/tag", words=words[0]) == runners["tokens"].predict(words)[0]


def test_batches_change_no_answer(client: TestClient, runners: dict[str, Runner]):
    """Many texts in one request are batched by cost; one by one they are not."""
    texts = mixed_texts(60)
    inputs = [[text] if isinstance(text, str) else list(text) for text in texts]
    together = post(client, "/predict", inputs=inputs, model="classify")
    for text, scores in zip(texts, together, strict=True):
        (expected,) = runners["classify"].predict([text])
        assert scores[0]["label"] == expected["label"]
        assert scores[0]["score"] == pytest.approx(expected["score"], abs=1e-4)


def test_pages(client: TestClient):
    info = client.get("/info", params={"model": "embed"}).json()
    assert (info["model_id"], info["max_input_length"]) == ("embed", MAX_LENGTH)
    assert info["model_type"].keys() == {"embedding"}
    assert client.get("/info", params={"model": "rank"}).json()["model_type"].keys() == {"reranker"}
    assert client.get("/health").status_code == 200
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == list(TASKS)
    paths = client.get("/openapi.json").json()["paths"]
    assert {one.path for one in ENDPOINTS} <= paths.keys()
    assert all(f"<td>{name}</td>" in client.get("/").text for name in TASKS)
    assert 'toprune_requests_total{path="/health",status="200"}' in client.get("/metrics").text


# -- refusals --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, Any, int, str]] = {
    "no such model": ("/embed", {"inputs": "w1", "model": "nope"}, 404, "there is no model 'nope'"),
    "model of another task": ("/embed", {"inputs": "w1", "model": "rank"}, 400, "suits none"),
    "which model": ("/predict", {"inputs": "w1"}, 400, "classify or regress or multilabel"),
    "missing field": ("/embed", {}, 422, "the field inputs is missing"),
    "not an object": ("/embed", ["w1"], 422, "JSON object"),
    "number as a text": ("/embed", {"inputs": [1]}, 422, "inputs[0] must be a string"),
    "token ids": ("/v1/embeddings", {"input": [[1, 2]]}, 422, "input[0] must be a string"),
    "too many texts": ("/embed", {"inputs": ["w1"] * 65}, 413, "the limit is 64"),
    "too long a text": ("/embed", {"inputs": "w" * 2001}, 413, "the limit is 2000"),
    "too large a body": ("/embed", {"inputs": ["w" * 4000] * 60}, 413, "200000 bytes"),
    "no texts": ("/rerank", {"query": "w1", "texts": []}, 422, "one element or more"),
    "three texts": (
        "/predict",
        {"inputs": [["a", "b", "c"]], "model": "classify"},
        422,
        "pair of strings",
    ),
    "top_n of 0": ("/v2/rerank", {"query": "w1", "documents": ["a"], "top_n": 0}, 422, "1 or more"),
    "cut text": ("/embed", {"inputs": "w1 " * 50, "truncate": False}, 413, "limit of 24 tokens"),
    "cut pair": (
        "/rerank",
        {"query": "w1", "texts": ["w2", "w3 " * 50], "truncate": False},
        413,
        "text 1 has more than the limit",
    ),
    "words in a string": ("/v1/tag", {"words": "w1 w2"}, 422, "list of words"),
    "no context": ("/v1/answer", {"question": "w1"}, 422, "the field context is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(client: TestClient, case: str):
    path, body, status, line = REFUSED[case]
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    assert line in response.text
    assert "\\n" not in response.text


@pytest.mark.parametrize("path", ["/embed", "/predict", "/rerank"])
def test_a_text_that_fills_the_limit_is_not_cut(client: TestClient, path: str):
    """One word more is too long."""
    frame = 3 if path == "/rerank" else 2  # tokens that the tokenizer adds
    for words, status in ((MAX_LENGTH - frame, 200), (MAX_LENGTH - frame + 1, 413)):
        body: dict[str, Any] = {"inputs": "w1 " * words}
        if path == "/rerank":
            body = {"query": "w1", "texts": ["w2 " * (words - 1)]}
        more = {"truncate": False} | ({"model": "classify"} if path == "/predict" else {})
        reply = client.post(path, json=body | more)
        assert reply.status_code == status, reply.text


def test_refused_before_json(client: TestClient):
    kind = {"content-type": "application/json"}
    assert client.post("/embed", content=b'{"inputs": ', headers=kind).status_code == 400
    assert client.post("/embed", content=b"[" * 100_000, headers=kind).status_code in (400, 422)
    assert client.post("/embed", content=b"\xff\xfe", headers=kind).status_code == 400
    assert client.post("/embed", data={"inputs": "w1"}).status_code == 415
    assert client.get("/embed").status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 400


def test_half_a_character_comes_back(client: TestClient):
    body = json.dumps({"query": "w1", "texts": ["\ud800 w2"], "return_text": True})
    kind = {"content-type": "application/json"}
    assert client.post("/rerank", content=body, headers=kind).json()[0]["text"] == "\ud800 w2"


# -- keys, load, and bundles that are replaced -----------------------------------------------------


def test_key(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TOPRUNE_API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("TOPRUNE_API_KEY", "from-environment")
    assert read_key(None) == "from-environment"
    (tmp_path / "key").write_text("secret\n")
    key = read_key(tmp_path / "key")
    app = make_app([str(place / "embed")], Settings(workers=1, key=key))
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/health").status_code == 200
        for header in ({}, {"authorization": "Bearer other"}, {"authorization": "Basic secret"}):
            reply = client.post("/embed", json={"inputs": "w1"}, headers=header)
            assert reply.status_code == 401
            assert "secret" not in reply.text
        right = {"authorization": "Bearer secret"}
        assert client.post("/embed", json={"inputs": "w1"}, headers=right).status_code == 200
    (tmp_path / "key").write_text("two words")
    with one_line_error("one key"):
        read_key(tmp_path / "key")


def test_timeout(place: Path, monkeypatch: pytest.MonkeyPatch):
    """No worker runs, so the time is up."""
    monkeypatch.setattr("toprune.serve.workers.Workers.start", lambda self: None)
    app = make_app([str(place / "embed")], Settings(workers=1, timeout=0.05, max_queue=1))
    with TestClient(app, base_url="http://localhost") as client:
        reply = client.post("/embed", json={"inputs": "w1"})
        assert reply.status_code == 503
        assert reply.headers["retry-after"]
        assert "toprune_cancelled_texts_total 1\n" in client.get("/metrics").text


def test_full(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toprune.serve.queue.Queue.batches", 2.0, raising=False)
    monkeypatch.setattr("toprune.serve.queue.Queue.__init__", _full_queue)
    app = make_app([str(place / "embed")], Settings(workers=1, max_queue=1))
    with TestClient(app, base_url="http://localhost") as client:
        reply = client.post("/embed", json={"inputs": "w1"})
    assert (reply.status_code, reply.json()["error_type"]) == (429, "overloaded")
    assert reply.headers["retry-after"] == "1"


def _full_queue(self: Any, max_batches: float, workers: int) -> None:
    self.max_batches, self._workers, self.seconds_per_batch = max_batches, workers, 0.05
    self._items, self._count = [], 0


def test_fallbacks_are_counted(place: Path, monkeypatch: pytest.MonkeyPatch):
    """A Runner with a safety net marks the texts that the dense file answered."""
    answers = Runner.answers

    def marked(self: Runner, texts: Any) -> Iterator[Any]:
        for i, (answer, logits) in enumerate(answers(self, texts)):
            yield answer | {"fallback": i == 0}, logits

    monkeypatch.setattr(Runner, "answers", marked)
    app = make_app([str(place / "tokens")], Settings(workers=1))
    with TestClient(app, base_url="http://localhost") as client:
        reply = post(client, "/v1/tag", inputs=[["w1"], ["w2"]])
        assert [one["fallback"] for one in reply] == [True, False]
        assert 'toprune_fallbacks_total{model="tokens"} 1\n' in client.get("/metrics").text


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_replaced_bundle_is_loaded_and_the_old_one_ends_its_work(tmp_path: Path):
    place, metrics, clock = make_bundle(tmp_path / "live"), Metrics(), Clock()
    lines: list[str] = []
    waiting: list[Any] = []
    shelf = Shelf(
        {"live": place},
        lambda name, place: Loaded(name, Runner(place, threads=1)),
        metrics,
        log=lines.append,
        clock=clock,
        spawn=waiting.append,
    )
    old = shelf.get("live")
    before = old.run(old.runner.encode(["w1"]))[0].prediction
    replace_directory(make_bundle(tmp_path / "next", seed=5), place)
    assert shelf.get("live") is old  # looked less than a second ago
    clock.now = 2.0
    assert shelf.get("live") is old  # the new one is not loaded yet
    assert shelf.get("live") is old
    (load,) = waiting
    load()
    new = shelf.get("live")
    assert new is not old
    assert old.run(old.runner.encode(["w1"]))[0].prediction == before
    assert new.run(new.runner.encode(["w1"]))[0].logits is not None
    (place / "onnx" / "model.onnx").write_bytes(b"broken")
    (place / "onnx" / "export.json").touch()
    clock.now = 4.0
    shelf.get("live")
    waiting[1]()
    assert shelf.get("live") is new
    assert "refused" in lines[-1]
    shutil.rmtree(place)  # a moment without a bundle
    clock.now = 6.0
    assert shelf.get("live") is new
    assert len(waiting) == 2
    assert 'toprune_reloads_total{model="live",result="refused"} 1' in metrics.render()


def test_names(tmp_path: Path):
    assert parse_places(["a/b", "c=d/e"]) == {"b": Path("a/b"), "c": Path("d/e")}
    (tmp_path / "x=y").mkdir()
    assert parse_places([str(tmp_path / "x=y")]) == {"x=y": tmp_path / "x=y"}
    with one_line_error("two bundles have the name b"):
        parse_places(["a/b", "c/b"])
    with one_line_error("NAME=DIRECTORY"):
        parse_places(["=b"])
