"""From a model and its plan to one ONNX file: tokens really gone, standard operators only.

Traced, not authored: the stock modules of `transformers` say what embeddings, feed-forward and head
do, `packed.py` says what happens between them, so that a new family needs nothing here. The tracing
exporter of torch is used on purpose: it takes seconds where the newer one takes minutes, and keeps
the integers of the plan as they are written.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from toprune.data.images import INPUT
from toprune.export.packed import PackedRun
from toprune.models.families import family_named, family_of, has_segments, image_shape
from toprune.plan.plan import Plan
from toprune.pruning.attach import detach, swap_layers

OPSET = 17  # the first with LayerNormalization; old enough for everybody
PLAN = "toprune.plan"  # of the file's metadata
INLINE = 2**31 - 2**24  # bytes: protobuf ends at 2 GB, larger weights lie beside the graph


class _Outputs(nn.Module):
    """Positional inputs in, tensors out: what tracing wants."""

    def __init__(self, model: Any, run: PackedRun, names: list[str], outputs: Sequence[str]):
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs
        # weights, not constants of the code
        self.projections = nn.ModuleList(own for part in run.projections for own in part)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        out = self.model(**dict(zip(self.names, inputs, strict=True)))
        return tuple(getattr(out, name) for name in self.outputs)


def input_names(config: Any, tokenizer: Any = None) -> list[str]:
    """The inputs that users of ONNX encoders know. Segments only where the model has them, and its
    tokenizer, if given, tells them: a model that was trained without them must not get them now."""
    if family_named(config).images:
        return [INPUT]
    told = tokenizer is None or "token_type_ids" in tokenizer.model_input_names
    segments = ["token_type_ids"] if has_segments(config) and told else []
    return ["input_ids", "attention_mask", *segments]


def write_onnx(
    model: Any,
    plan: Plan,
    path: Path,
    names: list[str] | None = None,
    outputs: Sequence[str] = ("logits",),
    *,
    by_token: bool | None = None,
) -> None:
    """Write the graph of `model` under `plan`, which goes into the metadata too; `names` of its
    inputs, all that the model takes if not given, and of its `outputs`, of which there is one for
    each token (`by_token`) if the plan brings all of them back, or as told."""
    family = family_of(model)
    sizes = family.sizes(model.config)
    plan.check_model(family.name, sizes.layers, sizes.width)
    names = names or input_names(model.config)
    batch, tokens = {0: "batch"}, {0: "batch", 1: "length"}
    if by_token is None:
        by_token = plan.restore != "none"
    axes = dict.fromkeys(names, batch if family.images else tokens) | dict.fromkeys(
        outputs, tokens if by_token else batch
    )
    training = model.training
    run = PackedRun(family, model.base_model, sizes, plan)
    swap_layers(model.eval(), run)
    try:
        with (
            torch.inference_mode(),
            _quiet(),
            TemporaryDirectory(prefix="toprune-", dir=path.parent) as folder,
        ):
            draft = Path(folder, "model.onnx")  # above 2 GB: and a file for every tensor
            torch.onnx.export(
                _Outputs(model, run, names, outputs).eval(),
                _sample(model.config, names),
                str(draft),
                input_names=names,
                output_names=list(outputs),
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
            graph = onnx.load(draft)
    finally:
        detach(model).train(training)
    graph.producer_name = "toprune"
    onnx.helper.set_model_props(graph, {PLAN: plan.to_json()})
    save_graph(graph, path)


def _sample(config: Any, names: list[str]) -> tuple[Tensor, ...]:
    """Two texts of different length: tracing sees what it must not fold into constants. Of images
    only their number varies."""
    if family_named(config).images:
        return (torch.zeros(2, *image_shape(config)),)
    ids = torch.full((2, 7), config.vocab_size - 1)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return tuple(given[name] for name in names)


def save_graph(graph: onnx.ModelProto, path: Path) -> None:
    """One file, or two where protobuf's 2 GB are too few: the weights beside the graph."""
    if graph.ByteSize() <= INLINE:
        onnx.save(graph, path)
        return
    weights = path.with_name(f"{path.name}.data")
    weights.unlink(missing_ok=True)  # onnx appends to what it finds
    onnx.save(graph, path, save_as_external_data=True, location=weights.name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Tracing warns of every shape that it follows; the parity check is the better judge."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
