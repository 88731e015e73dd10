"""The other files from which an ONNX file reads its weights.

ONNX tensors may live in "external data": a file that the graph names by path. Runtimes differ in
which paths they allow (ONNX Runtime 1.23 opens `../../x`), so this module reads the names before
any runtime opens the file. An ONNX file is protobuf: only the messages that can hold a tensor are
parsed, everything else is skipped by its length, so gigabytes of weights cost nothing.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from toprune.errors import UserError

# Field numbers of onnx.proto: the fields of each message that are messages to parse.
MESSAGES: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 20: "TrainingInfo", 25: "Function"},
    "TrainingInfo": {1: "Graph", 2: "Graph"},
    "Function": {7: "Node", 11: "Attribute"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor",
        6: "Graph",
        10: "Tensor",
        11: "Graph",
        22: "SparseTensor",
        23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "ExternalData"},
}
KEY, VALUE = 1, 2  # of an entry of ExternalData

Bytes = bytes | mmap.mmap


def external_files(path: Path) -> set[str]:
    """Read the locations of external data in an ONNX file.

    Returns:
        The locations as the file has them, relative to its directory.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _locations(data)
    except (OSError, ValueError, IndexError) as error:
        raise UserError(
            f"{path} is not a complete ONNX file ({error}); copy it again or export again"
        ) from error


def _locations(data: Bytes) -> set[str]:
    locations: set[str] = set()
    messages = [("Model", 0, len(data))]
    while messages:
        kind, start, end = messages.pop()
        if kind == "ExternalData":
            entry = {number: data[a:b] for number, a, b in _fields(data, start, end)}
            if entry.get(KEY) == b"location":
                locations.add(entry.get(VALUE, b"").decode())
            continue
        for number, a, b in _fields(data, start, end):
            if number in MESSAGES[kind]:
                messages.append((MESSAGES[kind][number], a, b))
    return locations


def _fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, first byte, byte after the last) of the fields that have a length."""
    while start < end:
        tag, start = _varint(data, start)
        match tag & 7:
            case 0:  # a number
                _, start = _varint(data, start)
            case 1:  # 8 bytes
                start += 8
            case 2:  # text, bytes, a message
                size, start = _varint(data, start)
                if start + size > end:
                    raise ValueError("it is cut short")
                yield tag >> 3, start, start + size
                start += size
            case 5:  # 4 bytes
                start += 4
            case _:
                raise ValueError("it is not protobuf")
    if start != end:
        raise ValueError("it is cut short")


def _varint(data: Bytes, start: int) -> tuple[int, int]:
    """A number in groups of 7 bits, lowest first, and the byte after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, start
    raise ValueError("it is not protobuf")
