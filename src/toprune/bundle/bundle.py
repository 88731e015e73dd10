"""A bundle on disk: an ordinary Hugging Face model directory plus plan.json, report.json and
report.html."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toprune.data.images import Images
from toprune.data.presets import PRESET_KEY
from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.io.devices import Device
from toprune.io.untrusted import read_json
from toprune.models.sentence_transformers import (
    read_max_length,
    read_pooling,
    read_prompts,
    write_pooling,
)
from toprune.plan import dial
from toprune.plan.budget import Budget
from toprune.plan.dial import Dial
from toprune.plan.plan import Plan
from toprune.report.card import CARD, model_card
from toprune.report.html.files import write_report
from toprune.run.manifest import MAX_LENGTH
from toprune.tasks import Embed, Task, fallback, task_for
from toprune.tasks.fallback import Fallback

# Entries of report.json that are read again: how the model reads texts, and what it is for.
ENTRIES: dict[str, type] = {
    "task": str,
    "task_settings": dict,
    "max_length": int,
    "prompts": dict,
    PRESET_KEY: str,
    "provenance": dict,
}


@dataclass
class Bundle:
    """A pruned model, or a dense one without a plan. Stock transformers loads the directory too."""

    model: Any
    tokenizer: Any  # `Images` for a model of images
    plan: Plan | None
    report: dict[str, Any]
    dial: Dial | None = None  # plans for other budgets; the default is `plan`
    fallback: Fallback | None = None  # when the dense model answers
    dense: "Bundle | None" = None  # the dense model that stands behind this one

    @property
    def task(self) -> Task:
        return task_for(self.report, self.model.config)

    def at(self, budget: str | Budget | None) -> "Bundle":
        """Return the same bundle with the plan for another budget of its dial; None: this one."""
        if budget is None:
            return self
        if self.dial is None:
            raise UserError(
                f"the bundle has one budget and no dial, so {Budget.parse(budget).asked} cannot be "
                "chosen; prune with several, like --budget 2x,3x,5x"
            )
        return replace(self, plan=self.dial.plan(budget))

    def save(self, folder: str | Path) -> None:
        """Write the directory.

        Args:
            folder: created if it does not exist; files of the same names are overwritten.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        from safetensors import SafetensorError

        try:
            self.model.save_pretrained(folder)
        except SafetensorError as error:  # what an OSError becomes on its way through Rust
            raise UserError(f"cannot write weights into {folder} ({error})") from error
        for weights in folder.glob("*.safetensors"):  # written for the owner alone, but a bundle is
            shutil.copymode(folder / "config.json", weights)  # often served by another user
        self.tokenizer.save_pretrained(folder)
        if not isinstance(self.tokenizer, Images):
            self._complete_tokenizer(folder / "tokenizer_config.json")
        task: Any = self.task
        if task.POOLS:
            from toprune.models.families import max_positions, sizes_of

            limit = self.report.get("max_length") or max_positions(self.model.config)
            prompts = self.report.get("prompts")
            write_pooling(folder, task, sizes_of(self.model).width, limit, prompts)
        if self.plan is not None:
            self.plan.save(folder / "plan.json")
        (folder / dial.FILE).unlink(missing_ok=True)  # of a bundle that was here before
        if self.dial is not None:
            self.dial.save(folder / dial.FILE)
        (folder / fallback.PLACE).unlink(missing_ok=True)
        if self.fallback is not None:
            write_text(folder / fallback.PLACE, self.fallback.to_json())
        if self.dense is not None:
            self.dense.save(folder / fallback.DENSE)
        write_report(folder, self.report)
        if self.plan is not None and "provenance" in self.report:
            card = model_card(folder, self.report)
            (folder / CARD).write_text(card, encoding="utf-8", newline="\n")

    def _complete_tokenizer(self, path: Path) -> None:
        """Write down what other libraries would guess differently: optimum and
        sentence-transformers read bundles with transformers 4, which has other defaults, and all of
        them cut texts at the length in this file."""
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("tokenizer_class") == "TokenizersBackend":  # only in transformers 5
            config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the same class, in 4 and 5
        config["model_input_names"] = self.tokenizer.model_input_names
        if "max_length" in self.report:
            config["model_max_length"] = self.report["max_length"]
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls, folder: str | Path, task: str | None = None, *, device: Device = "cpu"
    ) -> "Bundle":
        """Read a bundle, or any fine-tuned model directory.

        Args:
            folder: the directory. Its plan, if there is one, must fit its model.
            task: name of the task, for a directory without a report whose head is ambiguous: a
                ranker and a regressor both have one output.
            device: where its model goes; "auto": to a GPU if there is one.

        Returns:
            The bundle, its model in eval mode and without the plan attached.
        """
        from toprune.models.checks import check_directory, check_finite, check_vocabulary
        from toprune.models.device import find_device
        from toprune.models.families import family_of
        from toprune.models.load import load_tokenizer, read_config, read_weights
        from toprune.pruning.predictor import read_predictors

        folder, target = Path(folder), find_device(device)
        if not folder.is_dir():
            raise UserError(f"there is no bundle {folder}; give the directory that prune wrote")
        check_directory(folder)
        report = read_report(folder)
        if task is not None and report.setdefault("task", task) != task:
            raise UserError(f"{folder} is for the task {report['task']}, not for {task}")
        config = read_config(folder)
        model = read_weights(folder, task_for(report, config), config).eval()
        plan = Plan.load(folder / "plan.json") if (folder / "plan.json").exists() else None
        plans = None
        if plan is not None:
            family = family_of(model)
            sizes = family.sizes(model.config)
            plan.check_model(family.name, sizes.layers, sizes.width)
            read_predictors(model, plan, folder)
            if (folder / dial.FILE).exists():
                plans = Dial.load(folder / dial.FILE, plan)
        check_finite(model, folder)
        tokenizer = load_tokenizer(folder, config)
        if not isinstance(tokenizer, Images):
            check_vocabulary(model, tokenizer)
        bundle = cls(model.to(target), tokenizer, plan, report, plans, Fallback.load(folder))
        if (folder / fallback.DENSE / "config.json").is_file():
            bundle.dense = cls.load(folder / fallback.DENSE, bundle.task.NAME, device=device)
            if bundle.dense.dense is not None or (bundle.dense.plan and bundle.dense.plan.steps):
                raise UserError(f"{folder / fallback.DENSE} is not a dense model; prune again")
        elif bundle.fallback is not None:
            raise UserError(
                f"{folder} has a {fallback.PLACE} but no {fallback.DENSE}/; copy the bundle again"
            )
        return bundle


def read_report(folder: Path) -> dict[str, Any]:
    """Read and check report.json.

    Returns:
        The report. Without the file: the settings of sentence-transformers, or {}.
    """
    path = folder / "report.json"
    if not path.exists() and (settings := read_pooling(folder)) is not None:
        found = {"max_length": read_max_length(folder), "prompts": read_prompts(folder)}
        more = {key: value for key, value in found.items() if value is not None}
        return {"task": Embed.NAME, "task_settings": settings} | more
    report = read_json(path) if path.exists() else {}
    if not isinstance(report, dict):
        raise UserError(f"{path} is not a report: a JSON object is expected")
    for name, expected in ENTRIES.items():
        if name in report and type(report[name]) is not expected:
            raise UserError(f"{path}: {name} must be {expected.__name__}, not {report[name]!r}")
    if not 1 <= report.get("max_length", 1) <= MAX_LENGTH:
        raise UserError(f"{path}: max_length must be 1 to {MAX_LENGTH}")
    return report
