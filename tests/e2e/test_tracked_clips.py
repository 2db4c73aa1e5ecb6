"""Ids on real clips are those of a tracker that is run by hand on the same boxes."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import cv2
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tests.serving import start_server

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_server.tracking.tracker import Tracker, Tuning

pytestmark = [pytest.mark.real, pytest.mark.slow]

CLIPS = ("bottle-detection", "car-detection", "one-by-one-person-detection")
MODEL = "yolox_nano"
TUNING = Tuning.of(PredictOptions())
# From here on, bottles pass one another, leave and come.
START, FRAMES = 144, 12


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory):
    repository = tmp_path_factory.mktemp("detector")
    (repository / MODEL / "1").mkdir(parents=True)
    source = shared / "models" / f"{MODEL}.onnx"
    (repository / MODEL / "1" / "model.onnx").symlink_to(source)
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def clips(shared):
    """Every sixth frame of each clip, as JPEG files."""

    def read(name):
        capture = cv2.VideoCapture(str(shared / "data" / "video" / f"{name}.mp4"))
        capture.set(cv2.CAP_PROP_POS_FRAMES, START)
        frames = [capture.read()[1] for _ in range(6 * FRAMES)][::6]
        return [cv2.imencode(".jpg", each)[1].tobytes() for each in frames]

    return {name: read(name) for name in CLIPS}


def infer(server, image, **parameters):
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        tensor = grpc_client.InferInput("images", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([image], object))
        return client.infer(MODEL, [tensor], parameters=parameters)


@pytest.fixture(scope="module")
def by_hand(server, clips):
    """The rows of each clip: ids, in the order in which the server lists the objects."""

    def followed(frames):
        tracker, rows = Tracker("bytetrack"), []
        for image in frames:
            answer = infer(server, image)
            (number,) = answer.as_numpy("num_detections")
            names = ("boxes", "scores", "class_ids")
            boxes = Detections(*(answer.as_numpy(name)[0, :number] for name in names))
            ids = tracker.identify(boxes, None, TUNING).track_ids
            rows.append(np.where(ids > 0, ids, -1).tolist())
        return rows

    return {name: followed(frames) for name, frames in clips.items()}


def rows(server, stream, item):
    number, image = item
    parameters = {"track": "bytetrack", "stream_id": stream, "frame": number}
    answer = infer(server, image, **parameters)
    (count,) = answer.as_numpy("num_detections")
    return answer.as_numpy("track_ids")[0, :count].tolist()


@pytest.mark.parametrize("in_flight", [1, 16])
def test_requests_in_flight(server, clips, by_hand, in_flight):
    for name, frames in clips.items():
        work = partial(rows, server, f"{name} {in_flight}")
        with ThreadPoolExecutor(in_flight) as pool:
            assert list(pool.map(work, enumerate(frames))) == by_hand[name]
    assert all(max(itertools.chain(*each)) >= 0 for each in by_hand.values())
    assert any(-1 not in each != sorted(each) for each in by_hand[CLIPS[0]])


def test_eight_streams_at_once(server, clips, by_hand):
    chosen = [CLIPS[n % 3] for n in range(8)]
    with ThreadPoolExecutor(16) as pool:
        sent = [
            pool.submit(rows, server, str(n), (number, clips[name][number]))
            for number in range(10)
            for n, name in enumerate(chosen)
        ]
        found = [each.result() for each in sent]
    for n, name in enumerate(chosen):
        assert found[n::8] == by_hand[name][:10]
