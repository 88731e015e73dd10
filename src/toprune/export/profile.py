"""Measure the curve of a model on this machine: the milliseconds of its parts by token count.

What is measured are the files that `export` writes, whole: dense, with steps that rank and move all
tokens, and with the last layer alone; `Curve.of` takes the times apart. Only the feed-forward parts
have a file of their own. All layers are in the files, as in use: the weights of a single layer
would stay in the processor's cache, and look faster than they are.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toprune.errors import UserError
from toprune.export.graph import OPSET, input_names, quiet, write_onnx
from toprune.export.parity import draw
from toprune.export.quantize import quantize
from toprune.models.device import CPU, device_of
from toprune.models.families import family_of, sizes_of
from toprune.models.slim import keep_layers
from toprune.plan.budget import Precision
from toprune.plan.curve import Curve
from toprune.plan.plan import PROBED, Plan, Step, held_tokens
from toprune.report.environment import environment
from toprune.run.engines import OnnxRuntime
from toprune.run.timing import interleave, pinned, steady
from toprune.tasks import Task

COUNTS = 12  # token counts of a curve, about
ROUNDS, SECONDS = 30, 2.0  # of the block at one count, whichever ends first

Clock = Callable[[], float]
Say = Callable[[str], Any]
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Bench:
    """A model, and how its files are written and timed."""

    model: Any
    tokenizer: Any
    task: Task
    threads: int = 1
    precision: Precision = "fp32"
    clock: Clock = time.perf_counter

    @property
    def names(self) -> list[str]:
        """Of the inputs."""
        return input_names(self.model.config, self.tokenizer)

    def write(self, plan: Plan, folder: Path, name: str, model: Any = None) -> Path:
        """Write the file of a plan in the precision that is timed; returns its path."""
        path = folder / f"{name}.onnx"
        write_onnx(
            _on_cpu(model or self.model),
            plan,
            path,
            self.names,
            self.task.OUTPUTS,
            by_token=self.task.reads_all,
        )
        return self.rounded(path)

    def rounded(self, path: Path) -> Path:
        """The file itself, or its int8 twin."""
        if self.precision == "fp32":
            return path
        twin = path.with_name(f"{path.stem}_int8.onnx")
        quantize(path, twin)
        path.unlink()
        return twin

    def text(self, plan: Plan, n: int, held: int = 0) -> Feeds:
        """A text of n random tokens, of which a plan protects so many."""
        rng, special = np.random.default_rng(n), {*plan.protect, plan.protect_until}
        feeds = draw(self.model.config, rng, [n], n, self.names)
        ordinary = [i for i in range(self.model.config.vocab_size) if i not in special]
        ids = rng.choice(ordinary, n)
        if plan.protect_until is not None:
            ids[max(1, min(held, n)) - 1] = plan.protect_until
        elif plan.protect:
            ids[1:held] = plan.protect[0]
        assert held_tokens(ids.tolist(), plan.protect, plan.protect_until) == max(1, held)
        return feeds | {"input_ids": ids[None]}


def counts_to(longest: int, *between: int) -> list[int]:
    """About a dozen token counts up to the longest, closer together where they are few."""
    spaced = np.geomspace(1, longest, COUNTS).round().astype(int).tolist()
    return sorted({*spaced, *between})


def measure_curve(bench: Bench, blank: Plan, counts: Sequence[int], say: Say) -> Curve:
    """Measure the curve of a model.

    Args:
        bench: the model, and how it is timed.
        blank: a plan without steps, with the score by which tokens will be ranked.
        counts: of tokens.
        say: gets a line about each part of the work.
    """
    model, sizes = bench.model, sizes_of(bench.model)
    if family_of(model).images:
        raise UserError(
            "images all have the same length, which a curve cannot be measured over; give a FLOPs "
            "reduction like 3x"
        )
    if sizes.layers < 2 or counts[-1] < 2:
        raise UserError("a curve needs two layers and texts of two tokens or more")
    steps = stepped(blank)
    with TemporaryDirectory(prefix="toprune-profile-") as temporary:
        folder = Path(temporary)
        say("writing the files to time")
        shallow = _last_layer(model)
        alone = replace(blank, n_layers=sizes_of(shallow).layers, probe=None)
        paths = {
            "shallow": bench.write(alone, folder, "shallow", shallow),
            "dense": bench.write(blank, folder, "dense"),
            "steps": bench.write(steps, folder, "steps"),
            "feed": bench.rounded(_write_feed_forward(_on_cpu(model), folder / "feed.onnx")),
        }
        del shallow
        texts = {n: bench.text(blank, n, 1) for n in counts}
        states = {
            n: {"states": np.random.default_rng(n).normal(size=(n, sizes.width)).astype("float32")}
            for n in counts
        }
        feeds = dict.fromkeys(("shallow", "dense", "steps"), texts) | {"feed": states}
        measured: dict[str, list[float]] = {name: [] for name in paths}
        with pinned(bench.threads):
            engines = {name: OnnxRuntime(p, threads=bench.threads) for name, p in paths.items()}
            sentinel = partial(engines["shallow"].run, texts[counts[-1]])
            sentinel()
            for n in counts:
                say(f"timing {n} token{'s' if n > 1 else ''}")
                runs = {name: partial(engines[name].run, feeds[name][n]) for name in paths}
                block = steady(partial(quickest_of, runs, bench.clock), sentinel, clock=bench.clock)
                for name, milliseconds in block.items():
                    measured[name].append(milliseconds)
            del engines
    return Curve.of(
        counts,
        measured,
        sizes,
        family=family_of(model).name,
        steps=len(steps.steps),
        restore=blank.restore,
        score=blank.score,
        threads=bench.threads,
        precision=bench.precision,
        environment=environment(),
    )


def quickest_of(runs: Mapping[str, Callable[[], object]], clock: Clock) -> dict[str, float]:
    """Milliseconds of the quickest run of each contender: noise only adds time."""
    times = interleave(runs, rounds=ROUNDS, seconds=SECONDS, clock=clock)
    return {name: 1000 * float(seconds.min()) for name, seconds in times.items()}


def stepped(blank: Plan) -> Plan:
    """A plan that ranks and moves tokens in every layer where it may, and drops none."""
    layers = range(blank.n_layers - 1)
    probe = None
    if blank.score in PROBED:
        vectors = len(layers) if blank.score == "probes" else 1
        probe = tuple(np.random.default_rng(0).normal(size=vectors * blank.width).tolist())
    return replace(blank, steps=tuple(Step(i, Fraction(1)) for i in layers), probe=probe)


def _last_layer(model: Any) -> Any:
    """A copy of the model with its last layer alone."""
    family, copied = family_of(model), copy.deepcopy(model)
    layers = list(family.layers(copied.base_model))
    if len(set(map(id, layers))) == len(layers):
        keep_layers(copied, [len(layers) - 1])
    else:  # ALBERT computes a layer at many depths
        copied.config.num_hidden_layers = 1
    return copied


def _on_cpu(model: Any) -> Any:
    """The model where the files run; a copy if it is elsewhere."""
    return model if device_of(model) == CPU else copy.deepcopy(model).to(CPU)


class _FeedForward(nn.Module):
    """The feed-forward parts of all layers, one after the other, on packed rows (T, D)."""

    def __init__(self, model: Any):
        super().__init__()
        self.family = family_of(model)
        self.layers = nn.ModuleList(self.family.layers(model.base_model))

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = self.family.feed_forward(layer, states)
        return states


def _write_feed_forward(model: Any, path: Path) -> Path:
    training = model.training
    with torch.inference_mode(), quiet():
        torch.onnx.export(
            _FeedForward(model.eval()).eval(),
            (torch.zeros(3, sizes_of(model).width, device=CPU),),
            str(path),
            input_names=["states"],
            output_names=["fed"],
            dynamic_axes={"states": {0: "rows"}, "fed": {0: "rows"}},
            opset_version=OPSET,
            dynamo=False,
        )
    model.train(training)
    return path
