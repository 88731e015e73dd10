"""The limits of a gate, and its result: for programs, and as JUnit XML for CI systems."""

from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from toprune.errors import UserError
from toprune.inspection.gate.checks import Check

FACTOR = 3.0  # by how much the limit of a group is wider than that of all texts


@dataclass(frozen=True)
class Limits:
    """What a bundle must keep; None: not checked."""

    max_loss: float | None = None  # points of the metric
    min_agreement: float | None = None  # %
    keep: float | None = None  # % of the dense metric
    max_ms: float | None = None
    group_factor: float = FACTOR

    def __post_init__(self) -> None:
        if self.max_loss == self.min_agreement == self.keep == self.max_ms is None:
            raise UserError(
                "the gate has no limit; give --max-loss, --min-agreement, --keep or --max-ms"
            )
        for name in ("max_loss", "max_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                option = f"--{name.replace('_', '-')}"
                raise UserError(
                    f"{option} {value:g} is not above 0; no number of texts shows less than that"
                )
        if not 1 <= self.group_factor < float("inf"):
            raise UserError(f"--group-factor {self.group_factor:g} must be 1 or more")

    @property
    def compares(self) -> bool:
        """Whether a limit is about the dense model's answers."""
        return any(x is not None for x in (self.max_loss, self.min_agreement, self.keep))

    @property
    def by_labels(self) -> list[str]:
        """The options that need labels."""
        limits = {"--max-loss": self.max_loss, "--keep": self.keep}
        return [option for option, limit in limits.items() if limit is not None]

    @property
    def group_loss(self) -> float | None:
        return None if self.max_loss is None else self.group_factor * self.max_loss

    @property
    def group_agreement(self) -> float | None:
        if self.min_agreement is None:
            return None
        return max(0.0, 100 - self.group_factor * (100 - self.min_agreement))


@dataclass(frozen=True)
class GateResult:
    """The checks of a gate and what they were made on."""

    checks: tuple[Check, ...]
    about: dict[str, Any] = field(hash=False)  # bundle, dense, task, metric, machine and so on

    @property
    def passed(self) -> bool:
        return all(check.status == "pass" for check in self.checks)

    @property
    def verdict(self) -> str:
        """One sentence: does the bundle pass?"""
        failed = [check for check in self.checks if check.status != "pass"]
        if not failed:
            return f"The bundle passes all {len(self.checks)} checks."
        return f"The bundle fails {len(failed)} of {len(self.checks)} checks."

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON."""
        rows = [check.to_dict() for check in self.checks]
        return {"passed": self.passed, "verdict": self.verdict, "checks": rows} | self.about

    def to_junit(self) -> str:
        """The result as JUnit XML, which CI systems show: one test case for each check."""
        failures = sum(check.status != "pass" for check in self.checks)
        counts = {"tests": str(len(self.checks)), "failures": str(failures), "errors": "0"}
        suites = ElementTree.Element("testsuites", counts)
        suite = ElementTree.SubElement(suites, "testsuite", {"name": "toprune gate"} | counts)
        properties = ElementTree.SubElement(suite, "properties")
        for name in ("bundle", "dense", "task", "metric", "examples", "machine", "threads"):
            value = "" if self.about[name] is None else str(self.about[name])
            ElementTree.SubElement(properties, "property", {"name": name, "value": _plain(value)})
        for check in self.checks:
            names = {"classname": f"gate.{check.file}", "name": f"{check.name}: {check.group}"}
            names = {key: _plain(value) for key, value in names.items()}
            case = ElementTree.SubElement(suite, "testcase", names | {"time": "0"})
            if check.status != "pass":
                failure = {"message": _plain(check.line), "type": check.status}
                ElementTree.SubElement(case, "failure", failure)
        ElementTree.indent(suites)
        return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """Without what XML cannot hold: names of classes are the user's."""
    return "".join(x if x.isprintable() else "?" for x in text.encode(errors="replace").decode())
