"""The work directory of a run, beside `--out`, which appears only when the bundle is complete."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toprune.bundle.bundle import Bundle, read_report
from toprune.errors import UserError
from toprune.io.atomic import remove_directory, replace_directory, write_text
from toprune.training.distributed import processes
from toprune.training.job import Job, settings_of


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuse an output directory that has content, before any work is done."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    if out.exists() and any(out.iterdir()) and not overwrite:
        raise UserError(f"{out} is not empty; choose another --out or pass --overwrite")


def is_done(out: Path, settings: dict[str, Any]) -> bool:
    """Has this very run written its bundle already? Then there is nothing to resume: the run was
    killed after its last step, or something started it twice."""
    state = processes()
    done = out.is_dir() and read_report(out).get("provenance", {}).get("run") == run_id(settings)
    state.wait_for_everyone()
    if done and state.is_main_process:
        remove_directory(_work_path(out))
    return done


def run_id(settings: dict[str, Any]) -> str:
    """Hash the settings that must not change between a run and its resumption."""
    fixed = {name: _without_lr(value) for name, value in settings.items()}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _work_path(out: Path) -> Path:
    out = out.resolve()  # a path like "." has no sibling
    return out.with_name(f"{out.name}.partial")


@contextmanager
def work_directory(out: Path, *, resume: bool) -> Iterator[Path]:
    """Make a sibling of `out` for the files of a run.

    An error leaves nothing behind, unless something was trained: that stays for --resume.

    Args:
        out: where the bundle will be.
        resume: use the directory of a stopped run, if there is one.
    """
    work, state = _work_path(out), processes()
    fresh = not (resume and work.exists())
    state.wait_for_everyone()  # all have looked before the first process makes it
    if state.is_main_process:
        try:
            if fresh:
                remove_directory(work)
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write beside {out} ({error.strerror}); choose another --out"
            ) from error
    state.wait_for_everyone()
    try:
        yield work
    except (UserError, OSError):  # an OSError is mostly a full disk
        is_trained = any(work.rglob("checkpoint-*"))
        if fresh and not is_trained and state.is_main_process:
            shutil.rmtree(work, ignore_errors=True)
        raise


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that `check_settings` saved; empty: there are none."""
    path = folder / "settings.json"
    return json.loads(path.read_text()) if path.exists() else {}


def stopped_settings(out: Path) -> dict[str, Any]:
    """The settings of the stopped run that --resume goes on with; empty: there is none. Of a
    complete run only what depends on the machine."""
    settings = read_settings(_work_path(out))
    if settings or not out.is_dir():
        return settings
    done = read_report(out).get("provenance", {}).get("settings", {})
    return {"training": {"bf16": done.get("training", {}).get("bf16")}}


def check_settings(work: Path, settings: dict[str, Any]) -> None:
    """Save the run's settings, or check that a resumed run has the same. Only the learning rate may
    change, because a smaller one helps after a NaN.

    Args:
        work: the work directory.
        settings: of the run, as plain JSON.
    """
    path, state = work / "settings.json", processes()
    current = json.loads(json.dumps(settings))
    if path.exists():
        before = json.loads(path.read_text())
        changed = [
            name for name in current if _without_lr(current[name]) != _without_lr(before.get(name))
        ]
        if changed:
            raise UserError(
                f"--resume with other settings ({', '.join(changed)}); "
                "use the same settings, or start again without --resume"
            )
    state.wait_for_everyone()
    if state.is_main_process:
        write_text(path, json.dumps(current))


def _without_lr(setting: Any) -> Any:
    return {k: v for k, v in setting.items() if k != "lr"} if isinstance(setting, dict) else setting


def publish(work: Path, bundle: Bundle) -> None:
    """Write the bundle into the work directory, then move it to `--out` in one step."""
    state = processes()
    state.wait_for_everyone()
    if state.is_main_process:
        out = work.with_name(work.name.removesuffix(".partial"))
        shutil.rmtree(work / "bundle", ignore_errors=True)  # incomplete, if a run was killed here
        bundle.save(work / "bundle")
        replace_directory(work / "bundle", out)
        remove_directory(work)
    state.wait_for_everyone()


@contextmanager
def output_folder(out: str | Path | None) -> Iterator[Path]:
    """The requested directory, or a temporary one."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="toprune-") as folder:
        yield Path(folder) / "bundle"


def shared_folder(folder: Path, job: Job, about: dict[str, Any]) -> Path:
    """The folder, if its outputs are of this model, task and texts."""
    settings = settings_of(job)
    same = ("task", "task_settings", "examples", "lengths", "protect", "protect_until")
    about |= {name: settings[name] for name in same}
    about |= {"seed": job.training.seed, "bf16": job.training.bf16}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        check_settings(folder, about)
    except UserError as error:
        raise UserError(
            f"{folder} is of another model or of other texts, or made with another seed or "
            "another --bf16; choose another"
        ) from error
    return folder
