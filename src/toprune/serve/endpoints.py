"""The interfaces that clients know: TEI's, OpenAI's, Cohere's, Jina's, and two of our own.

An endpoint turns the body of a request into texts, and the model's answers into the body of the
response. The JSON schema of each is for the OpenAPI page.
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
    schema: dict[str, Any] = field(hash=False)  # of the body


# -- vectors ---------------------------------------------------------------------------------------


def _embed(body: Body) -> Asked:
    texts, _ = body.texts("inputs")
    normalize = body.flag("normalize")

    def respond(reply: Reply) -> Any:
        return _vectors(reply, normalize).tolist()

    return Asked(texts, respond, may_cut=body.flag("truncate") is not False)


def _embeddings(body: Body) -> Asked:
    texts, _ = body.texts("input")
    encoding = body.name("encoding_format")
    if encoding not in (None, "float", "base64"):
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
                "embedding": _base64(vector) if encoding == "base64" else vector.tolist(),
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
    is_batch = _is_batch(body, "question", "context")
    values = body.check_list(body.get("inputs"), "inputs") if is_batch else [None]
    texts = [
        (body.text("question"), body.text("context"))
        if value is None and not is_batch
        else _question(body, value, f"inputs[{i}]")
        for i, value in enumerate(values)
    ]
    return Asked(texts, lambda reply: _predictions(reply, is_batch))


def _is_batch(body: Body, *names: str) -> bool:
    """Whether a request has `inputs`, in place of these fields of a single one."""
    if body.has("inputs") and any(map(body.has, names)):
        raise BadRequest(f"send inputs, or {' and '.join(names)}, not both")
    return body.has("inputs")


def _question(body: Body, value: Any, name: str) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object with question and context")
    parts = [body.check_text(value.get(key), f"{name}.{key}") for key in ("question", "context")]
    return parts[0], parts[1]


def _tag(body: Body) -> Asked:
    is_batch = _is_batch(body, "words")
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


def _object(*required: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required)}


def _list(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1} | more


def _one_of(*schemas: Any) -> dict[str, Any]:
    return {"oneOf": list(schemas)}


_STRING, _NULL = {"type": "string"}, {"type": "null"}
_STRINGS = _list(_STRING)
_TEXTS = _one_of(_STRING, _STRINGS)
_PAIR = _list(_STRING, maxItems=2)  # a list of one is a text
_TEXT_OR_PAIR = _one_of(_STRING, _PAIR)
_FLAG = {"type": ["boolean", "null"]}  # clients send null for what they leave out
_COUNT = {"type": ["integer", "null"], "minimum": 1}
_NAME = {"type": ["string", "null"], "description": "Name of the bundle, if there are several."}
_RERANK = _object(
    "query",
    "documents",
    query=_STRING,
    documents=_list(_one_of(_STRING, _object("text", text=_STRING))),
    top_n=_COUNT,
    return_documents=_FLAG,
    model=_NAME,
)
_QUESTION = {"question": _STRING, "context": _STRING}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "/embed",
        "tei",
        "Vectors of texts, as text-embeddings-inference gives them.",
        lambda task: task.POOLS,
        _embed,
        _object("inputs", inputs=_TEXTS, normalize=_FLAG, truncate=_FLAG, model=_NAME),
    ),
    Endpoint(
        "/rerank",
        "tei",
        "Texts by how well they answer a query, as text-embeddings-inference gives them.",
        lambda task: task.RANKS,
        _rerank,
        _object(
            "query",
            "texts",
            query=_STRING,
            texts=_TEXTS,
            raw_scores=_FLAG,
            return_text=_FLAG,
            truncate=_FLAG,
            model=_NAME,
        ),
    ),
    Endpoint(
        "/predict",
        "tei",
        "Scores of all classes, as text-embeddings-inference gives them.",
        is_classifier,
        _predict,
        _object(
            "inputs",
            inputs=_one_of(_STRING, _PAIR, _list(_TEXT_OR_PAIR, contains={"type": "array"})),
            raw_scores=_FLAG,
            truncate=_FLAG,
            model=_NAME,
        ),
    ),
    Endpoint(
        "/v1/embeddings",
        "openai",
        "Vectors of texts, as OpenAI gives them.",
        lambda task: task.POOLS,
        _embeddings,
        _object(
            "input",
            input=_TEXTS,
            encoding_format={"enum": ["float", "base64", None]},
            model=_NAME,
        ),
    ),
    *(
        Endpoint(
            path,
            "cohere",
            "Documents by how well they answer a query, as Cohere and Jina give them.",
            lambda task: task.RANKS,
            _cohere_rerank,
            _RERANK,
        )
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    Endpoint(
        "/v1/classify",
        "openai",
        "The class of each text, as Jina gives it.",
        is_classifier,
        _classify,
        _object(
            "input",
            input=_one_of(
                _STRING, _list(_one_of(_STRING, _PAIR, _object("text", text=_TEXT_OR_PAIR)))
            ),
            model=_NAME,
        ),
    ),
    Endpoint(
        "/v1/answer",
        "openai",
        "The span of a context that answers a question.",
        lambda task: task.FINDS_SPANS,
        _answer,
        _one_of(
            _object("question", "context", **_QUESTION, inputs=_NULL, model=_NAME),
            _object(
                "inputs",
                inputs=_list(_object("question", "context", **_QUESTION)),
                question=_NULL,
                context=_NULL,
                model=_NAME,
            ),
        ),
    ),
    Endpoint(
        "/v1/tag",
        "openai",
        "The tag of each word.",
        lambda task: task.READS.words,
        _tag,
        _one_of(
            _object("words", words=_STRINGS, inputs=_NULL, model=_NAME),
            _object("inputs", inputs=_list(_STRINGS), words=_NULL, model=_NAME),
        ),
    ),
)
