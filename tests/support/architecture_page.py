"""The table of storeys in docs/architecture.md, from the docstrings of the modules.

`make docs` rewrites it; a test fails when it is old.
"""

import ast
from pathlib import Path

from support.source_tree import MODULES, STOREYS, tree_of, way_to

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- storeys: generated -->", "<!-- storeys: end -->"


def first_sentence(name: str) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = " ".join((ast.get_docstring(tree_of(name)) or "").split("\n\n")[0].split())
    head, dot, _ = text.partition(". ")
    return (head + dot).strip().replace("|", "\\|")


def table() -> str:
    """One row for each module, storey by storey."""
    lines = ["| module | what is in it | torch |", "|---|---|---|"]
    for names in STOREYS:
        for folder in names:
            for name in (m for m in MODULES if m.split(".")[1:2] == [folder]):
                title = name.removeprefix("toprune.").replace(".", "/")
                is_package = MODULES[name].name == "__init__.py"
                title = f"**`{title}/`**" if is_package else f"`{title}.py`"
                brings = "yes" if way_to({"torch"}, name) else ""
                lines.append(f"| {title} | {first_sentence(name)} | {brings} |")
    return "\n".join(lines)


def page() -> str:
    """The page with the table as it should be."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
