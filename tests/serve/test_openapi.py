"""The OpenAPI page is true: schemathesis sends what it allows and what it forbids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from support.toy_bundle import make_bundle
from toprune.serve.endpoints import ENDPOINTS
from toprune.serve.server import make_app
from toprune.serve.settings import Settings

schemathesis = pytest.importorskip("schemathesis")
# Loaded before the server's threads run: pytest rewrites these modules, and Python 3.11 may fail to
# parse a module while other threads run ("AST constructor recursion depth mismatch").
pytest.importorskip("schemathesis.specs.openapi.schemas")

BUNDLES = ("classify", "embed", "rank", "answer", "tokens")  # one that suits each path
JSON = {"content-type": "application/json"}
EXAMPLES = 20  # of each path and kind
QUIET: Any = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    place: Path = tmp_path_factory.mktemp("openapi")
    places = [str(make_bundle(place / name, task=name)) for name in BUNDLES]
    with TestClient(make_app(places, Settings(workers=1)), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("kind", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("path", [one.path for one in ENDPOINTS])
def test_bodies(client: TestClient, path: str, kind: str) -> None:
    """What the schema allows is answered (or names no model of ours), what it forbids is a 4xx."""
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    operation = schema[path]["POST"]
    mode = getattr(schemathesis.GenerationMode, kind)
    seen: set[int] = set()

    @QUIET
    @given(st.data())
    def send(data: Any) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        response = client.post(path, content=content_of(case), headers=JSON)
        seen.add(response.status_code)
        assert response.status_code in operation_statuses(operation), response.text
        response.json()
        if kind == "POSITIVE":
            assert response.status_code in (200, 404), (case.body, response.text)
        else:
            assert 400 <= response.status_code < 500, (case.body, response.text)

    send()
    assert seen & ({200} if kind == "POSITIVE" else {400, 415, 422})


def content_of(case: Any) -> bytes:
    """The body as schemathesis would send it; half a character is escaped."""
    if isinstance(case.body, schemathesis.core.NotSet):
        return b""
    return case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()


def operation_statuses(operation: Any) -> set[int]:
    """The statuses that the page names."""
    return {int(status) for status in operation.definition.raw["responses"]}


def test_the_page_is_openapi(client: TestClient) -> None:
    schemathesis.openapi.from_dict(client.get("/openapi.json").json()).validate()
