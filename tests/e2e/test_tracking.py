"""`track` on requests of every protocol: ids in the answers, and refusals that say what to do."""

import asyncio

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from fovea_client import Client

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frames():
    """JPEG files of the demo's scene, which moves by three pixels a frame."""
    from tests.conftest import DEMO

    scene = cv2.imread(str(DEMO / "scene-1.jpg"))
    height, width = scene.shape[:2]
    moved = (
        cv2.warpAffine(scene, np.float32([[1, 0, 3 * n], [0, 1, 0]]), (width, height))
        for n in range(12)
    )
    return [cv2.imencode(".jpg", each)[1].tobytes() for each in moved]


def asked(server, image, **query):
    # The first one waits until the package is imported.
    return httpx.post(server.predict_url("digits"), content=image, params=query, timeout=60)


def ids_of(answer):
    return [each["track_id"] for each in answer.json()["images"][0]["detections"]]


@pytest.fixture(scope="module")
def expected(demo_server, frames):
    """The ids of one request at a time."""
    query = {"track": "bytetrack", "stream_id": "alone"}
    ids = [ids_of(asked(demo_server, each, **query)) for each in frames]
    assert set(ids[0]) == {None}
    assert len(set(ids[-1]) - {None}) == len(ids[-1]) > 2
    return ids


def test_ids_do_not_depend_on_connections(demo_server, frames, expected):
    async def all_at_once():
        async with httpx.AsyncClient(timeout=60) as client:
            sent = (
                client.post(
                    demo_server.predict_url("digits"),
                    content=image,
                    params={"track": "bytetrack", "stream_id": "at once", "frame": number},
                )
                for number, image in enumerate(frames)
            )
            return await asyncio.gather(*sent)

    assert [ids_of(each) for each in asyncio.run(all_at_once())] == expected


def test_images_of_a_request_are_frames_in_a_row(demo_server, frames, expected):
    files = [("image", each) for each in frames]
    answer = asked_form(demo_server, files, track="bytetrack", stream_id="a form")
    images = answer.json()["images"]
    assert [[d["track_id"] for d in image["detections"]] for image in images] == expected


def asked_form(server, files, **query):
    return httpx.post(server.predict_url("digits"), files=files, params=query, timeout=60)


def test_the_python_client(demo_server, frames, expected):
    with Client(demo_server.url) as client:
        for number, (image, ids) in enumerate(zip(frames, expected, strict=True)):
            found = client.predict(
                "digits", image, track="bytetrack", stream_id="client", frame=number
            )
            assert [each.track_id for each in found.detections] == ids
        assert client.predict("digits", frames[0]).detections[0].track_id is None


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_parameters_of_v2(demo_server, frames, expected, protocol):
    name = httpx.get(f"{demo_server.url}/v2/models/digits").json()["inputs"][0]["name"]
    port = demo_server.port if protocol is http_client else demo_server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:

        def infer(number):
            tensor = protocol.InferInput(name, [1], "BYTES")
            tensor.set_data_from_numpy(np.array([frames[number]], object))
            given = {"track": "bytetrack", "stream_id": protocol.__name__, "frame": number}
            return client.infer("digits", [tensor], parameters=given)

        for number, ids in enumerate(expected):
            answer = infer(number)
            assert answer.as_numpy("num_detections").tolist() == [len(ids)]
            assert answer.as_numpy("track_ids")[0].tolist() == [
                -1 if each is None else each for each in ids
            ]
        with pytest.raises(InferenceServerException, match="frame 11"):
            infer(3)


def test_a_frame_out_of_order_is_409(demo_server, frames):
    query = {"track": "sort", "stream_id": "order"}
    assert asked(demo_server, frames[0], **query, frame=5).status_code == 200
    answer = asked(demo_server, frames[0], **query, frame=4)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "out_of_order"
    assert "the last frame of this stream" in answer.json()["error"]["message"]
    broken = asked(demo_server, frames[0][:300], **query, frame=6)
    assert broken.status_code == 400
    assert asked(demo_server, frames[0], **query, frame=7).status_code == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"track": "bytetrack"}, "stream_id"),
        ({"track": "deepsort", "stream_id": "a"}, "bytetrack, sort, ocsort, botsort"),
        ({"stream_id": "a"}, "need track"),
        ({"track": "sort", "stream_id": "a", "frame": -1}, "from 0 up"),
        ({"track": "sort", "stream_id": "a", "frame": "x"}, "a whole number from 0 up"),
        ({"track": "sort", "stream_id": "a" * 201}, "200 characters"),
    ],
)
def test_what_is_wrong_is_named(demo_server, frames, query, words):
    answer = asked(demo_server, frames[0], **query)
    assert answer.status_code == 422
    assert words in answer.json()["error"]["message"]


def test_streams_are_counted(demo_server, expected):
    text = httpx.get(f"http://127.0.0.1:{demo_server.metrics_port}/metrics").text
    assert 'fovea_tracked_streams{model="digits"}' in text
    assert 'fovea_tracked_frames_total{model="digits"}' in text


def test_drawings_name_the_ids(demo_server, frames):
    query = {"track": "botsort", "stream_id": "drawn"}
    headers = {"accept": "image/png"}
    plain = httpx.post(demo_server.predict_url("digits"), content=frames[0], headers=headers)
    for _ in range(3):
        drawn = httpx.post(
            demo_server.predict_url("digits"), content=frames[0], headers=headers, params=query
        )
    assert drawn.headers["content-type"] == "image/png"
    assert drawn.content != plain.content
