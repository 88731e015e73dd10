"""Where a run makes its things: beside `--out`, which appears when it is whole and not before."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toprune.bundle import Bundle
from toprune.errors import UserError
from toprune.processes import processes


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken, before any work is done."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    if out.exists() and any(out.iterdir()) and not overwrite:
        raise UserError(f"{out} is not empty; choose another --out or say --overwrite")


@contextmanager
def workplace(out: Path, *, resume: bool) -> Iterator[Path]:
    """A sibling of `out` in which everything is made. Bad input leaves nothing of it behind; what
    was trained stays for --resume."""
    out = out.resolve()  # a path like "." has no sibling
    work = out.with_name(f"{out.name}.partial")
    state = processes()
    fresh = not (resume and work.exists())
    state.wait_for_everyone()  # nobody looks at what the first one is about to make
    if state.is_main_process:
        try:
            if fresh and work.exists():
                shutil.rmtree(work)
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write beside {out} ({error.strerror}); choose another --out"
            ) from error
    state.wait_for_everyone()
    try:
        yield work
    except UserError:
        is_trained = any(work.rglob("checkpoint-*"))
        if fresh and not is_trained and state.is_main_process:
            shutil.rmtree(work)
        raise


def settle(work: Path, settings: dict[str, Any]) -> None:
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
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(now))
        draft.replace(path)


def _fixed(setting: Any) -> Any:
    return {k: v for k, v in setting.items() if k != "lr"} if isinstance(setting, dict) else setting


def publish(work: Path, bundle: Bundle) -> None:
    """Write the bundle beside its place, then move it there in one step."""
    state = processes()
    state.wait_for_everyone()
    if state.is_main_process:
        out = work.with_name(work.name.removesuffix(".partial"))
        bundle.save(work / "bundle")
        if out.exists():
            shutil.rmtree(out)
        (work / "bundle").replace(out)
        shutil.rmtree(work)
    state.wait_for_everyone()
