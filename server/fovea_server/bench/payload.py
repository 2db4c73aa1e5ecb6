"""The requests of a measurement, checked with the server before any load."""

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

# Statuses of /v1 for an image that is damaged, or too large: the next may be right.
_OF_ONE_IMAGE = (400, 413)


@dataclass(frozen=True, slots=True)
class Payload:
    """The requests that are sent.

    Attributes:
        kind: of the answers that are counted.
        timed: requests that are sent in turn.
        version: of the model, that will answer.
        judged: a request for each labelled image; none without labels.
        labelled: the labels; None without.
    """

    kind: Literal["images", "requests"]
    timed: list[bytes]
    version: int
    judged: list[bytes] = field(default_factory=list)
    labelled: Labels | None = None

    @property
    def split(self) -> str | None:
        """The split of the labelled images, as val."""
        return None if self.labelled is None else split_of(self.labelled)

    @property
    def judged_on(self) -> str:
        """Say what the accuracy is measured on, as the end of a title; empty without labels."""
        return "" if self.labelled is None else f", accuracy on {images_text(self.labelled)}"


def image_payload(target: Target, images: Path | None, data: Path | None = None) -> Payload:
    """Read images and labels, and send one image.

    Args:
        target: the model.
        images: their folder; None where they lie with the labels.
        data: labels, as `read_labels` takes them.

    Raises:
        InvalidOption: there are no images, or the labels cannot be read.
        NotFound: the server has no such model.
        InvalidImage: it takes none of the images.
        UnsupportedModel: the model has another task than the labels.
        Unavailable: it does not answer, or refuses.
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
    """Make tensors that fit the model; raises as `tensor_request` and `Target.metadata`."""
    metadata = target.metadata()
    version = target.version or max(map(int, metadata["versions"]))
    return Payload("requests", [tensor_request(target, metadata, shapes)], version)


def _send_until_answered(target: Target, bodies: Sequence[bytes]) -> Prediction:
    """Send images until one is answered, so that a mistake is an error and no measurement."""
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
