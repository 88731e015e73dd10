"""From a dense model to a pruned one, whatever the method: probe, teacher, soft stage, hard stage.

Every stage leaves its result in the work directory, so that a killed run goes on where it was, and
so that other processes of the same run read what the first one computed.
"""

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from toprune.errors import OutOfReach, UserError
from toprune.io.atomic import draft
from toprune.io.progress import bar
from toprune.models.families import family_of, sizes_of
from toprune.models.heads import restore_of
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes
from toprune.plan.plan import PROBED, Plan, Restore, Score, probe_of
from toprune.plan.schedule import geometric, largest_reduction, repair
from toprune.pruning.attach import attach, attach_policy, detach
from toprune.pruning.policies import Policy, Protection
from toprune.tasks import Task
from toprune.tasks import settings_of as task_settings
from toprune.training.batches import in_batches
from toprune.training.calibrate import MOVES, calibrate
from toprune.training.distributed import processes
from toprune.training.features import Collate
from toprune.training.learner import Learner, Training, train
from toprune.training.probe import fit_probes
from toprune.training.ranking_losses import Ranking
from toprune.training.teacher import Teacher, teach
from toprune.training.thresholds import meet

PROBE_TEXTS = 512
CALIBRATION_TEXTS = 256


Stage = Literal["soft", "hard"]  # what finds the plan; weights alone, tokens truly gone


class Method(Protocol):
    """A frozen dataclass in `methods/`: its fields are the method's settings."""

    NAME: ClassVar[str]
    SCORES: ClassVar[tuple[Score, ...]]  # that it can rank tokens by; the first is its own
    STAGES: ClassVar[tuple[Stage, ...]]  # that train; one alone gets the epochs of both

    @property
    def first(self) -> int | None:
        """The first layer that may prune, counted from zero; None: no layer drops tokens."""
        ...

    def learn(self, job: "Job", *, resume: bool) -> "Outcome":
        """A plan that meets the budget; the model's weights may have changed with it."""
        ...


@dataclass
class Job:
    """Everything that a run needs; the model is changed in place."""

    model: Any
    tokenizer: Any
    task: Task
    features: Sequence[dict[str, Any]]  # of the training texts, as the dense model reads them
    lengths: Lengths  # of the texts that the budget is for
    budget: Budget
    method: "Method"
    score: Score
    training: Training
    work: Path
    protect: tuple[int, ...] = ()
    protect_until: int | None = None
    min_tokens: int = 2
    cut: int | None = None  # tokens after which texts end for the student
    short: Sequence[dict[str, Any]] | None = None  # features of the texts that are cut there
    before: Sizes | None = None  # of the dense model, where the method takes layers out of it
    known: Path | None = None  # where what the dense model says is kept for other runs, too

    @property
    def words(self) -> Path:
        """Where the dense model's words are, and its probes."""
        return self.known or self.work

    @property
    def read(self) -> Sequence[dict[str, Any]]:
        """What the student reads of the training texts."""
        return self.features if self.short is None else self.short

    @property
    def restore(self) -> Restore:
        return restore_of(self.task, self.model.config)

    def blank(self) -> Plan:
        """A plan of no steps for this job."""
        return replace(
            no_steps(self.model, self.task),
            score=self.score,
            protect=self.protect,
            protect_until=self.protect_until,
            min_tokens=self.min_tokens,
        )

    def some(self, count: int) -> list[dict[str, Tensor]]:
        """Batches of a seeded sample of the training texts, without labels."""
        rng = np.random.default_rng(self.training.seed)
        rows = rng.permutation(len(self.features))[:count]
        batches = in_batches([self.features[i] for i in rows], Collate(self.tokenizer))
        return [{k: v for k, v in batch.items() if k != "labels"} for _, batch in batches]

    def shaped(self, first: int, last: int | None, probes: Tensor | None = None) -> Plan:
        """The plain schedule from `first` to `last` that meets the budget."""
        end = sizes_of(self.model).layers - 2 if last is None else last
        return geometric(
            sizes_of(self.model),
            self.lengths,
            self.budget,
            family=family_of(self.model).name,
            first=first,
            last=end,
            score=self.score,
            probe=probe_of(probes, self.score, range(first, end + 1)),
            min_tokens=self.min_tokens,
            protect=self.protect,
            protect_until=self.protect_until,
            restore=self.restore,
        )

    def repaired(self, plan: Plan) -> Plan:
        return repair(sizes_of(self.model), plan, self.lengths, self.budget)


