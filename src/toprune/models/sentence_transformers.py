"""Directories of sentence-transformers: read and write how they pool token states."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprune.errors import UserError
from toprune.io.untrusted import inside, read_json

if TYPE_CHECKING:
    from toprune.tasks.embed import Embed

FLAG = "pooling_mode_"  # before 6.0 each pooling had a flag, such as pooling_mode_cls_token
POOLING = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}
ABOUT = "config_sentence_transformers.json"
HOME = "sentence_transformers.models"  # where every version finds its modules


def read_pooling(folder: str | Path) -> dict[str, Any] | None:
    """Read how a sentence-transformers directory makes its vectors.

    Another pooling, or a layer after it, is refused: it would be lost without notice.

    Returns:
        Settings of `Embed`; None if sentence-transformers did not write the directory.
    """
    folder = Path(folder)
    if not (folder / "modules.json").is_file():
        return None
    content = _read(folder / "modules.json", list)
    modules: list[Any] = [module if isinstance(module, dict) else {} for module in content]
    names = [str(module.get("type")).rpartition(".")[2] for module in modules]
    unknown = [name for name in names if name not in ("Transformer", "Pooling", "Normalize")]
    if unknown or names.count("Pooling") != 1:
        raise UserError(
            f"{folder} makes its vectors by {', '.join(names)}; use a model with an encoder, one "
            "pooling (mean or cls) and at most Normalize after it"
        )
    path = inside(folder, f"{modules[names.index('Pooling')].get('path')}/config.json")
    return {"pooling": _pooling(_read(path, dict), path), "normalize": "Normalize" in names}


def read_max_length(folder: str | Path) -> int | None:
    """Read the maximum length from a sentence-transformers directory; None if it has none."""
    path = Path(folder) / "sentence_bert_config.json"
    length = _read(path, dict).get("max_seq_length") if path.is_file() else None
    return length if type(length) is int and length > 0 else None


def read_prompts(folder: str | Path) -> dict[str, Any] | None:
    """Read the texts that a sentence-transformers model wants before its inputs.

    Returns:
        `prompts` by name, and the `default_prompt_name`; None if there are no prompts.
    """
    path = Path(folder) / ABOUT
    about = _read(path, dict) if path.is_file() else {}
    prompts, default = about.get("prompts") or {}, about.get("default_prompt_name")
    texts = [*prompts, *prompts.values()] if isinstance(prompts, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or default not in (None, *prompts):
        raise UserError(f"{path}: prompts must be texts by name; copy the model again")
    return {"prompts": prompts, "default_prompt_name": default} if prompts else None


def write_pooling(
    folder: str | Path,
    embed: "Embed",
    width: int,
    max_length: int,
    prompts: dict[str, Any] | None = None,
) -> None:
    """Make a saved encoder a directory that `sentence_transformers.SentenceTransformer` opens.

    It uses the older of two formats, which every version reads.

    Args:
        folder: with the saved encoder.
        embed: the task.
        width: numbers per vector.
        max_length: tokens per text.
        prompts: as `read_prompts` gives them.
    """
    folder = Path(folder)
    layers = {"Transformer": "", "Pooling": "1_Pooling"}
    if embed.normalize:
        layers["Normalize"] = "2_Normalize"  # has no settings, so no folder either
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{HOME}.{name}"}
        for i, (name, path) in enumerate(layers.items())
    ]
    pooling = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": embed.pooling == "cls",
        "pooling_mode_mean_tokens": embed.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    about = {
        "model_type": "SentenceTransformer",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    } | (prompts or {})
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(
        folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False}
    )
    _write(folder / ABOUT, about)


def _pooling(config: dict[str, Any], path: Path) -> str:
    """Return "mean" or "cls" from a Pooling module's settings in the old or the new format."""
    mode = config.get("pooling_mode")
    if mode is None:
        mode = [key.removeprefix(FLAG) for key in config if key.startswith(FLAG) and config[key]]
    names = mode if isinstance(mode, list) else [mode]
    if len(names) != 1 or str(names[0]) not in POOLING:
        raise UserError(
            f"{path} requests pooling by {' and '.join(map(str, names)) or 'nothing'}; "
            "use a model that pools by mean or cls"
        )
    return POOLING[names[0]]


def _read(path: Path, expected: type) -> Any:
    content = read_json(path, "copy the model again")
    if not isinstance(content, expected):
        raise UserError(f"{path} is not of a sentence-transformers model; copy the model again")
    return content


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
