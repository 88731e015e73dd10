"""Where a run makes its things: beside `--out`, which appears when it is whole and not before."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toprune.bundle.bundle import Bundle, read_report
from toprune.errors import UserError
from toprune.io.atomic import remove_directory, replace_directory, write_text
from toprune.training.distributed import processes


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken, before any work is done."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    if out.exists() and any(out.iterdir()) and not overwrite:
        raise UserError(f"{out} is not empty; choose another --out or say --overwrite")


def is_done(out: Path, settings: dict[str, Any]) -> bool:
    """Whether this very run has written its bundle. Then there is nothing to go on with: it may
    have been killed when all was done, or started again by something that cannot know."""
    state = processes()
    done = out.is_dir() and read_report(out).get("provenance", {}).get("run") == run_id(settings)
    state.wait_for_everyone()
    if done and state.is_main_process:
        remove_directory(_work(out))
    return done


def run_id(settings: dict[str, Any]) -> str:
    """Of what must not change between a run and its resumption."""
    fixed = {name: _fixed(value) for name, value in settings.items()}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _work(out: Path) -> Path:
    out = out.resolve()  # a path like "." has no sibling
    return out.with_name(f"{out.name}.partial")


@contextmanager
def work_directory(out: Path, *, resume: bool) -> Iterator[Path]:
    """A sibling of `out` in which everything is made. Bad input leaves nothing of it behind; what
    was trained stays for --resume."""
    work, state = _work(out), processes()
    fresh = not (resume and work.exists())
    state.wait_for_everyone()  # nobody looks at what the first one is about to make
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
    except (UserError, OSError):  # of which the second is mostly a full disk
        is_trained = any(work.rglob("checkpoint-*"))
        if fresh and not is_trained and state.is_main_process:
            shutil.rmtree(work, ignore_errors=True)
        raise


def check_settings(work: Path, settings: dict[str, Any]) -> None:
    """Write the run's settings down, or check that a resumed run has the same. Only the learning
    rate may change: a smaller one is the way on after a NaN."""
    path, state = work / "settings.json", processes()
    now = json.loads(json.dumps(settings))
    if path.exists():
        before = json.loads(path.read_text())
        changed = [name for name in now if _fixed(now[name]) != _fixed(before.get(name))]
        if changed:
            raise UserError(
                f"--resume with other settings ({', '.join(changed)}); "
                "say the same again, or start anew without --resume"
            )
    state.wait_for_everyone()
    if state.is_main_process:
        write_text(path, json.dumps(now))


def _fixed(setting: Any) -> Any:
    return {k: v for k, v in setting.items() if k != "lr"} if isinstance(setting, dict) else setting


def publish(work: Path, bundle: Bundle) -> None:
    """Write the bundle beside its place, then move it there in one step."""
    state = processes()
    state.wait_for_everyone()
    if state.is_main_process:
        out = work.with_name(work.name.removesuffix(".partial"))
        shutil.rmtree(work / "bundle", ignore_errors=True)  # half of one, if it was killed here
        bundle.save(work / "bundle")
        replace_directory(work / "bundle", out)
        remove_directory(work)
    state.wait_for_everyone()
