"""The directory of captures: one directory per image; the oldest captures are deleted for new ones.

    DIR/MODEL/DAY/TIME-SERVER-NUMBER-BYTES/    image.jpg  predictions.json

A capture is written to a temporary directory, which is then renamed, so that a capture is complete
even if the server crashes. Its name contains its size, so that captures are listed without opening
a file.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import simplejpeg
from numpy.typing import NDArray

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.registry import reading
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import NotFound
from fovea_preprocess.image import DecodedImage, decode_image
from fovea_server.dataplane.prediction import Prediction
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.coco import FILE, write_coco
from fovea_server.offline.formats.registry import FINDS_NO_OBJECTS
from fovea_server.offline.predictors import ModelInfo
from fovea_server.offline.sources import Source
from fovea_server.tensors.messages import ImageResult, SentImage

_QUALITY = 95
_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"RI": ".webp", b"BM": ".bmp"}

_ABOUT = "predictions.json"
_WRITING = ".writing-"
DAMAGED = "damaged"
_DAMAGED = {"version": "-", "task": DAMAGED, "rule": DAMAGED, "request_id": ""}
_NAME = re.compile(r"(?P<time>\d{8}T\d{6}\.\d{6})Z-[0-9a-f]{8}-\d+-(?P<bytes>\d+)")
_TIME = "%Y%m%dT%H%M%S.%f"
# An unfinished capture that is older than this many seconds belongs to a server that was killed.
_ABANDONED_S = 600
# Fraction of the size limit that a server writes before it lists the directory again. A listing
# shows the captures of other servers that use the same directory.
_LOOK_AGAIN = 1 / 400


@dataclass(frozen=True, slots=True)
class Record:
    """An image with its result and the rule that it matched.

    Attributes:
        of: prediction with the results of all images of the request.
        image: the image as the client sent it.
        result: result of `image`.
        rule: text of the rule that the image matched.
        request_id: id of the request.
        began: time of the response.
        blur: name of a model; the objects that it detects are blurred in the stored image. None for
            no blurring.
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
        """Name of the model."""
        return self.of.model

    @property
    def held(self) -> int:
        """Memory in bytes that the record takes until it is written."""
        found = self.result.found
        arrays = sum(each.nbytes for each in found.arrays) if found is not None else 0
        image = self.image
        return arrays + (image.pixels.nbytes if isinstance(image, DecodedImage) else len(image))

    def upright(self) -> NDArray[np.uint8]:
        """Return the pixels of the upright image, uint8 [h, w, 3], RGB."""
        return _decode(self.image).pixels

    def write(self, folder: Path, blurred: NDArray[np.uint8] | None = None) -> None:
        """Write the files of a capture; if `blurred` pixels are given, they replace the image.

        Encoded images are stored unchanged, unless EXIF rotates them. Images that EXIF rotates are
        stored as upright JPEG files, because some programs that read images and labels ignore EXIF.
        Pixels are stored as JPEG files.
        """
        if blurred is not None:
            image, suffix = _jpeg(blurred), ".jpg"
        elif isinstance(self.image, DecodedImage) or self.result.orientation != 1:
            image, suffix = _jpeg(self.upright()), ".jpg"
        else:
            image, suffix = bytes(self.image), _SUFFIXES.get(bytes(self.image[:2]), ".img")
        name = f"image{suffix}"
        found, vocabulary = self.result.found, self.of.vocabulary
        size = {"width": self.result.width, "height": self.result.height}
        json_ = {} if found is None else found.to_json(vocabulary, PredictOptions(mask="rle"))
        for each in json_.get("detections", ()) if blurred is not None else ():
            # Recognised text and embeddings can identify a person or thing, so they are removed
            # from captures that are blurred.
            each.pop("text", None)
            each.pop("embedding", None)
        result = size | {"orientation": 1} | json_
        skeleton = vocabulary.skeleton
        about = {
            "model": self.model,
            "version": str(self.of.version),
            "task": self.of.task,
            "rule": self.rule,
            "request_id": self.request_id,
            "taken": self.began.astimezone(UTC).isoformat(),
            "labels": vocabulary.labels,
            "skeleton": skeleton and {"names": skeleton.names, "bones": skeleton.bones},
            "result": result,
        }
        (folder / name).write_bytes(image)
        # The result and all metadata are in one file, because writing a second file would take
        # longer than making this one.
        if self.of.task in (*FINDS_NO_OBJECTS, "tensors"):
            (folder / FILE).write_bytes(orjson.dumps({"info": about}))
        else:
            entry = entry_of(folder / name, about)
            write_coco([entry], [entry.source], read_model(about), folder, about)


def read_model(about: Mapping[str, Any]) -> ModelInfo:
    """Return the model of a capture from its metadata.

    Raises:
        InvalidResult: the metadata is damaged.
    """
    with reading():
        labels, skeleton = about["labels"], Skeleton.from_json(about["skeleton"])
        vocabulary = Vocabulary(labels and tuple(map(str, labels)), skeleton)
        return ModelInfo(about["model"], about["version"], about["task"], vocabulary)


def entry_of(image: Path, about: Mapping[str, Any], name: str | None = None) -> Entry:
    """Return the result of a capture as an entry, from which dataset formats are written.

    Args:
        image: file of the image.
        about: metadata of the capture.
        name: name of the image in the data set; by default the name of the file.

    Raises:
        InvalidResult: the metadata is damaged.
    """
    name = name or image.name
    vocabulary = read_model(about).vocabulary
    with reading():
        result = Result(dict(about["result"]), vocabulary)
    return Entry(Source(image, name, Path(name).stem, 1), None, result, None)


