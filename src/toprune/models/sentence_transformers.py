"""Directories of sentence-transformers: read and write how they pool token states."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprune.errors import UserError
from toprune.io.untrusted import inside, read_json

if TYPE_CHECKING:
    from toprune.tasks.embed import Embed

FLAG = "pooling_mode_"  # before 6.0 each kind of pooling had a flag of its own
KINDS = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}
HOME = "sentence_transformers.models"  # where every version finds its modules


def read_pooling(folder: str | Path) -> dict[str, Any] | None:
    """The settings of `Embed` that a sentence-transformers directory asks for; None: it is none.

    What would be lost without a word, another pooling or a layer behind it, is refused.
    """
    folder = Path(folder)
    if not (folder / "modules.json").is_file():
        return None
    told = _read(folder / "modules.json", list)
    modules: list[Any] = [module if isinstance(module, dict) else {} for module in told]
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    odd = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if odd or kinds.count("Pooling") != 1:
        raise UserError(
            f"{folder} makes its vectors by {', '.join(kinds)}; known is an encoder, one pooling "
            "(mean or cls) and perhaps Normalize: use a model of that kind"
        )
    path = inside(folder, f"{modules[kinds.index('Pooling')].get('path')}/config.json")
    return {"pooling": _kind(_read(path, dict), path), "normalize": "Normalize" in kinds}


def read_max_length(folder: str | Path) -> int | None:
    """How many tokens a sentence-transformers directory reads of a text, where it says so."""
    path = Path(folder) / "sentence_bert_config.json"
    found = _read(path, dict).get("max_seq_length") if path.is_file() else None
    return found if type(found) is int and found > 0 else None


def write_pooling(folder: str | Path, embed: "Embed", width: int, max_length: int) -> None:
    """Make a saved encoder a directory that `sentence_transformers.SentenceTransformer` opens.

    The older of two spellings, which every version reads. width: numbers per vector.
    """
    folder = Path(folder)
    layers = {"Transformer": "", "Pooling": "1_Pooling"}
    if embed.normalize:
        layers["Normalize"] = "2_Normalize"  # has no settings, so no folder either
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{HOME}.{kind}"}
        for i, (kind, path) in enumerate(layers.items())
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
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(
        folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False}
    )
    _write(folder / "config_sentence_transformers.json", about)


def _kind(config: dict[str, Any], path: Path) -> str:
    """ "mean" or "cls", of a Pooling module's settings, old or new."""
    found = config.get("pooling_mode")
    if found is None:
        found = [key.removeprefix(FLAG) for key in config if key.startswith(FLAG) and config[key]]
    names = found if isinstance(found, list) else [found]
    if len(names) != 1 or str(names[0]) not in KINDS:
        raise UserError(
            f"{path} asks for pooling by {' and '.join(map(str, names)) or 'nothing'}; "
            "known are mean and cls: use a model with one of them"
        )
    return KINDS[names[0]]


def _read(path: Path, kind: type) -> Any:
    found = read_json(path, "copy the model anew")
    if not isinstance(found, kind):
        raise UserError(f"{path} is not of a sentence-transformers model; copy the model anew")
    return found


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
