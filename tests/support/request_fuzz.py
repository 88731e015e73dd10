"""Malformed HTTP requests: good ones that were broken at random, from the JSON to the bytes."""

import json
import random
import socket
from collections.abc import Callable
from typing import Any

HOST = "127.0.0.1"
SECONDS = 60.0  # for one answer, on a busy machine
BUNDLES = ("classify", "embed", "rank", "answer", "tokens")  # one that suits each path
GOOD: dict[str, dict[str, Any]] = {
    "/embed": {"inputs": ["w1", "w2"], "normalize": True, "truncate": True, "model": "embed"},
    "/rerank": {"query": "w1", "texts": ["w2"], "raw_scores": True, "return_text": False},
    "/predict": {"inputs": [["w1"], ["w2", "w3"]], "model": "classify"},
    "/v1/embeddings": {"input": ["w1"], "encoding_format": "float", "dimensions": 3},
    "/v1/rerank": {"query": "w1", "documents": ["w2", "w3"], "return_documents": True},
    "/v2/rerank": {"query": "w1", "documents": ["w2", {"text": "w3"}], "top_n": 1},
    "/v1/classify": {"input": ["w1", ["w2", "w3"]], "model": "classify"},
    "/v1/answer": {"inputs": [{"question": "w1", "context": "w2"}]},
    "/v1/tag": {"inputs": [["w1", "w2"]]},
}
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 10**400, "", "\ud800", "\x00", "w" * 3000, "\u202e" * 9),
    *([], {}, [[]], [{}], ["w"], {"text": []}, ["w"] * 300, {"w": {"w": {}}}, [None]),
)
PAGES = ("/", "/ui", "/info", "/health", "/metrics", "/openapi.json", "/v1/models", "/none", "*")
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "FROB", "po st", "")
KINDS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "\xff;=")


class Fuzz:
    """Draws requests; the same numbers give the same requests."""

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._ways: list[Callable[[], bytes]] = [
            *[self._broken_json] * 6,
            *(self._cut_json, self._bytes, self._nested, self._form, self._page, self._method),
            *(self._kind, self._length, self._chunks, self._head, self._query),
        ]

    def draw(self) -> tuple[bytes, bool]:
        """The bytes of one request, mostly malformed, and whether the server may wait for more."""
        way = self._rng.choice(self._ways)
        return way(), way in (self._length, self._chunks, self._head)

    def good(self) -> tuple[str, bytes]:
        """A path and the bytes of a request that has an answer."""
        path = self._rng.choice(list(GOOD))
        return path, request(path, json.dumps(GOOD[path]).encode())

    def _path(self) -> str:
        return self._rng.choice(list(GOOD))

    def _broken_json(self) -> bytes:
        path = self._path()
        return request(path, json.dumps(self._break(GOOD[path])).encode())

    def _break(self, value: Any) -> Any:
        if self._rng.random() < 0.3:
            return self._rng.choice(JUNK)
        if isinstance(value, dict):
            items = value.items()
            return {key: self._break(one) for key, one in items if self._rng.random() < 0.9}
        return [self._break(one) for one in value] if isinstance(value, list) else value

    def _cut_json(self) -> bytes:
        path = self._path()
        content = json.dumps(GOOD[path]).encode()
        return request(path, content[: self._rng.randrange(len(content))])

    def _bytes(self) -> bytes:
        return request(self._path(), self._rng.randbytes(self._rng.randrange(200)))

    def _nested(self) -> bytes:
        bracket = self._rng.choice([b"[", b'{"inputs":', b'"\\', b"9"])
        return request(self._path(), bracket * self._rng.choice([10, 1000, 20_000]))

    def _form(self) -> bytes:
        content = self._rng.choice([b"text=w1", b"text", b"%zz=%ff&" * 30, b"text=" + b"w" * 3000])
        return request("/ui", content, kind="application/x-www-form-urlencoded")

    def _page(self) -> bytes:
        return request(self._rng.choice(PAGES), None, method="GET")

    def _method(self) -> bytes:
        path = self._rng.choice([*GOOD, *PAGES])
        return request(path, b"{}", method=self._rng.choice(METHODS))

    def _kind(self) -> bytes:
        path = self._path()
        return request(path, json.dumps(GOOD[path]).encode(), kind=self._rng.choice(KINDS))

    def _length(self) -> bytes:
        """A body that is not as long as the head says; a longer one is a second, broken request."""
        length = self._rng.choice(["0", "1", "5", "-1", "x", "1" * 30, "1e3"])
        return request(self._path(), b'{"inputs": "w1"}', length=length)

    def _chunks(self) -> bytes:
        head = f"POST {self._path()} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        bodies = [b"2\r\n{}\r\n0\r\n\r\n", b"zz\r\n", b"ffffffffffffffff\r\n{", b"0\r\n\r\n"]
        return head.encode() + self._rng.choice(bodies)

    def _head(self) -> bytes:
        line = self._rng.choice(
            [b"GET", b"GET / HTTP/9.9", b"\x16\x03\x01\x02", b"GET /" + b"a" * 70_000, b"\r\n\r\n"]
        )
        return line + b"\r\nHost: evil.example\r\nX: " + self._rng.randbytes(8) + b"\r\n\r\n"

    def _query(self) -> bytes:
        query = self._rng.choice(["model=none", "model=%ff", "model", "model=" + "m" * 2000, "%"])
        return request(f"{self._rng.choice(PAGES[:-1])}?{query}", None, method="GET")


def request(
    path: str,
    content: bytes | None,
    *,
    method: str = "POST",
    kind: str = "application/json",
    length: str | None = None,
) -> bytes:
    """The bytes of a request, whose connection ends with it."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n"
    if content is not None:
        head += f"Content-Type: {kind}\r\nContent-Length: {length or len(content)}\r\n"
    return f"{head}\r\n".encode("latin-1") + (content or b"")


def send(port: int, content: bytes, *, is_all: bool = False) -> tuple[int | None, bytes]:
    """Send bytes; returns the status and the body of the first answer, None if there is none.

    Args:
        port: of the server on this machine.
        content: to send.
        is_all: show the server that nothing more comes. It takes that for a client that left.
    """
    answer = b""
    with socket.create_connection((HOST, port), SECONDS) as connection:
        try:
            connection.sendall(content)
            if is_all:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
        except ConnectionError:  # the server may hang up before it has read everything
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split()
    return (int(words[1]) if len(words) > 1 else None), body
