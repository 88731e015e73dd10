"""Broken and hostile bundles, drawn at random: one good one, and a hundred ways to spoil it.

A case is known by its number and a seed, so what was found once can be found again:

    spoil(bundle, kind, np.random.default_rng((seed, number)))

Bundles are signed anew most of the time: who makes a hostile one writes the right hashes, too.
"""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from support.toy_bundle import write_graph

MANIFEST, GRAPH = "onnx/export.json", "onnx/model.onnx"
Rng = np.random.Generator

# What a field is replaced by. Strings with a dot and a slash: paths out of the bundle.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    10**9,
    10**30,
    -(10**18),
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../trap/file",
    "/etc/passwd",
    "1/0",
    "1e999999999",
    "\ud800\x1b[2J\n",
    "A" * 100_000,
    [],
    {},
    [[]],
    [None],
    [10**9] * 1000,
    {"a": {"b": []}},
    {"__class__": "x"},
)


# -- how a file is spoiled -------------------------------------------------------------------------


def spoil_json(text: str, rng: Rng) -> bytes:
    """One value or key of the tree is changed, doubled or taken away; or the text itself is cut."""
    tree = json.loads(text)
    homes = [home for home in _homes(tree) if home]
    if not homes or rng.random() < 0.15:
        return spoil_bytes(text.encode(), rng)
    for _ in range(int(rng.integers(1, 3))):
        home = homes[int(rng.integers(len(homes)))]
        keys = list(home) if isinstance(home, dict) else range(len(home))
        key: Any = keys[int(rng.integers(len(keys)))] if keys else None
        value = VALUES[int(rng.integers(len(VALUES)))]
        how = rng.random()
        if key is None or (how < 0.1 and isinstance(home, dict)):
            home.update({f"extra{rng.integers(9)}": value}) if isinstance(home, dict) else None
        elif how < 0.2:
            del home[key]
        elif how < 0.3 and isinstance(home[key], int | float):
            home[key] = home[key] * 10 ** int(rng.integers(1, 12))
        else:
            home[key] = value
    spoiled = json.dumps(tree)
    if rng.random() < 0.05:  # a key that comes twice
        spoiled = spoiled.replace("{", '{"schema": 9, "model_type": "x", ', 1)
    return spoiled.encode("utf-8", "surrogatepass")


def _homes(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list):
        yield tree
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _homes(part)


def spoil_bytes(data: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(data) + 1))
    match int(rng.integers(8)):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + rng.bytes(int(rng.integers(1, 64))) + data[at:]
        case 2:
            return data[:at] + data[at + int(rng.integers(1, 64)) :]
        case 3:
            return b"[" * 100_000
        case 4:
            return b'{"a":' * 500 + b"1" + b"}" * 500
        case 5:
            return b"\xff\xfe" + data
        case _:
            flipped = bytearray(data)
            for i in rng.integers(0, max(len(data), 1), int(rng.integers(1, 9))):
                flipped[i : i + 1] = rng.bytes(1)
            return bytes(flipped)


def spoil_weights(data: bytes, rng: Rng) -> bytes:
    """The header of a safetensors file is JSON behind its length."""
    size = int.from_bytes(data[:8], "little")
    match int(rng.integers(4)):
        case 0:
            return int(rng.integers(2**62)).to_bytes(8, "little") + data[8:]
        case 1:
            header = spoil_json(data[8 : 8 + size].decode(), rng)
            return len(header).to_bytes(8, "little") + header + data[8 + size :]
        case 2:  # numbers that are none
            flaws = np.frombuffer(data[8 + size :], "<f4").copy()
            flaws[rng.integers(len(flaws))] = rng.choice([np.nan, np.inf, -np.inf])
            return data[: 8 + size] + flaws.tobytes()
        case _:
            return spoil_bytes(data, rng)


# -- kinds of cases --------------------------------------------------------------------------------


def _json_of(name: str) -> Callable[[Path, Rng], None]:
    def spoil_file(bundle: Path, rng: Rng) -> None:
        path = bundle / name
        path.write_bytes(spoil_json(path.read_text(), rng))

    return spoil_file


def _plan_with_graph(bundle: Path, rng: Rng) -> None:
    """The graph says the same plan: only the plan's own numbers are wrong."""
    _json_of("plan.json")(bundle, rng)
    data = (bundle / "plan.json").read_bytes().decode("utf-8", "replace")
    write_graph(bundle / GRAPH, plan=data.encode("utf-8", "replace").decode())


def _pooling(bundle: Path, rng: Rng) -> None:
    """As sentence-transformers writes them: there is no report."""
    (bundle / "report.json").unlink()
    names = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json")
    _json_of(names[int(rng.integers(3))])(bundle, rng)


