"""CoFi: what masks are expected to cost, where they are cut, and that what is left has learned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from support import synthetic
from support.models import make_model, make_tokenizer
from support.strategies import pad, random_text
from toprune import Runner
from toprune.api import prune
from toprune.bundle.bundle import Bundle
from toprune.errors import OutOfReach, UserError
from toprune.export.export import export
from toprune.methods.cofi.cofi import STAYS, Cofi, Matched, Selector, matching
from toprune.methods.cofi.masks import Masks, attach_masks, saliency
from toprune.models.families import sizes_of
from toprune.models.slim import Kept
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, dense_macs
from toprune.plan.plan import Restore
from toprune.pruning.attach import attach
from toprune.tasks import Classify
from toprune.training import hard_concrete
from toprune.training.settings import Training
from toprune.training.teacher import Teacher
from toprune.training.trainer import StageTrainer

SIZES = Sizes(layers=2, width=8, heads=2, inner=6)  # heads of 4
LENGTHS = Lengths(((3, 0, 1), (5, 0, 1)))  # two texts: 4 tokens in the mean, 17 squared


def make_selector(
    budget: str = "2x", sizes: Sizes = SIZES, restore: Restore = "none", lengths: Lengths = LENGTHS
) -> Selector:
    return Selector(Cofi(), sizes, lengths, Budget.parse(budget), restore)


def shuffled(selector: Selector, seed: int) -> Selector:
    draw = torch.Generator().manual_seed(seed)
    useful = [torch.rand(len(loga), generator=draw) for loga in selector.loga]
    selector.start(useful, hidden=True)
    return selector


@pytest.mark.parametrize("restore", ["none", "last"])
def test_expected_cost_by_hand(restore: Restore) -> None:
    selector = make_selector(restore=restore)
    p = Masks(
        torch.full((8,), 0.75),  # 6 wide
        [torch.tensor([1.0, 0.5]), torch.tensor([0.5, 0.5])],  # heads: 1.5, 1
        [torch.full((6,), 0.5), torch.full((6,), 1 / 3)],  # columns: 3, 2
        [torch.tensor([0.5]), torch.tensor([1.0])],
    )
    first = 0.5 * (4 * (4 * 6 * 4 * 1.5) + 17 * (2 * 4 * 1.5) + 4 * (2 * 6 * 3))
    if restore == "none":  # keys and values of all, one query, one row
        last = 4 * (2 * 6 * 4) + 2 * 6 * 4 + 4 * (2 * 4) + 2 * 6 * 2
    else:
        last = 4 * (4 * 6 * 4) + 17 * (2 * 4) + 4 * (2 * 6 * 2)
    assert float(selector.macs(p)) == pytest.approx(first + last)
    dense = [dense_macs(SIZES, n, restore) for n in (3, 5)]
    assert selector.dense == pytest.approx(sum(dense) / 2)


def test_expected_cost_is_the_mean_of_draws() -> None:
    torch.manual_seed(0)
    selector = make_selector()
    with torch.no_grad():
        for loga in selector.loga:
            loga.copy_(torch.randn(len(loga)) * 2)
        selector.loga[-1][-1] = STAYS
    costs = []
    for _ in range(1000):
        z = [(hard_concrete.sample(loga.detach()) > 0).float() for loga in selector.loga]
        costs.append(float(selector.macs(selector._masks(z))))
    with torch.no_grad():
        expected = 1 - float(selector._sparsity(list(selector.loga), torch.zeros(())))
    error = 4 * np.std(costs) / len(costs) ** 0.5
    assert np.mean(costs) == pytest.approx(expected * selector.dense, abs=error)


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_the_target_is_met_at_every_step(progress: float) -> None:
    selector = shuffled(make_selector("3x"), 0)
    selector.progress = progress
    with torch.no_grad():
        assert float(selector.sparsity()) == pytest.approx(selector.target(), abs=1e-4)
    assert selector.target() == pytest.approx(0.01 + progress * (2 / 3 - 0.01))


def test_the_gradient_stays_on_the_constraint() -> None:
    """Whatever moves one mask moves the others so that the expected cost stays."""
    selector = shuffled(make_selector(), 1)
    (gradient,) = torch.autograd.grad(selector.sparsity(), selector.loga[1])
    assert gradient.abs().max() < 1e-4


@pytest.mark.parametrize("budget", ["1.2x", "2x", "4x", "10x"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_left_meets_the_budget(budget: str, seed: int) -> None:
    sizes = Sizes(layers=6, width=48, heads=6, inner=192)
    selector = shuffled(make_selector(budget, sizes), seed)
    masks = selector.final()
    kept = masks.kept()
    left = replace(
        sizes,
        layers=len(kept.layers),
        width=len(kept.hidden),
        head_width=8,
        slim=tuple(zip(map(len, kept.heads), map(len, kept.inner), strict=True)),
    )
    before, after = (sum(dense_macs(x, n) for n in (3, 5)) for x in (sizes, left))
    assert before / after == pytest.approx(Budget.parse(budget).reduction, rel=0.02)
    assert kept.layers[-1] == 5
    assert len(kept.hidden) >= 8
    assert all(kept.heads)
    assert all(kept.inner)
    soft = torch.cat([masks.hidden, *masks.heads, *masks.inner])
    assert soft.max() <= 1
    assert soft[soft > 0].min() >= 0.01


def test_the_least_useful_for_its_cost_goes_first() -> None:
    selector = make_selector()
    useful = [torch.ones(8), torch.tensor([4.0, 1.0, 4.0, 1.0]), torch.ones(12), torch.ones(2)]
    selector.start(useful, hidden=False)
    hidden, heads, inner, layers = selector.loga
    # by worth, and in the last layer, which computes queries for one row, they are cheaper
    assert heads.argsort().tolist() == [1, 3, 0, 2]
    assert inner[:6].max() < inner[6:].min()
    assert (hidden == STAYS).all()
    assert layers[0] < layers[1] == STAYS


def test_saliency_is_the_gradient_of_a_mask() -> None:
    """Against differences, of one unit of each kind."""
    model, task = make_model().double(), Classify()
    batch = pad([random_text(n, n) for n in (12, 7)])
    torch.set_default_dtype(torch.float64)
    try:
        result = saliency(model, task, [batch])
        for grain, unit in enumerate((3, 5, 70, 1)):
            squares = torch.zeros(2)
            for sign in (1, -1):
                vectors = [torch.ones(n) for n in (32, 16, 256, 4)]
                vectors[grain][unit] += sign * 1e-5
                hidden, heads, inner, layers = vectors
                masks = Masks(hidden, heads.split(4), inner.split(64), layers.split(1))
                handles = attach_masks(model, lambda now=masks: now)
                with torch.no_grad():
                    squares += sign * task.margin(model(**batch).logits, batch["attention_mask"])
                for handle in handles:
                    handle.remove()
            expected = (squares / 2e-5).square().sum()
            assert float(result[grain][unit]) == pytest.approx(float(expected), rel=1e-3)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_open_is_matched_with_the_teacher() -> None:
    """States of layers that are passed by are those of the layer before."""
    seen: dict[str, torch.Tensor] = {}

    class Watched(Matched):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.selector = Drawn()

    class Drawn(torch.nn.Module):
        def sample(self) -> None:
            layers = [torch.tensor([x]) for x in (0.0, 1.0, 0.0, 1.0)]
            self.drawn = Masks(torch.tensor([0.5, 0.0]), [], [], layers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "toprune.training.learner.Learner.forward",
            lambda _, **inputs: seen.update(inputs) or {},
        )
        states = torch.tensor([[[1.0, 9], [2, 9], [3, 9], [4, 9]]])  # (1, L, D)
        Watched().forward(teacher_states=states)
    assert seen["teacher_states"].tolist() == [[[1, 0], [2, 0], [2, 0], [4, 0]]]
    none = np.zeros(1)
    stored = Teacher(none, none, none, none, states.numpy())
    left = matching(stored, Kept([1, 3], [0], [[0]] * 2, [[0]] * 2))
    assert left.states.tolist() == [[[2], [4]]]


# -- From data to answers ------------------------------------------------------------------------

DATA = {"train": synthetic.rows(640, 0), "test": synthetic.rows(200, 1)}
FEW = {"train": synthetic.rows(48, 0), "test": synthetic.rows(16, 1)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_draws")
def test_a_smaller_model_learns_and_tokens_can_go_too(tmp_path: Path) -> None:
    model, slim, small = synthetic.fine_tuned(DATA), tmp_path / "slim", tmp_path / "small"
    before, training = sizes_of(model), Training(soft_epochs=1, hard_epochs=1, lr=1e-3)
    options: dict[str, Any] = {"tokenizer": make_tokenizer(), "training": training}
    report = prune(model, DATA, "2.5x", out=slim, method="cofi", **options).report
    after = sizes_of(Bundle.load(slim).model)
    counts = {int(n): many for n, many in report["lengths"].items()}
    dense, left = (sum(m * dense_macs(x, n) for n, m in counts.items()) for x in (before, after))
    assert dense / left == pytest.approx(2.5, rel=0.02)
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(dense / left)
    assert report["budget"]["expected"] == pytest.approx(2.5, rel=0.001)
    assert report["kept"]["heads"] == [heads for heads, _ in after.slim or ()]
    assert report["pruned"]["accuracy"]["value"] >= 0.9
    again = prune(slim, DATA, "1.5x", out=small, training=training).report
    assert again["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.01)
    assert again["pruned"]["accuracy"]["value"] >= 0.9
    export(small)
    bundle, text = Bundle.load(small), DATA["test"][0]["text"]
    assert bundle.plan is not None
    with torch.no_grad():
        wanted = attach(bundle.model, bundle.plan)(**bundle.tokenizer(text, return_tensors="pt"))
    result = torch.tensor(Runner(small, threads=1)([text])[0])
    torch.testing.assert_close(result, wanted.logits[0], rtol=1e-3, atol=1e-3)


STOPS = {  # method: folders of stages and the steps at which a run is stopped there
    "cofi": {("stages/soft", 3), ("slim/hard", 0), ("slim/hard", 4)},
    "joint": {("weights/soft", 1), ("slim/hard", 2), ("tokens/soft", 1), ("tokens/hard", 2)},
}


@pytest.mark.parametrize("method", STOPS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_draws")
def test_a_run_goes_on_where_it_was(tmp_path: Path, method: str) -> None:
    """Stopped within each stage and resumed, it ends with the same bits."""
    synthetic.untrained().save_pretrained(tmp_path / "dense")
    make_tokenizer().save_pretrained(tmp_path / "dense")
    training = Training(soft_epochs=2, hard_epochs=2, batch_size=16, save_steps=2)
    options: dict[str, Any] = {"method": method, "training": training}
    whole = prune(tmp_path / "dense", FEW, "2x", out=tmp_path / "whole", **options)
    loss, stops = StageTrainer.compute_loss, set(STOPS[method])

    def stopped(self: StageTrainer, *args: Any, **kwargs: Any) -> Any:
        at = "/".join(Path(str(self.args.output_dir)).parts[-2:]), self.state.global_step
        if at in stops:
            stops.remove(at)
            raise KeyboardInterrupt
        return loss(self, *args, **kwargs)

    again: dict[str, Any] = {"out": tmp_path / "halved"} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageTrainer, "compute_loss", stopped)
        while stops:
            with pytest.raises(KeyboardInterrupt):
                prune(tmp_path / "dense", FEW, "2x", **again)
            again["resume"] = True
        halved = prune(tmp_path / "dense", FEW, "2x", **again)
    assert halved.report["kept"] == whole.report["kept"]
    assert halved.plan == whole.plan
    one, other = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "halved"))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_draws")
def test_without_epochs_what_masks_set_out_from(tmp_path: Path) -> None:
    untrained = Training(soft_epochs=0, hard_epochs=0)
    options: dict[str, Any] = {
        "tokenizer": make_tokenizer(),
        "training": untrained,
        "method": "cofi",
    }
    report = prune(make_model(), FEW, "3x", out=tmp_path / "out", **options).report
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(3, rel=0.02)
    with pytest.raises(OutOfReach, match="budget 999x is out of reach"):
        prune(make_model(), FEW, "999x", out=tmp_path / "tiny", **options)
    with pytest.raises(UserError, match="weights of mpnet models"):
        prune(make_model("mpnet"), FEW, "2x", out=tmp_path / "other", **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_draws")
def test_vectors_stay_as_wide_as_they_are(tmp_path: Path) -> None:
    rows = [{"text": row["text"]} for row in FEW["train"]]
    bundle = prune(
        make_model(head="encoder"),
        {"train": rows, "test": rows[:8]},
        "3x",
        task="embed",
        method="cofi",
        out=tmp_path / "out",
        tokenizer=make_tokenizer(),
        training=Training(soft_epochs=1, hard_epochs=1, batch_size=16),
    )
    assert bundle.report["kept"]["hidden"] == 32
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(3, rel=0.02)
    assert sizes_of(Bundle.load(tmp_path / "out").model).width == 32


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_draws")
def test_a_narrower_model_learns_after_its_cut(tmp_path: Path) -> None:
    """The default would teach it the states of all tokens, which have the dense model's width."""
    training = Training(soft_epochs=1, hard_epochs=1, batch_size=16)
    options: dict[str, Any] = {"tokenizer": make_tokenizer(), "method": "cofi"}
    bundle = prune(
        synthetic.untrained(), FEW, "8x", out=tmp_path / "out", training=training, **options
    )
    assert bundle.report["kept"]["hidden"] < synthetic.untrained().config.hidden_size
    with pytest.raises(UserError, match="as wide as the dense model's"):
        prune(
            *(synthetic.untrained(), FEW, "8x"),
            out=tmp_path / "other",
            training=replace(training, token_states=True),
            **options,
        )
