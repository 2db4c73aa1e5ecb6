"""One warning a minute while requests are refused, and what it counts."""

import asyncio

import pytest

from fovea_preprocess.errors import (
    DeadlineExceeded,
    FoveaError,
    InvalidImage,
    ModelNotReady,
    NotFound,
    QueueFull,
)
from fovea_server.traffic import traffic
from fovea_server.traffic.call import Call
from fovea_server.traffic.traffic import Traffic


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(traffic, "_INTERVAL_S", 0.05)


def test_the_first_is_logged_at_once_and_the_others_together(short, caplog):
    async def run() -> None:
        counted = Traffic({"a", "b"}, log_access=False)

        def refuse(model: str, error: FoveaError) -> None:
            call = Call(counted, "POST", "/v2/models/a/infer", None, lambda _: None)
            call.model = model
            call.infers("infer")
            call.end(503, error=error)

        for _ in range(500):
            refuse("a", QueueFull("256 images waiting", 1.0))
        refuse("b", ModelNotReady("it is loading"))
        for error in (NotFound("x"), InvalidImage("x"), DeadlineExceeded("x")):
            refuse("a", error)
        assert len(caplog.records) == 1
        while len(caplog.records) < 2:
            await asyncio.sleep(0.01)
        # Nothing more is refused, so nothing more is logged; later refusals are, at once.
        await asyncio.sleep(0.2)
        refuse("nobody", QueueFull("600 MB held", 1.0))
        refuse("", QueueFull("700 MB held", 1.0))
        counted.close()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "1 request refused in the last minute: 1 queue_full of model 'a' (256 images waiting)",
        "500 requests refused in the last minute: 499 queue_full of model 'a' (256 images waiting);"
        " 1 model_not_ready of model 'b' (it is loading)",
        "1 request refused in the last minute: 1 queue_full (600 MB held)",
        "1 request refused in the last minute: 1 queue_full (700 MB held)",
    ]
    assert [record.refused for record in caplog.records] == [1, 500, 1, 1]
