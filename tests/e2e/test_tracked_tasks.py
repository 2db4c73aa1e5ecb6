"""Ids of masks, poses and rotated boxes: each is of its object, as a tracker by hand has it."""

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tests.serving import start_server

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_server.tracking.tracker import Tracker, Tuning

pytestmark = pytest.mark.real

MODELS = {
    "masks": "yolov8n-seg-320",
    "keypoints": "yolov8n-pose",
    "rotated": "heads/yolo11-obb",
}
FRAMES = 6


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    for task, name in MODELS.items():
        (repository / task / "1").mkdir(parents=True)
        (repository / task / "1" / "model.onnx").symlink_to(shared / "models" / f"{name}.onnx")
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def frames(shared):
    """A photograph of a street that moves to the right, as JPEG files."""
    street = cv2.imread(str(shared / "data" / "bus.jpg"))
    size = street.shape[1::-1]
    moved = (
        cv2.warpAffine(street, np.float32([[1, 0, 5 * n], [0, 1, 0]]), size) for n in range(FRAMES)
    )
    return [cv2.imencode(".jpg", each)[1].tobytes() for each in moved]


def infer(server, task, image, **parameters):
    """The tensors of the objects of an image, by name."""
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        tensor = grpc_client.InferInput(
            client.get_model_metadata(task).inputs[0].name, [1], "BYTES"
        )
        tensor.set_data_from_numpy(np.array([image], object))
        answer = client.infer(task, [tensor], parameters=parameters)
    (count,) = answer.as_numpy("num_detections")
    names = [each.name for each in answer.get_response().outputs if each.name != "num_detections"]
    return {name: answer.as_numpy(name)[0, :count] for name in names}


@pytest.mark.parametrize("task", MODELS)
def test_ids_are_of_their_objects(server, frames, task):
    tracker, tuning, seen = Tracker("bytetrack"), Tuning.of(PredictOptions(conf=0.4)), set()
    for number, image in enumerate(frames):
        plain = infer(server, task, image, conf=0.4)
        given = {"track": "bytetrack", "stream_id": task, "frame": number}
        tracked = infer(server, task, image, conf=0.4, **given)
        ids = tracked.pop("track_ids")
        assert tracked.keys() == plain.keys() >= {task, "boxes", "scores"}
        # Rotated ones too are tracked by the upright boxes around them.
        boxes = Detections(*(plain[name] for name in ("boxes", "scores", "class_ids")))
        by_hand = tracker.identify(boxes, None, tuning)
        assert ids.tolist() == np.where(by_hand.track_ids > 0, by_hand.track_ids, -1).tolist()
        assert tracked["class_ids"].tolist() == by_hand.class_ids.tolist()
        for name in plain.keys() - {"class_ids", "class_names"}:
            np.testing.assert_array_equal(tracked[name], plain[name])
        seen |= set(ids.tolist()) - {-1}
    assert len(seen) > 2


@pytest.mark.parametrize("task", MODELS)
def test_json_has_them_side_by_side(server, frames, task):
    query = {"track": "sort", "stream_id": "json", "conf": 0.4}
    for image in frames[:3]:
        answer = httpx.post(server.predict_url(task), content=image, params=query, timeout=60)
        assert answer.status_code == 200, answer.text
    objects = answer.json()["images"][0]["detections"]
    ids = [each["track_id"] for each in objects if each["track_id"] is not None]
    assert len(set(ids)) == len(ids) > 1
    key = "mask" if task == "masks" else task
    assert all(each[key] for each in objects)
