"""The same methods and answers as sentence-transformers, which runs the dense model in torch."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.models import make_model, make_tokenizer
from support.refusals import one_line_error
from support.toy_bundle import expected, mixed_texts, write_manifest
from support.toy_bundle import make_bundle as toy_bundle
from toprune.bundle.bundle import Bundle
from toprune.export.export import export
from toprune.integrations.sentence_transformers import CrossEncoder, SentenceTransformer
from toprune.tasks import Embed, Rank, settings_of

theirs = pytest.importorskip("sentence_transformers")

QUERY = "w1 w2"
DOCUMENTS = ["w3 w4 w5", "w6", "w7 w8 w9 w10 w11 w12", "w1 w2 w13", "w14 w15"]
ATOL = 5e-4  # random weights of this size are chaotic, see `rough_parity`
PAIRS = [(QUERY, document) for document in DOCUMENTS]


def save(folder: Path, task: Any, model: Any) -> Path:
    """A bundle that keeps every token, so that torch must give the same."""
    report = {"task": task.NAME, "task_settings": settings_of(task), "max_length": 32}
    Bundle(model, make_tokenizer("bert"), None, report).save(folder)
    export(folder)
    return folder


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (CrossEncoder.predict, "CrossEncoder"),
        (CrossEncoder.rank, "CrossEncoder"),
        (SentenceTransformer.encode, "SentenceTransformer"),
        (SentenceTransformer.similarity, "SentenceTransformer"),
        (SentenceTransformer.similarity_pairwise, "SentenceTransformer"),
    ],
)
def test_arguments_have_the_same_names_and_order(ours: Any, other: str):
    method = getattr(getattr(theirs, other), ours.__name__)
    names = list(inspect.signature(inspect.unwrap(method)).parameters)
    parameters = inspect.signature(ours).parameters.values()
    kinds = {p.name: p.kind for p in parameters if p.name != "sentences"}
    mine = [name for name, kind in kinds.items() if kind != inspect.Parameter.VAR_KEYWORD]
    assert mine == [name for name in names if name in mine]  # none that they do not have
    if set(names) - set(mine):
        assert inspect.Parameter.VAR_KEYWORD in kinds.values()  # the others are refused by name


@pytest.mark.usefixtures("rough_parity")
def test_cross_encoder(tmp_path: Path):
    ranker = save(tmp_path / "bundle", Rank(), make_model("bert", num_labels=1))
    ours, other = CrossEncoder(ranker), theirs.CrossEncoder(str(ranker), device="cpu")
    scores = ours.predict(PAIRS)
    np.testing.assert_allclose(scores, other.predict(PAIRS), atol=ATOL)
    assert (scores.shape, scores.dtype) == ((5,), np.float32)
    np.testing.assert_allclose(ours.predict(PAIRS[0]), other.predict(PAIRS[0]), atol=ATOL)
    np.testing.assert_allclose(ours.predict(sentences=PAIRS, batch_size=2), scores, atol=1e-6)
    assert ours.predict([]).shape == (0,)
    for activation in (torch.nn.Identity(), torch.nn.Tanh(), np.tanh):
        mine = ours.predict(PAIRS, activation_fn=activation)
        same = torch.nn.Tanh() if activation is np.tanh else activation
        np.testing.assert_allclose(mine, other.predict(PAIRS, activation_fn=same), atol=ATOL)
    tensor = ours.predict(PAIRS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.shape == (5,)
    assert [type(one) for one in ours.predict(PAIRS, convert_to_numpy=False)] == [torch.Tensor] * 5
    mine = ours.rank(QUERY, DOCUMENTS, top_k=3, return_documents=True)
    same = other.rank(QUERY, DOCUMENTS, top_k=3, return_documents=True)
    assert [(x["corpus_id"], x["text"]) for x in mine] == [
        (x["corpus_id"], x["text"]) for x in same
    ]
    np.testing.assert_allclose([x["score"] for x in mine], [x["score"] for x in same], atol=ATOL)
    assert "text" not in ours.rank(QUERY, DOCUMENTS)[0]


@pytest.mark.usefixtures("rough_parity")
def test_sentence_transformer(tmp_path: Path):
    model = make_model("bert", head="encoder")
    embedder = save(tmp_path / "bundle", Embed(normalize=False), model)
    how: dict[str, Any] = {"prompts": {"query": "w20 ", "document": "w21 "}, "device": "cpu"}
    ours = SentenceTransformer(embedder, **how)
    other = theirs.SentenceTransformer(str(embedder), **how)
    vectors = ours.encode(DOCUMENTS)
    np.testing.assert_allclose(vectors, other.encode(DOCUMENTS), atol=ATOL)
    cases: list[dict[str, Any]] = [
        {"normalize_embeddings": True},
        {"prompt_name": "query", "batch_size": 2},
        {"prompt": "w30 w31 "},
        {"truncate_dim": 5, "normalize_embeddings": True},
    ]
    for options in cases:
        mine = ours.encode(DOCUMENTS, **options)
        np.testing.assert_allclose(mine, other.encode(DOCUMENTS, **options), atol=ATOL)
    np.testing.assert_allclose(ours.encode("w1 w2"), other.encode("w1 w2"), atol=ATOL)
    for method in ("encode_query", "encode_document"):
        mine = getattr(ours, method)(DOCUMENTS)
        np.testing.assert_allclose(mine, getattr(other, method)(DOCUMENTS), atol=ATOL)
        assert not np.allclose(mine, vectors)
    for name in ("cosine", "dot", "euclidean", "manhattan"):
        ours.similarity_fn_name = other.similarity_fn_name = name
        for method in ("similarity", "similarity_pairwise"):
            one, same = (getattr(x, method)(vectors[:3], vectors[1:4]) for x in (ours, other))
            np.testing.assert_allclose(one, same.numpy(), rtol=1e-4, atol=1e-4)
    assert ours.get_embedding_dimension() == other.get_embedding_dimension() == 32


def test_several_labels(tmp_path: Path):
    """By a graph that is arithmetic: no activation by default, a softmax where it is asked for."""
    ours = CrossEncoder(toy_bundle(tmp_path))
    pairs = [pair for pair in mixed_texts(40) if not isinstance(pair, str)]
    logits = expected(pairs)
    np.testing.assert_array_equal(ours.predict(pairs), logits)
    shares = torch.from_numpy(logits).softmax(1).numpy()
    np.testing.assert_allclose(ours.predict(pairs, apply_softmax=True), shares, atol=1e-6)
    with one_line_error("a model with 3 labels ranks nothing; use predict"):
        ours.rank("w1", ["w2"])


@pytest.mark.parametrize(
    ("config", "sigmoid"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, True),
    ],
)
def test_the_models_own_activation(tmp_path: Path, config: dict[str, Any], sigmoid: bool):
    folder = toy_bundle(tmp_path, task="rank")
    (folder / "config.json").write_text(json.dumps(config))
    write_manifest(folder, task="rank")
    scores = CrossEncoder(folder).predict([("w1", "w2")])
    logits = expected([("w1", "w2")], outputs=1)[:, 0]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)) if sigmoid else logits, atol=1e-6)


def test_equal_scores_are_ordered_by_logits(tmp_path: Path):
    ours = CrossEncoder(toy_bundle(tmp_path, task="rank"))
    documents = [f"w{i} w{i} w{i}" for i in range(20)]
    logits = expected([("w1", text) for text in documents], outputs=1)[:, 0]
    ranked = ours.rank("w1", documents, activation_fn=np.zeros_like)
    assert [one["corpus_id"] for one in ranked] == np.argsort(-logits, kind="stable").tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "torch"}, "backend='torch': a bundle's file runs in onnx or openvino"),
        ({"device": "cuda"}, "device='cuda' is not supported here"),
        ({"trust_remote_code": True}, "CrossEncoder does not support trust_remote_code=True"),
        ({"num_labels": 2}, "does not support num_labels=2; leave num_labels out"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, options: dict[str, Any], message: str):
    folder = toy_bundle(tmp_path, task="rank")
    with one_line_error(message):
        CrossEncoder(folder, **options)


def test_calls_refuse_what_they_do_not_support(tmp_path: Path):
    ranker = CrossEncoder(toy_bundle(tmp_path / "rank", task="rank"), revision=None, device="cpu")
    assert ranker.predict([("w1", "w2")], device="cpu", pool=None).shape == (1,)
    with one_line_error("CrossEncoder.predict does not support prompt='x'; leave prompt out"):
        ranker.predict([("w1", "w2")], prompt="x")
    with one_line_error("batch_size is 0; use 1 or more"):
        ranker.predict([("w1", "w2")], batch_size=0)
    with one_line_error("give pairs of texts"):
        ranker.predict("w1")
    with one_line_error("give texts as `inputs` or as `sentences`"):
        ranker.predict()
    vectors = SentenceTransformer(toy_bundle(tmp_path / "embed", task="embed"))
    with one_line_error("gives sentence_embedding in float32 only"):
        vectors.encode(["w1"], precision="int8")
    with one_line_error("there is no prompt 'query'; the bundle has none"):
        vectors.encode(["w1"], prompt_name="query")
    with one_line_error("does not support chunk_size=3"):
        vectors.encode(["w1"], chunk_size=3)
    with one_line_error("the task embed gives no scores of pairs"):
        CrossEncoder(tmp_path / "embed")
    with one_line_error("the task rank gives no vectors"):
        SentenceTransformer(tmp_path / "rank")


def test_without_torch(tmp_path: Path):
    folder = toy_bundle(tmp_path, task="rank")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from toprune.integrations.sentence_transformers import CrossEncoder\n"
        f"ranker = CrossEncoder({str(folder)!r})\n"
        "print(ranker.rank('w1', ['w2', 'w3'])[0]['corpus_id'] in (0, 1))\n"
        "try: ranker.predict([('w1', 'w2')], convert_to_tensor=True)\n"
        "except Exception as problem: print(problem)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "True",
        "tensors need torch, which is not installed; use convert_to_numpy=True",
    ]
