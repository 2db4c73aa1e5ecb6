"""Streams that end, and what they leave behind."""

import asyncio

import pytest

from fovea_server.app import build_app
from fovea_server.settings import Settings
from fovea_server.streams.cameras.table import StreamTable


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
