"""Read files from untrusted sources: only inside the bundle, and only of a sensible size.

An archive may contain links to any place, a JSON file may be half a gigabyte long or nest a
thousand brackets, and a pipe in place of a file blocks for ever. All of that ends in an error of
one line before anything is read.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toprune.errors import UserError

MAX_BYTES = 16 << 20  # of a JSON file; reports of long trainings have a tenth of it
MAX_DEPTH = 64  # brackets in brackets; code that writes, shows and compares recurses as deep


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """Resolve the links of a file, which must end below the folder.

    The hub's cache consists of links: a file below `snapshots` may lead to `blobs` beside it.
    """
    folder = Path(folder)
    path, root = (folder / name).resolve(), folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parents[1] / "blobs")
    if not any(map(path.is_relative_to, allowed)) or not path.is_file():
        raise UserError(
            f"{folder / name} is not a file inside the bundle (it leads to {path}); "
            "copy the bundle with its files (cp -rL)"
        )
    return path


def check_links(folder: str | os.PathLike[str]) -> None:
    """Check that no link leads out of the folder and that it holds only files and folders.

    Run this before a library that opens whatever the folder contains.
    """
    for parent, folders, files in os.walk(folder):
        for name in files:
            inside(folder, os.path.relpath(os.path.join(parent, name), folder))
        for name in folders:
            path = Path(parent, name)
            if path.is_symlink() and not path.resolve().is_relative_to(Path(folder).resolve()):
                raise UserError(
                    f"{path} leads out of the bundle, to {path.resolve()}; copy the bundle with "
                    "its files (cp -rL)"
                )


@contextmanager
def user_errors(message: str) -> Iterator[None]:
    """Turn any error of a library that reads a bad file into a UserError of one line.

    Panics of Rust code (tokenizers, safetensors) are BaseExceptions and count as well.

    Args:
        message: what to say; `{}` in it stands for the reason.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = [part.strip() for part in str(error).splitlines() if part.strip()]
        reason = lines[0][:200] if lines else type(error).__name__
        raise UserError(message.replace("{}", reason, 1)) from error


def read_json(path: str | os.PathLike[str], advice: str = "copy it again") -> Any:
    """Read a JSON file.

    Args:
        path: of the file.
        advice: what the user can do if the file cannot be read.
    """
    return parse_json(read_text(path, advice), str(path), advice)


def read_text(path: str | os.PathLike[str], advice: str = "copy it again") -> str:
    """Read a text file in UTF-8; see `read_json`."""
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
    """Parse JSON. The last one of two equal keys counts, as for every other reader of a bundle.

    Args:
        text: the JSON text.
        where: how messages call its source.
        advice: what the user can do if the text is not valid.
    """
    try:
        data = json.loads(text)
    except ValueError as error:  # also for an integer of thousands of digits
        raise UserError(f"{where}: not valid JSON ({error}); {advice}") from error
    except RecursionError as error:
        raise UserError(f"{where}: it nests too deeply; {advice}") from error
    _check_depth(data, where, advice)
    return data


def _check_depth(data: Any, where: str, advice: str) -> None:
    """JSON that Python can read may still be too deep to write."""
    level = [data]
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
