"""Load a model with the head of its task, and its tokenizer; errors are one clear line."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.hub import cached_file

from toprune.data.examples import Examples
from toprune.data.images import PLACE, Images
from toprune.errors import UserError
from toprune.io.untrusted import user_errors
from toprune.models.checks import check_config, check_size
from toprune.models.families import FAMILIES, family_named, family_of, image_shape, max_positions
from toprune.models.heads import auto_class
from toprune.models.shape import ENTRY, Shape, shape_of
from toprune.models.slim import cut_to
from toprune.tasks import Task

Source = Any  # a directory, a hub id, or a model object
SAFE: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True}  # no code, no pickle


def load_model(
    source: Source, task: Task, examples: Examples, *, new_head: bool = False, config: Any = None
) -> Any:
    """Load a model whose head fits the task.

    Args:
        source: a directory, a hub id, or a model object, which is returned as it is.
        task: what the head is for.
        examples: the head must fit their labels.
        new_head: give the model a new head, for fine-tuning.
        config: the config of the source, if the caller has read it.

    Returns:
        A transformers model.
    """
    if not isinstance(source, str | Path):
        family_of(source)
        task.check_head(source.config, examples)
        return source
    config = config or read_config(source)
    head: dict[str, Any] = {}
    if new_head:
        head = {"num_labels": task.num_outputs(examples)} | task.head(examples)
        # The names in the data, or none: the names of an old head mean nothing now.
        names = examples.label_names or [f"LABEL_{i}" for i in range(head["num_labels"])]
        head["id2label"] = dict(enumerate(names))
        head["label2id"] = {name: i for i, name in enumerate(names)}
        head["ignore_mismatched_sizes"] = True
    model = read_weights(source, task, config, **head)
    task.check_head(config if not new_head else model.config, examples)
    return model


def read_weights(source: str | Path, task: Task, config: Any = None, **head: Any) -> Any:
    """Read a model from disk or from the hub.

    Args:
        source: a directory or a hub id.
        task: what the head is for.
        config: the config of the source, if the caller has read it.
        head: entries of the config for a new head. Without them the model must have a trained one.

    Returns:
        A transformers model in float32.
    """
    config = config or read_config(source)
    model_class, options, shape = auto_class(task, config), dict(head), shape_of(config)
    if shape is not None:
        model_class = _slim_class(model_class, config, shape)
        options["ignore_mismatched_sizes"] = True  # `_check_shape` looks at them
    with user_errors(f"cannot read the weights in {source} ({{}}); save or download them again"):
        if Path(source).is_dir():
            build = model_class.from_config if shape is None else model_class
            check_size(Path(source), build, config)
        model, info = model_class.from_pretrained(
            str(source), output_loading_info=True, dtype=torch.float32, **SAFE, **options
        )
    family_of(model)
    if shape is not None:
        model.__class__ = model_class.__base__
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


def _slim_class(auto: Any, config: Any, shape: Shape) -> Any:
    """Subclass the class of transformers for this config: its modules are cut to the shape when
    they are built, so that weights of that shape can be loaded as usual."""
    with torch.device("meta"):
        stock: Any = type(auto.from_config(config))

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock.__init__(self, *args, **kwargs)
        cut_to(self, family_of(self), shape)

    members = {"__init__": init, "__module__": stock.__module__}
    return type(stock.__name__, (stock,), members)


def _check_shape(source: str | Path, model: Any, info: Any, *, new_head: bool) -> None:
    """Refuse a slim model whose weights have other sizes than its config. The weights of an old
    head may have any size if a new head replaces it."""
    encoder = f"{model.base_model_prefix}."
    for name, actual, expected in sorted(info["mismatched_keys"]):
        if not new_head or name.startswith(encoder):
            raise UserError(
                f"{ENTRY} in the config of {source} does not fit its weights: {name} is "
                f"{tuple(actual)} there, not {tuple(expected)}; get a new copy of the model"
            )


def config_of(source: Source) -> Any:
    """Return the config of a model object, or read it from a directory or the hub."""
    return read_config(source) if isinstance(source, str | Path) else source.config


def load_tokenizer(source: Source, config: Any = None) -> Any:
    """Load the tokenizer that is stored with a model.

    Args:
        source: a directory, a hub id, or a model object that was loaded from one of these.
        config: the config of the source, if the caller has read it.

    Returns:
        A tokenizer of transformers; for a model of images, the `Images` that prepares them.
    """
    config = config or config_of(source)
    if not isinstance(source, str | Path):
        source = source.name_or_path
        if not source:
            raise UserError(
                "this model object was not loaded from a directory or the hub; pass tokenizer="
            )
    if family_named(config).images:
        return _load_images(source, config)
    with user_errors(f"no tokenizer in {source} ({{}}); save one beside the model"):
        tokenizer = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
    if not isinstance(tokenizer.model_input_names, list):
        raise UserError(f"model_input_names in {source}/tokenizer_config.json must be a list")
    return tokenizer


def _load_images(source: str | Path, config: Any) -> Images:
    with user_errors(f"no {PLACE} in {source} ({{}}); save the image processor there too"):
        path = cached_file(str(source), PLACE)
    return check_images(Images.load(Path(str(path)), max_positions(config)), config)


def check_images(images: Images, config: Any) -> Images:
    """Return the image processor, if the model can read its images."""
    prepared, expected = (3, images.height, images.width), image_shape(config)
    if prepared != expected:
        raise UserError(
            f"{PLACE} makes images of (channels, height, width) {prepared}, the model reads "
            f"{expected}; save the processor that the model was trained with"
        )
    return images


def read_config(source: str | Path) -> Any:
    """Read the config of a model, and refuse a wrong architecture before gigabytes are read."""
    looks_local = isinstance(source, Path) or str(source).startswith((".", "/", "~"))
    if looks_local and not Path(source).expanduser().is_dir():
        raise UserError(f"there is no model directory {source}; give a directory or a hub id")
    if Path(source).is_dir():
        check_config(Path(source))
    known = f"give a directory or a hub id of: {', '.join(FAMILIES)}"
    with user_errors(f"cannot read a model from {source} ({{}}); {known}"):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
    family_named(config)  # refuses unknown architectures
    return config


def fingerprint(model: Any) -> str:
    """Hash the weights: a run must not be resumed with another model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy(force=True))
    return digest.hexdigest()
