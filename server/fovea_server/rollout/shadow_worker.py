"""The process of a candidate: `python -m fovea_server.rollout.shadow_worker DESCRIPTOR`.

The process uses only idle CPU time. If it crashes, the server continues.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection
from typing import NoReturn

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.drawing.drawing import add_caption, draw, encode
from fovea_engines.engine import Engine
from fovea_engines.results.task_result import TaskResult
from fovea_preprocess.errors import FoveaError, InvalidOption, ModelNotReady
from fovea_preprocess.image import DecodedImage, decode_image
from fovea_server.models.model import ServedModel, State
from fovea_server.models.source import Source
from fovea_server.rollout.shadow_compare import compare
from fovea_server.rollout.shadow_counts import ShadowCounts
from fovea_server.rollout.shadow_report import LiveImage, ShadowCandidate, ShadowProgress

# Shortest time in seconds between two reports.
_EVERY_S = 0.5
_LONGEST = 1024
_NICEST = 19


def main(descriptor: int) -> None:
    """Open the candidate, and compare images until the server closes the connection.

    `descriptor` is the file descriptor of a connection to the server. The first reply is the reason
    why the candidate cannot be compared; it is empty if the candidate can be compared.
    """
    _be_idle()
    cv2.setNumThreads(1)
    with Connection(descriptor) as server:
        candidate: ShadowCandidate = server.recv()
        try:
            engine = _open(candidate)
        except FoveaError as error:
            server.send(str(error))
            return
        server.send("")
        comparison = _Comparison(candidate, engine)
        while True:
            server.send(comparison.answer(server.recv()))


def _be_idle() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or a sandbox forbids it
        os.nice(_NICEST)


def _open(candidate: ShadowCandidate) -> Engine:
    """Open the version as a server does.

    Raises:
        ModelNotReady: the version cannot be loaded.
        InvalidOption: the task or the classes of the candidate differ from the live version.
    """
    settings = candidate.settings.model_copy(update={"threads": 1, "rebuild": False})
    source = Source.read(candidate.folder, candidate.model, settings)
    folder = candidate.folder / str(candidate.version)
    model = ServedModel(candidate.version, folder, settings, source.config, _no_others)
    model.load(rebuild=False)
    if model.state is not State.READY or model.engine is None:
        raise ModelNotReady(f"version {candidate.version} failed to load: {model.reason}")
    if model.task != candidate.task:
        raise InvalidOption(
            f"version {candidate.version} has the task {model.task}, but version "
            f"{candidate.against} has the task {candidate.task}, so they cannot be compared"
        )
    if (labels := model.engine.labels) != candidate.vocabulary.labels:
        raise InvalidOption(
            f"version {candidate.version} has different classes than version {candidate.against}: "
            f"{_difference(candidate.vocabulary.labels or (), labels or ())}"
        )
    return model.engine


def _no_others(name: str, version: int | None) -> NoReturn:
    raise ModelNotReady(
        f"the candidate runs the model {name}, but a candidate must be a single model"
    )


def _difference(live: tuple[str, ...], candidate: tuple[str, ...]) -> str:
    if len(live) != len(candidate):
        return f"{len(candidate)} classes instead of {len(live)}"
    at = next(i for i, pair in enumerate(zip(live, candidate, strict=True)) if len(set(pair)) > 1)
    return f"class {at} is {candidate[at]!r} instead of {live[at]!r}"


class _Comparison:
    def __init__(self, candidate: ShadowCandidate, engine: Engine) -> None:
        self._candidate, self._engine = candidate, engine
        self._figures = ShadowCounts(candidate.vocabulary.labels)
        self._pictures: dict[str, bytes] = {}
        self._number = 0
        self._reported = time.monotonic()

    def answer(self, image: LiveImage | None) -> ShadowProgress:
        if image is not None:
            try:
                self._compare(image)
            except FoveaError as error:
                self._figures.fail(str(error))
            if time.monotonic() - self._reported < _EVERY_S:
                return ShadowProgress()
        self._reported = time.monotonic()
        report, pictures = self._figures.report(), self._pictures
        self._pictures = {}
        return ShadowProgress(report, pictures)

    def _compare(self, live: LiveImage) -> None:
        image = live.image
        pixels = (image if isinstance(image, DecodedImage) else decode_image(image)).pixels
        found = self._engine.predict(pixels, live.options)
        compared = compare(live.found, found, live.options)
        self._figures.add(compared)
        if live.keep and self._figures.is_worst(compared):
            self._number += 1
            name = f"{self._number}.jpg"
            self._pictures[name] = self._draw(pixels, live.found, found)
            self._figures.keep(compared, self._number, name, live.request_id)

    def _draw(self, pixels: NDArray[np.uint8], live: TaskResult, candidate: TaskResult) -> bytes:
        """Draw both results side by side, and return a JPEG."""
        words = self._candidate.vocabulary
        versions = self._candidate.against, self._candidate.version
        panes = [
            add_caption(_shrunk(draw(found, pixels, words)), f"{who} {number}")
            for found, who, number in zip(
                (live, candidate), ("live: version", "candidate: version"), versions, strict=True
            )
        ]
        # The image that an image-to-image model generates may have another size than its input.
        height = max(pane.shape[0] for pane in panes)
        return encode(
            np.concatenate(
                [np.pad(pane, ((0, height - pane.shape[0]), (0, 0), (0, 0))) for pane in panes], 1
            ),
            "image/jpeg",
        )


def _shrunk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    scale = _LONGEST / max(pixels.shape[:2])
    if scale >= 1:
        return pixels
    size = [max(1, round(side * scale)) for side in pixels.shape[1::-1]]
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The server has ended, or has ended the shadow.
        sys.exit(0)
