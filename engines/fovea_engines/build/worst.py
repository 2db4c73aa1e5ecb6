"""Draws the image on which an engine and its source model differ most."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.build.assemble import reference
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.draw import draw
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.tags import FONT
from fovea_engines.engine import Engine
from fovea_engines.evaluate.accuracy.dataset import read_class_names
from fovea_engines.evaluate.agreement.matching import match
from fovea_engines.evaluate.agreement.measure import CONF, MARGIN
from fovea_engines.evaluate.samples import Pixels, sample_image

# Longer side of each of the two images, pixels.
_SIDE = 960
_STRIP = 40
_GAP = 16
_LETTERS = 0.7
_FRAME = 9
_RED = (235, 30, 40)
_WHITE = (255, 255, 255)


def worst_image(
    plan: BuildPlan, prepared: PreparedModel, engine: Engine, name: str
) -> Pixels | None:
    """Draw one image twice, side by side: with the source model's boxes and with the engine's.

    Detections of both models are grey, like the image; detections of only one are coloured and
    framed in red. They are paired by the rules of the agreement figures. Classes without a name in
    the model take the build's labels.

    Args:
        plan: the plan of the build; its images, or those that ship with Fovea, hold `name`.
        prepared: its source model.
        engine: as it will be served.
        name: name of the image.

    Returns:
        uint8 RGB [h, w, 3]; None when the engine has no head, and so no boxes.
    """
    if engine.head is None:
        return None
    pixels = sample_image(plan.check_images, name)
    options = PredictOptions(conf=CONF - MARGIN)
    with reference(plan, prepared, prepared.graph, "fp32") as source:
        want, have = source.detect(pixels, options), engine.detect(pixels, options)
    found = match(want, have, CONF, MARGIN)
    labels = engine.labels
    if labels is None and plan.data is not None:
        labels = read_class_names(plan.data)

    precision = engine.card.precision.upper()
    panes = []
    for one, agreed, title, only in (
        (want, found.want, "source model", f"missed by {precision}"),
        (have, found.have, f"{precision} on {engine.card.backend}", "extra"),
    ):
        odd = np.setdiff1d(np.flatnonzero(one.scores >= CONF), agreed)
        canvas = _draw(pixels, _take(one, np.sort(agreed)), _take(one, odd), labels)
        caption = f"{title}: {len(agreed) + len(odd)} found, {len(odd) or 'none'} {only}"
        panes.append(_captioned(canvas, caption))
    return np.hstack(panes)


def _take(detections: Detections, chosen: NDArray[np.intp]) -> Detections:
    return Detections(
        detections.boxes[chosen], detections.scores[chosen], detections.class_ids[chosen]
    )


def _draw(
    pixels: Pixels, agreed: Detections, odd: Detections, labels: tuple[str, ...] | None
) -> Pixels:
    """Draw the image at the report's size: shared detections in grey, others in colour."""
    height, width = pixels.shape[:2]
    factor = _SIDE / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    smooth = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    image = np.asarray(cv2.resize(pixels, size, interpolation=smooth), np.uint8)
    by = np.array([size[0] / width, size[1] / height] * 2, np.float32)

    same = draw(image, _scaled(agreed, by), labels)
    canvas = np.repeat(cv2.cvtColor(same, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
    odd = _scaled(odd, by)
    for x1, y1, x2, y2 in odd.boxes.round().astype(int).tolist():
        cv2.rectangle(canvas, (x1, y1), (x2, y2), _RED, _FRAME)
    return draw(canvas.astype(np.uint8), odd, labels)


def _scaled(detections: Detections, by: NDArray[np.float32]) -> Detections:
    return Detections(detections.boxes * by, detections.scores, detections.class_ids)


def _captioned(image: Pixels, text: str) -> Pixels:
    """Put a caption above an image, and widen the image on the right where the text needs it."""
    height, width = image.shape[:2]
    (text_width, text_height), _ = cv2.getTextSize(text, FONT, _LETTERS, 1)
    pane = np.zeros((_STRIP + height, max(width, text_width + _GAP) + _GAP, 3), np.uint8)
    pane[_STRIP:, :width] = image
    origin = _GAP // 2, (_STRIP + text_height) // 2
    cv2.putText(pane, text, origin, FONT, _LETTERS, _WHITE, 1, cv2.LINE_AA)
    return pane
