"""`track` on requests of every protocol: ids in the responses, and rejected requests."""

import asyncio

import cv2
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tests.conftest import DEMO
from tritonclient.utils import InferenceServerException

from fovea_client import AsyncClient, Client, ServerError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(demo_server):
    with Client(demo_server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def frames():
    """JPEG files of the demo's scene, which moves by three pixels a frame."""
    scene = cv2.imread(str(DEMO / "scene-1.jpg"))
    height, width = scene.shape[:2]
    moved = (
        cv2.warpAffine(scene, np.float32([[1, 0, 3 * n], [0, 1, 0]]), (width, height))
        for n in range(12)
    )
    return [cv2.imencode(".jpg", each)[1].tobytes() for each in moved]


def read_ids(result):
    return [each.track_id for each in result.detections]


@pytest.fixture(scope="module")
def expected(client, frames):
    """The ids of one request at a time."""
    options = {"track": "bytetrack", "stream_id": "alone"}
    ids = [read_ids(client.predict("digits", each, **options)) for each in frames]
    assert set(ids[0]) == {None}
    assert len(set(ids[-1]) - {None}) == len(ids[-1]) > 2
    assert read_ids(client.predict("digits", frames[0])) == [None] * len(ids[0])
    return ids


def test_requests_at_once(demo_server, frames, expected):
    async def predict():
        async with AsyncClient(demo_server.url, timeout=60) as client:
            options = {"track": "bytetrack", "stream_id": "at once"}
            return await asyncio.gather(
                *(
                    client.predict("digits", image, frame=number, **options)
                    for number, image in enumerate(frames)
                )
            )

    assert [read_ids(each) for each in asyncio.run(predict())] == expected


def test_images_of_a_request_are_successive_frames(client, frames, expected):
    results = client.predict("digits", frames, track="bytetrack", stream_id="a form")
    assert [read_ids(each) for each in results.images] == expected


@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_parameters_of_v2(demo_server, frames, expected, protocol):
    port = demo_server.port if protocol is tritonclient.http else demo_server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:

        def infer(number):
            tensor = protocol.InferInput("images", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([frames[number]], object))
            options = {"track": "bytetrack", "stream_id": protocol.__name__, "frame": number}
            return client.infer("digits", [tensor], parameters=options)

        for number, ids in enumerate(expected):
            result = infer(number)
            assert result.as_numpy("num_detections").tolist() == [len(ids)]
            assert result.as_numpy("track_ids")[0].tolist() == [each or -1 for each in ids]
        with pytest.raises(InferenceServerException, match="frame 11"):
            infer(3)


def test_a_frame_out_of_order_and_a_broken_one(demo_server, client, frames):
    options = {"track": "sort", "stream_id": "order"}
    client.predict("digits", frames[0], frame=5, **options)
    for image, frame, code in (
        (frames[0], 4, "out_of_order"),
        (frames[0][:300], 6, "invalid_image"),
    ):
        with pytest.raises(ServerError) as rejected:
            client.predict("digits", image, frame=frame, **options)
        assert rejected.value.code == code
    client.predict("digits", frames[0], frame=7, **options)
    assert demo_server.metric("fovea_tracked_streams", 'model="digits"') >= 1
    assert demo_server.metric("fovea_tracked_frames_total", 'model="digits"') >= 2


@pytest.mark.parametrize(
    "options",
    [
        {"track": "bytetrack"},
        {"track": "deepsort", "stream_id": "a"},
        {"stream_id": "a"},
        {"track": "sort", "stream_id": "a", "frame": -1},
        {"track": "sort", "stream_id": "a", "frame": "x"},
        {"track": "sort", "stream_id": "a" * 201},
    ],
)
def test_wrong_options(client, frames, options):
    with pytest.raises(ServerError) as rejected:
        client.predict("digits", frames[0], **options)
    assert (rejected.value.status, rejected.value.code) == (422, "invalid_option")


def test_ids_are_drawn(client, frames):
    plain = client.annotate("digits", frames[0])
    options = {"track": "botsort", "stream_id": "drawn"}
    drawn = [client.annotate("digits", frames[0], **options) for _ in range(3)]
    assert drawn[-1] != plain
