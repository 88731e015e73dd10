"""What the server tells about itself: its bundles, its interface, and a page for people."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from toprune.report.html.shell import escape
from toprune.report.html.shell import page as html_page
from toprune.serve.bundles import Loaded
from toprune.serve.endpoints import ENDPOINTS
from toprune.serve.requests import Limits
from toprune.serve.ui import PATH

PAGES = {
    "/info": "A bundle and the limits of the server.",
    "/health": "200 while the server takes requests.",
    "/metrics": "Counters for Prometheus.",
    "/v1/models": "The bundles by name.",
}


def info(bundle: Loaded, names: Sequence[str], limits: Limits) -> dict[str, Any]:
    """One bundle, in the shape of text-embeddings-inference, and the names of all."""
    runner = bundle.runner
    return {
        "model_id": bundle.name,
        "model_sha": runner.manifest.files.get("onnx/model.onnx"),
        "model_dtype": "float32",
        "model_type": _model_type(bundle),
        "max_input_length": runner.max_length,
        "max_client_batch_size": limits.max_texts,
        "auto_truncate": True,
        "version": version("toprune"),
        "task": bundle.task.NAME,
        "models": list(names),
    }


def _model_type(bundle: Loaded) -> dict[str, Any]:
    if bundle.task.POOLS:
        return {"embedding": {"pooling": getattr(bundle.task, "pooling", None)}}
    names = dict(enumerate(bundle.labels))
    labels = {
        "id2label": {str(i): name for i, name in names.items()},
        "label2id": {name: i for i, name in names.items()},
    }
    return {"reranker" if bundle.task.RANKS else "classifier": labels}


def models(bundles: Sequence[Loaded]) -> dict[str, Any]:
    """All bundles, in the shape of OpenAI."""
    data = [{"id": one.name, "object": "model", "owned_by": "toprune"} for one in bundles]
    return {"object": "list", "data": data}


def openapi(*, has_key: bool) -> dict[str, Any]:
    """The interface as OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    error = {"description": "One line that names the mistake.", "content": _json({})}
    errors = {str(code): error for code in (400, 401, 404, 413, 415, 422, 429, 503)}
    for one in ENDPOINTS:
        paths[one.path] = {
            "post": {
                "summary": one.summary,
                "requestBody": {"required": True, "content": _json(one.schema)},
                "responses": {"200": {"description": "OK", "content": _json({})}} | errors,
            }
        }
    for path, summary in PAGES.items():
        responses = {"200": {"description": "OK"}} | errors
        paths[path] = {"get": {"summary": summary, "responses": responses}}
    result: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "toprune", "version": version("toprune")},
        "paths": paths,
    }
    if has_key:
        scheme = {"type": "http", "scheme": "bearer"}
        result |= {"components": {"securitySchemes": {"key": scheme}}, "security": [{"key": []}]}
    return result


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def page(bundles: Sequence[Loaded]) -> str:
    """The bundles and the paths, for people."""
    rows = "".join(
        f"<tr><td>{escape(one.name)}</td><td>{one.task.NAME}</td>"
        f"<td>{one.runner.max_length}</td><td>{escape(', '.join(_paths(one)))}</td></tr>"
        for one in bundles
    )
    head = "<tr><th>bundle</th><th>task</th><th>tokens at most</th><th>paths</th></tr>"
    others = "".join(
        f"<li><a href='{path}'>{path}</a>: {escape(text)}</li>" for path, text in PAGES.items()
    )
    body = (
        f"<h1>toprune serve</h1><table><thead>{head}</thead><tbody>{rows}</tbody></table>"
        f"<ul><li><a href='{PATH}'>{PATH}</a>: type a text.</li>{others}"
        "<li><a href='/openapi.json'>/openapi.json</a>: the interface.</li></ul>"
    )
    return html_page("toprune serve", body)


def _paths(bundle: Loaded) -> list[str]:
    return [one.path for one in ENDPOINTS if one.suits(bundle.task)]
