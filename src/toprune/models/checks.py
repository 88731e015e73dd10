"""Model directories that come from elsewhere: what is looked at before transformers reads them.

transformers opens the files that a config names, asks the user whether code of the directory may
run, and builds whatever sizes it reads. So names must be of files inside, code is never run
(`trust_remote_code=False` in `models.py`), pickles are never read (`use_safetensors=True`), and a
model that is out of all proportion to its weights is refused before it is built.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from toprune.errors import UserError
from toprune.io.untrusted import check_links, inside, read_json
from toprune.plan.plan import MAX_LAYERS

# Entries by which a file names others, which transformers opens.
NAMING = {
    "config.json": ("configuration_files", "transformers_weights"),
    "tokenizer_config.json": ("fast_tokenizer_files",),
    "model.safetensors.index.json": ("weight_map",),
}
# Counts of the config for which something is made one by one before any weights are read.
COUNTS = {
    "num_hidden_layers": MAX_LAYERS,
    "n_layers": MAX_LAYERS,
    "num_hidden_groups": MAX_LAYERS,
    "inner_group_num": 16,
    "num_labels": 1 << 20,
}
SPARE = 1 << 26  # numbers that a model may have beyond the bytes of its files: a new head, a pooler
LARGEST = 1e6  # of a weight; sums of products of a thousand such are still numbers in 32 bits
ANEW = "get the model anew"


def check_directory(folder: Path) -> None:
    """Nothing that is opened later lies outside of the directory."""
    check_links(folder)
    if (folder / "adapter_config.json").exists():  # it names a base model, anywhere
        raise UserError(
            f"{folder} holds an adapter (adapter_config.json); merge it into its model first"
        )
    for name, entries in NAMING.items():
        if (folder / name).exists():
            told = read_object(folder / name)
            for named in _names(told.get(entry) for entry in entries):
                inside(folder, named)


def check_config(folder: Path) -> None:
    """Counts that can be, before anything is made of them."""
    if not (folder / "config.json").exists():
        return  # transformers says what is missing
    config = read_object(folder / "config.json")
    for name, most in COUNTS.items():
        count = config.get(name)
        if isinstance(count, int) and not 0 <= count <= most:
            raise UserError(f"{folder / 'config.json'}: {name} is {count}, not 0 to {most}; {ANEW}")
    attention = config.get("attn_implementation") or config.get("_attn_implementation")
    if attention is not None and "/" in str(attention):
        raise UserError(
            f"{folder / 'config.json'} asks for code of the hub ({attention}); remove that line"
        )


def check_size(folder: Path, make: Callable[[Any], Any], config: Any) -> None:
    """Does the model that `make` makes of the config have no more numbers than its files have
    bytes? Without this, one digit more in a config takes all memory."""
    with torch.device("meta"):
        told = sum(weight.numel() for weight in make(config).parameters())
    there = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if told > there + SPARE:
        raise UserError(
            f"config.json in {folder} describes a model of {told} numbers, but its weights have "
            f"{there} bytes; {ANEW}"
        )


def check_finite(model: Any, source: str | Path) -> None:
    """Refuse weights that are no numbers, or so large that what they make is none.

    Where is the cheapest place to look? Not at the answer alone. In the ONNX graph a state that is
    NaN spreads, softmax takes it to all who attend, and reaches the answer, which is checked
    (`Runner`, `evaluation.finite`). But a probe or a predictor that is NaN ranks clean states at
    random, and torch's fused attention reads a row of nothing but NaN as a token that sees nobody:
    zeros, and an answer like any other. So a plan's numbers are checked when it is read
    (`plan.MAX_WEIGHT`), weights here, once, which is before they go into a graph, too, and scores
    where torch ranks by them (`Follow`), which is nothing beside a layer. The graph has no check
    of its own: it would be paid for in every layer of every call.
    """
    for name, weight in model.named_parameters():
        if weight.numel() == 0:
            continue
        low, high = weight.detach().aminmax()  # NaN if one of them is
        if not (low >= -LARGEST and high <= LARGEST):
            raise UserError(f"{name} in {source} is not a number (NaN or infinite); {ANEW}")


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Every token that can come must have a row in the model's table."""
    rows = model.get_input_embeddings().weight.shape[0]
    most = max(tokenizer.get_vocab().values(), default=-1)
    if most >= rows:
        raise UserError(
            f"the tokenizer has the token id {most}, the model's table ends at {rows - 1}; "
            "save the model with its own tokenizer"
        )


def read_object(path: Path) -> dict[str, Any]:
    found = read_json(path, ANEW)
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object; {ANEW}")
    return found


def _names(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, dict):
            yield from set(map(str, entry.values()))
        elif entry is not None:
            yield from map(str, entry if isinstance(entry, list) else [entry])