def _special(bundle: Path, rng: Rng) -> None:
    names = ("special_tokens_map.json", "added_tokens.json")
    _json_of(names[int(rng.integers(2))])(bundle, rng)
    settings = json.loads((bundle / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)  # else these files are not asked
    (bundle / "tokenizer_config.json").write_text(json.dumps(settings))


def _weights(bundle: Path, rng: Rng) -> None:
    path = bundle / "model.safetensors"
    path.write_bytes(spoil_weights(path.read_bytes(), rng))


def _graph(bundle: Path, rng: Rng) -> None:
    path = bundle / GRAPH
    path.write_bytes(spoil_bytes(path.read_bytes(), rng))


def _external(bundle: Path, rng: Rng) -> None:
    """Weights that are said to be in another file."""
    model = onnx.load(bundle / GRAPH)
    tensor = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    places = ("../../trap/file", "/etc/passwd", "../plan.json", "", "x", "model_int8.onnx", "\x00")
    tensor.external_data.add(key="location", value=places[int(rng.integers(len(places)))])
    tensor.external_data.add(key="length", value=str(rng.integers(-9, 2**40)))
    (bundle / GRAPH).write_bytes(model.SerializeToString())


def _link(bundle: Path, rng: Rng) -> None:
    names = [p for p in sorted(bundle.rglob("*")) if p.is_file() and p.suffix != ".html"]
    path = names[int(rng.integers(len(names)))]
    outside = bundle.parent / "trap" / path.name
    match int(rng.integers(3)):
        case 0:  # the very same bytes, outside
            shutil.move(path, outside)
        case 1:
            path.unlink()
            outside = Path("/etc/passwd")
        case _:
            path.unlink()
            os.mkfifo(path)
            return
    path.symlink_to(outside)


def _names(bundle: Path, rng: Rng) -> None:
    """Entries by which one file leads to another."""
    outside = ["../trap/config.9.9.9.json", "../trap/file", "/etc/passwd"][int(rng.integers(3))]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("config.json", {"configuration_files": [outside]}),
        ("config.json", {"transformers_weights": outside}),
        ("config.json", {"attn_implementation": "somebody/kernel"}),
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../trap/tokenizer.0.0.0.json"]}),
        ("tokenizer_config.json", {"tokenizer_file": outside, "vocab_file": outside}),
        ("adapter_config.json", {"base_model_name_or_path": outside, "peft_type": "LORA"}),
        ("model.safetensors.index.json", {"metadata": {}, "weight_map": {"x": outside}}),
    ]
    name, entries = changes[int(rng.integers(len(changes)))]
    path = bundle / name
    data = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(data | entries))
    if name.endswith("index.json"):
        (bundle / "model.safetensors").unlink()


def _code(bundle: Path, rng: Rng) -> None:
    """Code that would leave a trace outside."""
    canary = bundle.parent / "trap" / "canary"
    (bundle / "own.py").write_text(f"open({str(canary)!r}, 'w')\nclass Own: pass\n")
    if rng.random() < 0.3:
        (bundle / "model.safetensors").unlink()
        (bundle / "pytorch_model.bin").write_bytes(pickle.dumps(_Payload(str(canary))))
        return
    places = {"AutoConfig": "own.Own", "AutoModel": "own.Own"}
    places |= {"AutoModelForSequenceClassification": "own.Own", "AutoTokenizer": ["own.Own", None]}
    for name in ("config.json", "tokenizer_config.json"):
        data = json.loads((bundle / name).read_text()) | {"auto_map": places}
        if rng.random() < 0.5:
            data |= {"model_type": "own", "tokenizer_class": "Own"}
        (bundle / name).write_text(json.dumps(data))


class _Payload:
    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


# kind -> (how it is spoiled, is it read by the torch side, by the Runner)
KINDS: dict[str, tuple[Callable[[Path, Rng], None], bool, bool]] = {
    "export.json": (_json_of(MANIFEST), False, True),
    "plan.json": (_json_of("plan.json"), True, True),
    "plan.json and graph": (_plan_with_graph, False, True),
    "tokenizer.json": (_json_of("tokenizer.json"), True, True),
    "graph": (_graph, False, True),
    "external data": (_external, False, True),
    "config.json": (_json_of("config.json"), True, False),
    "tokenizer_config.json": (_json_of("tokenizer_config.json"), True, False),
    "special tokens": (_special, True, False),
    "report.json": (_json_of("report.json"), True, False),
    "pooling": (_pooling, True, False),
    "weights": (_weights, True, False),
    "links": (_link, True, True),
    "names of files": (_names, True, False),
    "code": (_code, True, False),
}


def spoil(bundle: Path, kind: str, rng: Rng) -> None:
    KINDS[kind][0](bundle, rng)
    if kind != "export.json" and rng.random() < 0.8:
        sign(bundle)


def sign(bundle: Path) -> None:
    """The right hashes of the wrong files."""
    path = bundle / MANIFEST
    if not path.is_file() or path.is_symlink():
        return
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        if (bundle / name).is_file():
            manifest["files"][name] = hashlib.sha256((bundle / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
