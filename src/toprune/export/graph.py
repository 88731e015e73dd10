"""From a model and its plan to one ONNX file: tokens really gone, standard operators only.

The graph is traced, not written by hand: the stock modules of `transformers` compute embeddings,
feed-forward and head, and `packed.py` computes what is between them. So a new family needs nothing
here. We use torch's tracing exporter on purpose: it takes seconds where the newer one takes
minutes, and it keeps the integers of the plan as they are written.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnx.numpy_helper
import torch
from torch import Tensor, nn

from toprune.data.images import INPUT
from toprune.export.packed import PackedRun
from toprune.models.device import CPU, device_of
from toprune.models.families import family_named, family_of, has_segments, image_shape
from toprune.plan.dial import KEEP, numerators
from toprune.plan.plan import Plan
from toprune.pruning.attach import detach, swap_layers

OPSET = 17  # the first with LayerNormalization; every current runtime reads it
PLAN = "toprune.plan"  # in the file's metadata
INLINE = 2**31 - 2**24  # bytes: protobuf ends at 2 GB, larger weights lie beside the graph


class _Outputs(nn.Module):
    """Positional inputs in, tensors out: the form that tracing needs."""

    def __init__(self, model: Any, run: PackedRun, names: list[str], outputs: Sequence[str]):
        super().__init__()
        self.model, self.run, self.names, self.outputs = model, run, names, outputs
        # registered, so that they become weights of the graph and not constants
        self.projections = nn.ModuleList(module for three in run.projections for module in three)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, inputs, strict=True))
        self.run.keep = named.pop(KEEP, None)
        out = self.model(**named)
        return tuple(getattr(out, name) for name in self.outputs)


def input_names(config: Any, tokenizer: Any = None) -> list[str]:
    """Return the names of the inputs, the usual ones of ONNX encoders.

    `token_type_ids` is among them only if the model has segments and its tokenizer, if given,
    returns them: a model that was trained without segments must not get them now.
    """
    if family_named(config).images:
        return [INPUT]
    names = ["input_ids", "attention_mask"]
    if has_segments(config) and (
        tokenizer is None or "token_type_ids" in tokenizer.model_input_names
    ):
        names.append("token_type_ids")
    return names


def write_onnx(
    model: Any,
    plan: Plan,
    path: Path,
    names: list[str] | None = None,
    outputs: Sequence[str] = ("logits",),
    *,
    by_token: bool | None = None,
    dial: bool = False,
) -> None:
    """Write the graph of a model under a plan, with the plan in its metadata.

    Args:
        model: a transformers model; it is left as it was.
        plan: must fit the model.
        path: of the ONNX file.
        names: of the inputs; by default all that the model takes.
        outputs: names of the outputs.
        by_token: whether there is an output for each token; by default, if the plan restores them.
        dial: whether the shares that the plan keeps are an input, `keep`, with the plan's own as
            its default. Runtimes that know nothing of it use the default.
    """
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
    traced_names, sample = list(names), _sample(model.config, names)
    if dial:
        shares = numerators([step.keep for step in plan.steps])
        kept = torch.tensor(shares, device=CPU)  # (steps,)
        traced_names, sample = [*names, KEEP], (*sample, kept)
    training, home = model.training, device_of(model)
    model.to(CPU)  # graphs are traced there
    run = PackedRun(family, model.base_model, sizes, plan)
    swap_layers(model.eval(), run)
    try:
        with (
            torch.inference_mode(),
            quiet(),
            TemporaryDirectory(prefix="toprune-", dir=path.parent) as folder,
        ):
            traced = Path(folder, "model.onnx")  # above 2 GB, torch adds a file for every tensor
            torch.onnx.export(
                _Outputs(model, run, traced_names, outputs).eval(),
                sample,
                str(traced),
                input_names=traced_names,
                output_names=list(outputs),
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
            graph = onnx.load(traced)
    finally:
        detach(model).train(training).to(home)
    if dial:  # an input that has an initializer of the same name need not be fed
        graph.graph.initializer.append(onnx.numpy_helper.from_array(sample[-1].numpy(), KEEP))
    graph.producer_name = "toprune"
    onnx.helper.set_model_props(graph, {PLAN: plan.to_json()})
    save_graph(graph, path)


def _sample(config: Any, names: list[str]) -> tuple[Tensor, ...]:
    """Two texts of different lengths, so that tracing does not fold sizes into constants. Only the
    number of images varies."""
    if family_named(config).images:
        return (torch.zeros(2, *image_shape(config)),)
    ids = torch.full((2, 7), config.vocab_size - 1)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return tuple(inputs[name] for name in names)


def save_graph(graph: onnx.ModelProto, path: Path) -> None:
    """Write one file, or two if it exceeds protobuf's 2 GB: the weights beside the graph."""
    if graph.ByteSize() <= INLINE:
        onnx.save(graph, path)
        return
    weights = path.with_name(f"{path.name}.data")
    weights.unlink(missing_ok=True)  # onnx appends to a file that exists
    onnx.save(graph, path, save_as_external_data=True, location=weights.name)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence tracing, which warns about every shape that it follows: the parity check decides."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
