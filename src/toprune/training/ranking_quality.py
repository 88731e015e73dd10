"""How well the layers of a model rank tokens: nDCG to the ranking that they are to learn."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from toprune.models.device import autocast, device_of
from toprune.models.families import sizes_of
from toprune.models.heads import task_outputs
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Protection, Record
from toprune.pruning.tokens import by_probe
from toprune.training.job import Job
from toprune.training.ranking_losses import ndcg

MOMENTS = {"start": "at the start", "soft": "after the soft stage", "hard": "after the hard stage"}


def ranking_quality(
    job: Job, batches: Sequence[dict[str, Tensor]], probes: Tensor | None
) -> list[float]:
    """Mean nDCG of every layer that may drop tokens, with the weights as they are now and no token
    dropped. Afterwards no plan is attached.

    Args:
        batches: with the teacher's outputs.
        probes: (L - 1, D), for scores that need them.
    """
    model = job.model
    layers = ranking_layers(job)
    record = Record(
        layers,
        lambda layer, state, received: _scores(layer, state, received, probes),
        scored=probes is None,
        protection=Protection.of(job),
    )
    training = model.training
    attach_policy(detach(model).eval(), record)
    values: list[Tensor] = []  # (B, layers) of each batch
    try:
        with torch.inference_mode(), autocast(device_of(model), job.training.precision):
            for batch in batches:
                inputs = {k: v for k, v in batch.items() if not k.startswith("teacher_")}
                task_outputs(model, job.task, inputs)
                tokens = record.tokens
                assert tokens is not None
                live = tokens.alive & ~tokens.protected
                target = batch["teacher_scores"].to(live.device)  # (B, S, 1 or L - 1)
                columns = [layer if target.shape[-1] > 1 else 0 for layer in layers]
                pairs = zip(record.values, columns, strict=True)
                values.append(torch.stack([ndcg(x, target[..., c], live) for x, c in pairs], 1))
    finally:
        detach(model).train(training)
    return torch.cat(values).nanmean(0).tolist()


def ranking_layers(job: Job) -> range:
    """The layers that may drop tokens."""
    return range(job.method.first_layer or 0, sizes_of(job.model).layers - 1)


def ranking_report(job: Job, quality: dict[str, list[float]]) -> dict[str, Any]:
    """For report.json; nothing if nothing was measured.

    Args:
        quality: by moment (`MOMENTS`), what `ranking_quality` returned.
    """
    if not quality:
        return {}
    rows = [
        {"layer": layer} | {moment: values[i] for moment, values in quality.items()}
        for i, layer in enumerate(ranking_layers(job))
    ]
    target = job.target if job.score == "received" else "probe"
    return {"ranking": {"target": target, "layers": rows}}


def _scores(layer: int, state: Tensor, received: Tensor | None, probes: Tensor | None) -> Tensor:
    if probes is not None:
        return by_probe(state, probes[layer])
    assert received is not None
    return received
