"""The fake server that comes with the client: what it is told is what the client gets."""

import asyncio
import re

import numpy as np
import pytest
from tests.conftest import ROOT

from fovea_client import (
    AsyncClient,
    Box,
    ClassArea,
    Client,
    ConnectionFailed,
    Corner,
    Depth,
    Detection,
    ImageError,
    ImageResult,
    Keypoint,
    MaskFile,
    Outlines,
    QueueFull,
    Rotated,
    RunLengths,
    Saliency,
    ScoredClass,
    Semantic,
    ServerError,
    Tensor,
)
from fovea_client.testing import FakeServer

BOX = Box(1.0, 2.0, 3.5, 4.0)
EVERYTHING = ImageResult(
    width=8,
    height=6,
    orientation=6,
    detections=(
        Detection(BOX, 0.9, 0, "person", mask=RunLengths((6, 8), "05Q1")),
        Detection(BOX, 0.8, 1, "bus", mask=Outlines((6, 8), ((1.0, 2.0, 3.0, 2.0, 3.0, 4.0),))),
        Detection(BOX, 0.7, 2, "cat", mask=MaskFile((9, 8), 1, 2, b"PNG")),
        Detection(BOX, 0.7, 2, "cat", keypoints=(Keypoint("nose", 1, 2, 0.5),)),
        Detection(
            BOX,
            0.6,
            3,
            "ship",
            rotated=Rotated(1, 2, 3, 4, 0.5),
            corners=tuple(Corner(i, i) for i in range(4)),
        ),
    ),
    classes=(ScoredClass(4, "dog", 0.5),),
    semantic=Semantic((ClassArea(0, "sky", 12, 0.25),), png=b"\x89PNG"),
    saliency=Saliency(0.5, png=b"\x89PNG"),
    depth=Depth(0.1, 9.0, None, png=b"\x89PNG", scale=0.5, offset=0.1),
)


def test_results_of_every_kind_come_back_as_they_were_told() -> None:
    server = FakeServer({"m": EVERYTHING})
    with Client("http://fake", transport=server) as client:
        assert client.predict("m", b"image", conf=0.5).image == EVERYTHING
        assert client.annotate("m", b"image", "image/png") == b"image"
        assert client.ready("m")
        assert client.ready()
        assert not client.ready("other")
        assert [each.name for each in client.models()] == ["m"]
    assert server.requests[0].url.params["conf"] == "0.5"

    async def ask() -> ImageResult:
        async with AsyncClient("http://fake", transport=server) as client:
            return (await client.predict("m", b"image")).image

    assert asyncio.run(ask()) == EVERYTHING


def test_numbers_of_numpy_come_back_as_numbers() -> None:
    box = Box(*np.array([1, 2, 3.5, 4], np.float32))
    found = Detection(box, np.float32(0.5), np.int64(3), "bus")  # type: ignore[arg-type]
    with Client(
        "http://fake", transport=FakeServer({"m": ImageResult(8, 6, 1, (found,))})
    ) as client:
        assert client.predict("m", b"image").detections == (Detection(BOX, 0.5, 3, "bus"),)


def test_a_model_is_described() -> None:
    with Client("http://fake", transport=FakeServer({"m": EVERYTHING})) as client:
        assert client.model("m") == client.model("m", version=1)
        assert client.model("m").versions == client.models()[0].versions
        assert client.card("m") is None
        with pytest.raises(ServerError, match="has no result for"):
            client.model("other")


def test_an_error_of_one_image_has_a_code_that_servers_have() -> None:
    server = FakeServer({"m": ImageError("image_too_large", "no"), "other": ImageError("bad", "")})
    with Client("http://fake", transport=server) as client:
        assert list(client.predict_many("m", [b"1"])) == [ImageError("image_too_large", "no")]
        with pytest.raises(ValueError, match="invalid_image"):
            list(client.predict_many("other", [b"1"]))


def test_tensors_come_back() -> None:
    data = np.arange(6, dtype=np.float16).reshape(2, 3)
    result = ImageResult(1, 1, 1, (), tensors=(Tensor("out", data),))
    with Client("http://fake", transport=FakeServer({"m": result})) as client:
        [tensor] = client.predict("m", b"image").image.tensors
    assert tensor.name == "out"
    assert tensor.data.dtype == np.float16
    assert (tensor.data == data).all()


def test_a_function_sees_each_image_whatever_wraps_it() -> None:
    seen = []

    def told(image: bytes | str) -> ImageResult | ImageError:
        seen.append(image)
        return ImageResult(len(image), 1, 1, ()) if image else ImageError("invalid_image", "empty")

    images = [b"one\r\n--", b"", b"three"]
    with Client("http://fake", transport=FakeServer({"m": told})) as client:
        first, second, third = client.predict("m", images).images
        client.predict("m", [*images, "http://host/a.jpg"])
        with pytest.raises(ServerError, match="empty"):
            client.predict("m", b"")
    assert [first, third] == [ImageResult(7, 1, 1, ()), ImageResult(5, 1, 1, ())]
    assert second == ImageError("invalid_image", "empty")
    assert seen == [*images, *images, "http://host/a.jpg", b""]


def test_errors_come_as_they_were_told() -> None:
    server = FakeServer(
        {
            "full": QueueFull(429, "queue_full", "wait", retry_after_s=60.0),
            "gone": ConnectionFailed("nobody there"),
            "lost": ConnectionFailed("broken", unanswered=True),
        }
    )
    with Client("http://fake", transport=server) as client:
        with pytest.raises(QueueFull) as full:
            client.predict("full", b"image")
        assert full.value.retry_after_s == 60
        for name in ("gone", "lost"):
            with pytest.raises(ConnectionFailed) as caught:
                client.predict(name, b"image")
            assert caught.value.unanswered == (name == "lost")
        with pytest.raises(ServerError, match="has no result for") as unknown:
            client.predict("other", b"image")
        assert unknown.value.status == 404


def test_the_blocks_of_the_clients_readme() -> None:
    text = (ROOT / "client" / "README.md").read_text()
    asking, _, faking = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    # They are run against a real server: the first by a test of the README, which has it too, and
    # the second in test_plot.py.
    assert asking in (ROOT / "README.md").read_text()
    exec(faking, {})
