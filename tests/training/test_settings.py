"""How long the stages are: in epochs where the caller counts so, else in steps."""

import math
from pathlib import Path
from typing import Any

import pytest

from support import synthetic
from support.models import make_model, make_tokenizer
from toprune.api import prune
from toprune.methods.ltp import Ltp
from toprune.methods.top import Top
from toprune.training import hard_concrete
from toprune.training.settings import FINETUNE, Training, recorded
from toprune.training.trainer import StageTrainer


@pytest.mark.parametrize(
    ("texts", "steps"),
    [(320, 25), (3_700, 290), (9_000, 300), (100_000, 300)],  # half of all steps, or 300
)
def test_masks_are_learned_for_a_number_of_steps(texts: int, steps: int):
    training = Training().resolved(texts)
    soft, hard = training.stage_epochs
    assert soft + hard == pytest.approx(5)
    assert math.ceil(soft * math.ceil(texts / 32)) == pytest.approx(steps, abs=1)


def test_epochs_that_the_caller_names_are_kept():
    assert Training(1, 4).resolved(10**6).stage_epochs == (1, 4)
    assert Training(soft_epochs=2).resolved(10**6).stage_epochs == (2, 3)
    assert Training(soft_epochs=7).resolved(10**6).stage_epochs == (7, 0)
    assert Training(hard_epochs=1).resolved(64).stage_epochs == (1, 1)
    assert Training(epochs=0).resolved(64).stage_epochs == (0, 0)
    assert Training(soft_steps=0).resolved(64).stage_epochs == (0, 5)
    assert FINETUNE.resolved(64).stage_epochs == (0, 3)


def test_open_epochs_are_not_read():
    with pytest.raises(ValueError, match="resolved"):
        _ = Training().stage_epochs
    with pytest.raises(ValueError, match="resolved"):
        Training(soft_epochs=1).for_stages(("hard",))


def test_settings_hold_what_the_result_depends_on():
    """A resolved training has the keys that runs had before there was `soft_steps`."""
    resolved = Training(soft_steps=8).resolved(640)
    assert {"epochs", "soft_steps"}.isdisjoint(resolved.settings())
    assert Training(soft_steps=8).settings() != Training(soft_steps=9).settings()
    assert resolved.settings() == Training(*resolved.stage_epochs).settings()


def test_a_stopped_run_keeps_its_stages():
    before = Training(1, 4).settings()
    assert Training(lr=3e-5).continued(before) == Training(1, 4, lr=3e-5)
    for other in (
        Training(epochs=6),
        Training(soft_steps=500),
        Training(2, 3),
        Training(soft_epochs=2),
    ):
        assert other.continued(before) == other  # and so it is refused
    assert Training().continued({}) == Training()
    assert Training().continued(Training().settings()) == Training()


def test_the_rate_of_the_masks_fits_the_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Adam moves a mask by about its rate in a step: half the warm-up must be enough to close it,
    as far as the rate is not at its limits."""
    seen: list[tuple[str, int, float]] = []
    create = StageTrainer.create_scheduler

    def create_scheduler(self: StageTrainer, num_training_steps: int, optimizer: Any = None) -> Any:
        stage = Path(str(self.args.output_dir)).name
        assert self.optimizer is not None
        seen.append((stage, num_training_steps, self.optimizer.param_groups[-1]["lr"]))
        return create(self, num_training_steps, optimizer)

    monkeypatch.setattr(StageTrainer, "create_scheduler", create_scheduler)
    training = Training(epochs=200, soft_steps=270, batch_size=16)
    monkeypatch.setattr(StageTrainer, "training_step", _no_step)
    data = {"train": synthetic.rows(48, 0), "test": synthetic.rows(8, 1)}
    prune(make_model(), data, "2x", tokenizer=make_tokenizer(), training=training)
    (_, soft, rate), (_, hard, _) = seen
    assert [stage for stage, _, _ in seen] == ["soft", "hard"]
    assert (soft, soft + hard) == (270, 600)  # 3 steps an epoch
    warmup = training.sparsity_warmup * soft
    assert rate * warmup / 2 == pytest.approx(hard_concrete.SPAN, rel=1e-3)


def _no_step(self: StageTrainer, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    return next(model.parameters()).new_zeros(())


def test_settings_that_came_later_are_recorded_where_they_differ() -> None:
    """A run that was stopped before they were there has the same settings, so it goes on."""
    assert recorded(Ltp()) == {"final": None, "first": 0, "temperature": 0.1}
    assert recorded(Ltp(start="calibrated")) == recorded(Ltp()) | {"start": "calibrated"}
    later = {"target": "last", "masks": "auto"}
    assert recorded(Top(bins=7)) | later == vars(Top(bins=7))
