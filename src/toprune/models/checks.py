"""Checks on model directories from untrusted sources, run before transformers reads them.

transformers opens the files that a config names, asks the user whether code of the directory may
run, and builds whatever sizes it reads. So names must be of files inside, code is never run
(`trust_remote_code=False` in `load.py`), pickles are never read (`use_safetensors=True`), and a
model that is far too large for its weights is refused before it is built.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from toprune.errors import UserError
from toprune.io.untrusted import check_links, inside, read_json
from toprune.plan.plan import MAX_LAYERS

# Entries of a file that name other files, which transformers opens.
FILE_ENTRIES = {
    "config.json": ("configuration_files", "transformers_weights"),
    "tokenizer_config.json": ("fast_tokenizer_files",),
    "model.safetensors.index.json": ("weight_map",),
}
# Counts in the config and their limits: transformers builds so many parts before it reads weights.
COUNTS = {
    "num_hidden_layers": MAX_LAYERS,
    "n_layers": MAX_LAYERS,
    "num_hidden_groups": MAX_LAYERS,
    "inner_group_num": 16,
    "num_labels": 1 << 20,
}
SPARE = 1 << 26  # numbers that a model may have beyond the bytes of its files: a new head, a pooler
MAX_WEIGHT = 1e6  # sums of a thousand products of such weights are still finite in 32 bits
ADVICE = "get a new copy of the model"


def check_directory(folder: Path) -> None:
    """Refuse a directory from which a file outside of it would be opened later."""
    check_links(folder)
    if (folder / "adapter_config.json").exists():  # it names a base model, anywhere
        raise UserError(
            f"{folder} holds an adapter (adapter_config.json); merge it into its model first"
        )
    for name, entries in FILE_ENTRIES.items():
        if (folder / name).exists():
            content = read_object(folder / name)
            for file_name in _names(content.get(entry) for entry in entries):
                inside(folder, file_name)


def check_config(folder: Path) -> None:
    """Refuse impossible counts in config.json, before anything is built from them."""
    if not (folder / "config.json").exists():
        return  # transformers reports what is missing
    config = read_object(folder / "config.json")
    for name, limit in COUNTS.items():
        count = config.get(name)
        if isinstance(count, int) and not 0 <= count <= limit:
            where = folder / "config.json"
            raise UserError(f"{where}: {name} is {count}, not 0 to {limit}; {ADVICE}")
    attention = config.get("attn_implementation") or config.get("_attn_implementation")
    if attention is not None and "/" in str(attention):
        raise UserError(
            f"{folder / 'config.json'} requests code from the hub ({attention}); remove that line"
        )


def check_size(folder: Path, build: Callable[[Any], Any], config: Any) -> None:
    """Refuse a config whose model has more numbers than its files have bytes: without this check,
    one more digit in a config takes all memory.

    Args:
        folder: with the weights.
        build: makes a model of the config.
        config: of transformers.
    """
    with torch.device("meta"):
        numbers = sum(weight.numel() for weight in build(config).parameters())
    file_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if numbers > file_bytes + SPARE:
        raise UserError(
            f"config.json in {folder} describes a model of {numbers} numbers, but its weights have "
            f"{file_bytes} bytes; {ADVICE}"
        )


def check_finite(model: Any, source: str | Path) -> None:
    """Refuse weights that are NaN or infinite, or so large that their products would be.

    A check of the outputs alone is not enough. In the ONNX graph a NaN state spreads: softmax
    carries it to all tokens that attend to it, and it reaches the output, which is checked
    (`Runner`, `evaluation.finite`). But a NaN probe or predictor ranks clean states at random, and
    torch's fused attention treats a row of only NaN as a token that sees no other: it returns
    zeros, and the output looks like any other. So a plan's numbers are checked when it is read
    (`plan.MAX_WEIGHT`), weights here, once, before they go into a graph, and scores where torch
    ranks by them (`Follow`), which costs nothing beside a layer. The graph itself has no check,
    because every layer of every call would pay for it.
    """
    for name, weight in model.named_parameters():
        if weight.numel() == 0:
            continue
        low, high = weight.detach().aminmax()  # NaN if any weight is
        if not (low >= -MAX_WEIGHT and high <= MAX_WEIGHT):
            raise UserError(f"{name} in {source} is not a number (NaN or infinite); {ADVICE}")


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer with token ids that have no row in the model's embedding table."""
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= rows:
        raise UserError(
            f"the tokenizer has the token id {largest}, the model's table ends at {rows - 1}; "
            "save the model with its own tokenizer"
        )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, and refuse a file that holds anything else."""
    content = read_json(path, ADVICE)
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; {ADVICE}")
    return content


def _names(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, dict):
            yield from set(map(str, entry.values()))
        elif entry is not None:
            yield from map(str, entry if isinstance(entry, list) else [entry])
