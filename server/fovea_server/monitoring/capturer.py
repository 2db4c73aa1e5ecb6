"""Stores the images that capture rules choose, without delaying requests."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError, InferenceFailed
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import Prediction
from fovea_server.feature import Feature
from fovea_server.models.config.capture_rules import CaptureRules, read_rules
from fovea_server.models.model import ServedModel
from fovea_server.monitoring.captures import CaptureStore, Record
from fovea_server.observability.histogram import Family
from fovea_server.tensors.messages import ImageRequest, ImageResult, SentImage
from fovea_server.traffic.call import CALL, may_keep

log = logging.getLogger(__name__)

_HELD = 64 << 20
_WARN_EVERY_S = 60.0
_BLUR_S = 30.0
# Shortest time in seconds between two listings of the capture directory, to which other servers
# also write, and shortest pause after a listing, as a multiple of the listing's duration. Because
# of the pause, listings take less than 1 % of the time.
_LOOK_EVERY_S, _REST = 10.0, 100
# How a detected object is blurred: the number of blocks along the longer side of its box, and the
# margin around the box, as a fraction of its size.
_BLOCKS = 6
_AROUND = 0.1
_REASONS = ("slow disk", "disk", "image", "blur")


class Capture(Feature):
    """Applies the capture rules to every result, and writes the chosen images in a thread.

    Images that the disk does not accept in time are dropped and counted, so requests never wait.
    """

    def __init__(self, models: Models, store: CaptureStore, usual: tuple[str, ...]) -> None:
        self._models, self._store, self._usual = models, store, usual
        self._rules: WeakKeyDictionary[ServedModel, CaptureRules | None] = WeakKeyDictionary()
        self._taken: dict[str, tuple[int, int]] = {}
        self._waiting: deque[Record] = deque()
        self._held = 0
        self._change = threading.Condition()
        self._ending = False
        self._written: Counter[tuple[str, str]] = Counter()
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._warned = -_WARN_EVERY_S
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._write_all, name="capture", daemon=True)

    async def start(self) -> None:
        """Start the thread that writes."""
        rules = ", ".join(self._usual) or "those in the fovea.toml of each model"
        log.info("captured images are stored in %s; rules: %s", self._store.folder, rules)
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Write the waiting images, and end the thread."""
        with self._change:
            self._ending = True
            self._change.notify()
        await asyncio.to_thread(self._thread.join, 10.0)

    def observe(
        self, model: ServedModel, images: Sequence[SentImage | FoveaError], prediction: Prediction
    ) -> None:
        """Queue the images that match a rule, if the thread that writes them runs."""
        # The thread does not run in commands that use this class without a server.
        if not self._thread.is_alive():
            return
        if (rules := self._rules_of(model)) is None or not rules.rules:
            return
        call = CALL.get()
        if not may_keep(call):
            return
        for image, result in zip(images, prediction.images, strict=True):
            if isinstance(image, FoveaError) or not isinstance(result, ImageResult):
                continue
            if (found := result.found) is None:
                continue
            rule = next(
                (one for one in rules.rules if one.takes(found, prediction.vocabulary)), None
            )
            if rule is None or not self._is_within_rate(model.name, rules.per_minute):
                continue
            request_id, now = "" if call is None else call.id, datetime.now(UTC)
            one = Record(prediction, image, result, rule.text, request_id, now, rules.blur)
            self._queue(one)

    def families(self) -> Iterable[Family]:
        """Return the metrics of captures."""
        written = Family("fovea_captures_total", "counter", "Captured images")
        for (model, rule), number in self._written.items():
            written.add({"model": model, "rule": rule}, number)
        dropped = Family(
            "fovea_captures_dropped_total",
            "counter",
            "Images that a rule chose and that could not be stored",
        )
        for model in sorted({each.name for each in self._rules}):
            for reason in _REASONS:
                dropped.add({"model": model, "reason": reason}, self._dropped[model, reason])
        held = Family("fovea_capture_bytes", "gauge", "Bytes of the captured images")
        held.add({}, self._store.bytes)
        return written, dropped, held

    def _rules_of(self, model: ServedModel) -> CaptureRules | None:
        if model not in self._rules:
            try:
                self._rules[model] = read_rules(model.folder.parent, self._usual)
            except FoveaError as error:
                log.warning("no image of model %r is captured: %s", model.name, error)
                self._rules[model] = None
        return self._rules[model]

    def _is_within_rate(self, model: str, most: int) -> bool:
        minute = int(time.monotonic() // 60)
        began, number = self._taken.get(model, (minute, 0))
        number = number if began == minute else 0
        self._taken[model] = minute, number + 1
        return number < most

    def _queue(self, record: Record) -> None:
        with self._change:
            if self._held + record.held > _HELD and self._waiting:
                self._dropped[record.model, "slow disk"] += 1
                return
            self._held += record.held
            self._waiting.append(record)
            self._change.notify()

    def _write_all(self) -> None:
        next_look = 0.0
        while not (self._ending and not self._waiting):
            if (began := time.monotonic()) >= next_look:
                self._look()
                next_look = began + max(_LOOK_EVERY_S, _REST * (time.monotonic() - began))
            with self._change:
                if not self._change.wait_for(lambda: self._waiting or self._ending, _LOOK_EVERY_S):
                    continue
                record = self._waiting.popleft() if self._waiting else None
            if record is not None:
                self._write(record)
                with self._change:
                    self._held -= record.held

    def _look(self) -> None:
        try:
            self._store.look()
        except OSError as error:
            self._warn("images cannot be captured for now: %s", error)

    def _write(self, record: Record) -> None:
        try:
            blurred = None if record.blur is None else self._blur(record, record.blur)
            self._store.add(record.model, lambda folder: record.write(folder, blurred))
            self._written[record.model, record.rule] += 1
        except OSError as error:
            self._drop(record, "disk", error)
        except (FoveaError, TimeoutError, ValueError) as error:
            self._drop(record, "blur" if record.blur else "image", error)
        except Exception as error:  # one image must not end the thread
            log.exception("an image could not be written")
            self._drop(record, "image", error)

    def _drop(self, record: Record, reason: str, error: Exception) -> None:
        self._dropped[record.model, reason] += 1
        self._warn(f"an image of model {record.model!r} was not captured: %s", error)

    def _warn(self, text: str, error: Exception) -> None:
        if time.monotonic() - self._warned >= _WARN_EVERY_S:
            self._warned = time.monotonic()
            log.warning(text, error)

    def _blur(self, record: Record, blur: str) -> NDArray[np.uint8]:
        """Return the image with coarse blocks in place of objects that the model `blur` detects."""
        model = self._models.get(blur)
        if (engine := model.engine) is None or engine.preprocessor is None:
            raise InferenceFailed(
                f"the model '{blur}', set as blur in fovea.toml, does not accept images"
            )
        request = ImageRequest([record.image], engine.resolve(PredictOptions()))
        prediction = model.scheduler.predict(request)
        [result] = asyncio.run_coroutine_threadsafe(prediction, self._loop).result(_BLUR_S)
        if isinstance(result, FoveaError):
            raise result
        if not isinstance(result.found, Detections):
            raise InferenceFailed(
                f"the model '{blur}', set as blur in fovea.toml, does not detect objects"
            )
        pixels = record.upright().copy()
        for box in result.found.boxes:
            _coarsen(pixels, box)
        return pixels


def _coarsen(pixels: NDArray[np.uint8], box: NDArray[np.float32]) -> None:
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = box
    around = np.array((x1 - x2, y1 - y2, x2 - x1, y2 - y1)) * _AROUND
    left, top, right, bottom = np.clip(
        np.rint(box + around), 0, (width, height, width, height)
    ).astype(int)
    part = pixels[top:bottom, left:right]
    if not part.size:
        return
    h, w = part.shape[:2]
    small = max(1, round(_BLOCKS * w / max(w, h))), max(1, round(_BLOCKS * h / max(w, h)))
    coarse = cv2.resize(part, small, interpolation=cv2.INTER_AREA)
    part[:] = cv2.resize(coarse, (w, h), interpolation=cv2.INTER_NEAREST)
