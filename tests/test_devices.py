"""Runs on a pretend GPU (`support.elsewhere`): no tensor is left on the CPU, whatever the method,
the task and the score."""

import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers import BertConfig

from support.elsewhere import THERE, Elsewhere, TwoDevices, pretend, there
from support.executions import TASKS, as_rows, make_examples
from support.models import make_tokenizer
from toprune.api import Data, evaluate, finetune, prune
from toprune.bundle.bundle import Bundle
from toprune.data.sets import load_labelled
from toprune.export.export import export
from toprune.export.graph import write_onnx
from toprune.export.parity import check
from toprune.inspection.explain.explain import explain
from toprune.inspection.scores import answer_ranks, score_distributions
from toprune.inspection.stress.stress import stress
from toprune.methods import METHODS, common, power_bert
from toprune.methods.cofi import cofi, masks
from toprune.methods.lat import Lat
from toprune.methods.top import Top
from toprune.methods.tr_bert import TrBert
from toprune.models import heads
from toprune.models.device import CPU, device_of
from toprune.models.heads import HEADS
from toprune.plan.plan import Score
from toprune.pruning import tokens
from toprune.pruning.attach import attach, detach
from toprune.run.engines import OnnxRuntime
from toprune.tasks import Answer, Classify, Multilabel, Task
from toprune.training import evaluation, hard_concrete, probe, ranking_quality, stages, thresholds
from toprune.training.settings import Training

