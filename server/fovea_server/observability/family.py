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
    """Metrics of one name; a sample is (suffix of the name, labels, value)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)

    def add(self, labels: Labels, value: float, suffix: str = "") -> None:
        """Add a sample."""
        self.samples.append((suffix, labels, value))


def gauge(name: str, text: str, value: float) -> Family:
    """Make a gauge with a single value."""
    return Family(name, "gauge", text, [("", {}, value)])


def render(families: Iterable[Family]) -> str:
    """Write the families as text, also those without samples."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            lines.append(f"{family.name}{suffix}{_braces(labels)} {value}")
    return "\n".join(lines) + "\n"


def label_name(text: str) -> str:
    """Convert a text to the name of a label, which has letters, digits and underscores only."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
