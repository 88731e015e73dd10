"""Reading what comes from elsewhere: files of a bundle are inside of it, and of a sensible size.

An archive may hold links to any place, a JSON file may be half a gigabyte or nest a thousand
brackets, and a pipe in place of a file is waited for without end. All of that is refused in one
line before anything of it is read.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toprune.errors import UserError

MAX_BYTES = 16 << 20  # of a JSON file that we read; reports of long trainings have a tenth
MAX_DEPTH = 64  # brackets in brackets: what is written, shown and compared goes down as deep


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """The file itself, which must be below the folder wherever links lead.

    The hub's cache is made of links: what is below its `snapshots` may lead to the `blobs` beside.
    """
    folder = Path(folder)
    path, root = (folder / name).resolve(), folder.resolve()
    homes = [root]
    if root.parent.name == "snapshots":
        homes.append(root.parents[1] / "blobs")
    if not any(map(path.is_relative_to, homes)) or not path.is_file():
        raise UserError(
            f"{folder / name} is not a file inside the bundle (it leads to {path}); "
            "copy the bundle with its files (cp -rL)"
        )
    return path


def check_links(folder: str | os.PathLike[str]) -> None:
    """No link below the folder leads out of it, and nothing is there but files and folders: for
    libraries that open what they find."""
    for home, folders, files in os.walk(folder):
        for name in files:
            inside(folder, os.path.relpath(os.path.join(home, name), folder))
        for name in folders:
            path = Path(home, name)
            if path.is_symlink() and not path.resolve().is_relative_to(Path(folder).resolve()):
                raise UserError(
                    f"{path} leads out of the bundle, to {path.resolve()}; copy the bundle with "
                    "its files (cp -rL)"
                )


@contextmanager
def whatever(line: str) -> Iterator[None]:
    """All that a library may raise over a file that is not as it should be, in one line; `{}` in it
    is the reason. Panics of Rust (tokenizers, safetensors) are no Exceptions, but no more than
    that."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = [part.strip() for part in str(error).splitlines() if part.strip()]
        reason = lines[0][:200] if lines else type(error).__name__
        raise UserError(line.replace("{}", reason, 1)) from error


def read_json(path: str | os.PathLike[str], advice: str = "copy it again") -> Any:
    """What a JSON file holds. advice: what to do about one that cannot be read."""
    return parse_json(read_text(path, advice), str(path), advice)


def read_text(path: str | os.PathLike[str], advice: str = "copy it again") -> str:
    path = Path(path)
    try:
        size, is_file = path.stat().st_size, path.is_file()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {advice}") from error
    if not is_file:
        raise UserError(f"{path} is not a file; {advice}")
    if size > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES >> 20} MB; {advice}")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {advice}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error}); {advice}") from error


def parse_json(text: str, where: str, advice: str = "copy it again") -> Any:
    """where: whose text it is. Of a key that comes twice the last one counts, as in every reader
    that a bundle meets."""
    try:
        found = json.loads(text)
    except ValueError as error:  # an integer of thousands of digits is one, too
        raise UserError(f"{where}: not valid JSON ({error}); {advice}") from error
    except RecursionError as error:
        raise UserError(f"{where}: it nests too deeply; {advice}") from error
    _check_depth(found, where, advice)
    return found


def _check_depth(found: Any, where: str, advice: str) -> None:
    """What can be read can still be too deep to be written."""
    level = [found]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for whole in level
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
        if not level:
            return
    raise UserError(f"{where}: it nests too deeply; {advice}")
