"""Chooses how a detector's images are preprocessed, and checks where its boxes lie on them.

What it finds on sample images decides; where it does not, InvalidOption lists the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.agreement.overlap import iou
from fovea_engines.evaluation.observe import Observer
from fovea_engines.evaluation.reference import Outputs
from fovea_engines.evaluation.samples import MOVED
from fovea_engines.heads.base import Detector, corners
from fovea_engines.heads.head_file import head_in_file
from fovea_engines.heads.presets import VALUES, default_preprocess, read_preprocess
from fovea_engines.heads.recognise import open_head
from fovea_engines.heads.recognition import Recognition
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.spec import PreprocessSpec
from fovea_preprocess.text import counted

# So many objects on one image are noise: values out of a model's range make it sure of everything.
_NOISE = 80
# Nearly nothing is found where the scores add up to less than this, and to less than this share of
# those with another preprocessing. On the photographs yolov5n, yolov10n, yolox_nano and yolov8n-seg
# reach 1.8 to 3.2, and .0 to .7 with ImageNet's preset; yolov8n reaches 3.4, and 2.1 with it.
_MIN, _LITTLE = 1.0, 0.25

# Shares of the area of all boxes that lies in the padding. Trained detectors have .00 to .11 there
# on the photographs, and .14 to .37 with x and y swapped.
_MUCH, _NEXT_TO_NOTHING = 0.125, 0.05
# Pixels within which all boxes of an input of this side, or a larger one, are shares of it.
_NEAR, _LARGE = 4, 64
# Shares of all keypoints that lie in the box of their object. Trained models have 1.00 there, and
# .00 to .79 with x and y swapped; untrained ones .85, and .31 to .55.
_FEW, _NEARLY_ALL = 0.9, 0.97
# Medians of the overlap of boxes with those of the moved images, moved back. Trained
# detectors have .55 to .99, and .01 more at most in another order; with their numbers in another
# order .00 to .74, and over .9 once the order is right. Untrained ones have anything, and at most
# .77 in another order where it is more.
_TOGETHER, _BETTER = 0.75, 0.15
# A user's own head is judged on so many images that show something. Trained detectors have medians
# of .64 to .93 on eight; with boxes 1.25 or .8 times as large, or moved by 32 pixels, .00 to .44.
_IMAGES, _APART = 5, 0.5
# So many keypoints must have more than this score.
_ENOUGH, _SEEN = 5, 0.5

# Fields in which the preprocessing of a family differs most, and which a user may leave out.
_DECISIVE = ("fit", "channels", *VALUES)

Boxes = NDArray[np.float32]


class _Counts(NamedTuple):
    """Objects on all images, their scores but for crowded images, and the number of those."""

    objects: int
    scores: float
    crowded: int

    def __str__(self) -> str:
        text = counted(self.objects, "object")
        if not self.objects:
            return text
        noise = f"{text}, which is noise"
        return f"{text}, whose scores add up to {self.scores:.2f}" if self.scores else noise

    def contradicts(self, other: _Counts) -> bool:
        """Return whether the other is nearly nothing beside this."""
        return self.scores >= _MIN and other.scores < min(_MIN, _LITTLE * self.scores)


def _detect_each(
    head: Recognition, inputs: Sequence[TensorSpec], seen: Sequence[Outputs]
) -> list[Detections]:
    """Return what a detector finds on each image that it was `seen` on, in pixels of its input."""
    opened = open_head(head, inputs)
    if not isinstance(opened, Detector):
        return []
    with np.errstate(all="ignore"):  # values out of a model's range overflow
        return [opened.decode(each, 0, PredictOptions(mask="none")) for each in seen]


def choose_preprocess(
    head: Recognition,
    inputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    observe: Observer,
    given: Mapping[str, Any] | None,
    own: Mapping[str, Any],
    named_by: str,
) -> tuple[PreprocessSpec, str]:
    """Return the preprocessing of a model, and its origin, for people.

    `own` has the fields that the model's graph decides, and `given` those with what is named; it is
    None where nothing is. `named_by` describes who names them.

    Raises:
        UnsupportedModel: with what the user names it finds nothing that it finds otherwise.
        InvalidOption: exporters differ, and the images do not show which of them it was.
    """

    def make_spec(fields: Mapping[str, Any]) -> PreprocessSpec:
        fields = {**head.own_preprocess, **fields}
        return default_preprocess(head.family, inputs, metadata, trained=fields)

    def count(spec: PreprocessSpec) -> _Counts:
        each = _detect_each(head, inputs, observe.seen(spec))
        sums = [float(one.scores.sum()) for one in each if len(one) <= _NOISE]
        return _Counts(sum(map(len, each)), sum(sums), len(each) - len(sums))

    usual = make_spec(own)
    detects = isinstance(open_head(head, inputs), Detector)
    if given is not None:
        spec = make_spec(given)
        left = [field for field in _DECISIVE if head.guessed and field not in given]
        rest = f"; {', '.join(left)} of a guess: {head.guessed}" if left else ""
        if not detects or spec == usual:
            return spec, f"{named_by}{rest}"
        has, more = count(spec), count(usual)
        both = f"with it the model finds {has}, and with that of the family {head.family} {more}"
        # A crowd is as many objects as noise, so this does not contradict what a user names.
        if more.contradicts(has) and not has.crowded:
            raise UnsupportedModel(
                f"--preprocess is wrong: {both}. Leave it out, or give --images that show what the "
                "model finds"
            )
        return spec, f"{named_by}: {both}{rest}"
    if not detects or not head.variants:
        return usual, head.preprocess_from
    ways: dict[str, PreprocessSpec] = {}
    for name in ("family", *head.variants):
        # An input of whole numbers takes pixels as they are, so only the geometry may differ.
        fields = {**read_preprocess(name), **own}.items()
        spec = make_spec({key: v for key, v in fields if not (usual.whole and key in VALUES)})
        if spec not in ways.values():
            ways[name] = spec
    if len(ways) == 1:
        as_it_is = (
            "its input takes pixels as they are" if usual.whole else "it normalises them itself"
        )
        return usual, f"by the family {head.family}; {as_it_is}"
    name, why = _choose_preset(head, {name: count(spec) for name, spec in ways.items()}, usual)
    return ways[name], f"{name}, by what the model finds: {why}"


def _choose_preset(
    head: Recognition, seen: Mapping[str, _Counts], usual: PreprocessSpec
) -> tuple[str, str]:
    """Return the one preprocessing, by name, with which the model finds something, and the figures.

    Raises:
        InvalidOption: there are several, and the user must choose.
    """
    best = max(seen.values(), key=lambda one: one.scores)
    left = {name: one for name, one in seen.items() if not best.contradicts(one)}
    less = "; ".join(f"with {name} {one}" for name, one in seen.items() if name not in left)
    if len(left) == 1:
        return next(iter(left)), f"{best}; {less}"
    choices = " or ".join(f"--preprocess {name} (it finds {one})" for name, one in left.items())
    if best.scores < _MIN:
        choices += ", or give --images that show what the model finds"
    if less:
        choices += f". It is none of the others: {less}"
    raise InvalidOption(
        f"preprocessing differs between models of the family {head.family} ({head.guessed}), and "
        f"the images do not tell which this one was trained with: name {choices}. That of the "
        f"family is: {usual.text}"
    )


def find_misplacement(
    head: Recognition, inputs: Sequence[TensorSpec], observe: Observer, spec: PreprocessSpec
) -> str | None:
    """Return why the numbers of boxes or keypoints are others; None if nothing says so."""
    found = _detect_each(head, inputs, observe.seen(spec))
    if not found:
        return None
    boxes, places = [one.boxes for one in found], observe.places(spec)
    moved = _detect_each(head, inputs, observe.seen(spec, moved=True))
    reason = (
        _find_shares(boxes, places)
        or _find_swap(boxes, places)
        or _find_crossing(found)
        or _find_order(found, moved, places)
    )
    if reason is None and head_in_file(head.family) is not None:
        reason = _find_elsewhere(found, moved, places)
    return reason


def _find_shares(boxes: Sequence[Boxes], images: Sequence[LetterboxMap]) -> str | None:
    """Return why the boxes cannot be in pixels; None if nothing says so."""
    farthest = max(each.max(initial=0) for each in boxes)
    smallest = min(min(image.input_width, image.input_height) for image in images)
    if farthest == 0 or farthest > _NEAR or smallest < _LARGE:
        return None
    return (
        f"no box is more than {farthest:.2g} pixels from the upper left corner: if the model "
        "writes shares of its input, multiply them by its width and height"
    )


def _turn(boxes: Boxes) -> Boxes:
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    return np.concatenate([centre - half[:, ::-1], centre + half[:, ::-1]], axis=1)


_SWAPS: Mapping[str, Callable[[Boxes], Boxes]] = {
    "x and y": lambda boxes: boxes[:, [1, 0, 3, 2]],
    "width and height": _turn,
}


def _find_swap(boxes: Sequence[Boxes], images: Sequence[LetterboxMap]) -> str | None:
    """Return why numbers of the boxes must be swapped; None if nothing says so.

    Each image has boxes [n, 4], corners in pixels of the input, and its place there. Square images,
    and those that are stretched, say nothing.
    """
    share = _share_in_padding(boxes, images)
    if share <= _MUCH:
        return None
    others = {name: _share_in_padding([*map(swap, boxes)], images) for name, swap in _SWAPS.items()}
    what = " or ".join(name for name, other in others.items() if other < _NEXT_TO_NOTHING)
    if not what:
        return None
    return (
        f"{share:.0%} of the area of the boxes lies in the padding around the images, and with "
        f"{what} swapped next to nothing"
    )


def _list_orders(boxes: Boxes) -> Iterator[tuple[str, Boxes]]:
    """Yield what else the numbers of boxes may be that a head read as corners, or as centres."""
    centred = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
    for numbers in (boxes, centred):
        for names, read in _FORMS.items():
            for order in permutations(range(4)):
                ordered = [name for _, name in sorted(zip(order, names.split(), strict=True))]
                yield " ".join(ordered), read(numbers[:, order])


def _corners_from_size(boxes: Boxes) -> Boxes:
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


_FORMS: Mapping[str, Callable[[Boxes], Boxes]] = {
    "x1 y1 x2 y2": lambda boxes: boxes,
    "cx cy w h": corners,
    "x1 y1 w h": _corners_from_size,
}


def _find_order(
    found: Sequence[Detections], moved: Sequence[Detections], images: Sequence[LetterboxMap]
) -> str | None:
    """Return what the numbers of boxes must be; None if nothing says so.

    Only then do the boxes of the moved images lie where the moved boxes do.
    """
    if len(moved) < len(found):
        return None  # it does not run on these
    read = _agreement(found, moved, images)
    if read + _BETTER > 1:
        return None
    best, what = 0.0, ""
    for others in zip(*(_list_orders(one.boxes) for one in (*found, *moved)), strict=True):
        every = zip((*found, *moved), others, strict=True)
        seen = [replace(one, boxes=boxes) for one, (_, boxes) in every]
        other = _agreement(seen[: len(found)], seen[len(found) :], images)
        best, what = max((best, what), (other, others[0][0]))
    if best <= max(_TOGETHER, read + _BETTER):
        return None
    return (
        "on images that are mirrored and moved, the boxes are the mirrored and moved boxes by "
        f"{read:.0%} of their area, and by {best:.0%} if their numbers are {what}"
    )


def _find_elsewhere(
    found: Sequence[Detections], moved: Sequence[Detections], images: Sequence[LetterboxMap]
) -> str | None:
    """Return why boxes do not move with the images; None if nothing says so."""
    if len(moved) < len(found):
        return None  # it does not run on these
    follow, still = _agreement(found, moved, images), _median_overlap(found, moved)
    if still > max(_TOGETHER, follow + _BETTER):
        return (
            f"on images that are mirrored and moved, {still:.0%} of the area of the boxes stays "
            "where it is"
        )
    if follow >= _APART or sum(len(one) > 0 for one in found) < _IMAGES:
        return None
    return (
        "on images that are mirrored and moved, the boxes are the mirrored and moved boxes by "
        f"{follow:.0%} of their area, and those of trained detectors by over {_APART:.0%}: look "
        "for a wrong scale, offset or anchor"
    )


def _agreement(
    found: Sequence[Detections], moved: Sequence[Detections], images: Sequence[LetterboxMap]
) -> float:
    """Return how far boxes overlap with those of the moved images, moved back: the median."""
    back = []
    for other, image in zip(moved, images, strict=True):
        edge = np.array([image.offset_x, image.offset_y + image.scaled_height] * 2, np.float32)
        left, top, right, bottom = ((other.boxes - edge) / np.float32(MOVED)).T
        turned = np.stack([image.scaled_width - right, top, image.scaled_width - left, bottom], 1)
        back.append(replace(other, boxes=turned + edge))
    return _median_overlap(found, back)


def _median_overlap(found: Sequence[Detections], others: Sequence[Detections]) -> float:
    """Return how far boxes overlap with the best other one of their class: the median.

    Those without an other one do not count; it is 1 where none has one.
    """
    shares: list[float] = []
    for one, other in zip(found, others, strict=True):
        same = one.class_ids[:, None] == other.class_ids
        overlaps = np.where(same, np.nan_to_num(iou(one.boxes, other.boxes)), 0)
        shares += overlaps[same.any(axis=1)].max(axis=1, initial=0).tolist()
    return float(np.median(shares)) if shares else 1.0


def _find_crossing(found: Sequence[Detections]) -> str | None:
    """Return why x and y of keypoints must be swapped; None if nothing says so."""
    inside, turned = (
        np.concatenate([_lie_in_boxes(one, order) for one in found]) for order in ([0, 1], [1, 0])
    )
    if len(inside) < _ENOUGH or inside.mean() > _FEW or turned.mean() < _NEARLY_ALL:
        return None
    return (
        f"{inside.mean():.0%} of the keypoints lie in the box of their object, and with x and y "
        f"swapped {turned.mean():.0%}"
    )


def _lie_in_boxes(found: Detections, order: list[int]) -> NDArray[np.bool_]:
    """Return if each keypoint that is seen lies in its box, or a tenth of its sides beside it."""
    if found.keypoints is None:
        return np.zeros(0, np.bool_)
    low, high = found.boxes[:, None, :2], found.boxes[:, None, 2:]
    margin, points = (high - low) / 10, found.keypoints[..., order]
    inside: NDArray[np.bool_] = np.all((points >= low - margin) & (points <= high + margin), axis=2)
    return inside[found.keypoints[..., 2] > _SEEN]


def _share_in_padding(boxes: Sequence[Boxes], images: Sequence[LetterboxMap]) -> float:
    """Return the share of the area of boxes that lies outside the images."""
    total = inside = 0.0
    for each, image in zip(boxes, images, strict=True):
        low = np.array([image.offset_x, image.offset_y], np.float64)
        high = low + np.array([image.scaled_width, image.scaled_height])
        total += _area(each[:, :2], each[:, 2:])
        inside += _area(np.maximum(each[:, :2], low), np.minimum(each[:, 2:], high))
    return 1 - inside / total if total else 0.0


def _area(low: NDArray[np.floating], high: NDArray[np.floating]) -> float:
    return float(np.prod(np.maximum(high - low, 0), axis=1).sum())
