"""Fields of request bodies: every mistake is a `BadRequest` with one line."""

from dataclasses import dataclass
from typing import Any


class BadRequest(Exception):
    """Something that the client has to change."""

    def __init__(self, message: str, status: int = 422):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """What one request may hold."""

    max_body: int = 4 << 20  # bytes
    max_texts: int = 256
    max_chars: int = 100_000  # of a text


class Body:
    """A JSON object from a client. Unknown fields are ignored: every client sends some."""

    def __init__(self, data: Any, limits: Limits):
        if not isinstance(data, dict):
            raise BadRequest("the body must be a JSON object")
        self._data: dict[Any, Any] = data
        self._limits = limits

    def has(self, name: str) -> bool:
        return self._data.get(name) is not None

    def get(self, name: str) -> Any:
        """A field that must be there."""
        if not self.has(name):
            raise BadRequest(f"the field {name} is missing")
        return self._data[name]

    def flag(self, name: str) -> bool | None:
        value = self._data.get(name)
        if value is not None and type(value) is not bool:
            raise BadRequest(f"{name} must be true or false")
        return value

    def number(self, name: str) -> int | None:
        value = self._data.get(name)
        if isinstance(value, float) and value.is_integer():  # 2.0 is a whole number in JSON
            value = int(value)
        if value is not None and (type(value) is not int or value < 1):
            raise BadRequest(f"{name} must be a whole number, 1 or more")
        return value

    def name(self, name: str) -> str | None:
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"{name} must be a string")
        return value

    def text(self, name: str) -> str:
        return self.check_text(self.get(name), name)

    def check_text(self, value: Any, name: str) -> str:
        """A string of allowed length."""
        if not isinstance(value, str):
            raise BadRequest(f"{name} must be a string")
        if len(value) > self._limits.max_chars:
            raise BadRequest(
                f"{name} has {len(value)} characters; the limit is {self._limits.max_chars}", 413
            )
        return value

    def check_list(self, value: Any, name: str) -> list[Any]:
        """A list that is not empty, of allowed length."""
        if not isinstance(value, list) or not value:
            raise BadRequest(f"{name} must be a list with one element or more")
        if len(value) > self._limits.max_texts:
            raise BadRequest(
                f"{name} has {len(value)} elements; the limit is {self._limits.max_texts}", 413
            )
        return value

    def texts(self, name: str) -> tuple[list[str], bool]:
        """One string or a list of them; returns whether it was a list, too."""
        value = self.get(name)
        if isinstance(value, str):
            return [self.check_text(value, name)], False
        items = self.check_list(value, name)
        return [self.check_text(item, f"{name}[{i}]") for i, item in enumerate(items)], True

    def pair(self, value: Any, name: str) -> Any:
        """A string, or a list of one or two: a text or a pair."""
        if isinstance(value, str):
            return self.check_text(value, name)
        if not isinstance(value, list) or len(value) not in (1, 2):
            raise BadRequest(f"{name} must be a string or a pair of strings")
        parts = [self.check_text(part, f"{name}[{i}]") for i, part in enumerate(value)]
        return parts[0] if len(parts) == 1 else tuple(parts)

    def words(self, value: Any, name: str) -> list[str]:
        """A list of words; together they are one text."""
        if not isinstance(value, list) or not value:
            raise BadRequest(f"{name} must be a list of words")
        if not all(isinstance(word, str) for word in value):
            raise BadRequest(f"{name} must hold strings only")
        self.check_text(" ".join(value), name)
        return value

    def documents(self, name: str) -> list[str]:
        """Strings, or objects with a `text`."""
        items = self.check_list(self.get(name), name)
        plain = [item.get("text") if isinstance(item, dict) else item for item in items]
        return [self.check_text(item, f"{name}[{i}]") for i, item in enumerate(plain)]
