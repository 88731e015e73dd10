"""Read the sizes of a model from the JSON files that hold them: dial.json and the manifest."""

from dataclasses import fields
from types import NoneType
from typing import Any

from toprune.plan.cost import Sizes
from toprune.plan.plan import MAX_ID
from toprune.plan.schema import Schema

_FIELDS: dict[str, tuple[type, ...]] = {
    field.name: {"slim": (list, NoneType), "gated": (bool,)}.get(field.name, (int, NoneType))
    for field in fields(Sizes)
}


def parse_sizes(data: Any, schema: Schema) -> Sizes:
    """Check the fields of `vars(sizes)`; `schema` is that of the file, for the messages."""
    schema.check_fields(data, _FIELDS, "sizes")
    slim = data["slim"]
    if slim is not None:
        schema.require(
            len(slim) == data["layers"]
            and all(type(pair) is list and len(pair) == 2 for pair in slim),
            "slim must have two numbers for each layer",
        )
        slim = tuple((pair[0], pair[1]) for pair in slim)
    required = [data[name] for name in ("layers", "width", "heads", "inner")]
    others = [x for name, x in data.items() if name not in ("slim", "gated") and x is not None]
    numbers = [*others, *(number for pair in slim or () for number in pair)]
    schema.require(
        all(type(number) is int and 0 <= number <= MAX_ID for number in numbers)
        and all(type(number) is int and number > 0 for number in required),
        "sizes must be whole numbers",
    )
    read: dict[str, Any] = data | {"slim": slim}
    return Sizes(**read)
