"""Data drift: compares live images with the images that a build of the model used."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from weakref import WeakKeyDictionary

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from starlette.concurrency import run_in_threadpool

from fovea_engines.repository.card import Baseline, Distribution, Floats, Found, select_values
from fovea_engines.results.class_names import class_name
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError, NotFound
from fovea_preprocess.image import brightness
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import Prediction
from fovea_server.feature import Feature
from fovea_server.http.v1.dependencies import ModelName, require_access
from fovea_server.http.v1.openapi import describe_route
from fovea_server.models.model import ServedModel
from fovea_server.observability.histogram import Family
from fovea_server.tensors.messages import ImageResult, SentImage

IMAGES = 500
"""Number of live images in the window of a model; older images are dropped."""

_EVERY_S = 0.25
# Shortest pause after measuring the brightness of an image, as a multiple of the time that the
# measurement took. So the measurements take at most 1/50 of a core.
_REST = 49


class LiveWindow:
    """The last images of a model version: their results, and the brightness of some of them.

    Attributes:
        baseline: distributions of values over the images that the build used.
        found: values of the last results, such as class ids and scores; append to it on the event
            loop only.
        next_look: value of `time.monotonic()` from which the brightness of another image may be
            measured.
        left_out: number of images that are left out, because their requests changed options that
            affect the results.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.found: deque[Found] = deque(maxlen=IMAGES)
        self.next_look = 0.0
        self.left_out = 0
        self._brightness: deque[float] = deque(maxlen=IMAGES)

    def look(self, image: SentImage) -> None:
        """Measure the brightness of an image, and add it to the window.

        Call this function in a thread. Before the call, set `next_look` to infinity, so that only
        one measurement runs at a time.
        """
        began = time.monotonic()
        try:
            self._brightness.append(brightness(image))
        except FoveaError:
            pass  # the image exceeds the default limits; the server's limits may be higher
        finally:
            ended = time.monotonic()
            self.next_look = ended + max(_EVERY_S, _REST * (ended - began))

    def count(self) -> dict[str, Floats]:
        """Return the number of live images in each bin of the baseline, by quantity."""
        return self.baseline.count(list(self.found), list(self._brightness))


_BIN: JsonDict = {"bin": "person", "expected": 0.54, "live": 0.28}
_QUANTITY: JsonDict = {"quantity": "classes", "distance": 0.31, "images": 412, "bins": [_BIN]}
_REPORT: JsonDict = {
    **{"model": "yolov8n", "version": "1", "window": IMAGES, "left_out": 0},
    **{"images": 256, "images_from": "val2017", "quantities": [_QUANTITY]},
}


class DriftBin(BaseModel):
    """A bin of a quantity, and the share of the images in it."""

    bin: str
    expected: float = Field(description="fraction of the build's images, 0 to 1")
    live: float = Field(description="fraction of the live images, 0 to 1")


class DriftQuantity(BaseModel):
    """The distributions of one quantity in live images and in the build's images."""

    quantity: str = Field(description="scores, classes, sizes, objects or brightness")
    distance: float | None = Field(
        description=(
            "population stability index minus the part explained by chance; .25 or more means "
            "drift; null with fewer than 20 images"
        )
    )
    images: int = Field(description="number of live images with a value")
    bins: list[DriftBin]


class DriftReport(BaseModel):
    """The comparison of a model's last images with the images of its build."""

    model_config = ConfigDict(json_schema_extra={"examples": [_REPORT]})

    model: str
    version: str
    window: int = Field(description="number of the newest live images that are compared")
    left_out: int = Field(
        description=(
            "number of images that are not compared, because the options of their request "
            "change the results"
        )
    )
    images: int = Field(description="number of images of the build")
    images_from: str = Field(description="name of the directory with the build's images")
    quantities: list[DriftQuantity]


_USUAL = PredictOptions()
# Options that affect which objects a model returns. Requests that change one of these options are
# excluded.
_choosing = attrgetter("iou", "classes", "max_det", "agnostic", "labels", "tile")
_CHOSEN = _choosing(_USUAL)
# Number of pixels above which an image is not decoded for its brightness: the server's memory
# budget does not cover that decoding.
_MAX_PIXELS = 24_000_000


