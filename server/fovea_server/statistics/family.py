"""Metrics as Prometheus reads them.

Source: "Text-based format" of Prometheus' exposition formats. prometheus-client would end the names
of counters in `_total`, and Triton's do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Labels = Mapping[str, str]


@dataclass(slots=True)
class Family:
    """Metrics of one name.

    Attributes:
        name: of all of them.
        kind: how Prometheus takes them.
        help: what they say, a sentence.
        samples: (what is added to the name, labels, value).
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)

    def add(self, labels: Labels, value: float, suffix: str = "") -> None:
        """One more."""
        self.samples.append((suffix, labels, value))


def gauge(name: str, told: str, value: float) -> Family:
    """A family of one value that goes up and down."""
    return Family(name, "gauge", told, [("", {}, value)])


def render(families: Iterable[Family]) -> str:
    """The families as text; those without samples are told too."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            lines.append(f"{family.name}{suffix}{_braces(labels)} {value}")
    return "\n".join(lines) + "\n"


def label_name(text: str) -> str:
    """A text as the name of a label, which takes letters, digits and underscores only."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