TRAINED = ("classify", "regress", "multilabel", "rank", "answer", "tokens")  # by finetune
SMALL = Lat(population=2, mutations=1, crossovers=1, iterations=1)
TRACED = torch.onnx.export
TRAINING = Training(soft_epochs=1, hard_epochs=1, batch_size=8, bf16=False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The pretend GPU, and less work that is the same in every round."""
    monkeypatch.setattr(thresholds, "HALVINGS", 3)
    monkeypatch.setattr(common, "PASSES", 1)
    monkeypatch.setitem(stages.calibrated.__kwdefaults__ or {}, "moves", 1)
    with pretend(monkeypatch):
        yield


def make_model(task: Task, outputs: int) -> Any:
    """Three layers, 16 wide."""
    labels: Any = {"num_labels": outputs}  # a field that the stubs do not know
    config = BertConfig(
        vocab_size=len(make_tokenizer()),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=48,
        initializer_range=0.5,
        pad_token_id=1,
        **labels,
    )
    if isinstance(task, Multilabel):
        config.problem_type = "multi_label_classification"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = HEADS[task.HEAD].from_config(config).eval()
    if task.HEAD == "encoder":
        model.pooler = None
    return model


def data_of(task: Task) -> Data:
    rows = as_rows(task, make_examples(task, 8))
    return Data({"train": rows, "test": rows}, max_length=32)


def pruned(
    name: str, out: Path, method: Any = "top", score: Score | None = None, **options: Any
) -> Bundle:
    task, outputs = TASKS[name]
    how = {"training": TRAINING, "tokenizer": make_tokenizer()} | options
    return prune(
        make_model(task, outputs),
        data_of(task),
        "1.2x",
        task=task,
        out=out,
        method=method,
        score=score,
        **how,
    )


# -- the pretend device itself -------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_two_devices_that_meet_raise_as_on_a_gpu() -> None:
    here, x = torch.ones(3), torch.ones(3).to(THERE)
    meetings: list[Callable[[], Any]] = [
        lambda: x + here,
        lambda: torch.stack([x, here]),
        lambda: torch.stack([x.sum(), here.sum()]),
        lambda: here[x.long()],
        lambda: here.sum().add_(x.sum()),
        lambda: torch.where(x > 0, x, here),
        lambda: x.numpy(),
    ]
    for meeting in meetings:
        with pytest.raises(TwoDevices):
            meeting()


@pytest.mark.usefixtures("gpu")
def test_what_a_gpu_allows_is_allowed() -> None:
    here, x = torch.arange(3.0), torch.arange(3.0).to(THERE)
    allowed: list[Tensor] = [
        x + here.sum(),  # a number of the CPU
        x[here.long()],
        torch.zeros_like(x).copy_(here),
        torch.tensor([1.0], device=THERE),
        torch.arange(2, device=x.device),
        x.new_tensor([1.0]),
        x.new_zeros(2),
    ]
    assert all(there(one) and one.device == THERE for one in allowed)
    assert not there(x.cpu())
    assert x.cpu().tolist() == x.tolist() == [0, 1, 2]
    assert x.numpy(force=True).tolist() == [0, 1, 2]
    weight = torch.nn.Parameter(Elsewhere(torch.ones(3)))
    (x * weight).sum().backward()
    assert there(weight.grad)


# -- whole runs ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", TRAINED)
def test_finetune(name: str, tmp_path: Path) -> None:
    task, outputs = TASKS[name]
    model, seen = make_model(task, outputs), set[bool]()
    model.register_forward_hook(lambda module, *_: seen.add(there(next(module.parameters()))))
    finetune(
        model,
        data_of(task),
        task=task,
        out=tmp_path / "out",
        tokenizer=make_tokenizer(),
        training=Training(soft_epochs=0, epochs=1, batch_size=8, bf16=False),
    )
    assert seen == {True}  # every forward pass was there
    assert device_of(model) == CPU  # and the model is back


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", METHODS)
def test_prune_by_every_method(name: str, tmp_path: Path) -> None:
    method = {"lat": SMALL, "tr_bert": TrBert(samples=2)}.get(name, name)
    bundle = pruned("classify", tmp_path / "out", method)
    assert device_of(bundle.model) == CPU
    assert np.isfinite(bundle.report["agreement"])


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", TASKS)
def test_prune_for_every_task(name: str, tmp_path: Path) -> None:
    pruned(name, tmp_path / "out")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("score", Top.SCORES)
def test_prune_by_every_score(score: Score, tmp_path: Path) -> None:
    """And with the paper's constraint, the target chosen, in bfloat16."""
    method = Top(constraint="lagrangian", target="auto" if score == "received" else "last")
    training = Training(soft_epochs=1, hard_epochs=1, batch_size=8, bf16=True)
    pruned("classify", tmp_path / "out", method, score, training=training, protect=("w1",))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("method", ["top", "cofi", "adapler", "lot", "ltp"])
def test_without_training(method: str, tmp_path: Path) -> None:
    training = Training(soft_epochs=0, hard_epochs=0, bf16=False)
    pruned("classify", tmp_path / "out", method, training=training)


def test_the_numbers_are_those_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = pruned("classify", tmp_path / "cpu", device="cpu")
    with pretend(monkeypatch):
        elsewhere = pruned("classify", tmp_path / "there", device="cuda")
    assert elsewhere.plan is not None
    assert on_cpu.plan is not None
    assert elsewhere.plan.steps == on_cpu.plan.steps
    for one, other in zip(elsewhere.model.parameters(), on_cpu.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# -- what uses a bundle --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Made on the CPU, by a plan that adapts to the text, and for answers."""
    folder = tmp_path_factory.mktemp("bundles")
    training = Training(soft_epochs=0, hard_epochs=0, bf16=False)
    pruned("classify", folder / "classify", "ltp", training=training, device="cpu")
    pruned("answer", folder / "answer", training=training, device="cpu")
    return {"classify": folder / "classify", "answer": folder / "answer"}


@pytest.mark.parametrize("name", ["classify", "answer"])
def test_evaluate(name: str, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(TASKS[name][0])
    wanted = evaluate(bundles[name], data, device="cpu")
    with pretend(monkeypatch):
        report = evaluate(bundles[name], data)
    assert report["metrics"] == wanted["metrics"]
    assert report["executed"] == wanted["executed"]


def test_explain_scores_and_stress(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    classify, answer = bundles["classify"], bundles["answer"]
    labelled = load_labelled(data_of(Answer()).source, reads=Answer.READS)
    few: Any = {"limit": 4, "doses": (1,), "floors": ()}
    calls: list[Callable[[Any], Any]] = [
        lambda device: explain(classify, ["w1 w2 w3 w4"], dense=classify, device=device).to_dict(),
        lambda device: score_distributions(classify, ["w1 w2 w3 w4"], device=device),
        lambda device: answer_ranks(answer, labelled, dense=answer, device=device),
        lambda device: stress(classify, data_of(Classify()), **few, device=device),
    ]
    wanted = [_rounded(call("cpu")) for call in calls]
    with pretend(monkeypatch):
        assert [_rounded(call("auto")) for call in calls] == wanted


def _rounded(report: Any) -> Any:
    return json.loads(json.dumps(report), parse_float=lambda number: round(float(number), 3))


def test_a_model_elsewhere_is_attached_and_exported(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tracing and the check run on the CPU; afterwards the model is where it was."""
    export(bundles["answer"])
    batch = {"input_ids": torch.full((2, 8), 5), "attention_mask": torch.ones(2, 8).long()}
    path = tmp_path / "model.onnx"
    with pretend(monkeypatch):
        bundle = Bundle.load(bundles["answer"], device="cuda")
        assert bundle.plan is not None
        attach(bundle.model, bundle.plan)
        out = bundle.model(**{name: x.to(THERE) for name, x in batch.items()})
        assert there(out.start_logits)
        with pytest.raises(TwoDevices):
            bundle.model(**batch)
        detach(bundle.model)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.onnx, "export", partial(_traced, bundle.model))
            write_onnx(bundle.model, bundle.plan, path, outputs=Answer.OUTPUTS)
        engine = OnnxRuntime(path)
        check(bundle.model, bundle.plan, engine.run, 16, outputs=Answer.OUTPUTS)
        assert device_of(bundle.model) == THERE


def _traced(model: Any, *args: Any, **options: Any) -> Any:
    """Tracing has a dispatcher of its own."""
    assert device_of(model) == CPU
    with _disable_current_modes():
        return TRACED(*args, **options)


# -- a move that is taken out --------------------------------------------------------------------

CUTS: dict[str, tuple[Callable[..., Any], str, str, Any]] = {
    "inputs": (heads.task_outputs, "to_device(batch, model)", "batch", "top"),
    "encoder": (heads.run_encoder, "to_device(inputs, model)", "inputs", "ltp"),
    "probe": (probe.margin_gradients, "to_device(batch, model)", "batch", "top"),
    "probe scores": (tokens.by_probe, ".to(state)", "", "top"),
    "distance": (evaluation.distance, ".to(a.device)", "", "calibrate"),
    "ranking": (ranking_quality.ranking_quality, ".to(live.device)", "", "top"),
    "shift": (hard_concrete.shift_to, "c.detach().to(device)", "c.detach()[None]", "top"),
    "cofi's margin": (masks.saliency, ".to(device)\n", "\n", "cofi"),
    "cofi's masks": (masks.saliency, "device=device, ", "", "cofi"),
    "cofi's penalty": (
        cofi.Selector.penalty,
        "self.loga[0].new_zeros",
        "torch.zeros",
        "cofi",
    ),
    "predictors": (common.fit_predictors, "states[sample].to(device)", "states[sample]", "tr_bert"),
    "layers": (power_bert.SoftExtract.penalty, ", device=self.r.device", "", "power_bert"),
}

READ_MASKS = ("probe", "distance", "cofi's margin")  # where the loss of a task needs the mask


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("cut", CUTS)
def test_a_move_that_is_taken_out_is_found(
    cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, move, instead, method = CUTS[cut]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(move) == 1, move
    made: dict[str, Any] = {}
    exec(source.replace(move, instead), function.__globals__, made)
    monkeypatch.setattr(function, "__code__", made[function.__name__].__code__)
    task = "answer" if cut in READ_MASKS else "classify"
    with pytest.raises(TwoDevices):
        pruned(task, tmp_path / "out", method)