@dataclass
class Outcome:
    plan: Plan  # meets the budget
    expected: float | None  # reduction that was expected before repair; None: nothing was learned
    log: list[dict[str, float]]
    found: dict[str, Any] = field(default_factory=dict[str, Any])  # more for the report
    ranking: Ranking | None = None  # to be trained beside the weights, where answers are tokens


def no_steps(model: Any, task: Task) -> Plan:
    """The plan of the dense model. Attached, it computes no more than the head reads, in our own
    attention: the same answers and gradients, faster."""
    sizes = sizes_of(model)
    return Plan(
        family=family_of(model).name,
        n_layers=sizes.layers,
        width=sizes.width,
        score="received",
        steps=(),
        restore=restore_of(task, model.config),
    )


def run(job: Job, *, resume: bool = False) -> Outcome:
    """Learn a plan and the weights for it."""
    check_reach(job)
    job.work.mkdir(parents=True, exist_ok=True)
    job.training = shared_out(job.training, job.method.STAGES)
    dense = copy.deepcopy(job.model).eval() if _has_states(job) else None
    outcome = job.method.learn(job, resume=resume)
    if job.training.hard_epochs > 0:
        outcome.log += _hard(job, outcome, dense, resume=resume)
        if outcome.plan.adaptive:  # other weights, other scores
            texts = job.some(CALIBRATION_TEXTS)
            outcome.plan = meet(job.model, outcome.plan, texts, job.budget)
    detach(job.model)
    return outcome


def _has_states(job: Job) -> bool:
    """Are the dense model's states asked for again, token by token? Where the head reads every
    token they are its lesson, as the first token's are where it reads that one (`Teacher.states`),
    and a help there if wanted. Rows that are means of several have none to be like."""
    training = job.training
    possible = training.hard_epochs > 0 and training.state_weight > 0 and job.score != "pooled"
    if training.token_states and not possible:
        raise UserError(
            "--token-states has nothing to teach here: it needs epochs after those of the masks, a "
            "schedule that teaches states (not the paper's) and tokens that are not merged (pool)"
        )
    return possible and (training.token_states or job.restore == "last" or job.task.BY_TOKEN)


def shared_out(training: Training, stages: tuple[Stage, ...]) -> Training:
    """The same epochs for every method, whatever stages it has; none for one without any."""
    if len(stages) == 2:
        return training
    both = training.soft_epochs + training.hard_epochs
    soft, hard = (both if name in stages else 0.0 for name in ("soft", "hard"))
    return replace(training, soft_epochs=soft, hard_epochs=hard)


def check_reach(job: Job) -> None:
    """Say at once when no plan of this model can meet the budget."""
    sizes, first = sizes_of(job.model), job.method.first
    if first is None:
        return
    if not 0 <= first <= sizes.layers - 2:
        raise UserError(f"the first prunable layer must be in 0..{sizes.layers - 2}, not {first}")
    most = largest_reduction(sizes, job.lengths, first, job.min_tokens, job.restore, job.score)
    if job.budget.reduction > most:
        kept = "" if job.protect_until is None else ", or give up --protect-first"
        kept += "" if job.min_tokens <= 2 else ", or for a lower --min-tokens"
        raise OutOfReach(
            f"budget {job.budget.asked} is out of reach: on these lengths this model can be pruned "
            f"to {int(most * 100) / 100:.2f}x at most; ask for less{kept}"
        )


def once(path: Path, compute: Callable[[], None]) -> None:
    """Compute what is to be in `path` unless it is there; one process does it for all."""
    state = processes()
    if state.is_main_process and not path.exists():
        compute()
    state.wait_for_everyone()
    if not path.exists():
        raise UserError(
            f"{path} is not there: processes of one run must share their --out directory"
        )


def probes_of(job: Job) -> Tensor | None:
    """(L - 1, D), where tokens are ranked by them; they need the dense model."""
    if job.score not in PROBED:
        return None
    path = job.words / "probes.safetensors"

    def compute() -> None:
        batches = job.some(PROBE_TEXTS)
        with bar("fitting the probe", len(batches)) as advance:
            probes = fit_probes(
                job.model,
                job.task,
                _counted(batches, advance),
                protection=Protection.of(job),
            )
        _save({"probes": probes}, path)

    once(path, compute)
    return load_file(path)["probes"]


def _counted(batches: Sequence[dict[str, Tensor]], advance: Any) -> Any:
    for batch in batches:
        yield batch
        advance()


def taught(job: Job) -> Collate:
    """Batches with the dense model's words."""
    return Collate(job.tokenizer, teacher_of(job).extras)


