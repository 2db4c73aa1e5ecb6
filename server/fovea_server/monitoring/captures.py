"""The folder of captures: each is a folder of its own, and the oldest make room for new ones.

    DIR/MODEL/DAY/TIME-SERVER-NUMBER-BYTES/    image.jpg  predictions.json

A capture is written beside its place and renamed, so that one that is there is whole, however its
server ended. Its name has its size, so that a look at all of them opens none.
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
# What a server that was killed has left of a capture.
_ABANDONED_S = 600
# Servers in one folder see what the others wrote once each has written this share of the bound.
_LOOK_AGAIN = 1 / 400


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
        return _decode(self.image).pixels

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
        found, vocabulary = self.result.found, self.of.vocabulary
        size = {"width": self.result.width, "height": self.result.height}
        json_ = {} if found is None else found.to_json(vocabulary, PredictOptions(mask="rle"))
        for each in json_.get("detections", ()) if blurred is not None else ():
            # They tell who it is, as the pixels do.
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
        # One file: to make another costs more than all that is computed here.
        if self.of.task in (*FINDS_NO_OBJECTS, "tensors"):
            (folder / FILE).write_bytes(orjson.dumps({"info": about}))
        else:
            entry = entry_of(folder / name, about)
            write_coco([entry], [entry.source], read_model(about), folder, about)


def read_model(about: Mapping[str, Any]) -> ModelInfo:
    """Return the model of a capture, by what its file says; InvalidResult if that is damaged."""
    with reading():
        labels, skeleton = about["labels"], Skeleton.from_json(about["skeleton"])
        vocabulary = Vocabulary(labels and tuple(map(str, labels)), skeleton)
        return ModelInfo(about["model"], about["version"], about["task"], vocabulary)


def entry_of(image: Path, about: Mapping[str, Any], name: str | None = None) -> Entry:
    """Return the result of a capture, as the formats of results take it, under another name.

    InvalidResult: its file is damaged.
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
    """A capture: its folder, when it was taken, and the bytes of its files."""

    folder: Path
    taken: datetime
    size: int

    @property
    def model(self) -> str:
        """Return the name of the model."""
        return self.folder.parent.parent.name

    def about(self) -> dict[str, Any]:
        """Read what is known of it: model, version, rule, request id, and the result.

        Of one that is damaged, as disks leave it that lose power, little is known.
        """
        try:
            about: dict[str, Any] = json.loads((self.folder / _ABOUT).read_bytes())["info"]
            if all(isinstance(about[name], str) for name in _DAMAGED):
                return about
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        return dict(_DAMAGED)

    def image(self) -> Path:
        """Return the file of the image; NotFound if it is gone."""
        if (image := next(self.folder.glob("image.*"), None)) is None:
            raise NotFound(f"{self.folder} has no image: delete it")
        return image

    def remove(self) -> None:
        """Delete it; another server may do the same."""
        shutil.rmtree(self.folder, ignore_errors=True)


class CaptureStore:
    """Writes captures, within a bound of bytes and of age.

    Args:
        folder: of all models; it is made with the first capture.
        most_bytes: of all files of captures together.
        days: after which a capture is deleted.
    """

    def __init__(self, folder: Path, most_bytes: int, days: float) -> None:
        self.folder, self._most, self._days = folder, most_bytes, days
        self._server = secrets.token_hex(4)
        self._numbers = count(1)
        self._kept: list[StoredCapture] = []
        self.bytes = 0
        self._until_look = 0

    def add(self, model: str, write: Callable[[Path], None]) -> None:
        """Add a capture, whose files `write` puts into a folder; raises what it raises, or OSError.

        OSError: the disk does not take it, or it is larger than all may be together.
        """
        beside = self.folder / f"{_WRITING}{self._server}"
        beside.mkdir(parents=True, exist_ok=True)
        # What clients have sent is not for other users of the machine.
        beside.chmod(0o700)
        try:
            write(beside)
            for file in beside.iterdir():
                file.chmod(0o600)
            size = sum(each.stat().st_size for each in beside.iterdir())
            if size > self._most:
                raise OSError(f"a capture of {size} bytes is more than all may have together")
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
        """See which captures are there, also those of other servers; OSError if it cannot.

        So it is where the folder cannot be written to.
        """
        there = next(each for each in (self.folder, *self.folder.parents) if each.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise OSError(f"{there} is no folder that this user may write to")
        self._kept = sorted(captures(self.folder), key=lambda each: each.folder.name)
        self.bytes = sum(each.size for each in self._kept)
        self._until_look = int(self._most * _LOOK_AGAIN)

    def _make_room(self, size: int) -> None:
        """Delete the oldest until one more of this size fits, and those that are too old."""
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
    """Find the captures in a folder, in no order; NotFound if there is no such folder of a model.

    A folder that is not there yet has none.
    """
    models = _folders(folder)
    chosen = [each for each in models if model is None or each.name == model]
    if model is not None and not chosen:
        have = ", ".join(sorted(each.name for each in models)) or "none"
        raise NotFound(f"no captures of a model '{model}' in {folder}; models there: {have}")
    for of_model in chosen:
        for day in _folders(of_model):
            for each in _folders(day):
                if found := _NAME.fullmatch(each.name):
                    with suppress(ValueError):  # no date
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
    """Delete what killed servers began to write, and days without captures."""
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
