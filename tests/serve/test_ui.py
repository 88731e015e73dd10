"""The page of the server: its answers are those of `explain` and `Runner`, no other site's form is
read, and a browser finds nothing wrong with it."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from support.serving import on_loopback
from toprune.export.export import export
from toprune.inspection.explain.explain import explain
from toprune.inspection.explain.explanation import prediction_text
from toprune.io.atomic import replace_directory
from toprune.report.html.shell import escape
from toprune.run.runner import Runner
from toprune.serve.bundles import Shelf
from toprune.serve.requests import Limits
from toprune.serve.server import make_app
from toprune.serve.settings import Settings
from toprune.serve.ui import PATH
from toprune.training.settings import Training

if TYPE_CHECKING:
    from support.browser import Open

pytest_plugins = ["support.browser"]

TEXT = "w1 w40 w41 w42 w43 w44 w45 w46 w47 w48 w49 w50"
NASTY = '</textarea><script>alert("x")</script> w1 & "q"'


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two budgets of one model."""
    folder, folders = tmp_path_factory.mktemp("ui"), []
    data = {"train": synthetic.rows(64, 0), "test": synthetic.rows(32, 1)}
    for budget in ("1.5x", "2x"):
        folders.append(folder / f"small-{budget}")
        toprune.prune(
            make_model(),
            data,
            budget,
            out=folders[-1],
            tokenizer=make_tokenizer(),
            training=Training(soft_epochs=0, hard_epochs=0),
        )
        export(folders[-1])
    return folders


def app_of(*bundles: Path, **settings: Any) -> Any:
    return make_app([str(bundle) for bundle in bundles], Settings(workers=1, **settings))


def visitor(app: Any) -> TestClient:
    return TestClient(app, base_url="http://localhost")


@pytest.fixture(scope="module")
def client(bundles: list[Path]) -> Iterator[TestClient]:
    app = app_of(*bundles, explain=True, limits=Limits(max_body=20_000, max_chars=5000))
    with visitor(app) as client:
        yield client


def test_it_says_what_explain_says(client: TestClient, bundles: list[Path]) -> None:
    for bundle in bundles:
        page = client.post(PATH, data={"text": TEXT, "bundle": bundle.name}).text
        (explained,) = explain(bundle, [TEXT]).texts
        assert f"<dd>{escape(prediction_text(explained.dense))}</dd>" in page
        assert f"<dd>{escape(prediction_text(explained.pruned))}</dd>" in page
        lasts = [token.last for token in explained.windows[0].tokens]
        assert page.count('data-last="0"') == lasts.count(0)
        assert page.count('class="t ') == len(lasts)
        assert "the speed of dense on this text" in page
        assert f'<option value="{bundle.name}" selected>' in page


def test_without_the_weights_the_file_answers(bundles: list[Path]) -> None:
    (expected,) = Runner(bundles[0], threads=1).predict([TEXT])
    with visitor(app_of(bundles[0])) as client:
        page = client.post(PATH, data={"text": TEXT}).text
        assert f"<b>{escape(prediction_text(expected))}</b>" in page
        assert "data-last" not in page
        assert "<code>--explain</code>" in page
        assert 'toprune_texts_total{model="small-1.5x"} 1\n' in client.get("/metrics").text


def test_the_weights_are_those_of_the_bundle_that_is_served(
    bundles: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced bundle is explained by its new weights."""
    monkeypatch.setattr("toprune.serve.bundles.EVERY", 0.0)
    live = tmp_path / "live"
    shutil.copytree(bundles[0], live)
    monkeypatch.setattr("toprune.serve.server.Shelf", partial(Shelf, spawn=lambda load: load()))
    with visitor(app_of(live, explain=True)) as client:
        counts = []
        for bundle in bundles:
            shutil.copytree(bundle, tmp_path / "next")
            replace_directory(tmp_path / "next", live)
            counts.append(client.post(PATH, data={"text": TEXT}).text.count('data-last="0"'))
    assert counts[0] < counts[1]


def test_the_form_alone_to_begin_with(client: TestClient) -> None:
    page = client.get(PATH).text
    assert '<textarea name="text"' in page
    assert "data-last" not in page
    assert "<script>" not in page
    assert f"href='{PATH}'" in client.get("/").text


def test_what_is_typed_is_text(client: TestClient) -> None:
    page = client.post(PATH, data={"text": NASTY}).text
    assert escape(NASTY) in page
    assert NASTY not in page
    assert "form-action 'self'" in page


def test_others_are_refused(client: TestClient) -> None:
    assert client.get(PATH, headers={"host": "evil.example"}).status_code == 400
    elsewhere = {"sec-fetch-site": "cross-site"}
    assert client.post(PATH, data={"text": TEXT}, headers=elsewhere).status_code == 403
    assert client.post(PATH, data={"text": "w" * 20_001}).status_code == 413
    long = client.post(PATH, data={"text": "w" * 5001})
    assert (long.status_code, "the limit is 5000" in long.text) == (413, True)
    assert client.post(PATH, data={f"f{i}": "x" for i in range(99)}).status_code == 400
    assert client.post(PATH, data={"text": TEXT, "bundle": "none"}).status_code == 200
    assert client.post(PATH, content=b"\xff%ff=%zz&text").status_code < 500


def test_a_browser_logs_in_with_the_key(bundles: list[Path]) -> None:
    with visitor(app_of(bundles[0], key="secret")) as client:
        refused = client.get(PATH)
        assert (refused.status_code, "Basic" in refused.headers["www-authenticate"]) == (401, True)
        assert client.get(PATH, auth=("me", "wrong")).status_code == 401
        assert client.get(PATH, headers={"authorization": "Basic %"}).status_code == 401
        assert client.get(PATH, auth=("me", "secret")).status_code == 200


def test_a_bundle_that_cannot_be_explained_still_answers(
    bundles: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(bundles[0], tmp_path / "slim")
    (tmp_path / "slim" / "model.safetensors").unlink()  # as in a serving image
    with visitor(app_of(tmp_path / "slim", explain=True)) as client:
        reply = client.post(PATH, data={"text": TEXT})
        assert reply.status_code == 422
        assert 'role="alert"' in reply.text
        assert client.post("/predict", json={"inputs": TEXT}).status_code == 200


@pytest.fixture(scope="module")
def address(bundles: list[Path]) -> Iterator[str]:
    """The app as it is served, on a port that the system picks."""
    with on_loopback(app_of(*bundles, explain=True)) as address:
        yield address


@pytest.mark.parametrize("size", ["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(visit: "Open", address: str, size: str, scheme: str) -> None:
    seen = visit(address + PATH.removeprefix("/"), size=size, scheme=scheme)
    page = seen.page
    assert seen.violations() == []
    page.get_by_role("textbox", name="Text").fill(f"{TEXT} <b>")
    page.get_by_role("button", name="Look").click()
    page.wait_for_selector(".t")
    slider = page.get_by_label("What enters layer")
    before = page.locator(".t.gone").count()
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.locator(".t.gone").count() > before
    assert page.get_by_role("textbox", name="Text").input_value() == f"{TEXT} <b>"
    assert seen.overflow() == 0
    assert seen.violations() == []
    assert seen.errors == []
    assert all(request.startswith((address, "data:")) for request in seen.requests)