class Drift(Feature):
    """Collects values from the last results of each model version; compares them on request.

    For each result, it only appends values to a window, because `observe` runs on the event loop.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._windows: WeakKeyDictionary[ServedModel, LiveWindow | None] = WeakKeyDictionary()

    def router(self) -> APIRouter:
        """Make the route of the report."""
        return _drift_routes(self)

    def observe(
        self, model: ServedModel, images: Sequence[SentImage | FoveaError], prediction: Prediction
    ) -> None:
        """Add the images of a response to the window of their model."""
        try:
            window = self._windows[model]
        except KeyError:
            window = self._begin(model)
        if window is None:
            return
        options = prediction.options
        usual = options.conf <= _USUAL.conf and _choosing(options) == _CHOSEN
        if not usual:
            window.left_out += len(images)
        for image, result in zip(images, prediction.images, strict=True):
            if isinstance(image, FoveaError) or not isinstance(result, ImageResult):
                continue
            pixels = result.width * result.height
            if usual and (found := select_values(result.found, pixels)):
                window.found.append(found)
            if time.monotonic() >= window.next_look and pixels <= _MAX_PIXELS:
                window.next_look = math.inf
                asyncio.get_running_loop().call_soon(self._look_in_thread, window, image)

    def window(self, name: str) -> tuple[ServedModel, LiveWindow]:
        """Return the current version of a model, and its window; call it on the event loop.

        Raises:
            NotFound: the model does not exist, or its card has no distributions to compare with.
            ModelNotReady: the model cannot respond now.
        """
        model = self._models.get(name, None)
        # A version that is not loaded has no card. In this case, `scheduler` raises ModelNotReady.
        _ = model.scheduler
        if (window := self._windows.get(model) or self._begin(model)) is None:
            raise NotFound(
                f"version {model.version} of model '{name}' has no figures of build images to "
                "compare with: build it again with at least 50 of your own images (--images, "
                "--calibration or --data)"
            )
        return model, window

    def families(self) -> Iterable[Family]:
        """Return the metrics of all windows."""
        drift = Family(
            "fovea_drift", "gauge", "Population stability index of live images and the build's"
        )
        images = Family("fovea_drift_images", "gauge", "Live images that are compared")
        for model in self._models:
            if (window := self._windows.get(model)) is None:
                continue
            for name, live in window.count().items():
                labels = {"model": model.name, "version": str(model.version), "quantity": name}
                images.add(labels, round(float(live.sum())))
                if (distance := window.baseline.quantities[name].distance(live)) is not None:
                    drift.add(labels, round(distance, 4))
        return drift, images

    def _begin(self, model: ServedModel) -> LiveWindow | None:
        engine = model.engine
        # The engine of a pipeline is the engine of its first model. The build of that model used
        # other images than the pipeline gets, so a pipeline has no baseline.
        baseline = None if engine is None or model.config.composing else engine.card.baseline
        window = self._windows[model] = None if baseline is None else LiveWindow(baseline)
        return window

    def _look_in_thread(self, window: LiveWindow, image: SentImage) -> None:
        asyncio.get_running_loop().run_in_executor(None, window.look, image)


def _drift_routes(watch: Drift) -> APIRouter:
    router = APIRouter(tags=["models"], dependencies=[require_access("statistics")])

    @router.get(
        "/v1/models/{name}/drift", **describe_route("model_drift", DriftReport, 403, 404, 503)
    )
    async def model_drift(name: ModelName) -> DriftReport:
        """Compare the last images of a model with the images of its build."""
        return await run_in_threadpool(_drift_report, *watch.window(name))

    return router


def _drift_report(model: ServedModel, window: LiveWindow) -> DriftReport:
    """Compute the report; this takes milliseconds."""
    labels = None if model.engine is None else model.engine.labels
    live = window.count()
    baseline = window.baseline
    quantities = [
        DriftQuantity(
            quantity=name,
            distance=None if (far := each.distance(live[name])) is None else round(far, 4),
            images=round(float(live[name].sum())),
            bins=[
                DriftBin(bin=bin_name, expected=round(want, 4), live=round(have, 4))
                for bin_name, want, have in zip(
                    _bin_names(name, each, labels),
                    (count / sum(each.counts) for count in each.counts),
                    (live[name] / max(1.0, live[name].sum())).tolist(),
                    strict=True,
                )
                if want or have
            ],
        )
        for name, each in baseline.quantities.items()
    ]
    return DriftReport(
        model=model.name,
        version=str(model.version),
        window=IMAGES,
        left_out=window.left_out,
        images=baseline.images,
        images_from=baseline.images_from,
        quantities=quantities,
    )


def _bin_names(quantity: str, of: Distribution, labels: tuple[str, ...] | None) -> list[str]:
    if of.exact:
        return [*(class_name(labels, int(each)) for each in of.edges), "others"]
    if quantity == "objects":
        edges = [int(each) for each in of.edges[:-1]]
        last = int(of.edges[-1])
        pairs = pairwise([*edges, last + 1])
        between = [str(a) if a + 1 == b else f"{a} to {b - 1}" for a, b in pairs]
        under = "none" if edges[0] <= 1 else f"under {edges[0]}"
        return [under, *between, f"over {last}"]
    shown = [f"{each:.3g}" for each in of.edges]
    between = [f"{a} to {b}" for a, b in pairwise(shown)]
    return [f"under {shown[0]}", *between, f"over {shown[-1]}"]
