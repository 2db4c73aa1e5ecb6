"""The statuses of requests in the metrics, and one warning a minute about rejected requests."""

import asyncio

import pytest

from fovea_preprocess.errors import (
    DeadlineExceeded,
    FoveaError,
    InferenceFailed,
    InvalidImage,
    KeysPending,
    MalformedJson,
    ModelNotReady,
    NotFound,
    QueueFull,
    RateLimited,
    Restricted,
)
from fovea_server.traffic import traffic
from fovea_server.traffic.call import Call
from fovea_server.traffic.principal import Principal
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
        refuse("", KeysPending("not fetched yet"))
        for error in (NotFound("x"), InvalidImage("x"), DeadlineExceeded("x"), RateLimited("x", 1)):
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
        "501 requests refused in the last minute: 499 queue_full of model 'a' (256 images waiting);"
        " 1 model_not_ready of model 'b' (it is loading); 1 keys_pending (not fetched yet)",
        "1 request refused in the last minute: 1 queue_full (600 MB held)",
        "1 request refused in the last minute: 1 queue_full (700 MB held)",
    ]
    assert [record.refused for record in caplog.records] == [1, 501, 1, 1]


@pytest.mark.parametrize(
    ("error", "sent", "counted"),
    [
        (None, (200, "OK"), ("200", "OK")),
        (MalformedJson("x"), (500, "INTERNAL"), ("400", "INVALID_ARGUMENT")),
        (RateLimited("x", 1), (429, "RESOURCE_EXHAUSTED"), ("rate_limited", "rate_limited")),
        (DeadlineExceeded("x"), (503, "UNAVAILABLE"), ("504", "DEADLINE_EXCEEDED")),
        (Restricted("x"), (403, "UNAVAILABLE"), ("403", "PERMISSION_DENIED")),
        (QueueFull("x", 1), (503, "UNAVAILABLE"), ("503", "UNAVAILABLE")),
        (InferenceFailed("x"), (500, "INTERNAL"), ("500", "INTERNAL")),
    ],
)
def test_metrics_count_an_error_under_the_status_of_its_cause(error, sent, counted):
    async def run(status: int | str) -> tuple[str, str]:
        measured = Traffic({"a"}, log_access=False)
        call = Call(measured, "POST", "/v2/models/a/infer", None, lambda _: None)
        call.principal = Principal("camera", "camera", frozenset({"predict"}))
        call.infers("infer")
        call.end(status, error=error)
        measured.close()
        durations = measured.durations.family()
        [duration] = {labels["status"] for _, labels, _ in durations.samples}
        [(_, labels, _)] = measured.keys.families()[0].samples
        return duration, labels["status"]

    for status, label in zip(sent, counted, strict=True):
        assert asyncio.run(run(status)) == (label, label)
