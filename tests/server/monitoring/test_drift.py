"""The window of live images, and the brightness of some of them."""

import asyncio

import numpy as np
import pytest
from tests.conftest import DEMO
from tests.crops import crops, jpeg

from fovea_engines.repository.baseline import Distribution, QuantityValues
from fovea_engines.repository.card import Baseline
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import ModelNotReady, NotFound
from fovea_preprocess.image import DecodedImage, brightness, decode_image
from fovea_server.app import build_app
from fovea_server.dataplane.canaries import Canaries
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.decode_limiter import DecodeLimiter
from fovea_server.dataplane.prediction import PredictRequest
from fovea_server.dataplane.tiles import Tiles
from fovea_server.models.opening import image_limits
from fovea_server.monitoring.drift import IMAGES, Drift, LiveWindow, _bin_names
from fovea_server.settings import Settings
from fovea_server.tracking.tracks import Tracks

pytestmark = pytest.mark.slow


def test_darker_images_are_seen_by_their_brightness():
    built = [jpeg(each) for each in crops(0, 60)]
    window = LiveWindow(Baseline.of("crops", [], [brightness(each) for each in built]))
    [of] = window.baseline.quantities.values()
    for each in crops(1, 30):
        window.look(jpeg(each))
    assert of.distance(window.count()["brightness"]) < 0.1
    for each in crops(2, IMAGES, (0.2, 0.3)):
        window.look(jpeg((each * 0.4).astype(np.uint8)))
    live = window.count()["brightness"]
    assert live.sum() == IMAGES
    assert of.distance(live) > 0.25


@pytest.mark.parametrize("kind", [".jpg", ".png", ".webp", ".bmp"])
def test_the_brightness_is_that_of_all_pixels(kind):
    import cv2

    for pixels in (*crops(3, 4), np.full((5, 3, 3), 200, np.uint8)):
        data = cv2.imencode(kind, pixels)[1].tobytes()
        decoded = decode_image(data)
        true = float((decoded.pixels @ np.array((0.299, 0.587, 0.114))).mean()) / 255
        for image in (data, bytearray(data), DecodedImage(decoded.pixels, 1)):
            assert brightness(image) == pytest.approx(true, abs=0.02)


def test_what_is_no_image_is_not_counted_and_another_is_looked_at_later():
    window = LiveWindow(Baseline.of("crops", [], [0.5] * 60))
    window.next_look = float("inf")
    window.look(b"\xff\xd8\xff nothing")
    assert window.count()["brightness"].sum() == 0
    assert window.next_look < float("inf")


def test_counts_of_objects_are_named_as_they_are():
    for counts, names in (
        ([3] * 60, ["under 3", "3", "over 3"]),
        ([1, 1, 1, 2, 3, 7] * 10, ["none", "1", "2", "3 to 7", "over 7"]),
    ):
        values = QuantityValues(np.array(counts, float), np.arange(len(counts)))
        assert _bin_names("objects", Distribution.of(values, exact=False), None) == names


def test_observers_see_answers_and_fail_none(demo_repository, caplog):
    """A model that is being loaded is not told to be built again."""
    settings = Settings(model_repository=demo_repository)
    app = build_app(settings)
    models, watch = app.service.models, Drift(app.service.models)

    class Raising:
        def observe(self, *_):
            raise ValueError("of an observer")

    plane = DataPlane(
        models,
        app.service.extensions.trace,
        DecodeLimiter(app.service.budget, cores=1, most_pixels=10**8),
        Tiles(image_limits(settings)),
        Tracks(60),
        Canaries(),
        [Raising(), watch],
    )

    async def run() -> None:
        app.registry.start()
        said = ""
        while not said:
            try:
                watch.window("digits")
            except ModelNotReady:
                await asyncio.sleep(0)
            except NotFound as error:
                said = f"{models.get('digits').state}: {error}"
        assert said.startswith("READY: ")
        assert "build it again" in said
        image = (DEMO / "scene-1.jpg").read_bytes()
        for _ in range(2):
            answer = await plane.predict(
                PredictRequest(models.get("digits"), None, [image], PredictOptions())
            )
            assert len(answer.images[0].found)

    try:
        asyncio.run(run())
    finally:
        app.close()
    assert caplog.text.count("monitoring failed for a response") == 1
