"""The requests of a measurement, which are tried on the server before any load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fovea_client import Client, FoveaClientError, Prediction, ServerError
from fovea_engines.evaluation.labels import Labels, images_text, split_of
from fovea_engines.evaluation.samples import image_files
from fovea_preprocess.errors import InvalidImage, NotFound, Unavailable
from fovea_server.bench.requests import image_requests, tensor_request
from fovea_server.bench.target import Target
from fovea_server.offline.accuracy import check_answer, read_labels, request_options

MAX_IMAGES = 256

# Status codes of /v1 that mean that a single image is damaged or too large. The next image may
# succeed.
_OF_ONE_IMAGE = (400, 413)


@dataclass(frozen=True, slots=True)
class Payload:
    """The requests of a measurement.

    Attributes:
        kind: unit in which responses are counted, "images" or "requests".
        timed: requests that are sent one after another under load.
        version: version of the model that responds.
        judged: a request for each labelled image, to measure accuracy; empty if there are no
            labels.
        labelled: the labels; None if no accuracy is measured.
    """

    kind: Literal["images", "requests"]
    timed: list[bytes]
    version: int
    judged: list[bytes] = field(default_factory=list)
    labelled: Labels | None = None

    @property
    def split(self) -> str | None:
        """The split of the labelled images, for example "val"; None if there are no labels."""
        return None if self.labelled is None else split_of(self.labelled)

    @property
    def judged_on(self) -> str:
        """Description of the labelled images, for the end of a title; empty without labels."""
        return "" if self.labelled is None else f", accuracy on {images_text(self.labelled)}"


def image_payload(target: Target, images: Path | None, data: Path | None = None) -> Payload:
    """Read images and labels, and send images until the server has predicted one of them.

    Args:
        target: the model.
        images: directory of the images; None if they are stored with the labels.
        data: labels, see `read_labels`; None to measure no accuracy.

    Raises:
        InvalidOption: there are no images, or the labels cannot be read.
        NotFound: the server has no such model.
        InvalidImage: the server rejects all images.
        UnsupportedModel: the labels are for another task than the model's.
        Unavailable: the server does not respond, or rejects the requests.
    """
    if data is None:
        assert images is not None, "images or labels are given"
        bodies = [file.read_bytes() for file in image_files(images, MAX_IMAGES)]
        answer = _send_until_answered(target, bodies)
        return Payload("images", image_requests(target, bodies), int(answer.version))
    labelled = read_labels(data, images)
    bodies = [path.read_bytes() for path in labelled.paths]
    answer = _send_until_answered(target, bodies)
    check_answer(labelled, answer.model, answer.task)
    if (names := target.labels()) is not None:
        labelled = labelled.match_classes(names)
    timed = image_requests(target, bodies[:MAX_IMAGES])
    judged = image_requests(target, bodies, request_options(labelled))
    return Payload("images", timed, int(answer.version), judged, labelled)


def tensor_payload(target: Target, shapes: Mapping[str, tuple[int, ...]]) -> Payload:
    """Make a request with random tensors.

    Raises:
        FoveaError: one of the errors of `tensor_request` and `Target.metadata`.
    """
    metadata = target.metadata()
    version = target.version or max(map(int, metadata["versions"]))
    return Payload("requests", [tensor_request(target, metadata, shapes)], version)


def _send_until_answered(target: Target, bodies: Sequence[bytes]) -> Prediction:
    """Send images until one of them is predicted, to find errors before the measurement."""
    failure = ""
    with Client(target.url) as client:
        for body in bodies:
            try:
                return client.predict(target.model, body, version=target.version)
            except ServerError as error:
                failure = error.message
                if error.code == NotFound.code:
                    raise NotFound(f"{target.url}: {failure}") from None
                if error.status not in _OF_ONE_IMAGE:
                    raise Unavailable(f"{target.url}: {failure}") from None
            except FoveaClientError as error:
                raise Unavailable(str(error)) from None
    raise InvalidImage(f"{target.url} rejected all images: {failure}")
