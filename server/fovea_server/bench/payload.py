"""The requests of a measurement, checked with the server before any load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fovea_client import Client, FoveaClientError, ServerError
from fovea_engines.evaluate.samples import image_files
from fovea_preprocess.errors import InvalidImage, NotFound, Unavailable
from fovea_server.bench.requests import image_requests, tensor_request
from fovea_server.bench.target import Target

if TYPE_CHECKING:
    from fovea_engines.evaluate.accuracy.dataset import Dataset

MOST_IMAGES = 256

# Statuses of /v1 for an image that is damaged, or too large: the next may be right.
_OF_ONE_IMAGE = (400, 413)


@dataclass(frozen=True, slots=True)
class Payload:
    """The requests that are sent.

    Attributes:
        kind: of the answers that are counted.
        timed: requests that are sent in turn.
        labelled: a request for each image of the dataset; none without.
        version: of the model, that will answer.
        dataset: None without labels.
    """

    kind: Literal["images", "requests"]
    timed: list[bytes]
    labelled: list[bytes]
    version: int
    dataset: Dataset | None = None


def image_payload(target: Target, images: Path | None, data: Path | None = None) -> Payload:
    """Read images and labels, and send one image.

    Args:
        target: the model.
        images: their folder; None where they lie beside the labels.
        data: labels, as `read_dataset` takes them.

    Raises:
        InvalidOption: there are no images, or the labels cannot be read.
        NotFound: the server has no such model.
        InvalidImage: it takes none of the images.
        Unavailable: it does not answer, or refuses.
    """
    if data is None:
        assert images is not None, "images or labels are given"
        bodies = [file.read_bytes() for file in image_files(images, MOST_IMAGES)]
        version = _answering(target, bodies)
        return Payload("images", image_requests(target, bodies), [], version)
    from fovea_engines.evaluate.accuracy.dataset import read_dataset
    from fovea_engines.evaluate.accuracy.evaluate import EVALUATION

    dataset = read_dataset(data, images)
    bodies = [image.data() for image in dataset.images]
    version = _answering(target, bodies)
    options = {"conf": EVALUATION.conf, "iou": EVALUATION.iou, "max_det": EVALUATION.max_det}
    timed = image_requests(target, bodies[:MOST_IMAGES])
    return Payload("images", timed, image_requests(target, bodies, options), version, dataset)


def tensor_payload(target: Target, shapes: Mapping[str, tuple[int, ...]]) -> Payload:
    """Make tensors that fit the model; raises as `tensor_request` and `Target.metadata`."""
    metadata = target.metadata()
    version = target.version or max(map(int, metadata["versions"]))
    return Payload("requests", [tensor_request(target, metadata, shapes)], [], version)


def _answering(target: Target, bodies: Sequence[bytes]) -> int:
    """Send images until one is answered, so that a mistake is an error and no measurement.

    Returns the version that answers.
    """
    failure = ""
    with Client(target.url) as client:
        for body in bodies:
            try:
                return int(client.predict(target.model, body, version=target.version).version)
            except ServerError as error:
                failure = error.message
                if error.code == NotFound.code:
                    raise NotFound(f"{target.url}: {failure}") from None
                if error.status not in _OF_ONE_IMAGE:
                    raise Unavailable(f"{target.url}: {failure}") from None
            except FoveaClientError as error:
                raise Unavailable(str(error)) from None
    raise InvalidImage(f"{target.url} takes none of the images: {failure}")
