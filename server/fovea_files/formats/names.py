"""Names the classes of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fovea_engines.detect.class_names import class_name


def class_names(labels: Sequence[str] | None, seen: Iterable[int]) -> list[str]:
    """Return the names by id: all labels, and numbers of those that were seen beyond them."""
    most = max((len(labels or ()) - 1, *seen))
    return [class_name(labels, each) for each in range(most + 1)]
