"""Loading a model with the head of its task, and its tokenizer; one clear line when that fails."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.hub import cached_file

from toprune.data.examples import Examples
from toprune.data.images import PLACE, Images
from toprune.errors import UserError
from toprune.io.untrusted import whatever
from toprune.models.checks import check_config, check_size
from toprune.models.families import FAMILIES, family_named, family_of, image_shape, max_positions
from toprune.models.heads import auto_class
from toprune.models.shape import ENTRY, Shape, shape_of
from toprune.models.slim import cut_to
from toprune.tasks import Task

Source = Any  # a directory, a hub id, or a model object
SAFE: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True}  # no code, no pickle


def load_model(source: Source, task: Task, examples: Examples, *, new_head: bool = False) -> Any:
    """A model whose head fits the task; `new_head` gives it one when it has none (fine-tuning)."""
    if not isinstance(source, str | Path):
        family_of(source)
        task.check_head(source.config, examples)
        return source
    config = read_config(source)
    head: dict[str, Any] = {}
    if new_head:
        head = {"num_labels": task.num_outputs(examples)} | task.head(examples)
        # Names of the data, or none: those of an old head mean nothing now.
        names = examples.label_names or [f"LABEL_{i}" for i in range(head["num_labels"])]
        head["id2label"] = dict(enumerate(names))
        head["label2id"] = {name: i for i, name in enumerate(names)}
        head["ignore_mismatched_sizes"] = True
    model = read_weights(source, task, **head)
    task.check_head(config if not new_head else model.config, examples)
    return model


def read_weights(source: str | Path, task: Task, **head: Any) -> Any:
    """A model from disk or hub; without `head`, a new one, it must have its own."""
    config = read_config(source)
    kind, how, shape = auto_class(task, config), dict(head), shape_of(config)
    if shape is not None:
        kind = _slim(kind, config, shape)
        how["ignore_mismatched_sizes"] = True  # they are looked at below
    with whatever(f"cannot read the weights in {source} ({{}}); save or load them anew"):
        if Path(source).is_dir():
            check_size(Path(source), kind.from_config if shape is None else kind, config)
        model, info = kind.from_pretrained(
            str(source), output_loading_info=True, dtype=torch.float32, **SAFE, **how
        )
    family_of(model)
    if shape is not None:
        model.__class__ = kind.__base__
        _check_shape(source, model, info, new_head=bool(head))
    if task.POOLS:
        model.pooler = None  # a layer for pre-training; vectors are pooled without weights
    fresh = [name for name in info["missing_keys"] if "pooler" not in name]
    if fresh and not head:
        raise UserError(
            f"{source} has no trained head ({fresh[0]} is missing); "
            "run 'toprune finetune' on it first"
        )
    return model


def _slim(kind: Any, config: Any, shape: Shape) -> Any:
    """The class of transformers for this config, but for modules that are cut to the shape as soon
    as they are there: weights of that shape can then be loaded as ever."""
    with torch.device("meta"):
        stock: Any = type(kind.from_config(config))

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock.__init__(self, *args, **kwargs)
        cut_to(self, family_of(self), shape)

    own = {"__init__": init, "__module__": stock.__module__}
    return type(stock.__name__, (stock,), own)


def _check_shape(source: str | Path, model: Any, info: Any, *, new_head: bool) -> None:
    """The config says what a slim model's weights are like; do they? Those of an old head may be
    of any size where a new one is wanted."""
    inside = f"{model.base_model_prefix}."
    for name, found, told in sorted(info["mismatched_keys"]):
        if not new_head or name.startswith(inside):
            raise UserError(
                f"{ENTRY} in the config of {source} does not fit its weights: {name} is "
                f"{tuple(found)} there, not {tuple(told)}; get the model anew"
            )


def config_of(source: Source) -> Any:
    return read_config(source) if isinstance(source, str | Path) else source.config


def load_tokenizer(source: Source) -> Any:
    """The tokenizer beside a model; of an object, the one from where it was loaded. Of a model of
    images, what prepares these."""
    config = config_of(source)
    if not isinstance(source, str | Path):
        source = source.name_or_path
        if not source:
            raise UserError(
                "a model object that was not loaded from anywhere: give tokenizer=, too"
            )
    if family_named(config).images:
        return _load_images(source, config)
    with whatever(f"no tokenizer in {source} ({{}}); save one beside the model"):
        tokenizer = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
    if not isinstance(tokenizer.model_input_names, list):
        raise UserError(f"model_input_names in {source}/tokenizer_config.json must be a list")
    return tokenizer


def _load_images(source: str | Path, config: Any) -> Images:
    with whatever(f"no {PLACE} in {source} ({{}}); save the image processor there, too"):
        path = cached_file(str(source), PLACE)
    return check_images(Images.load(Path(str(path)), max_positions(config)), config)


def check_images(images: Images, config: Any) -> Images:
    """As they are, if the model can read them."""
    made, read = (3, images.height, images.width), image_shape(config)
    if made != read:
        raise UserError(
            f"{PLACE} makes images of (channels, height, width) {made}, the model reads {read}; "
            "save the processor that the model was trained with"
        )
    return images


def read_config(source: str | Path) -> Any:
    """The config first: a wrong architecture is refused before gigabytes are read."""
    looks_local = isinstance(source, Path) or str(source).startswith((".", "/", "~"))
    if looks_local and not Path(source).expanduser().is_dir():
        raise UserError(f"there is no model directory {source}; give a directory or a hub id")
    if Path(source).is_dir():
        check_config(Path(source))
    known = f"give a directory or a hub id of: {', '.join(FAMILIES)}"
    with whatever(f"cannot read a model from {source} ({{}}); {known}"):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
    family_named(config)  # or one line that says which are known
    return config


def fingerprint(model: Any) -> str:
    """Of the weights as they are: a run must not be resumed with another model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy(force=True))
    return digest.hexdigest()
