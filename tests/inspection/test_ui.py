"""The web app: its answers are those of `explain`, nobody else's host is served, and a browser
finds nothing wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from support.serving import on_loopback
from toprune.errors import UserError
from toprune.inspection.explain.explain import explain
from toprune.inspection.explain.explanation import prediction_text
from toprune.inspection.ui import LARGEST, make_app
from toprune.report.html.shell import escape
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
    return folders


@pytest.fixture(scope="module")
def client(bundles: list[Path]) -> TestClient:
    return TestClient(make_app(bundles), base_url="http://localhost")


def test_it_says_what_explain_says(client: TestClient, bundles: list[Path]) -> None:
    for number, bundle in enumerate(bundles):
        page = client.post("/", data={"text": TEXT, "bundle": str(number)}).text
        (explained,) = explain(bundle, [TEXT]).texts
        assert f"<dd>{escape(prediction_text(explained.dense))}</dd>" in page
        assert f"<dd>{escape(prediction_text(explained.pruned))}</dd>" in page
        lasts = [token.last for token in explained.windows[0].tokens]
        assert page.count('data-last="0"') == lasts.count(0)
        assert page.count('class="t ') == len(lasts)
        assert "the speed of dense on this text" in page
        assert f'<option value="{number}" selected>' in page


def test_the_form_alone_to_begin_with(client: TestClient) -> None:
    page = client.get("/").text
    assert '<textarea name="text"' in page
    assert "data-last" not in page
    assert "<script>" not in page


def test_what_is_typed_is_text(client: TestClient) -> None:
    page = client.post("/", data={"text": NASTY}).text
    assert escape(NASTY) in page
    assert NASTY not in page
    assert "form-action 'self'" in page


def test_others_are_refused(client: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.post("/", data={"text": "w" * (LARGEST + 1)}).status_code == 413
    assert client.post("/", data={"text": TEXT, "bundle": "99"}).status_code == 200
    assert client.get("/other").status_code == 404


def test_a_dense_model_has_nothing_to_show(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"no plan\.json"):
        make_app([tmp_path])


@pytest.fixture(scope="module")
def address(bundles: list[Path]) -> Iterator[str]:
    """The app as it is served, on a port that the system picks."""
    with on_loopback(make_app(bundles)) as address:
        yield address


@pytest.mark.parametrize("size", ["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(visit: "Open", address: str, size: str, scheme: str) -> None:
    seen = visit(address, size=size, scheme=scheme)
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
