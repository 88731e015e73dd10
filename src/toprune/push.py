"""A bundle to the hub, as it is: model card, plan, report and ONNX files beside the weights."""

from pathlib import Path

from toprune.bundle import read_report
from toprune.card import CARD
from toprune.errors import UserError

PRIVATE = ("*.partial/*", ".*")  # of no use to others: unfinished work and drafts


def push(folder: str | Path, repo: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a bundle to a model repository, which is made if it is not there; returns its
    address. Who may do so is known from `hf auth login`, HF_TOKEN, or `token`."""
    folder = Path(folder)
    if not (folder / CARD).is_file() or "budget" not in read_report(folder):
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
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot push to {repo}: {line[:300]}") from error
    return str(address)