def _decode(image: SentImage) -> DecodedImage:
    return image if isinstance(image, DecodedImage) else decode_image(image)


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=_QUALITY, colorspace="RGB", colorsubsampling="420"
    )
    return data


@dataclass(frozen=True, slots=True)
class StoredCapture:
    """A stored capture.

    Attributes:
        folder: directory of the capture.
        taken: time of the capture, UTC.
        size: size of its files in bytes.
    """

    folder: Path
    taken: datetime
    size: int

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.folder.parent.parent.name

    def about(self) -> dict[str, Any]:
        """Read the metadata: model, version, rule, request id, and result.

        If the file is damaged, for example after a power failure, return placeholders.
        """
        try:
            about: dict[str, Any] = json.loads((self.folder / _ABOUT).read_bytes())["info"]
            if all(isinstance(about[name], str) for name in _DAMAGED):
                return about
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        return dict(_DAMAGED)

    def image(self) -> Path:
        """Return the path of the image.

        Raises:
            NotFound: the image is gone.
        """
        if (image := next(self.folder.glob("image.*"), None)) is None:
            raise NotFound(f"{self.folder} has no image: delete this folder")
        return image

    def remove(self) -> None:
        """Delete the capture; do nothing if another server deletes it at the same time."""
        shutil.rmtree(self.folder, ignore_errors=True)


class CaptureStore:
    """Writes captures, and deletes old captures to stay within limits of size and age.

    Args:
        folder: directory of all captures; the first capture creates it.
        most_bytes: largest total size of all captures, in bytes.
        days: age in days after which a capture is deleted.
    """

    def __init__(self, folder: Path, most_bytes: int, days: float) -> None:
        self.folder, self._most, self._days = folder, most_bytes, days
        self._server = secrets.token_hex(4)
        self._numbers = count(1)
        self._kept: list[StoredCapture] = []
        self.bytes = 0
        self._until_look = 0

    def add(self, model: str, write: Callable[[Path], None]) -> None:
        """Add a capture; `write` gets a directory, and writes the files of the capture there.

        Raises:
            OSError: the files cannot be written, or the capture is larger than the limit for all
                captures.
            Exception: `write` raised it.
        """
        beside = self.folder / f"{_WRITING}{self._server}"
        beside.mkdir(parents=True, exist_ok=True)
        # Other users of the machine must not see the images of clients.
        beside.chmod(0o700)
        try:
            write(beside)
            for file in beside.iterdir():
                file.chmod(0o600)
            size = sum(each.stat().st_size for each in beside.iterdir())
            if size > self._most:
                raise OSError(
                    f"a capture of {size} bytes exceeds the limit for all captures together"
                )
            self._make_room(size)
            taken = datetime.now(UTC)
            name = f"{taken.strftime(_TIME)}Z-{self._server}-{next(self._numbers)}-{size}"
            place = self.folder / model / taken.strftime("%Y-%m-%d") / name
            place.parent.mkdir(parents=True, exist_ok=True)
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self._kept.append(StoredCapture(place, taken, size))
        self.bytes += size
        self._until_look -= size

    def look(self) -> None:
        """List the captures in the directory, including captures that other servers wrote.

        Raises:
            OSError: the directory cannot be read or written.
        """
        there = next(each for each in (self.folder, *self.folder.parents) if each.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise OSError(f"{there} is not a folder that this user can write to")
        self._kept = sorted(captures(self.folder), key=lambda each: each.folder.name)
        self.bytes = sum(each.size for each in self._kept)
        self._until_look = int(self._most * _LOOK_AGAIN)

    def _make_room(self, size: int) -> None:
        """Delete captures that are too old, and the oldest ones until `size` more bytes fit."""
        if self._until_look <= 0:
            self.look()
            _sweep(self.folder, self._server)
        oldest = datetime.now(UTC) - timedelta(days=self._days)
        leaving = 0
        for each in self._kept:
            if each.taken >= oldest and self.bytes + size <= self._most:
                break
            each.remove()
            self.bytes -= each.size
            leaving += 1
        del self._kept[:leaving]


def captures(folder: Path, model: str | None = None) -> Iterator[StoredCapture]:
    """Yield the captures in a directory, in any order; a missing directory contains no captures.

    Args:
        folder: directory of all captures.
        model: name of a model; None for all models.

    Raises:
        NotFound: the model has no captures.
    """
    models = _folders(folder)
    chosen = [each for each in models if model is None or each.name == model]
    if model is not None and not chosen:
        have = ", ".join(sorted(each.name for each in models)) or "none"
        raise NotFound(
            f"{folder} has no captured images of model '{model}'; models with images: {have}"
        )
    for of_model in chosen:
        for day in _folders(of_model):
            for each in _folders(day):
                if found := _NAME.fullmatch(each.name):
                    with suppress(ValueError):  # the name contains no valid date
                        taken = datetime.strptime(found["time"], _TIME).replace(tzinfo=UTC)
                        yield StoredCapture(each, taken, int(found["bytes"]))


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                Path(each) for each in entries if each.is_dir() and not each.name.startswith(".")
            ]
    except FileNotFoundError:
        return []


def _sweep(folder: Path, own: str) -> None:
    """Delete unfinished captures of killed servers, and empty directories of past days."""
    for beside in folder.glob(f"{_WRITING}*"):
        if beside.name != f"{_WRITING}{own}" and _age_s(beside) > _ABANDONED_S:
            shutil.rmtree(beside, ignore_errors=True)
    for model in _folders(folder):
        for day in _folders(model):
            if day.name != datetime.now(UTC).strftime("%Y-%m-%d"):
                try:
                    day.rmdir()
                except OSError:
                    continue


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
