"""Push a bundle to the hub: model card, plan, report and ONNX files beside the weights.

The report shows some of the user's texts. They are uploaded only if the user requests it.
"""

import json
from pathlib import Path
from typing import Any

from toprune.bundle.bundle import read_report
from toprune.errors import UserError
from toprune.report.card import CARD
from toprune.report.html.files import HTML, JSON
from toprune.report.html.report import report_page

# Unfinished work and drafts; and the report, which is uploaded apart without private data.
NOT_UPLOADED = ("*.partial/*", ".*", JSON, HTML)


def push(
    folder: str | Path,
    repo: str,
    *,
    private: bool = False,
    examples: bool = False,
    token: str | None = None,
) -> str:
    """Upload a bundle to a model repository, which is created if it does not exist.

    Args:
        folder: the bundle.
        repo: owner/name.
        private: whether a new repository is private.
        examples: also upload the texts in its report.
        token: of the hub; by default the one of `hf auth login` or HF_TOKEN.

    Returns:
        The address of the repository.
    """
    folder = Path(folder)
    report = read_report(folder)
    if not (folder / CARD).is_file() or "budget" not in report:
        raise UserError(f"{folder} is no pruned bundle; give the directory that prune wrote")
    if repo.count("/") != 1:
        raise UserError(f"{repo!r} is not the name of a repository; give owner/name")
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise UserError("to push, pip install 'toprune[train]'") from error
    api = HfApi(token=token)
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message="toprune: pruned model with its report",
            ignore_patterns=list(NOT_UPLOADED),
        )
        public = public_report(report, examples=examples)
        for name, text in (
            (JSON, json.dumps(public, indent=1) + "\n"),
            (HTML, report_page(public)),
        ):
            api.upload_file(path_or_fileobj=text.encode(), path_in_repo=name, repo_id=repo)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot push to {repo}: {line[:300]}") from error
    return str(address)


def public_report(report: dict[str, Any], *, examples: bool) -> dict[str, Any]:
    """Remove what is private: directories of the user's disk, and texts unless `examples`."""
    public = dict(report)
    if "changed" in public and not examples:
        public["changed"] = public["changed"] | {"examples": []}
    if "inputs" in public:
        inputs = public["inputs"]
        names = [name for name in ("model", "data", "lengths_of") if name in inputs]
        paths: dict[str, Any] = {name: Path(inputs[name]).name for name in names}
        if "unlabelled" in inputs:
            paths["unlabelled"] = [Path(path).name for path in inputs["unlabelled"]]
        public["inputs"] = inputs | paths
    return public
