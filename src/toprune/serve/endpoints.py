"""The interfaces that clients know: TEI's, OpenAI's, Cohere's, Jina's, and two of our own.

An endpoint turns the body of a request into texts, and the model's answers into the body of the
response. `FIELDS` of each are for the OpenAPI page.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from toprune.serve.bundles import Answer, Loaded
from toprune.serve.requests import BadRequest, Body
from toprune.tasks import Task
from toprune.tasks.embed import unit

Style = Literal["tei", "openai", "cohere"]  # how errors look


@dataclass(frozen=True)
class Reply:
    """What a response is made from."""

    bundle: Loaded
    answers: Sequence[Answer]
    token_count: int


@dataclass(frozen=True)
class Asked:
    """The texts of a request, and how its response is made."""

    texts: Sequence[Any]
    respond: Callable[[Reply], Any]
    may_cut: bool = True  # whether texts may be cut at the bundle's limit


@dataclass(frozen=True)
class Endpoint:
    """One path that answers texts."""

    path: str
    style: Style
    summary: str
    suits: Callable[[Task], bool]
    parse: Callable[[Body], Asked]
    fields: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)  # JSON schemas
    required: tuple[str, ...] = ()


# -- vectors ---------------------------------------------------------------------------------------


def _embed(body: Body) -> Asked:
    texts, _ = body.texts("inputs")
    normalize = body.flag("normalize")

    def respond(reply: Reply) -> Any:
        return _vectors(reply, normalize).tolist()

    return Asked(texts, respond, may_cut=body.flag("truncate") is not False)


def _embeddings(body: Body) -> Asked:
    texts, _ = body.texts("input")
    encoding = body.name("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise BadRequest("encoding_format must be float or base64", 400)
    width = body.number("dimensions")

    def respond(reply: Reply) -> Any:
        vectors = _vectors(reply, None)
        if width not in (None, vectors.shape[1]):
            raise BadRequest(f"the vectors of this bundle have {vectors.shape[1]} dimensions", 400)
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": vector.tolist() if encoding == "float" else _base64(vector),
            }
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": reply.token_count, "total_tokens": reply.token_count}
        return {"object": "list", "data": data, "model": reply.bundle.name, "usage": usage}

    return Asked(texts, respond)


def _vectors(reply: Reply, normalize: bool | None) -> np.ndarray:
    """(N, D); None: as the bundle has them."""
    vectors = _logits(reply)
    if normalize is False and getattr(reply.bundle.task, "normalize", False):
        raise BadRequest("this bundle gives vectors of length one; leave normalize out")
    return unit(vectors) if normalize else vectors


def _base64(vector: np.ndarray) -> str:
    """As OpenAI's clients ask for it: little-endian 32-bit floats."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


# -- rankings --------------------------------------------------------------------------------------


def _rerank(body: Body) -> Asked:
    query, (texts, _) = body.text("query"), body.texts("texts")
    raw, return_text = body.flag("raw_scores"), body.flag("return_text")

    def respond(reply: Reply) -> Any:
        return [
            {"index": i, "score": logit if raw else score}
            | ({"text": texts[i]} if return_text else {})
            for i, score, logit in _order(reply)
        ]

    pairs = [(query, text) for text in texts]
    return Asked(pairs, respond, may_cut=body.flag("truncate") is not False)


def _cohere_rerank(body: Body) -> Asked:
    query, documents = body.text("query"), body.documents("documents")
    top, return_documents = body.number("top_n"), body.flag("return_documents")

    def respond(reply: Reply) -> Any:
        results = [
            {"index": i, "relevance_score": score}
            | ({"document": {"text": documents[i]}} if return_documents else {})
            for i, score, _ in _order(reply)[:top]
        ]
        return {
            "model": reply.bundle.name,
            "results": results,
            "usage": {"total_tokens": reply.token_count},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }

    return Asked([(query, document) for document in documents], respond)


def _order(reply: Reply) -> list[tuple[int, float, float]]:
    """Index, score and logit, best first: by logits, because high scores round to one number."""
    logits = _logits(reply)[:, 0].tolist()
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    return [(i, reply.answers[i].prediction["score"], logits[i]) for i in order]


# -- classes ---------------------------------------------------------------------------------------


def _predict(body: Body) -> Asked:
    inputs, raw = body.get("inputs"), body.flag("raw_scores") is True
    is_batch = isinstance(inputs, list) and any(isinstance(item, list) for item in inputs)
    values = body.check_list(inputs, "inputs") if is_batch else [inputs]
    texts = [
        body.pair(value, f"inputs[{i}]" if is_batch else "inputs") for i, value in enumerate(values)
    ]

    def respond(reply: Reply) -> Any:
        results = _class_scores(reply, raw)
        return results if is_batch else results[0]

    return Asked(texts, respond, may_cut=body.flag("truncate") is not False)


def _classify(body: Body) -> Asked:
    value = body.get("input")
    values = [value] if isinstance(value, str) else body.check_list(value, "input")
    plain = [item.get("text") if isinstance(item, dict) else item for item in values]
    texts = [body.pair(item, f"input[{i}]") for i, item in enumerate(plain)]

    def respond(reply: Reply) -> Any:
        data = [
            {
                "object": "classification",
                "index": i,
                "prediction": scores[0]["label"],
                "score": scores[0]["score"],
                "predictions": scores,
            }
            for i, scores in enumerate(_class_scores(reply, raw=False))
        ]
        usage = {"total_tokens": reply.token_count}
        return {"model": reply.bundle.name, "data": data, "usage": usage}

    return Asked(texts, respond)


