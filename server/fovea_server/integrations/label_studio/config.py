"""Parses a labelling configuration.

It defines the regions that annotators draw, and their labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from fovea_preprocess.errors import InvalidRequest
from fovea_server.integrations.request_handling import share
from fovea_server.models.model import ServedModel

TASKS = {
    "RectangleLabels": ("detect", "segment", "pose", "obb", "text"),
    "PolygonLabels": ("segment", "obb", "text", "semantic"),
    "BrushLabels": ("segment", "semantic"),
    "KeyPointLabels": ("pose",),
    "Choices": ("classify", "attributes"),
    "TextArea": ("read",),
}
"""Maps each supported control to the tasks of models that can fill in the control."""

_MIN = 0.25
_SHOWN = 10
_LONGEST = 1_000_000
_OPTIONS = {"Choices": "Choice"}


@dataclass(frozen=True, slots=True)
class Control:
    """A control of the labelling configuration, for an image.

    Attributes:
        kind: XML tag of the control, a key of `TASKS`.
        name: name of the control.
        to_name: name of the image that the control belongs to.
        key: key of the image in the data of a task.
        labels: dict from class names, in the form that `spelling` returns, to labels.
        least: minimum score of a region; None to use the server's default.
        several: True if several choices are allowed.
        per_region: True if the control belongs to each region instead of the image.
    """

    kind: str
    name: str
    to_name: str
    key: str
    labels: Mapping[str, str]
    least: float | None
    several: bool
    per_region: bool = False

    @property
    def threshold(self) -> float:
        """Return the minimum score of a region."""
        return _MIN if self.least is None else self.least

    @property
    def value_key(self) -> str:
        """Return the type of the control's regions, which is also the key of their labels."""
        return self.kind.lower()


def parse_config(xml: str) -> list[Control]:
    """Return the controls for images in a labelling configuration.

    Raises:
        InvalidRequest: the text is not XML, is too long, or has a DOCTYPE or CDATA section.
        InvalidOption: a threshold is not a number from 0 to 1.
    """
    if len(xml) > _LONGEST:
        raise InvalidRequest(
            "the labelling configuration has more than a million characters: shorten it"
        )
    if "<!" in xml.replace("<!--", ""):
        raise InvalidRequest(
            "the labelling configuration has a DOCTYPE or a CDATA section: remove it"
        )
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise InvalidRequest(f"the labelling configuration is not XML: {error}") from None
    images = {
        each.get("name", ""): each.get("value", "").removeprefix("$") for each in root.iter("Image")
    }
    return [
        control
        for element in _outermost(root)
        if (control := _control(element, images)) is not None
    ]


def _outermost(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield the supported controls, except for controls inside another control."""
    waiting = [root]
    while waiting:
        element = waiting.pop()
        if element.tag in TASKS:
            yield element
        else:
            waiting.extend(reversed(element))


def controls_for(xml: str, model: str, task: str) -> list[Control]:
    """Return the controls that a model of a task can fill in, for the first suitable image.

    Controls for each region are included, because the model may be a pipeline, which has results
    for each object.

    Raises:
        InvalidRequest: no control fits the task.
    """
    controls = parse_config(xml)
    suitable = [each for each in controls if task in TASKS[each.kind] and not each.per_region]
    if not suitable:
        wanted = [kind for kind, tasks in TASKS.items() if task in tasks]
        kinds = [f"{each.kind}{' (perRegion)' * each.per_region}" for each in controls]
        found = ", ".join(dict.fromkeys(kinds)) or "no supported control"
        raise InvalidRequest(
            f"model '{model}' (task {task}) can fill in {' or '.join(wanted) or 'no control'} of "
            f"an Image, but the labelling configuration has {found}"
        )
    inside = [each for each in controls if each.per_region]
    return [each for each in suitable + inside if each.to_name == suitable[0].to_name]


def check_labels(controls: Sequence[Control], model: ServedModel) -> None:
    """Raise InvalidRequest if no label of the controls is a class of the model.

    Choices for each region are not checked, because they are classes of the pipeline's later
    models.
    """
    engine = model.engine
    if engine is None or engine.labels is None or controls[0].kind == "TextArea":
        return
    controls = [each for each in controls if not each.per_region]
    skeleton = engine.card.skeleton
    points = skeleton.names if skeleton is not None else ()
    for control in controls:
        names = points if control.kind == "KeyPointLabels" else engine.labels
        if any(spelling(name) in control.labels for name in names):
            return
    labels = ", ".join(dict.fromkeys(x for control in controls for x in control.labels.values()))
    classes = [*engine.labels, *points][:_SHOWN]
    raise InvalidRequest(
        f"the labels of the configuration ({labels or 'none'}) match no class of model "
        f"'{model.name}' ({', '.join(classes)}, ...): write the class names into predicted_values "
        "of a label"
    )


def spelling(name: str) -> str:
    """Return a name in the form that is used for comparisons: `Left_Eye` becomes `left eye`."""
    return " ".join(re.split(r"[\s_-]+", name.strip())).casefold()


def _control(element: ElementTree.Element, images: Mapping[str, str]) -> Control | None:
    image = next((n for n in element.get("toName", "").split(",") if n in images), None)
    if image is None:
        return None
    threshold = element.get("model_score_threshold")
    return Control(
        element.tag,
        element.get("name", ""),
        image,
        images[image],
        dict(_labels(element)),
        None if threshold is None else share("model_score_threshold", threshold),
        element.get("choice") == "multiple",
        # Only Choices and TextArea can be per region, because other controls create regions
        # themselves.
        element.tag in ("Choices", "TextArea") and element.get("perRegion") == "true",
    )


def _labels(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Yield (class name, label) pairs.

    The XML attribute `predicted_values` lists other class names, as in Label Studio's own backend
    for YOLO.
    """
    for option in element.iter(_OPTIONS.get(element.tag, "Label")):
        label = option.get("value", "")
        for name in (*option.get("predicted_values", "").split(","), label):
            if name.strip():
                yield spelling(name), label
