"""A request leaves nothing behind that only the garbage collector would free."""

import asyncio
import gc

import pytest
from tests.server.http.taken import Wire
from uvicorn import Config
from uvicorn.server import ServerState

from fovea_server.app import build_app
from fovea_server.http.application import create_application
from fovea_server.http.connection import Bounds, Connection
from fovea_server.http.exchange import Exchange
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

HEAD = (
    b"POST %s HTTP/1.1\r\nHost: localhost\r\n"
    b"Inference-Header-Content-Length: 0\r\nContent-Length: %d\r\n\r\n"
)
TARGETS = (b"/v1/models/digits/predict", b"/v2/models/digits/infer") * 2


def test_an_answered_request_is_freed_at_once(demo_repository, demo_model):
    image = (demo_model.parent / "scene-1.jpg").read_bytes()
    settings = Settings(model_repository=[demo_repository])
    app = build_app(settings)
    registry = app.registry
    registry.start()

    async def ask() -> int:
        while not registry.started:
            await asyncio.sleep(0.01)
        config, wire = Config(create_application(app), lifespan="off", log_config=None), Wire()
        bounds = Bounds(most=16, patience_s=60, budget=app.service.budget)
        protocol = Connection(config, ServerState(), {}, traffic=app.service.traffic, bounds=bounds)
        protocol.connection_made(wire)
        for count, target in enumerate(TARGETS, 1):
            protocol.data_received(HEAD % (target, len(image)) + image)
            while wire.written.count(b"HTTP/1.1 200 OK") < count or protocol.tasks:
                await asyncio.sleep(0.01)
        left = sum(isinstance(each, Exchange) for each in gc.get_objects())
        protocol.connection_lost(None)
        return left

    gc.collect()
    gc.disable()
    try:
        # The last one is the connection's, until the next.
        assert asyncio.run(ask()) == 1
    finally:
        gc.enable()
        registry.close()