def _class_scores(reply: Reply, raw: bool) -> list[list[dict[str, Any]]]:
    """`label` and `score` of every class of each text, the best first."""
    logits = _logits(reply)
    scores = None if raw else reply.bundle.task.probabilities(logits)
    table = (logits if scores is None else scores).tolist()  # a single number stays as it is
    return [
        sorted(
            (
                {"label": label, "score": score}
                for label, score in zip(reply.bundle.labels, row, strict=True)
            ),
            key=lambda one: -one["score"],
        )
        for row in table
    ]


# -- spans and tags --------------------------------------------------------------------------------


def _answer(body: Body) -> Asked:
    is_batch = body.has("inputs")
    values = body.check_list(body.get("inputs"), "inputs") if is_batch else [None]
    texts = [_question(body, value, f"inputs[{i}]") for i, value in enumerate(values)]
    return Asked(texts, lambda reply: _predictions(reply, is_batch))


def _question(body: Body, value: Any, name: str) -> tuple[str, str]:
    if value is None:
        return body.text("question"), body.text("context")
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object with question and context")
    parts = [body.check_text(value.get(key), f"{name}.{key}") for key in ("question", "context")]
    return parts[0], parts[1]


def _tag(body: Body) -> Asked:
    is_batch = body.has("inputs")
    values = body.check_list(body.get("inputs"), "inputs") if is_batch else [body.get("words")]
    name = "inputs[{}]" if is_batch else "words"
    texts = [body.words(value, name.format(i)) for i, value in enumerate(values)]
    return Asked(texts, lambda reply: _predictions(reply, is_batch))


def _predictions(reply: Reply, is_batch: bool) -> Any:
    predictions = [answer.prediction for answer in reply.answers]
    return predictions if is_batch else predictions[0]


def _logits(reply: Reply) -> np.ndarray:
    """(N, C) of an endpoint whose tasks give one answer per text."""
    return np.stack([answer.logits for answer in reply.answers if answer.logits is not None])


# -- all of them -----------------------------------------------------------------------------------


def is_classifier(task: Task) -> bool:
    """Whether the outputs are scores of a text, not of a document or a token."""
    return not (task.BY_TOKEN or task.POOLS or task.RANKS)


_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING, "minItems": 1}
_ONE_OR_MORE = {"oneOf": [_STRING, _STRINGS]}
_FLAG = {"type": "boolean"}
_MODEL = {"model": {"type": "string", "description": "Name of the bundle, if there are several."}}
_PAIRS = {"oneOf": [_STRING, {"type": "array", "minItems": 1}]}
_DOCUMENTS = {
    "query": _STRING,
    "documents": {"type": "array", "minItems": 1},
    "top_n": {"type": "integer", "minimum": 1},
    "return_documents": _FLAG,
}
_OBJECTS = {"type": "array", "items": {"type": "object"}, "minItems": 1}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "/embed",
        "tei",
        "Vectors of texts, as text-embeddings-inference gives them.",
        lambda task: task.POOLS,
        _embed,
        {"inputs": _ONE_OR_MORE, "normalize": _FLAG, "truncate": _FLAG} | _MODEL,
        ("inputs",),
    ),
    Endpoint(
        "/rerank",
        "tei",
        "Texts by how well they answer a query, as text-embeddings-inference gives them.",
        lambda task: task.RANKS,
        _rerank,
        {"query": _STRING, "texts": _STRINGS, "raw_scores": _FLAG, "return_text": _FLAG}
        | {"truncate": _FLAG}
        | _MODEL,
        ("query", "texts"),
    ),
    Endpoint(
        "/predict",
        "tei",
        "Scores of all classes, as text-embeddings-inference gives them.",
        is_classifier,
        _predict,
        {"inputs": _PAIRS, "raw_scores": _FLAG, "truncate": _FLAG} | _MODEL,
        ("inputs",),
    ),
    Endpoint(
        "/v1/embeddings",
        "openai",
        "Vectors of texts, as OpenAI gives them.",
        lambda task: task.POOLS,
        _embeddings,
        {"input": _ONE_OR_MORE, "encoding_format": {"enum": ["float", "base64"]}} | _MODEL,
        ("input",),
    ),
    *(
        Endpoint(
            path,
            "cohere",
            "Documents by how well they answer a query, as Cohere and Jina give them.",
            lambda task: task.RANKS,
            _cohere_rerank,
            _DOCUMENTS | _MODEL,
            ("query", "documents"),
        )
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    Endpoint(
        "/v1/classify",
        "openai",
        "The class of each text, as Jina gives it.",
        is_classifier,
        _classify,
        {"input": _PAIRS} | _MODEL,
        ("input",),
    ),
    Endpoint(
        "/v1/answer",
        "openai",
        "The span of a context that answers a question.",
        lambda task: task.FINDS_SPANS,
        _answer,
        {"question": _STRING, "context": _STRING, "inputs": _OBJECTS} | _MODEL,
    ),
    Endpoint(
        "/v1/tag",
        "openai",
        "The tag of each word.",
        lambda task: task.READS.words,
        _tag,
        {"words": _STRINGS, "inputs": {"type": "array", "items": _STRINGS, "minItems": 1}} | _MODEL,
    ),
)
