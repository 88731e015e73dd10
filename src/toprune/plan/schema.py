"""One checker for the JSON files that toprune writes and reads: plan.json and the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toprune.errors import UserError
from toprune.io.untrusted import parse_json

Fields = Mapping[str, tuple[type, ...]]  # the JSON types that each field may have


@dataclass(frozen=True)
class Schema:
    """The fields that such a file must have, and the messages for a file that differs."""

    name: str  # how messages call the file
    version: int
    command: str  # of toprune: it writes the file
    fields: Fields
    optional: frozenset[str] = frozenset()
    advice: str = ""  # ends the messages that name no fix of their own

    @property
    def again(self) -> str:
        return f"copy it again or run 'toprune {self.command}' again"

    def require(self, condition: bool, message: str, fix: str = "") -> None:
        if not condition:
            raise UserError(f"{self.name}: {message}{self.advice or fix}")

    def parse(self, text: str) -> dict[str, Any]:
        """Read the JSON text of such a file and check its fields."""
        data = parse_json(text, self.name, self.again)
        self.require(type(data) is dict, "it must be a JSON object")
        self.check_version(data.get("schema"))  # first: another version may have any other fields
        self.check_fields(data, self.fields, "it")
        return data

    def check_version(self, version: Any) -> None:
        if type(version) is not int or version != self.version:
            raise UserError(
                f"{self.name}: schema {version!r} is not known, this toprune reads {self.version}; "
                f"upgrade toprune or run 'toprune {self.command}' again"
            )

    def check_fields(self, data: Any, fields: Fields, owner: str) -> None:
        """Every field is known, present and has its JSON type, exactly: `true` is no number."""
        self.require(type(data) is dict, f"{owner} must be a JSON object")
        unknown = sorted(data.keys() - fields.keys())
        self.require(not unknown, f"{owner} has unknown fields {unknown}", "; remove them")
        missing = sorted(fields.keys() - self.optional - data.keys())
        self.require(not missing, f"{owner} lacks the fields {missing}", "; add them")
        for key, value in data.items():
            types = " or ".join(kind.__name__ for kind in fields[key])
            self.require(type(value) in fields[key], f"{key} must be {types}, not {value!r}")

    def strings(self, key: str, values: list[Any]) -> tuple[str, ...]:
        return self._elements(key, values, "strings", str)

    def numbers(self, key: str, values: list[Any], *types: type) -> tuple[Any, ...]:
        return self._elements(key, values, "numbers", *types)

    def _elements(self, key: str, values: list[Any], noun: str, *types: type) -> tuple[Any, ...]:
        self.require(all(type(value) in types for value in values), f"{key} must hold {noun} only")
        return tuple(values)
