"""Names of keypoints, and the bones between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

SEEN: Final = 0.5
"""Keypoints of a lower score are mostly hidden, and guessed."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The keypoints that a model finds on each object.

    Attributes:
        names: of the points, in the model's order.
        bones: pairs of indices of points that a drawing joins.
    """

    names: tuple[str, ...]
    bones: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self | None:
        """Read it from JSON that has its fields; None of None.

        LookupError, TypeError or ValueError where it has others.
        """
        if value is None:
            return None
        names = tuple(map(str, value["names"]))
        bones = tuple((int(one), int(other)) for one, other in value["bones"])
        if not all(0 <= end < len(names) for bone in bones for end in bone):
            raise ValueError("a bone joins a keypoint that has no name")
        return cls(names, bones)


def name_points(names: Sequence[str]) -> Skeleton:
    """Return the skeleton of these points, with bones if it is a person's."""
    return PERSON if tuple(names) == PERSON.names else Skeleton(tuple(names))


def number_points(count: int) -> Skeleton:
    """Return the skeleton of a model that does not name its points."""
    if count == len(PERSON.names):
        return PERSON
    return Skeleton(tuple(f"point {index}" for index in range(count)))


# Lin et al., Microsoft COCO, 2014: the 17 points of a person, and the bones of its annotations.
PERSON = Skeleton(
    (
        "nose",
        "left eye",
        "right eye",
        "left ear",
        "right ear",
        "left shoulder",
        "right shoulder",
        "left elbow",
        "right elbow",
        "left wrist",
        "right wrist",
        "left hip",
        "right hip",
        "left knee",
        "right knee",
        "left ankle",
        "right ankle",
    ),
    (
        (15, 13),
        (13, 11),
        (16, 14),
        (14, 12),
        (11, 12),
        (5, 11),
        (6, 12),
        (5, 6),
        (5, 7),
        (6, 8),
        (7, 9),
        (8, 10),
        (1, 2),
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 4),
        (3, 5),
        (4, 6),
    ),
)

# Face detectors order them by the image: its left is the person's right.
FACE = Skeleton(
    ("right eye", "left eye", "nose", "right mouth corner", "left mouth corner"),
)
