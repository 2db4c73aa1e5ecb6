"""Streams that end, and what they leave behind."""

import asyncio
import gc
import weakref
from dataclasses import replace

import pytest
from tests.server.streams.conftest import write_moving_scene

from fovea_server.app import build_app
from fovea_server.dataplane.canaries import Canaries
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.decode_limiter import DecodeLimiter
from fovea_server.dataplane.tiles import Tiles
from fovea_server.models.opening import image_limits
from fovea_server.settings import Settings
from fovea_server.streams.cameras.table import StreamTable
from fovea_server.tracking.tracks import Tracks


@pytest.fixture
def uncollected():
    """Without the collector of garbage."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
def test_the_newest_frame_and_the_ids_go_with_their_stream(uncollected, demo_repository, tmp_path):
    write_moving_scene(tmp_path / "gate.avi", 4, 2)
    (tmp_path / "streams.toml").write_text(
        f'[gate]\nsource = "{tmp_path}/gate.avi"\nmodel = "digits"\ntrack = "bytetrack"\n'
    )
    (tmp_path / "digits").symlink_to(demo_repository / "digits")
    settings = Settings(model_repository=tmp_path)
    app = build_app(settings)
    registry, service, tracks = app.registry, app.service, Tracks(60)
    registry.start()
    plane = DataPlane(
        service.models,
        service.extensions.trace,
        DecodeLimiter(service.budget, cores=1, most_pixels=10**8),
        Tiles(image_limits(settings)),
        tracks,
        Canaries(),
    )

    async def run() -> None:
        while registry.reason:
            await asyncio.sleep(0.02)
        table = StreamTable(replace(service, plane=plane), tracks.forget)
        await table.start()
        stream = table.get("gate")
        async with asyncio.timeout(60):
            while not stream.over:
                await asyncio.sleep(0.02)
        assert stream.newest is not None, stream.state
        pixels = weakref.ref(stream.newest.result.pixels)
        assert next(iter(tracks.families())).samples
        del stream
        await table.stop()
        assert pixels() is None
        assert service.budget.freed

    try:
        asyncio.run(run())
    finally:
        registry.close()


@pytest.mark.parametrize(("enabled", "trims"), [("true", True), ("false", False)])
def test_ids_are_forgotten_and_memory_is_trimmed_behind_a_stream(tmp_path, enabled, trims):
    (tmp_path / "streams.toml").write_text(
        f'[gate]\nsource = "{tmp_path}/gate.mp4"\nmodel = "none"\nenabled = {enabled}\n'
    )
    settings = Settings(model_repository=tmp_path)
    service = build_app(settings).service
    forgotten: list[str] = []

    async def run() -> str:
        table = StreamTable(service, forgotten.append)
        await table.start()
        stream = table.get("gate")
        await table.stop()
        assert stream.over
        return stream.tracked_as

    tracked_as = asyncio.run(run())
    assert forgotten == [tracked_as]
    assert (service.budget.freed > 0) is trims
