"""The model card, read back by the hub's own library; pushing, with a hub that is not there."""

import json
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pytest
from huggingface_hub import ModelCard

import toprune
from support import synthetic
from support.models import make_model, make_tokenizer
from toprune.bundle.bundle import read_report
from toprune.bundle.hub import push
from toprune.errors import UserError
from toprune.report.html.files import write_report
from toprune.training.settings import Training

NOTHING = Training(soft_epochs=0, hard_epochs=0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("card") / "small"
    data = {"train": synthetic.rows(64, 0), "test": synthetic.rows(32, 1)}
    toprune.prune(make_model(), data, "2x", out=out, tokenizer=make_tokenizer(), training=NOTHING)
    return out


def test_the_hub_reads_our_metrics(bundle: Path) -> None:
    card: Any = ModelCard.load(bundle / "README.md")
    report: Any = read_report(bundle)
    assert card.data.pipeline_tag == "text-classification"
    assert "token-pruning" in card.data.tags
    metrics = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert metrics == {name: figure["value"] for name, figure in report["pruned"].items()}
    assert f"{report['budget']['executed']['unpadded']:.2f}x fewer FLOPs" in card.text
    assert f"{report['difference']['accuracy']['low']:+.4f}" in card.text


def test_without_labels_it_claims_agreement_alone(tmp_path: Path) -> None:
    rows = [{"text": row["text"]} for row in synthetic.rows(64, 0)]
    toprune.prune(
        make_model(),
        {"train": rows, "test": rows[:32]},
        "2x",
        out=tmp_path / "small",
        tokenizer=make_tokenizer(),
        training=NOTHING,
    )
    card: Any = ModelCard.load(tmp_path / "small" / "README.md")
    assert card.data.eval_results is None
    assert "No labels were given" in card.text


class Hub:
    """Takes what it is given, or says no."""

    calls: tuple[Any, ...] = ()
    files: ClassVar[dict[str, str]] = {}
    error: Exception | None = None

    def __init__(self, token: str | None = None):
        pass

    def create_repo(self, repo: str, **options: Any) -> str:
        if Hub.error is not None:
            raise Hub.error
        Hub.calls = (repo, options)
        return f"hub/{repo}"

    def upload_folder(self, **options: Any) -> None:
        Hub.calls = (*Hub.calls, options)

    def upload_file(self, *, path_or_fileobj: bytes, path_in_repo: str, repo_id: str) -> None:
        Hub.files[path_in_repo] = path_or_fileobj.decode()


def test_a_bundle_is_pushed_without_the_texts(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "error", None)
    report: Any = read_report(bundle)
    text = "what nobody else should read"
    report["inputs"] = {"model": f"/home/{text}/dense", "data": f"/{text}/tickets.csv"}
    report["changed"]["examples"] = [{"text": text, "dense": "a", "pruned": "b", "label": "a"}]
    write_report(bundle, report)
    assert push(bundle, "me/small", private=True) == "hub/me/small"
    repo, options, upload = Hub.calls
    assert (repo, options) == ("me/small", {"private": True, "exist_ok": True})
    assert (upload["repo_id"], upload["folder_path"]) == ("me/small", bundle)
    assert {"report.json", "report.html"} <= {*upload["ignore_patterns"]}
    for name, pushed in Hub.files.items():
        assert text in (bundle / name).read_text()
        assert text not in pushed
    pushed_report = json.loads(Hub.files["report.json"])
    assert pushed_report["pruned"] == report["pruned"]
    assert pushed_report["inputs"] == {"model": "dense", "data": "tickets.csv"}
    push(bundle, "me/small", examples=True)
    assert text in Hub.files["report.html"]


def test_one_line_where_it_cannot_be(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "error", ConnectionError("no way\nto the hub"))
    with pytest.raises(UserError, match="cannot push to me/small: no way to the hub"):
        push(bundle, "me/small")
    with pytest.raises(UserError, match="give owner/name"):
        push(bundle, "small")
    with pytest.raises(UserError, match="no pruned bundle"):
        push(tmp_path, "me/small")
