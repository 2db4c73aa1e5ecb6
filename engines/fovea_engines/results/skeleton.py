"""Defines the names of keypoints, and the bones: the lines between keypoints in a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

SEEN: Final = 0.5
"""Smallest score of a visible keypoint. With a lower score, a model mostly guesses the position."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The keypoints that a model finds on each object.

    Attributes:
        names: names of the keypoints, in the model's order.
        bones: pairs of indices of keypoints that a drawing connects.
    """

    names: tuple[str, ...]
    bones: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self | None:
        """Read a skeleton from JSON with the fields `names` and `bones`. For None, return None.

        Raises:
            LookupError: a field is missing.
            TypeError: a field has the wrong type.
            ValueError: a bone refers to an unknown keypoint.
        """
        if value is None:
            return None
        names = tuple(map(str, value["names"]))
        bones = tuple((int(one), int(other)) for one, other in value["bones"])
        if not all(0 <= end < len(names) for bone in bones for end in bone):
            raise ValueError("a bone joins a keypoint that has no name")
        return cls(names, bones)


def name_points(names: Sequence[str]) -> Skeleton:
    """Return a skeleton with these names of keypoints.

    The skeleton has bones if the names are COCO's names for the keypoints of a person.
    """
    return PERSON if tuple(names) == PERSON.names else Skeleton(tuple(names))


def number_points(count: int) -> Skeleton:
    """Return a skeleton for a model without names of keypoints.

    If the model has 17 keypoints, return the skeleton of a person. Otherwise the names are
    "point 0", "point 1" and so on.
    """
    if count == len(PERSON.names):
        return PERSON
    return Skeleton(tuple(f"point {index}" for index in range(count)))


# The 17 keypoints of a person in COCO, and the bones in its annotations (Lin et al., Microsoft
# COCO, 2014).
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

# The names follow the sides of the image, as in face detectors: the eye on the left side of the
# image is the person's right eye.
FACE = Skeleton(
    ("right eye", "left eye", "nose", "right mouth corner", "left mouth corner"),
)
