"""The stages of a run: probe, teacher, soft stage, hard stage.

Every stage writes its result to the work directory. So a killed run goes on where it stopped, and
the other processes of a run read what the first one computed.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from toprune.errors import OutOfReach, UserError
from toprune.io.atomic import draft
from toprune.io.progress import bar, console
from toprune.models.families import sizes_of
from toprune.plan.plan import PROBED, Plan
from toprune.plan.schedule import largest_reduction
from toprune.pruning.attach import attach, attach_policy, detach
from toprune.pruning.policies import Policy, Protection
from toprune.training.batches import Collate
from toprune.training.calibrate import MOVES, calibrate
from toprune.training.distributed import processes
from toprune.training.job import Job, Outcome, dense_plan
from toprune.training.learner import Learner
from toprune.training.probe import fit_probes
from toprune.training.ranking_losses import Ranking
from toprune.training.ranking_quality import (
    MOMENTS,
    ranking_layers,
    ranking_quality,
    ranking_report,
)
from toprune.training.select import Candidate, KeepBest
from toprune.training.teacher import Teacher, teach
from toprune.training.thresholds import meet
from toprune.training.trainer import train
from toprune.training.turns import MORE_STEPS, Turns

PROBE_TEXTS = 512
CALIBRATION_TEXTS = 256
RANKED_TEXTS = 128


def run(job: Job, *, resume: bool = False) -> Outcome:
    """Learn a plan and the weights for it."""
    check_reach(job)
    job.work.mkdir(parents=True, exist_ok=True)
    job = replace(job, training=job.training.for_stages(job.method.STAGES))
    job = replace(job, target=job.method.ranking_target(job))
    dense = None
    if _needs_dense_states(job):
        dense = copy.deepcopy(job.model).eval()
        attach(dense, dense_plan(dense, job.restore))
    quality = _ranking_now(job, "start")
    outcome = job.method.learn(job, resume=resume)
    if outcome.job.soft_epochs > 0:
        quality |= _ranking_now(job, "soft")
    if outcome.job.hard_epochs > 0 and not outcome.trained:
        outcome = _hard_stage(outcome, dense, resume=resume)
        quality |= _ranking_now(job, "hard")
    detach(job.model)
    return replace(outcome, extra=outcome.extra | ranking_report(job, quality))


def _ranking_now(job: Job, moment: str) -> dict[str, list[float]]:
    """How well the layers rank tokens at this moment, by its name; nothing for a run that does not
    train, or that does not drop tokens by a ranking that the teacher has."""
    ranks = job.method.first_layer is not None and job.score in ("received", *PROBED)
    if not (ranks and any(job.training.stage_epochs)):
        return {}
    collate = Collate(job.tokenizer, teacher_of(job).extras)
    quality = ranking_quality(job, job.sample_batches(RANKED_TEXTS, collate), probes_of(job))
    first, values = ranking_layers(job)[0] + 1, " ".join(f"{value:.2f}" for value in quality)
    console.print(f"nDCG of the ranking, from layer {first} on, {MOMENTS[moment]}: {values}")
    return {moment: quality}


def _needs_dense_states(job: Job) -> bool:
    """Whether the hard stage learns the dense model's states token by token. It does where the head
    reads every token (where it reads the first one, `Teacher.states` has that token's states), and
    elsewhere, too, unless the caller declines: it is slower, and it loses less accuracy. Rows that
    are means of several tokens have no state to learn, nor has a smaller model."""
    training = job.training
    possible = job.hard_epochs > 0 and training.state_weight > 0
    possible = possible and job.score != "pooled" and not job.method.SLIMS
    if training.token_states and not possible:
        raise UserError(
            "--token-states has nothing to teach here: it needs epochs after those of the masks, a "
            "schedule that teaches states (not the paper's), tokens that are not merged (pool) and "
            "layers as wide as the dense model's (not cofi)"
        )
    required = job.restore == "last" or job.task.BY_TOKEN
    return possible and (required or training.token_states is not False)


def check_reach(job: Job) -> None:
    """Refuse a budget that no plan of this model can meet, before any work."""
    sizes, first = sizes_of(job.model), job.method.first_layer
    if first is None or (job.budget.milliseconds is not None and job.curve is None):
        return  # a time needs the curve of the model first
    if not 0 <= first <= sizes.layers - 2:
        raise UserError(f"the first prunable layer must be in 0..{sizes.layers - 2}, not {first}")
    most = largest_reduction(
        job.cost, job.budget_lengths, first, job.min_tokens, job.restore, job.score
    )
    if job.budget.reduction > most:
        unit = "less" if job.curve is None else "more time"
        fixes = "" if job.protect_until is None else ", or give up --protect-first"
        fixes += "" if job.min_tokens <= 2 else ", or for a lower --min-tokens"
        raise OutOfReach(
            f"budget {job.budget.asked} is out of reach: on these lengths this model can be pruned "
            f"to {job.budget.limit(most)}; ask for {unit}{fixes}"
        )


def once(path: Path, compute: Callable[[], None]) -> None:
    """Call `compute`, which writes `path`, unless it exists; one process does so for all."""
    state = processes()
    if state.is_main_process and not path.exists():
        compute()
    state.wait_for_everyone()
    if not path.exists():
        raise UserError(f"{path} does not exist: processes of one run must share their --out")


def probes_of(job: Job) -> Tensor | None:
    """(L - 1, D) where the score needs probes. The first call fits them to the dense model."""
    if job.score not in PROBED:
        return None
    path = job.teacher_folder / "probes.safetensors"

    def compute() -> None:
        batches = job.sample_batches(PROBE_TEXTS)
        with bar("fitting the probe", len(batches)) as advance:
            probes = fit_probes(
                job.model,
                job.task,
                _advancing(batches, advance),
                protection=Protection.of(job),
            )
        _save({"probes": probes}, path)

    once(path, compute)
    return load_file(path)["probes"]


def _advancing(batches: Sequence[dict[str, Tensor]], advance: Any) -> Iterator[dict[str, Tensor]]:
    for batch in batches:
        yield batch
        advance()


def teacher_of(job: Job) -> Teacher:
    """The dense model's outputs. The first call runs that model."""
    probes = probes_of(job)
    kind = "-probe" if probes is not None else "" if job.target == "last" else f"-{job.target}"
    folder = job.teacher_folder / f"teacher{kind}"

    def compute() -> None:
        with bar("running the dense model", len(job.features)) as advance:
            teacher = teach(
                job.model,
                job.task,
                job.features,
                Collate(job.tokenizer),
                probes=probes,
                target=job.target,
                precision=job.training.precision,
                progress=advance,
            )
            teacher.save(folder)

    once(folder, compute)
    return Teacher.load(folder)


def calibrated(job: Job, *, moves: int = MOVES) -> Plan:
    """The best schedule for the frozen model: a final plan after some moves, a start after none."""
    path, probes = job.work / "calibrated.json", probes_of(job)

    def compute() -> None:
        layers, earliest = sizes_of(job.model).layers, job.method.first_layer or 0
        starts: list[Plan] = []
        for first in range(earliest, min(earliest + 3, layers - 1)):
            for last in (None, first):  # a little in every layer, or all at once
                with suppress(OutOfReach):  # from this layer on; an earlier layer may reach it
                    starts.append(job.geometric(first, last, probes))
        batches, seed = job.sample_batches(CALIBRATION_TEXTS), job.training.seed
        plan = calibrate(job.model, batches, job.task, starts, job.repaired, moves=moves, seed=seed)
        plan.save(path)

    once(path, compute)
    return Plan.load(path)


def soft_stage(
    job: Job,
    begin: Callable[[], Policy],
    end: Callable[[Any], tuple[Plan, float]],
    *,
    resume: bool,
    learner: Callable[..., Learner] = Learner,
    teacher: Callable[[Job], Teacher] = teacher_of,
) -> Outcome:
    """Train the weights together with what a policy learns beside them.

    Args:
        begin: makes the policy.
        end: reads the repaired plan and the expected reduction from the trained policy.
        learner: the Learner, or a subclass with a loss of its own.
        teacher: gives the outputs to learn from.
    """
    plan_path, weights_path = job.work / "soft.json", job.work / "soft.safetensors"
    torch.manual_seed(job.training.seed)
    if not (resume and plan_path.exists()):
        collate, policy = Collate(job.tokenizer, teacher(job).extras), begin()
        best = _best_of(
            job,
            lambda: end(policy),
            lambda: attach_policy(job.model, policy),
            selector=getattr(policy, "selector", None),
            resume=resume,
        )
        attach_policy(job.model, policy)
        log = train(
            learner_of(job, policy, learner=learner),
            job.student_features,
            collate,
            job.training,
            epochs=job.soft_epochs,
            out=job.work / "soft",
            label="soft stage",
            resume=resume,
            callback=best,
        )
        detach(job.model)
        plan, expected = end(policy) if best is None else best.restore()
        if processes().is_main_process:
            _save(dict(job.model.state_dict()), weights_path)
            note = {"expected": expected, "log": log}
            replace(plan, provenance=note).save(plan_path)
        processes().wait_for_everyone()
    job.model.load_state_dict(load_file(weights_path))
    plan = Plan.load(plan_path)
    note = plan.provenance
    return Outcome(job, replace(plan, provenance={}), note["expected"], note["log"])


def _hard_stage(outcome: Outcome, dense: Any, *, resume: bool) -> Outcome:
    """Train the weights with tokens really dropped: what is trained is what will run."""
    job = outcome.job
    collate = Collate(job.tokenizer, teacher_of(job).extras)
    torch.manual_seed(job.training.seed)
    attach(job.model, outcome.plan)
    callback, more = None, 1.0
    if outcome.dial is not None:
        callback, more = Turns(job.model, outcome.dial, job.training.seed), MORE_STEPS
    elif not outcome.plan.adaptive:  # its thresholds are not final yet
        callback = _best_of(
            job,
            lambda: (outcome.plan, outcome.expected),
            lambda: attach(job.model, outcome.plan),
            resume=resume,
        )
    log = train(
        learner_of(job, ranking=outcome.ranking, dense=dense),
        job.student_features,
        collate,
        job.training,
        epochs=more * job.hard_epochs,
        out=job.work / "hard",
        label="hard stage",
        resume=resume,
        callback=callback,
    )
    if isinstance(callback, KeepBest):
        callback.restore()
    plan = outcome.plan
    if plan.adaptive:  # the weights have changed, and the scores with them
        batches = job.sample_batches(CALIBRATION_TEXTS)
        plan = meet(job.model, plan, batches, job.cost, job.budget)
    return replace(outcome, plan=plan, log=outcome.log + log)


def _best_of(
    job: Job,
    candidate: Candidate,
    attach_again: Callable[[], object],
    *,
    selector: Any = None,
    resume: bool = False,
) -> KeepBest | None:
    """What keeps the best weights of a stage, if the job is to choose them."""
    if job.judge is None:
        return None
    folder = job.work / ("hard" if selector is None else "soft")
    folder.mkdir(parents=True, exist_ok=True)
    return KeepBest(
        job.model,
        job.judge,
        candidate,
        attach_again,
        folder,
        _save,
        selector=selector,
        resume=resume,
    )


def learner_of(
    job: Job,
    policy: Any = None,
    *,
    learner: Callable[..., Learner] = Learner,
    ranking: Ranking | None = None,
    dense: Any = None,
) -> Learner:
    """The learner for a stage of the job, with the losses that its training asks for."""
    training = job.training
    return learner(
        job.model,
        job.task,
        label_weight=training.label_weight,
        state_weight=training.state_weight,
        dropout=training.dropout is True,
        policy=policy,
        ranking=ranking,
        dense=dense,
    )


def fitted_once(path: Path, module: nn.Module, fit: Callable[[], None]) -> None:
    """Fit a module that stands beside the model, once; every process continues with its weights."""

    def compute() -> None:
        fit()
        _save(module.state_dict(), path)

    once(path, compute)
    module.load_state_dict(load_file(path))


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    with draft(path) as made:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, made)
