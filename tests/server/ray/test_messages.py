"""Requests that are asked without a connection."""

import asyncio
from io import BytesIO

import numpy as np
import pytest

pytest.importorskip("ray")
from PIL import Image

from fovea_cluster.ray.messages import HttpRequest, asked
from fovea_cluster.ray.replica import Serving
from fovea_server.settings import Settings


@pytest.mark.parametrize("path", [b"/v1/models/digits/predict", b"/v2/models/digits/infer"])
def test_a_cancelled_call_is_a_client_that_leaves(demo_repository, path):
    """The ingress has told its client why; here it is no error of the server."""
    noise = np.random.default_rng(1).integers(0, 255, (3000, 4000, 3), np.uint8)
    large = BytesIO()
    Image.fromarray(noise).save(large, "JPEG", quality=80)
    serving = Serving(Settings(model_repository=(demo_repository,)).model_dump(), ("digits",))

    async def run() -> None:
        async with serving.surface.lifespan():
            request = HttpRequest("POST", path, b"", [], large.getvalue())
            asking = asyncio.create_task(asked(serving.surface, request))
            await asyncio.sleep(0.05)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    try:
        asyncio.run(run())
        samples = serving.service.traffic.durations.family().samples
        counted = {labels["status"]: n for suffix, labels, n in samples if suffix == "_count" and n}
        assert counted == {"499": 1}
    finally:
        serving.close()
