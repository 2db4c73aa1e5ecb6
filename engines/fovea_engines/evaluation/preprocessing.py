"""Chooses the preprocessing of a detector, and checks the positions of its boxes.

The choice depends on the detector's results on sample images. If these results do not show which
preprocessing is right, InvalidOption lists the choices.
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

# Largest plausible number of objects on an image. If the pixel values have a wrong range, a model
# may find objects everywhere, so a larger number is noise.
_NOISE = 80
# Two limits for the sum of a model's scores: an absolute limit, and a fraction of the sum with
# another preprocessing. If the sum is below both limits, the model has found nearly nothing. On
# Fovea's photographs, the sum is 1.8 to 3.2 for yolov5n, yolov10n, yolox_nano and yolov8n-seg, and
# .0 to .7 with ImageNet's preset. For yolov8n it is 3.4, and 2.1 with ImageNet's preset.
_MIN, _LITTLE = 1.0, 0.25

# Limits for the fraction of the boxes' area that lies in the padding. x and y must be swapped if
# the fraction is above the first limit before the swap, and below the second limit after the swap.
# On Fovea's photographs, it is .00 to .11 for trained detectors, and .14 to .37 if x and y are
# swapped by mistake.
_MUCH, _NEXT_TO_NOTHING = 0.125, 0.05
# Two limits in pixels. Boxes are fractions of the input and not pixels if the first limit is not
# exceeded by any coordinate, while the input's sides are at least the second limit.
_NEAR, _LARGE = 4, 64
# Limits for the fraction of keypoints that lie in the box of their object. x and y must be swapped
# if the fraction is below the first limit before the swap, and above the second limit after the
# swap. For trained models it is 1.00, and .00 to .79 if x and y are swapped by mistake. For
# untrained models it is .85, and .31 to .55.
_FEW, _NEARLY_ALL = 0.9, 0.97
# Limits for deciding that the head reads the four numbers of boxes in a wrong order. A sample image
# is mirrored and moved, and the boxes on it are moved back. The median overlap of these boxes with
# the boxes on the original image is computed for each order of the numbers. The first limit is the
# smallest median in another order, and the second limit is its smallest gain. For trained detectors
# the median is .55 to .99, and at most .01 higher in another order. If the order is wrong, the
# median is .00 to .74, and over .9 in the right order. For untrained detectors it may have any
# value, and if it is higher in another order, it is at most .77.
_TOGETHER, _BETTER = 0.75, 0.15
# Limits for the check of a user's own head: smallest number of images with objects, and smallest
# median overlap (see above). For trained detectors the median is .64 to .93 on eight images. If a
# head returns boxes that are 1.25 or .8 times as large as they should be, or moved by 32 pixels,
# the median is .00 to .44.
_IMAGES, _APART = 5, 0.5
# Smallest number of keypoints for this check, and smallest score of a keypoint that is used.
_ENOUGH, _SEEN = 5, 0.5

# Fields of `PreprocessSpec` that matter most for the results of a model.
_DECISIVE = ("fit", "channels", *VALUES)

Boxes = NDArray[np.float32]


class _Counts(NamedTuple):
    """Number of objects on all images, sum of their scores, and number of crowded images.

    A crowded image has more than `_NOISE` objects. The sum does not include scores on crowded
    images.
    """

    objects: int
    scores: float
    crowded: int

    def __str__(self) -> str:
        text = counted(self.objects, "object")
        if not self.objects:
            return text
        noise = f"{text}, far too many to be real"
        return f"{text}, whose scores add up to {self.scores:.2f}" if self.scores else noise

    def contradicts(self, other: _Counts) -> bool:
        """Return whether the sum of `other` is so small that its preprocessing must be wrong.

        The sum of these counts is the standard.
        """
        return self.scores >= _MIN and other.scores < min(_MIN, _LITTLE * self.scores)


def _detect_each(
    head: Recognition, inputs: Sequence[TensorSpec], seen: Sequence[Outputs]
) -> list[Detections]:
    """Return the detections on each image, in pixels of the model's input."""
    opened = open_head(head, inputs)
    if not isinstance(opened, Detector):
        return []
    with np.errstate(all="ignore"):  # with a wrong preprocessing, values may overflow
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
    """Choose the preprocessing of a model.

    Args:
        head: recognised head of the model.
        inputs: inputs of the model.
        metadata: metadata of the model.
        observe: observer that runs the model on sample images.
        given: fields that the user sets, merged with `own`; None if the user sets no fields.
        own: fields that the model's graph determines.
        named_by: text for messages that describes how the user set the fields.

    Returns:
        The preprocessing, and its origin as text.

    Raises:
        UnsupportedModel: with the user's fields the model finds nearly nothing, although it finds
            objects with the usual preprocessing.
        InvalidOption: exporters differ in their preprocessing, and the results on the images do not
            show which one is right.
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
        rest = f"; {', '.join(left)} guessed: {head.guessed}" if left else ""
        if not detects or spec == usual:
            return spec, f"{named_by}{rest}"
        has, more = count(spec), count(usual)
        both = (
            f"with this preprocessing the model finds {has}, with the default of the family "
            f"{head.family} {more}"
        )
        # A crowded image may have many real objects, so it is no evidence against the user's
        # choice.
        if more.contradicts(has) and not has.crowded:
            raise UnsupportedModel(
                f"--preprocess is probably wrong: {both}. Leave it out, or give --images with "
                "objects that the model detects"
            )
        return spec, f"{named_by}: {both}{rest}"
    if not detects or not head.variants:
        return usual, head.preprocess_from
    ways: dict[str, PreprocessSpec] = {}
    for name in ("family", *head.variants):
        # If the input takes integers, pixel values are not changed, and a preset may only change
        # the geometry.
        fields = {**read_preprocess(name), **own}.items()
        spec = make_spec({key: v for key, v in fields if not (usual.whole and key in VALUES)})
        if spec not in ways.values():
            ways[name] = spec
    if len(ways) == 1:
        as_it_is = (
            "its input accepts unchanged pixel values"
            if usual.whole
            else ("the model normalises images itself")
        )
        return usual, f"by the family {head.family}; {as_it_is}"
    name, why = _choose_preset(head, {name: count(spec) for name, spec in ways.items()}, usual)
    return ways[name], f"{name}, because the model finds most with it: {why}"


def _choose_preset(
    head: Recognition, seen: Mapping[str, _Counts], usual: PreprocessSpec
) -> tuple[str, str]:
    """Return the name of the best preprocessing for the model, and its counts of objects.

    The second value is a text with the counts.

    Raises:
        InvalidOption: the model finds objects with several kinds of preprocessing, or with none,
            so the user must choose.
    """
    best = max(seen.values(), key=lambda one: one.scores)
    left = {name: one for name, one in seen.items() if not best.contradicts(one)}
    less = "; ".join(f"with {name} {one}" for name, one in seen.items() if name not in left)
    if len(left) == 1:
        return next(iter(left)), f"{best}; {less}"
    choices = " or ".join(f"--preprocess {name} (it finds {one})" for name, one in left.items())
    if best.scores < _MIN:
        choices += ", or give --images with objects that the model detects"
    if less:
        choices += f". The others do not fit: {less}"
    raise InvalidOption(
        f"preprocessing differs between models of the family {head.family} ({head.guessed}), and "
        f"the sample images fit several: choose {choices}. The family's default is {usual.text}"
    )


def find_misplacement(
    head: Recognition, inputs: Sequence[TensorSpec], observe: Observer, spec: PreprocessSpec
) -> str | None:
    """Return the reason why the head reads the numbers of boxes or keypoints wrongly.

    If the positions on the sample images are plausible, return None.
    """
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
    """Return a reason if boxes are fractions of the input and not pixels, otherwise None."""
    farthest = max(each.max(initial=0) for each in boxes)
    smallest = min(min(image.input_width, image.input_height) for image in images)
    if farthest == 0 or farthest > _NEAR or smallest < _LARGE:
        return None
    return (
        f"no box is more than {farthest:.2g} pixels from the upper left corner: if the model "
        "returns fractions of its input, multiply them by its width and height"
    )


def _turn(boxes: Boxes) -> Boxes:
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    return np.concatenate([centre - half[:, ::-1], centre + half[:, ::-1]], axis=1)


_SWAPS: Mapping[str, Callable[[Boxes], Boxes]] = {
    "x and y": lambda boxes: boxes[:, [1, 0, 3, 2]],
    "width and height": _turn,
}


def _find_swap(boxes: Sequence[Boxes], images: Sequence[LetterboxMap]) -> str | None:
    """Return a reason if numbers of the boxes must be swapped, otherwise None.

    Square and stretched images have no padding, so the check finds nothing on them.

    Args:
        boxes: for each image, corners [n, 4] in pixels of the input.
        images: position of each image in the input.
    """
    share = _share_in_padding(boxes, images)
    if share <= _MUCH:
        return None
    others = {name: _share_in_padding([*map(swap, boxes)], images) for name, swap in _SWAPS.items()}
    what = " or ".join(name for name, other in others.items() if other < _NEXT_TO_NOTHING)
    if not what:
        return None
    return (
        f"{share:.0%} of the box area lies in the padding around the images, but almost none if "
        f"{what} are swapped"
    )


def _list_orders(boxes: Boxes) -> Iterator[tuple[str, Boxes]]:
    """Yield the name and the boxes of every other interpretation of the boxes' four numbers.

    The head may have read the numbers as corners, or as centre and size.
    """
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
    """Return a reason if the head reads the four numbers of boxes in a wrong order, otherwise None.

    If an image is mirrored and moved, its boxes move in the same way only in the right order.
    """
    if len(moved) < len(found):
        return None  # the model does not run on the moved images
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
        "if images are mirrored and moved, their boxes should move, too: they do so with an "
        f"overlap of {read:.0%}, but of {best:.0%} if the columns are {what}"
    )


def _find_elsewhere(
    found: Sequence[Detections], moved: Sequence[Detections], images: Sequence[LetterboxMap]
) -> str | None:
    """Return a reason if boxes on moved images are not at the moved positions, otherwise None."""
    if len(moved) < len(found):
        return None  # the model does not run on the moved images
    follow, still = _agreement(found, moved, images), _median_overlap(found, moved)
    if still > max(_TOGETHER, follow + _BETTER):
        return f"if images are mirrored and moved, {still:.0%} of the box area does not move"
    if follow >= _APART or sum(len(one) > 0 for one in found) < _IMAGES:
        return None
    return (
        "if images are mirrored and moved, their boxes should move, too: they do so with an "
        f"overlap of {follow:.0%}, and trained detectors reach over {_APART:.0%}: look for a "
        "wrong scale, offset or anchor"
    )


def _agreement(
    found: Sequence[Detections], moved: Sequence[Detections], images: Sequence[LetterboxMap]
) -> float:
    """Return the median overlap of the boxes on original and on moved images, 0 to 1.

    The boxes on moved images are first moved back to the positions on the original images.
    """
    back = []
    for other, image in zip(moved, images, strict=True):
        edge = np.array([image.offset_x, image.offset_y + image.scaled_height] * 2, np.float32)
        left, top, right, bottom = ((other.boxes - edge) / np.float32(MOVED)).T
        turned = np.stack([image.scaled_width - right, top, image.scaled_width - left, bottom], 1)
        back.append(replace(other, boxes=turned + edge))
    return _median_overlap(found, back)


def _median_overlap(found: Sequence[Detections], others: Sequence[Detections]) -> float:
    """Return the median, over all boxes in `found`, of the largest overlap with a box in `others`.

    Only boxes of the same class are compared. A box without such a partner is left out. If no box
    has a partner, the result is 1.
    """
    shares: list[float] = []
    for one, other in zip(found, others, strict=True):
        same = one.class_ids[:, None] == other.class_ids
        overlaps = np.where(same, np.nan_to_num(iou(one.boxes, other.boxes)), 0)
        shares += overlaps[same.any(axis=1)].max(axis=1, initial=0).tolist()
    return float(np.median(shares)) if shares else 1.0


def _find_crossing(found: Sequence[Detections]) -> str | None:
    """Return a reason if x and y of keypoints must be swapped, otherwise None."""
    inside, turned = (
        np.concatenate([_lie_in_boxes(one, order) for one in found]) for order in ([0, 1], [1, 0])
    )
    if len(inside) < _ENOUGH or inside.mean() > _FEW or turned.mean() < _NEARLY_ALL:
        return None
    return (
        f"{inside.mean():.0%} of the keypoints lie in the box of their object, but "
        f"{turned.mean():.0%} if x and y are swapped"
    )


def _lie_in_boxes(found: Detections, order: list[int]) -> NDArray[np.bool_]:
    """Return for each visible keypoint whether it lies in the box of its object.

    A keypoint may lie outside the box by a tenth of the box's side.
    """
    if found.keypoints is None:
        return np.zeros(0, np.bool_)
    low, high = found.boxes[:, None, :2], found.boxes[:, None, 2:]
    margin, points = (high - low) / 10, found.keypoints[..., order]
    inside: NDArray[np.bool_] = np.all((points >= low - margin) & (points <= high + margin), axis=2)
    return inside[found.keypoints[..., 2] > _SEEN]


def _share_in_padding(boxes: Sequence[Boxes], images: Sequence[LetterboxMap]) -> float:
    """Return the fraction of the boxes' area that lies in the padding around images, 0 to 1."""
    total = inside = 0.0
    for each, image in zip(boxes, images, strict=True):
        low = np.array([image.offset_x, image.offset_y], np.float64)
        high = low + np.array([image.scaled_width, image.scaled_height])
        total += _area(each[:, :2], each[:, 2:])
        inside += _area(np.maximum(each[:, :2], low), np.minimum(each[:, 2:], high))
    return 1 - inside / total if total else 0.0


def _area(low: NDArray[np.floating], high: NDArray[np.floating]) -> float:
    return float(np.prod(np.maximum(high - low, 0), axis=1).sum())
