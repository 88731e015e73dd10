"""LAT: its formulas against numbers worked by hand, LengthDrop's loss against another computation,
the search against one that saves nothing, and the whole on a task with known important tokens."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support import marked, synthetic
from support.executions import TASKS, make_examples, worst
from support.marked import DATA, Randomly, executed, outcome
from support.models import make_model, make_tokenizer
from support.resuming import Stopped, same, stop_at
from toprune import Runner
from toprune.api import prune
from toprune.bundle.bundle import Bundle
from toprune.data.examples import load
from toprune.errors import UserError
from toprune.export.export import export
from toprune.methods import lat
from toprune.methods.lat import (
    Lat,
    LengthDrop,
    Member,
    Schedules,
    constant,
    crossed,
    drawn,
    front_of,
    mutated,
    plan_of,
)
from toprune.models.families import sizes_of
from toprune.plan.budget import Budget
from toprune.plan.cost import reduction
from toprune.plan.plan import Plan, Score
from toprune.pruning.attach import attach, attach_policy, attached, detach
from toprune.pruning.policies import Follow
from toprune.tasks import Classify, Task
from toprune.training.batches import Collate
from toprune.training.evaluation import batch_outputs, collect_outputs, distance
from toprune.training.features import encode, lengths
from toprune.training.job import Job
from toprune.training.settings import Training
from toprune.training.stages import run

pytestmark = pytest.mark.usefixtures("few_draws")

SMALL = Lat(population=6, mutations=6, crossovers=6, iterations=2)
UNTRAINED = Training(soft_epochs=0, hard_epochs=0)


def make_job(
    work: Path,
    task: Task | None = None,
    outputs: int = 2,
    *,
    budget: str = "2x",
    score: Score = "received",
    method: Lat = SMALL,
    training: Training = UNTRAINED,
) -> Job:
    tokenizer = make_tokenizer()
    if task is None:
        task, examples = Classify(), load(synthetic.rows(60, 0), reads=Classify.READS)["train"]
    else:
        examples = make_examples(task, 24)
    model = make_model(num_labels=outputs, head=task.HEAD)
    features = encode(tokenizer, task, examples, 40)
    protect: dict[str, Any] = {"protect": (2,), "protect_until": 2} if task.HEAD == "answer" else {}
    return Job(
        model,
        tokenizer,
        task,
        features,
        lengths(features, *protect.values()),
        Budget.parse(budget),
        method,
        score,
        training,
        work,
        **protect,
    )


# -- formulas ------------------------------------------------------------------------------------


def test_the_smallest_keeps_a_power_of_what_a_layer_keeps() -> None:
    assert constant(0.8, 4) == pytest.approx((0.8, 0.64, 0.512, 0.4096))
    plan = plan_of(Plan("bert", 6, 32, "received", ()), constant(0.8, 4))
    assert [(step.layer, float(step.keep)) for step in plan.steps] == [
        (1, 0.8),
        (2, 0.64),
        (3, 0.512),
        (4, 0.41),
    ]
    assert plan.lengths(50) == [50, 50, 40, 32, 26, 21]


def test_random_schedules_lose_up_to_p_of_the_survivors_in_each_layer() -> None:
    torch.manual_seed(0)
    genes = torch.tensor([drawn(0.2, 5) for _ in range(2000)])  # (draws, layers)
    kept = genes / F.pad(genes, (1, 0), value=1.0)[:, :-1]  # of what came in
    assert kept.min() >= 0.8 - 1e-6
    assert kept.max() <= 1 + 1e-6
    for layer in kept.T:  # uniform: mean (1 - p / 2), deviation p / sqrt(12)
        assert layer.mean() == pytest.approx(0.9, abs=0.005)
        assert layer.std() == pytest.approx(0.2 / math.sqrt(12), abs=0.003)
    torch.manual_seed(0)
    assert drawn(0.2, 5) == tuple(genes[0].tolist())  # torch's generator and no other


class Edge(np.random.Generator):
    """Always mutates, and always to one end of what is allowed."""

    def __init__(self, high: bool):
        super().__init__(np.random.PCG64(0))
        self.high = high

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return high if self.high else low


def test_mutation_moves_a_place_between_its_neighbours() -> None:
    gene = (0.9, 0.5, 0.2)
    assert mutated(gene, 1.0, Edge(high=False)) == (0.5, 0.2, 0.0)  # to the next one's old place
    assert mutated(gene, 1.0, Edge(high=True)) == (1.0, 1.0, 1.0)  # to the new place of the last
    assert mutated(gene, 0.0, Edge(high=True)) == gene
    rng = np.random.default_rng(0)
    moved = np.array([mutated(gene, 0.5, rng) for _ in range(1000)]) != gene  # (times, places)
    assert moved.mean(0) == pytest.approx([0.5] * 3, abs=0.05)


@given(
    gene=st.lists(st.floats(0, 1), min_size=1, max_size=11).map(
        lambda shares: tuple(sorted(shares, reverse=True))
    ),
    seed=st.integers(0, 100),
)
def test_mutants_never_grow_over_the_layers(gene: tuple[float, ...], seed: int) -> None:
    result = [1.0, *mutated(gene, 0.5, np.random.default_rng(seed)), 0.0]
    assert all(a >= b for a, b in pairwise(result))


def test_a_cross_is_the_mean() -> None:
    assert crossed((1.0, 0.6, 0.2), (0.5, 0.4, 0.1)) == pytest.approx((0.75, 0.5, 0.15))


def test_children_are_as_many_as_said() -> None:
    genes, rng = [(0.9, 0.8), (0.5, 0.4)], np.random.default_rng(0)
    born = Lat(mutations=7, crossovers=5, mutation_rate=0.0).children(genes, rng)
    assert len(born) == 12
    assert set(born[:7]) == set(genes)
    means = {crossed(a, b) for a in genes for b in genes}
    assert set(born[7:]) <= means


def test_the_front_is_who_nobody_beats() -> None:
    def member(reduction: float, divergence: float) -> Member:
        return Member((), reduction, divergence)

    cheap, fair, good = member(4, 9.0), member(3, 5.0), member(1.5, 1.0)
    beaten = [
        member(3.5, 9.0),  # dearer than `cheap` and no better
        member(2.5, 6.0),  # dearer than `fair` and worse
        member(1.5, 2.0),  # as dear as `good` and worse
        member(1.2, 1.0),
    ]
    assert front_of([*beaten, good, cheap, fair]) == [cheap, fair, good]
    assert front_of([fair, fair]) == [fair]
    assert front_of([]) == []


@pytest.mark.parametrize(
    ("settings", "line"), [({"drop": 0}, "between 0 and 1"), ({"population": 0}, "population")]
)
def test_bad_settings_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        Lat(**settings)


# -- LengthDrop ----------------------------------------------------------------------------------


def random_batch(task: Task, features: list[dict[str, Any]], outputs: int) -> dict[str, Tensor]:
    """With words of a teacher that nobody has asked."""
    batch = Collate(make_tokenizer())(features)
    generator = torch.Generator().manual_seed(0)
    rows, length = batch["input_ids"].shape
    shape = (rows, length, outputs) if task.reads_all else (rows, outputs)
    batch["teacher_logits"] = torch.randn(*shape, generator=generator)
    if not task.reads_all:
        batch["teacher_states"] = torch.randn(rows, 4, 32, generator=generator)
    return batch


def divergence(name: str, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """What a student is told by a teacher, written out: KL(teacher || student) at temperature 2,
    times 4, of answers as they are, or the squared error."""
    if name == "regress":
        return (student - teacher).square().mean()
    heat = 1 if name == "answer" else 2
    if name == "answer":  # over the live tokens, mean of start and end
        gone = (mask == 0)[..., None]
        student, teacher = (x.masked_fill(gone, -1e30) for x in (student, teacher))
        student, teacher = (x.transpose(1, 2).flatten(0, 1) for x in (student, teacher))
    p, q = (teacher / heat).softmax(-1), (student / heat).softmax(-1)
    ratio = torch.where(p > 0, p / q.clamp_min(1e-30), torch.ones_like(p))
    return heat**2 * (p * ratio.log()).sum(-1).mean()


@pytest.mark.parametrize("name", ["classify", "regress", "answer"])
def test_loss_of_a_batch(name: str, tmp_path: Path) -> None:
    """The full pass learns from the teacher, sub-models from the full pass as it is."""
    task, outputs = TASKS[name]
    job = make_job(tmp_path, task, outputs)
    schedules = Schedules(SMALL, job)
    torch.manual_seed(0)
    plans = schedules.submodels()
    batch = random_batch(task, list(job.features[:8]), outputs)
    mask = batch["attention_mask"]
    inputs = {name: batch[name] for name in job.tokenizer.model_input_names if name in batch}

    reference = copy.deepcopy(job.model)
    attach(reference, schedules.blank)

    def outputs_under(**how: Any) -> tuple[Tensor, Any]:
        out = reference(**inputs, **how)
        if name == "answer":
            return torch.stack([out.start_logits, out.end_logits], -1), out
        return out.logits, out

    logits, out = outputs_under(output_hidden_states=True)
    losses = [divergence(name, logits, batch["teacher_logits"], mask)]
    if "teacher_states" in batch:
        states = torch.stack([hidden[:, 0] for hidden in out.hidden_states[1:]], 1)
        losses[0] = losses[0] + 3.0 * (states - batch["teacher_states"]).square().mean()
    for plan in plans:
        attach(reference, plan, gather=False)
        losses.append(divergence(name, outputs_under()[0], logits.detach(), mask))
    wanted = torch.stack(losses).mean()
    wanted.backward()
    assert all(loss > 1e-4 for loss in losses)  # sub-models are told something, also in regression

    policy = Follow(schedules.blank)
    attach_policy(job.model, policy)
    learner = LengthDrop(
        job.model,
        task,
        submodels=lambda: plans,
        policy=policy,
        label_weight=0.0,
        state_weight=3.0,
        dropout=False,
    ).train()
    result = learner(**batch)
    result["loss"].backward()
    torch.testing.assert_close(result["loss"], wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result["logits"], logits, rtol=1e-4, atol=1e-4)
    mine, theirs = (dict(model.named_parameters()) for model in (job.model, reference))
    for key, weight in mine.items():
        other = theirs[key].grad
        assert (weight.grad is None) == (other is None), key
        if weight.grad is not None and other is not None:
            torch.testing.assert_close(weight.grad, other, rtol=2e-3, atol=2e-4, msg=key)
    kept = attached(job.model)
    assert kept is not None
    assert kept.policy is policy  # as it was
    last = kept.tokens[kept.last]
    assert last is not None
    assert last.index.shape[1] < inputs["input_ids"].shape[1]  # rows were gone, not only masked


def test_a_batch_gets_random_sub_models_and_the_smallest(tmp_path: Path) -> None:
    job = make_job(tmp_path, budget="1.2x")
    schedules = Schedules(SMALL, job)
    assert schedules.drop == 0.2
    torch.manual_seed(0)
    *random, smallest = schedules.submodels()
    assert len(random) == 2
    assert random[0] != random[1]
    assert [float(step.keep) for step in smallest.steps] == [0.8, 0.64, 0.512]
    for one in random:
        shares = [1.0, *(float(step.keep) for step in one.steps)]
        assert all(0.8 * a - 0.001 <= b <= a for a, b in pairwise(shares))


def test_the_smallest_is_as_small_as_the_budget_asks(tmp_path: Path) -> None:
    job = make_job(tmp_path, budget="3x")
    smallest = Schedules(SMALL, job).submodels()[-1]
    result = reduction(sizes_of(job.model), smallest, job.lengths).unpadded
    assert result == pytest.approx(3, rel=0.08)  # up to whole tokens
    rates = [float(b.keep / a.keep) for a, b in pairwise(smallest.steps)]
    assert rates == pytest.approx([float(smallest.steps[0].keep)] * 2, abs=0.01)


# -- the search ----------------------------------------------------------------------------------


def test_seeds_are_constant_rates_evenly_spaced_in_macs(tmp_path: Path) -> None:
    job = make_job(tmp_path, method=Lat(first=1, population=4))
    schedules = Schedules(Lat(first=1, population=4), job)
    seeds, sizes = schedules.seeds(), sizes_of(job.model)
    assert [len(gene) for gene in seeds] == [2] * 4
    assert all(b == pytest.approx(a * a) for a, b in seeds)
    plans = [plan_of(schedules.blank, gene) for gene in seeds]
    assert all(step.layer in (1, 2) for plan in plans for step in plan.steps)
    costs = [1 / reduction(sizes, plan, job.lengths).unpadded for plan in plans]
    gaps = np.diff([1, *costs])
    assert gaps == pytest.approx([gaps.mean()] * 4, rel=0.15)  # up to whole tokens


class Patient(Schedules):
    """Asks for every answer."""

    def divergence(self, plan: Plan, limit: float = math.inf) -> float:
        outputs_under = batch_outputs(self.job.model, self.job.task, self.batches, plan)
        return distance(self.job.task, outputs_under, self.dense, self.batches)


def test_the_front_is_that_of_a_search_that_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path)
    hasty = Schedules(SMALL, job)
    passes: list[int] = []

    def counted(model: Any, task: Task, batches: Any, plan: Plan | None = None) -> list[Tensor]:
        passes.append(len(batches))
        return batch_outputs(model, task, batches, plan)

    with monkeypatch.context() as patch:
        patch.setattr(lat, "batch_outputs", counted)
        result = hasty.evolved()
    wanted = Patient(SMALL, job).evolved()
    assert [(m.keep, m.reduction) for m in result] == [(m.keep, m.reduction) for m in wanted]
    assert [m.divergence for m in result] == pytest.approx([m.divergence for m in wanted])
    assert len(result) >= 4
    assert sum(passes) < (6 + 2 * 12) * len(hasty.batches)
    for cheap, dear in pairwise(result):
        assert cheap.reduction > dear.reduction
        assert cheap.divergence > dear.divergence
    assert result == hasty.evolved()  # by its seed alone


def test_the_budget_is_given_the_best_of_the_nearest(tmp_path: Path) -> None:
    job = make_job(tmp_path, budget="1.7x")
    schedules = Schedules(SMALL, job)
    schedules.job.work.mkdir(exist_ok=True)
    plan, expected = schedules.best()
    assert json.loads((tmp_path / "front.json").read_text()) == [
        vars(member) | {"keep": list(member.keep)} for member in schedules.front()
    ]
    front = sorted(schedules.front(), key=lambda m: abs(math.log(m.reduction / 1.7)))
    near = front[: lat.NEAREST]
    repaired = [job.repaired(plan_of(schedules.blank, member.keep)) for member in near]
    values = [Patient(SMALL, job).divergence(one) for one in repaired]
    assert plan == repaired[int(np.argmin(values))]
    assert expected == near[int(np.argmin(values))].reduction
    assert reduction(sizes_of(job.model), plan, job.lengths).unpadded == pytest.approx(
        1.7, rel=0.01
    )


def test_the_yardstick_is_the_model_before_training(tmp_path: Path) -> None:
    """Also after a training that moves the answers: the front tells how far they are from those
    that the dense model gave."""
    training = Training(soft_epochs=1, hard_epochs=1, lr=3e-3, batch_size=16)
    job = make_job(tmp_path, training=training)
    before, weights = copy.deepcopy(job.model), copy.deepcopy(job.model.state_dict())
    outcome = run(job)
    changed = job.model.state_dict()
    assert any(not torch.equal(weights[name], changed[name]) for name in weights)
    assert outcome.log
    batches = job.sample_batches(256)
    dense = batch_outputs(before, job.task, batches)
    blank = job.blank()
    front = json.loads((tmp_path / "front.json").read_text())
    for member in front[:: max(1, len(front) // 3)]:
        plan = plan_of(blank, member["keep"])
        far = distance(job.task, batch_outputs(job.model, job.task, batches, plan), dense, batches)
        assert member["divergence"] == pytest.approx(far, rel=1e-4)
        plain = batch_outputs(job.model, job.task, batches)
        assert far != pytest.approx(
            distance(job.task, batch_outputs(job.model, job.task, batches, plan), plain, batches),
            rel=0.01,
        )
    assert outcome.expected in [member["reduction"] for member in front]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("score", ["received", "probe"])
@pytest.mark.parametrize("budget", ["1.5x", "3x"])
def test_without_epochs_it_is_the_search_alone(score: Score, budget: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, budget=budget, score=score)
    before = copy.deepcopy(job.model.state_dict())
    outcome = run(job)
    assert outcome.log == []
    assert outcome.expected is None
    assert outcome.plan.score == score
    done = reduction(sizes_of(job.model), outcome.plan, job.lengths).unpadded
    assert done == pytest.approx(float(budget[:-1]), rel=0.01)
    after = job.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert attached(job.model) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["regress", "answer", "tokens", "embed mean"])
def test_every_kind_of_head_is_trained(name: str, tmp_path: Path) -> None:
    training = Training(soft_epochs=1, hard_epochs=0, batch_size=8, lr=1e-3)
    job = make_job(tmp_path, *TASKS[name], budget="1.3x", training=training)
    before = copy.deepcopy(job.model.state_dict())
    outcome = run(job)
    done = reduction(sizes_of(job.model), outcome.plan, job.lengths).unpadded
    assert done == pytest.approx(1.3, rel=0.01)
    assert outcome.plan.restore == job.restore
    after = job.model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)


# -- the whole -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        synthetic.untrained().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def stop_in(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    def stopped(*_: Any) -> None:
        raise Stopped

    patch.setattr(owner, name, stopped)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_ends_the_same(model: Path, tmp_path: Path) -> None:
    """Stopped between checkpoints, then in the search, then with the front written."""
    rows = synthetic.rows(60, 0)
    training = Training(soft_epochs=1, hard_epochs=1, batch_size=8, lr=1e-3, save_steps=4)
    halved, whole = tmp_path / "halved", tmp_path / "whole"
    how: dict[str, Any] = {"method": SMALL, "training": training}
    stops: list[Callable[[pytest.MonkeyPatch], None]] = [
        lambda patch: stop_at(patch, "soft", 10),
        lambda patch: stop_in(patch, Schedules, "grown"),
        lambda patch: stop_in(patch, Job, "repaired"),
    ]
    front = tmp_path / "halved.partial" / "stages" / "front.json"
    for times, stop in enumerate(stops):
        with pytest.MonkeyPatch.context() as patch:
            stop(patch)
            with pytest.raises(Stopped):
                prune(model, rows, "2x", out=halved, resume=times > 0, **how)
        assert front.exists() == (times == 2)
    with pytest.MonkeyPatch.context() as patch:
        stop_in(patch, Schedules, "evolved")  # it need not search again
        prune(model, rows, "2x", out=halved, resume=True, **how)
    prune(model, rows, "2x", out=whole, **how)
    same(whole, halved)


@pytest.fixture(scope="module")
def fine_tuned() -> Any:
    """Unlike in test_top.py its first layer may carry: LAT ranks by the attention that a token
    receives there and by nothing else."""
    return marked.fine_tuned(carries=True)


def pruned_at_3x(model: Any, out: Path, score: Score, training: Training) -> Bundle:
    return prune(
        copy.deepcopy(model),
        DATA,
        "3x",
        out=out,
        tokenizer=make_tokenizer(),
        score=score,
        method=replace(SMALL, iterations=1),
        training=training,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_at_3x_training_keeps_the_word_that_matters(fine_tuned: Any, tmp_path: Path) -> None:
    frozen = pruned_at_3x(fine_tuned, tmp_path / "frozen", "received", UNTRAINED)
    assert frozen.plan is not None
    untrained, kept_before = outcome(attach(frozen.model, frozen.plan))

    training = Training(soft_epochs=1, hard_epochs=1, lr=1e-3)
    bundle = pruned_at_3x(fine_tuned, tmp_path / "trained", "received", training)
    plan = bundle.plan
    assert plan is not None
    assert plan.score == "received"
    assert executed(bundle.model, plan) == pytest.approx(3, rel=0.01)
    accuracy, kept = outcome(attach(bundle.model, plan))
    assert accuracy >= max(0.97, untrained - 0.01)  # what is left to gain depends on the seed
    assert kept[0] >= max(0.97, kept_before[0] - 0.01)
    assert accuracy == pytest.approx(bundle.report["pruned"]["accuracy"]["value"])
    torch.manual_seed(0)
    by_chance, kept = outcome(attach_policy(bundle.model, Randomly(plan)))
    assert by_chance < 0.8
    assert kept[0] < 0.5
    assert_executions_agree(bundle, tmp_path / "trained")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_by_the_probe_it_is_kept_without_training(fine_tuned: Any, tmp_path: Path) -> None:
    bundle = pruned_at_3x(fine_tuned, tmp_path / "out", "probe", UNTRAINED)
    assert bundle.plan is not None
    assert bundle.plan.score == "probe"
    assert executed(bundle.model, bundle.plan) == pytest.approx(3, rel=0.01)
    accuracy, kept = outcome(attach(bundle.model, bundle.plan))
    assert accuracy >= 0.98
    assert kept[-1] >= 0.99
    assert_executions_agree(bundle, tmp_path / "out")


def assert_executions_agree(bundle: Bundle, folder: Path) -> None:
    """masked == gathered == ONNX"""
    assert bundle.plan is not None
    test = load(DATA, reads=Classify.READS)["test"]
    features = encode(make_tokenizer(), Classify(), test, 64)
    outputs_under = {}
    for gather in (True, False):
        attach(bundle.model, bundle.plan, gather=gather)
        outputs_under[gather] = collect_outputs(
            bundle.model, Classify(), features, Collate(make_tokenizer())
        )
    detach(bundle.model)
    assert worst(outputs_under[False], outputs_under[True]) < 2e-4
    export(folder)
    texts = [row["text"] for row in DATA["test"]]
    onnx = [output for _, output in Runner(folder, threads=1).read(texts)]
    assert worst(onnx, outputs_under[True]) < 5e-4
