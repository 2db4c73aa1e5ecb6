"""Defines the options of a prediction request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, get_args

from fovea_preprocess.errors import InvalidOption

MAX_DETECTIONS = 3000
MAX_CLASSES = 1000
MAX_TOP_K = 1000
MAX_LETTERS = 2000
MIN_SIDE = 32
MAX_ACROSS = 64

_OVERLAP = 0.2
_TOP_K = 5

MaskFormat = Literal["rle", "polygon", "png", "none"]
VectorFormat = Literal["base64", "list"]

_OBJECTS = ("detect", "segment", "pose", "obb")
_BOXES = (*_OBJECTS, "text")
_RANKED = ("classify", "attributes")
MAPS: Final = ("semantic", "saliency", "depth", "image")
"""Tasks whose responses contain no map or image if the request has mask=none."""

# Option -> tasks that accept the option. All other tasks reject it. For `mask`, the table has the
# tasks that accept each mask format.
_TASKS: Mapping[str, Sequence[str] | Mapping[str, Sequence[str]]] = {
    "conf": _BOXES,
    "iou": _OBJECTS,
    "classes": (*_BOXES, *_RANKED, "semantic"),
    "max_det": _BOXES,
    "top_k": _RANKED,
    "agnostic": _OBJECTS,
    "mask": {
        "polygon": ("segment", "semantic"),
        "png": ("segment", *MAPS),
    },
    "labels": ("embed", "detect", "segment"),
    "normalize": ("embed",),
    "vector": ("embed",),
    "tile": _OBJECTS,
    "overlap": _OBJECTS,
    "track": _OBJECTS,
}


OF_TRACK = ("stream_id", "frame", "track_high", "track_new", "min_frames")
"""Options that require `track`."""


def _make_range(least: float, most: float, description: str) -> dict[str, object]:
    return {"description": description, "ge": least, "le": most}


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """Options of one request, independent of server settings.

    The metadata of a field contain its description. For a number, they also contain its minimum
    (ge) and maximum (le). The server uses the metadata to read, check and document the options.

    Attributes:
        classes: ids or names of the classes to keep, at most 1000; None keeps all classes. Heads
            accept only ids: `resolve_classes` converts names to ids.
        labels: texts that describe classes. A model of images and texts, such as CLIP, classifies
            images with them. An open-vocabulary detector finds the objects that they describe.

    Raises:
        InvalidOption: a value is out of its range. The constructor raises this error.
    """

    conf: float = field(
        default=0.25,
        metadata=_make_range(0, 1, "lowest score of the objects to return; not for classifiers"),
    )
    iou: float = field(
        default=0.7,
        metadata=_make_range(
            0,
            1,
            "overlap (IoU) of two boxes above which only the box with the higher score is returned",
        ),
    )
    classes: tuple[int | str, ...] | None = field(
        default=None,
        metadata={
            "description": "classes to return, default all: text is a name, a number is an id"
        },
    )
    max_det: int = field(
        default=300,
        metadata=_make_range(1, MAX_DETECTIONS, "maximum number of objects to return per image"),
    )
    top_k: int = field(
        default=_TOP_K,
        metadata=_make_range(
            1,
            MAX_TOP_K,
            "maximum number of classes that a classifier returns, the highest scores first",
        ),
    )
    agnostic: bool = field(
        default=False,
        metadata={
            "description": (
                "return only the best of several overlapping boxes even if their classes differ; "
                "by default, only boxes of the same class are compared"
            )
        },
    )
    mask: MaskFormat = field(
        default="rle",
        metadata={
            "description": (
                "format of masks and class maps: rle (run lengths, as in COCO), polygon, png, or "
                "none to leave them out; saliency, depth and generated images support only png "
                "(their default) and none"
            )
        },
    )
    labels: tuple[str, ...] | None = field(
        default=None,
        metadata={
            "description": (
                "texts that describe the classes to find, e.g. a cat,a dog: for CLIP and SigLIP, "
                "which then classify the image, and for open-vocabulary detectors"
            )
        },
    )
    normalize: bool = field(
        default=True,
        metadata={"description": "scale the embedding to length 1 (L2 norm)"},
    )
    vector: VectorFormat = field(
        default="base64",
        metadata={
            "description": (
                "format of the embedding: base64 (little-endian float32 values) or list (numbers)"
            )
        },
    )

    tile: str | None = field(
        default=None,
        metadata={
            "description": (
                "cut the image into tiles, to find small objects: 640 is the side of a tile in "
                "pixels; 3x2 is 3 columns and 2 rows"
            )
        },
    )
    overlap: float = field(
        default=_OVERLAP,
        metadata=_make_range(
            0, 0.9, "overlap of neighbouring tiles, as a fraction of a tile's side; requires `tile`"
        ),
    )
    track: str | None = field(
        default=None,
        metadata={
            "description": (
                "tracker that gives an object the same id in all frames: bytetrack, sort, ocsort "
                "or botsort. By default, objects have no ids"
            )
        },
    )
    stream_id: str | None = field(
        default=None,
        metadata={
            "description": "name of the camera or video to which the frame belongs, for `track`"
        },
    )
    frame: int | None = field(
        default=None,
        metadata={
            "description": "number of the frame in the video, for `track`; default: the next number"
        },
    )
    track_high: float | None = field(
        default=None,
        metadata=_make_range(
            0,
            1,
            "lowest score of the boxes that `track` matches with known objects first; boxes with "
            "lower scores are matched later; default: slightly above `conf`",
        ),
    )
    track_new: float | None = field(
        default=None,
        metadata=_make_range(
            0,
            1,
            "lowest score of a box that `track` accepts as a new object; default: slightly above "
            "`conf`",
        ),
    )
    min_frames: int | None = field(
        default=None,
        metadata=_make_range(
            1,
            1000,
            "number of consecutive frames with an object before `track` gives it an id; default: 1",
        ),
    )

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            # Write the check as a chained comparison, because this form also rejects NaN.
            if value is not None and not least <= value <= most:
                raise InvalidOption(f"{name} is {value}; it must be from {least} to {most}")
        _check_word("mask", self.mask, get_args(MaskFormat))
        _check_word("vector", self.vector, get_args(VectorFormat))
        if self.tile is not None:
            read_tile(self.tile)
        elif self.overlap != _OVERLAP:
            raise InvalidOption("overlap needs tile: add it, or leave overlap out")
        if self.track is None and any(getattr(self, each) is not None for each in OF_TRACK):
            raise InvalidOption(
                f"{', '.join(OF_TRACK[:-1])} and {OF_TRACK[-1]} need track: add it, or leave them "
                "out"
            )
        if self.labels is not None:
            check_texts(self.labels, "labels")
        if self.classes is None:
            return
        if len(self.classes) > MAX_CLASSES:
            raise InvalidOption(
                f"classes has {len(self.classes)} entries; the maximum is {MAX_CLASSES}"
            )
        if any(isinstance(each, int) and not 0 <= each < 100_000 for each in self.classes):
            raise InvalidOption("classes has an id outside of 0 to 99999")


def drop_track(options: PredictOptions) -> PredictOptions:
    """Return the options without `track` and the options that require it."""
    absent: dict[str, Any] = dict.fromkeys(("track", *OF_TRACK))
    return replace(options, **absent)


def check_texts(texts: Sequence[str], name: str = "text") -> None:
    """Check the number and the length of texts.

    Raises:
        InvalidOption: there are too few or too many texts, or a text is blank or too long.
    """
    if not 1 <= len(texts) <= MAX_CLASSES:
        raise InvalidOption(f"{name} has {len(texts)} entries; it must have 1 to {MAX_CLASSES}")
    for text in texts:
        if not text.strip() or len(text) > MAX_LETTERS:
            raise InvalidOption(
                f"{name} has an entry of {len(text)} letters: each must have 1 to {MAX_LETTERS}, "
                "and not only blanks"
            )


def _check_word(name: str, value: str, words: Sequence[str]) -> None:
    if value not in words:
        raise InvalidOption(f"{name} is {value!r}; it must be one of {', '.join(words)}")


def read_tile(option: str) -> tuple[int, int]:
    """Parse the option `tile`.

    Returns:
        (side, side) in pixels for a text such as "640"; (columns, rows) for a text such as "3x2".

    Raises:
        InvalidOption: the text has neither form, or a number is out of range.
    """
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", option)
    first, second = (int(each or 0) for each in match.groups()) if match else (0, 0)
    if match and match[2] is None and first >= MIN_SIDE:
        return first, first
    if 1 <= first <= MAX_ACROSS and 1 <= second <= MAX_ACROSS:
        return first, second
    raise InvalidOption(
        f"tile is '{option[:60]}'; it must be the side of a tile in pixels (at least {MIN_SIDE}), "
        f"such as 640, or columns and rows (at most {MAX_ACROSS} each), such as 3x2"
    )


def check_effect(options: PredictOptions, model: str, task: str) -> None:
    """Check that a model of this task can use the options of a request.

    Every task accepts default values and mask=none. If the model computes embeddings and the
    request has `labels`, the options must be options of a classifier.

    Args:
        options: options of the request.
        model: name of the model, for the error message.
        task: task of the model.

    Raises:
        InvalidOption: an option has no effect on the task.
    """
    own, with_labels = task, choose_task(options, task)
    for name, default in _DEFAULTS:
        value = getattr(options, name)
        if value == default:
            continue
        task = own if name == "labels" else with_labels
        tasks = _TASKS[name]
        if isinstance(tasks, Mapping):
            tasks = tasks.get(value, (task,))
        if task not in tasks:
            shown = name if name != "mask" else f"mask={value}"
            raise InvalidOption(
                f"{shown} has no effect on model '{model}', whose task is {task}: leave it out"
                f"{_suggest_instead(name, task)}"
            )


def choose_task(options: PredictOptions, task: str) -> str:
    """Return the task of the response.

    This is the task of the model, with one exception: with `labels`, a model of embeddings is used
    as a classifier.
    """
    return "classify" if task == "embed" and options.labels is not None else task


def _suggest_instead(option: str, task: str) -> str:
    if task in _RANKED and option in ("conf", "max_det"):
        return "; top_k limits the number of classes"
    if task == "embed" and option in ("classes", "top_k"):
        return "; a model such as CLIP can classify by texts: labels=a cat,a dog (--texts)"
    if option == "labels":
        return "; only models such as CLIP accept it"
    return ""


_DEFAULTS = [(each.name, each.default) for each in fields(PredictOptions) if each.name in _TASKS]
_RANGES = [
    (each.name, each.metadata["ge"], each.metadata["le"])
    for each in fields(PredictOptions)
    if "ge" in each.metadata
]
