"""A bundle to the hub: model card, plan, report and ONNX files beside the weights; the user's own
texts, of which the report shows some, only if they are asked to come along."""

import json
from pathlib import Path
from typing import Any

from toprune.bundle.bundle import read_report
from toprune.errors import UserError
from toprune.report.card import CARD
from toprune.report.html.files import HTML, JSON
from toprune.report.html.report import report_page

PRIVATE = ("*.partial/*", ".*", JSON, HTML)  # unfinished work and drafts; the last two go apart


def push(
    folder: str | Path,
    repo: str,
    *,
    private: bool = False,
    examples: bool = False,
    token: str | None = None,
) -> str:
    """Upload a bundle to a model repository, which is made if it is not there; returns its
    address. examples: also the texts in its report. Who may do so is known from `hf auth login`,
    HF_TOKEN, or `token`."""
    folder = Path(folder)
    report = read_report(folder)
    if not (folder / CARD).is_file() or "budget" not in report:
        raise UserError(f"{folder} is no pruned bundle; give the directory that prune wrote")
    if repo.count("/") != 1:
        raise UserError(f"{repo!r} names no repository; say owner/name")
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise UserError("pushing needs the hub's library; pip install 'toprune[train]'") from error
    api = HfApi(token=token)
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message="toprune: pruned model with its report",
            ignore_patterns=list(PRIVATE),
        )
        shown = public_report(report, examples=examples)
        for name, text in ((JSON, json.dumps(shown, indent=1) + "\n"), (HTML, report_page(shown))):
            api.upload_file(path_or_fileobj=text.encode(), path_in_repo=name, repo_id=repo)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot push to {repo}: {line[:300]}") from error
    return str(address)


def public_report(report: dict[str, Any], *, examples: bool) -> dict[str, Any]:
    """The examples whose answer changed are the user's, and so is the tree of their disk."""
    shown = dict(report)
    if "changed" in shown and not examples:
        shown["changed"] = shown["changed"] | {"examples": []}
    if "inputs" in shown:
        paths = {k: Path(v).name for k, v in shown["inputs"].items() if k in ("model", "data")}
        shown["inputs"] = shown["inputs"] | paths
    return shown