def teacher_of(job: Job) -> Teacher:
    """The dense model's words; the first call needs that model."""
    probes = probes_of(job)
    folder = job.words / ("teacher" if probes is None else "teacher-probe")

    def compute() -> None:
        with bar("asking the dense model", len(job.features)) as advance:
            plain = Collate(job.tokenizer)
            words = teach(
                job.model,
                job.task,
                job.features,
                plain,
                probes=probes,
                bf16=job.training.bf16,
                progress=advance,
            )
            words.save(folder)

    once(folder, compute)
    return Teacher.load(folder)


def calibrated(job: Job, *, moves: int = MOVES) -> Plan:
    """The best schedule for the frozen model; after a few moves the end, after none a start."""
    path, probes = job.work / "calibrated.json", probes_of(job)

    def compute() -> None:
        layers, least = sizes_of(job.model).layers, job.method.first or 0
        starts: list[Plan] = []
        for first in range(least, min(least + 3, layers - 1)):
            for last in (None, first):  # a little in every layer, or all at once
                with suppress(OutOfReach):  # from this layer on; an earlier layer may reach it
                    starts.append(job.shaped(first, last, probes))
        batches = job.some(CALIBRATION_TEXTS)
        seed = job.training.seed
        calibrate(job.model, batches, job.task, starts, job.repaired, moves=moves, seed=seed).save(
            path
        )

    once(path, compute)
    return Plan.load(path)


def soft_stage(
    job: Job,
    begin: Callable[[], Policy],
    end: Callable[[Any], tuple[Plan, float]],
    *,
    resume: bool,
    kind: Callable[..., Learner] = Learner,
) -> Outcome:
    """Train the weights under the policy that `begin` makes, and what it learns beside them; `end`
    reads the repaired plan and the expected reduction from it. `kind`: of the learner."""
    plan_path, weights_path = job.work / "soft.json", job.work / "soft.safetensors"
    torch.manual_seed(job.training.seed)
    if not (resume and plan_path.exists()):
        collate, policy = taught(job), begin()
        attach_policy(job.model, policy)
        log = train(
            learner_of(job, policy, kind),
            job.read,
            collate,
            job.training,
            epochs=job.training.soft_epochs,
            out=job.work / "soft",
            label="soft stage",
            resume=resume,
        )
        detach(job.model)
        plan, expected = end(policy)
        if processes().is_main_process:
            _save(dict(job.model.state_dict()), weights_path)
            note = {"expected": expected, "log": log}
            replace(plan, provenance=note).save(plan_path)
        processes().wait_for_everyone()
    job.model.load_state_dict(load_file(weights_path))
    plan = Plan.load(plan_path)
    note = plan.provenance
    return Outcome(replace(plan, provenance={}), note["expected"], note["log"])


def learner_of(
    job: Job,
    policy: Any = None,
    kind: Callable[..., Learner] = Learner,
    ranking: Ranking | None = None,
    dense: Any = None,
) -> Learner:
    training = job.training
    return kind(
        job.model,
        job.task,
        label_weight=training.label_weight,
        state_weight=training.state_weight,
        dropout=training.dropout is True,
        policy=policy,
        ranking=ranking,
        dense=dense,
    )


def _hard(job: Job, outcome: Outcome, dense: Any, *, resume: bool) -> list[dict[str, float]]:
    """Fine-tune with tokens truly gone: what is trained is what will run."""
    collate = taught(job)
    torch.manual_seed(job.training.seed)
    attach(job.model, outcome.plan)
    return train(
        learner_of(job, ranking=outcome.ranking, dense=dense),
        job.read,
        collate,
        job.training,
        epochs=job.training.hard_epochs,
        out=job.work / "hard",
        label="hard stage",
        resume=resume,
    )


def learned(path: Path, module: nn.Module, compute: Callable[[], None]) -> None:
    """Fit a module that is beside the model, once; every process goes on with the same."""

    def fitted() -> None:
        compute()
        _save(module.state_dict(), path)

    once(path, fitted)
    module.load_state_dict(load_file(path))


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    with draft(path) as made:
        save_file({name: t.contiguous() for name, t in tensors.items()}, made)


def settings_of(job: Job) -> dict[str, Any]:
    """What must not change between a run and its resumption."""
    return json.loads(
        json.dumps(
            {
                "task": job.task.NAME,
                "task_settings": task_settings(job.task),
                "budget": job.budget.asked,
                "method": job.method.NAME,
                "method_settings": vars(job.method),
                "score": job.score,
                "training": job.training.settings(),
                "examples": len(job.features),
                "lengths": job.lengths.to_json(),
                "protect": job.protect,
                "protect_until": job.protect_until,
                "min_tokens": job.min_tokens,
            }
        )
    )
