"""One image to keep: what is written of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import simplejpeg
from numpy.typing import NDArray

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.image import DecodedImage, decode_image
from fovea_server.dataplane.prediction import Prediction
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.coco import FILE, write_coco
from fovea_server.offline.formats.registry import FINDS_NO_OBJECTS
from fovea_server.offline.predictors import Predicting
from fovea_server.offline.sources import Source
from fovea_server.tensors.image_messages import ImageResult, SentImage

_QUALITY = 95
_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"RI": ".webp", b"BM": ".bmp"}


@dataclass(frozen=True, slots=True)
class Record:
    """An image that was answered, its answer, and the rule that takes it.

    Attributes:
        of: the answer to all images of its request.
        image: as it was sent.
        began: when it was answered.
        blur: the model whose objects are not to be seen on what is kept; None for none.
    """

    of: Prediction
    image: SentImage
    result: ImageResult
    rule: str
    request_id: str
    began: datetime
    blur: str | None

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.of.model

    @property
    def held(self) -> int:
        """Return the bytes that it keeps in memory until it is written."""
        found = self.result.found
        arrays = sum(each.nbytes for each in found.arrays) if found is not None else 0
        image = self.image
        return arrays + (image.pixels.nbytes if isinstance(image, DecodedImage) else len(image))

    def upright(self) -> NDArray[np.uint8]:
        """Return the pixels of the upright image, RGB [h, w, 3]."""
        return _decoded(self.image).pixels

    def write(self, folder: Path, blurred: NDArray[np.uint8] | None = None) -> None:
        """Write its files into a folder, with other pixels than those that were sent, if given.

        Bytes that were sent are kept as they are, unless they lie on their side: not all that
        reads images, and labels of them, turns them.
        """
        if blurred is not None:
            image, suffix = _jpeg(blurred), ".jpg"
        elif isinstance(self.image, DecodedImage) or self.result.orientation != 1:
            image, suffix = _jpeg(self.upright()), ".jpg"
        else:
            image, suffix = bytes(self.image), _SUFFIXES.get(bytes(self.image[:2]), ".img")
        name = f"image{suffix}"
        found, words = self.result.found, self.of.words
        size = {"width": self.result.width, "height": self.result.height}
        json_ = {} if found is None else found.to_json(words, PredictOptions(mask="rle"))
        for each in json_.get("detections", ()) if blurred is not None else ():
            # They tell who it is, as the pixels do.
            each.pop("text", None)
            each.pop("embedding", None)
        result = size | {"orientation": 1} | json_
        skeleton = words.skeleton
        about = {
            "model": self.model,
            "version": str(self.of.version),
            "task": self.of.task,
            "rule": self.rule,
            "request_id": self.request_id,
            "taken": self.began.astimezone(UTC).isoformat(),
            "labels": words.labels,
            "skeleton": skeleton and {"names": skeleton.names, "bones": skeleton.bones},
            "result": result,
        }
        (folder / name).write_bytes(image)
        # One file: to make another costs more than all that is computed here.
        if self.of.task in (*FINDS_NO_OBJECTS, "tensors"):
            (folder / FILE).write_bytes(orjson.dumps({"info": about}))
        else:
            entry = entry_of(folder / name, about)
            write_coco([entry], [entry.source], predicting(about), folder, about)


def predicting(about: Mapping[str, Any]) -> Predicting:
    """Return the model of a capture, by what its file says."""
    labels = about["labels"]
    words = Vocabulary(labels and tuple(labels), Skeleton.from_json(about["skeleton"]))
    return Predicting(about["model"], about["version"], about["task"], words)


def entry_of(image: Path, about: Mapping[str, Any], name: str | None = None) -> Entry:
    """Return the result of a capture, as the formats of results take it, under another name."""
    name = name or image.name
    return Entry(Source(image, name, Path(name).stem, 1), None, Result(about["result"]), None)


def _decoded(image: SentImage) -> DecodedImage:
    return image if isinstance(image, DecodedImage) else decode_image(image)


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=_QUALITY, colorspace="RGB", colorsubsampling="420"
    )
    return data
