"""The client libraries of OpenAI and Cohere, pointed at the server on loopback."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.serving import on_loopback
from support.toy_bundle import make_bundle
from toprune.run.runner import Runner
from toprune.serve.server import make_app
from toprune.serve.settings import Settings

cohere = pytest.importorskip("cohere")
openai = pytest.importorskip("openai")
KEY = "secret"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("clients")
    for name in ("embed", "rank"):
        make_bundle(place / name, task=name)
    return place


@pytest.fixture(scope="module")
def address(bundles: Path) -> Iterator[str]:
    places = [str(bundles / name) for name in ("embed", "rank")]
    with on_loopback(make_app(places, Settings(workers=2, key=KEY))) as address:
        yield address


def test_openai(bundles: Path, address: str):
    texts = ["w1 w2", "w3"]
    client = openai.OpenAI(base_url=f"{address}v1", api_key=KEY, max_retries=0)
    expected = Runner(bundles / "embed", threads=1)(texts)
    for more in ({}, {"encoding_format": "float"}):  # the client asks for base64 by itself
        reply = client.embeddings.create(model="embed", input=texts, **more)
        vectors = [one.embedding for one in reply.data]
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        assert reply.usage.total_tokens == 7
    assert [one.id for one in client.models.list()] == ["embed", "rank"]
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.embeddings.create(model="other", input=texts)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}v1", api_key="wrong", max_retries=0).models.list()


@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_cohere(bundles: Path, address: str, version: str):
    documents = ["w1", "w2 w3", "w4"]
    client = getattr(cohere, version)(api_key=KEY, base_url=address.rstrip("/"))
    reply = client.rerank(model="rank", query="w9", documents=documents, top_n=2)
    expected = Runner(bundles / "rank", threads=1).rank("w9", documents)[:2]
    assert [(one.index, one.relevance_score) for one in reply.results] == [
        (one["document"], pytest.approx(one["score"])) for one in expected
    ]
