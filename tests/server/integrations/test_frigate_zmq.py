"""Frigate's ZMQ detector, as it is, finds what /v1 finds."""

import io
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import zmq
from PIL import Image
from tests.built import build
from tests.server.integrations.frigate_plugin import zmq_detector
from tests.server.registries import wait_until
from tests.serving import free_ports, start_server

from fovea_engines.build.plan import BuildPlan
from fovea_preprocess.errors import InvalidRequest
from fovea_server.integrations.frigate.messages import refusal

pytestmark = pytest.mark.real

SIZE = 640
# JSON has hundredths of a pixel.
ROUNDED = 2e-5


def png(frame):
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, format="PNG", compress_level=0)
    return stream.getvalue()


def expected(found, model, frame):
    """The answer of /v1 for the same pixels, as Frigate wants it."""
    height, width = frame.shape[:2]
    table = np.zeros((20, 6), np.float32)
    objects = found(model, png(frame), conf=0.4, max_det=20, mask="none")["detections"]
    for row, each in zip(table, objects, strict=False):
        x1, y1, x2, y2 = each["box"].values()
        box = y1 / height, x1 / width, y2 / height, x2 / width
        row[:] = each["class_id"], each["score"], *box
    return table


@pytest.fixture(scope="module")
def plugin(frigate_plugins):
    return frigate_plugins / "zmq_ipc.py"


@pytest.fixture(scope="module")
def frames(images):
    """Frames as Frigate makes them: of the size of the model, in RGB."""
    opened = [Image.open(path).convert("RGB") for path in images]
    return [np.asarray(image.resize((SIZE, SIZE))) for image in opened]


@pytest.fixture(scope="module")
def detector(plugin, server, frigate_address):
    with zmq_detector(plugin, frigate_address, "/config/model_cache/yolov8n.onnx") as detector:
        yield detector


@pytest.fixture
def asker(server, frigate_address):
    """A client that sends what it likes, and gets one answer for each."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.rcvtimeo = 60_000
        socket.connect(frigate_address)

        def ask(*parts):
            socket.send_multipart(parts)
            return socket.recv_multipart()

        yield ask


def header(**fields):
    return json.dumps(fields).encode()


def test_every_form_of_frame_gets_the_boxes_of_v1(detector, frames, found):
    seen = 0
    for frame in frames[:2]:
        want = expected(found, "yolov8n", frame)
        seen += np.count_nonzero(want[:, 1])
        nhwc = frame[None]
        shares = nhwc.astype(np.float32) / 255
        for sent in (
            nhwc,
            nhwc.transpose(0, 3, 1, 2),
            shares,
            shares.transpose(0, 3, 1, 2),
            nhwc.astype(np.float32),
        ):
            np.testing.assert_allclose(detector.detect_raw(sent), want, atol=ROUNDED)
    assert seen >= 6


def test_a_frame_of_another_size_is_letterboxed(detector, frames, found):
    frame = np.ascontiguousarray(frames[0][:320, :500])
    want = expected(found, "yolov8n", frame)
    assert np.count_nonzero(want[:, 1])
    np.testing.assert_allclose(detector.detect_raw(frame[None]), want, atol=ROUNDED)


def test_several_frigates_at_once_get_their_own(
    plugin, server, frigate_address, frames, found, tmp_path
):
    models = ("yolov8n.onnx", "yolov8n-pose", "yolov8n-seg-320")
    program = Path(__file__).with_name("with_frigate.py")
    started = []
    for number, model in enumerate(models):
        mine = [frames[number], frames[0]]
        np.save(tmp_path / f"{number}.npy", np.stack(mine)[:, None])
        process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = [str(plugin), frigate_address, model, str(tmp_path / f"{number}.npy"), 2]
        process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        started.append((process, model, mine))
    for process, model, mine in started:
        rows = json.loads(process.communicate(timeout=120)[0])
        want = [expected(found, Path(model).stem, frame) for frame in mine]
        assert np.count_nonzero(want[1][:, 1])
        np.testing.assert_allclose(np.float32(rows), np.float32(want * 2), atol=ROUNDED)


@pytest.mark.parametrize(
    ("path", "available", "says"),
    [
        ("yolov8n", True, "model 'yolov8n' is ready"),
        ("yolov8n.onnx", True, "model 'yolov8n' is ready"),
        ("nobody.onnx", False, "there is no model 'nobody'; served models: yolo11-cls"),
        ("yolo11-cls", True, "model 'yolo11-cls' has the task classify"),
        ("", False, "set model.path"),
        (7, False, "set model.path"),
    ],
)
def test_a_model_is_asked_for_by_its_name(asker, path, available, says):
    [answer] = asker(header(model_request=True, model_name=path))
    told = json.loads(answer)
    assert told["model_available"] is available
    assert told["model_loaded"] is ("is ready" in says)
    assert says in told["message"]


def test_a_model_that_frigate_sends_is_declined(
    plugin, server, frigate_address, asker, frames, tmp_path, caplog
):
    file = tmp_path / "mine.onnx"
    file.write_bytes(b"weights")
    [answer] = asker(header(model_data=True, model_name=file.name), file.read_bytes())
    told = json.loads(answer)
    assert (told["model_saved"], told["model_loaded"]) == (False, False)
    for said in ("fovea build FILE.onnx", "model.path", "--api frigate-zmq=MODEL"):
        assert said in told["message"]
    with caplog.at_level("ERROR"), zmq_detector(plugin, frigate_address, str(file)) as detector:
        assert not detector.detect_raw(frames[0][None]).any()
    assert "Model transfer failed: saved=False, loaded=False" in caplog.text


def test_what_is_no_frame_is_refused_and_harms_nobody(server, asker, detector, frames):
    [made] = asker(header(model_request=True, model_name="yolov8n"))
    assert json.loads(made)["model_loaded"]
    pixels = frames[0].tobytes()
    good = {"shape": [1, SIZE, SIZE, 3], "dtype": "uint8"}
    floats = good | {"dtype": "float32", "shape": [1, 1, 1, 3]}
    for parts, says in (
        ([b""], "not a JSON object"),
        ([b"\xff\xfe"], "not a JSON object"),
        ([b"[1]"], "a JSON object"),
        ([b"{}"], "set input_dtype"),
        ([b"x" * 5000], "not from Frigate's detector"),
        ([b"{}", b"", b""], "not from Frigate's detector"),
        ([b"{}", *[b""] * 300], "not from Frigate's detector"),
        ([header(model_request=True, model_name="yolov8n"), b"x"], "must have one part"),
        ([header(**good)], "has 0 bytes"),
        ([header(**good), pixels[:-1]], "has 1228799 bytes"),
        ([header(**good | {"dtype": "int8"}), pixels], "set input_dtype to int"),
        ([header(**good | {"dtype": ["uint8"]}), pixels], "set input_dtype to int"),
        ([header(**good | {"shape": [1, 960, SIZE]}), pixels], "set input_tensor"),
        ([header(**good | {"shape": [2, SIZE, SIZE, 3]}), pixels], "set input_tensor"),
        ([header(**good | {"shape": [1, 0, SIZE, 3]}), b""], "set input_tensor"),
        ([header(**good | {"shape": [1, True, 1, 3]}), b"abc"], "set input_tensor"),
        (
            [header(**good | {"shape": [1, 10**9, 10**9, 3]}), pixels],
            "exceeds the limit of 64 mega",
        ),
        ([header(**floats), np.float32([0, -1, 9]).tobytes()], "from -1 to 9"),
        ([header(**floats), np.float32([0, np.nan, 9]).tobytes()], "set input_dtype to int"),
    ):
        [answer] = asker(*parts)
        told = json.loads(answer)
        assert told["error"] in ("invalid_request", "image_too_large"), told
        assert says in told["message"]
    assert len(asker(header(**good), pixels)) == 2
    assert detector.detect_raw(frames[0][None]).any()
    assert "Traceback" not in server.log.read_text()


@contextmanager
def dealer(address):
    """A client that need not wait for an answer before it sends again."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = socket.sndhwm = 0
        socket.rcvtimeo = 15_000
        socket.connect(address)
        yield socket


def test_an_error_is_not_taken_for_a_table():
    """A table of detections has 20 rows of 6 float32 numbers, 480 bytes."""
    sizes = {len(refusal(InvalidRequest("x" * n))[0]) for n in range(500)}
    assert {479, 481} < sizes
    assert 480 not in sizes


def test_frames_are_counted_and_logged_for_their_model(server, detector, frames):
    url = server.url + "/v1/models/yolov8n/statistics"
    before = httpx.get(url).json()["durations"].get("+Inf", 0)
    assert detector.detect_raw(frames[0][None]).any()
    assert httpx.get(url).json()["durations"]["+Inf"] == before + 1
    line = "127.0.0.1 ZMQ '/frigate-zmq/detect' model='yolov8n' status=200"
    wait_until(lambda: line in server.log.read_text())


@pytest.fixture(scope="module")
def two_models(demo_repository, demo_model, tmp_path_factory):
    """A repository in which a frame alone does not say which model is meant."""
    repository = tmp_path_factory.mktemp("two") / "models"
    shutil.copytree(demo_repository, repository)
    build(BuildPlan(demo_model, "numbers", repository, "onnxruntime"))
    return repository


def test_frigate_starts_with_the_server_and_survives_its_restart(
    plugin, two_models, demo_model, tmp_path
):
    address = f"--frigate-address=tcp://127.0.0.1:{free_ports(1)[0]}"
    frame = np.asarray(Image.open(demo_model.parent / "scene-1.jpg").convert("RGB"))[None]
    flags = ("--api=frigate-zmq", address)
    # Its models are still being loaded when Frigate asks for one.
    server = start_server(two_models, tmp_path, flags, wait=False)
    try:
        with zmq_detector(plugin, address.partition("=")[2], "digits.onnx", 5000) as detector:
            first = detector.detect_raw(frame)
            assert np.count_nonzero(first[:, 1]) >= 3
            assert server.stop() == 0
            server = start_server(two_models, tmp_path, flags)
            # The new server does not know the detector, which makes itself known again.
            assert not detector.detect_raw(frame).any()
            np.testing.assert_allclose(detector.detect_raw(frame), first, atol=ROUNDED)
    finally:
        server.stop()
    assert "several models are suitable" in server.log.read_text()


def is_loaded(camera, model) -> bool:
    camera.send(header(model_request=True, model_name=model))
    return json.loads(camera.recv())["model_loaded"]


def test_requests_that_wait_for_a_model_do_not_hold_up_frames(
    demo_repository, demo_model, tmp_path
):
    repository = tmp_path / "models"
    shutil.copytree(demo_repository, repository)
    # With a model that does not load, the server is not ready, and others may yet come.
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    frame = np.asarray(Image.open(demo_model.parent / "scene-1.jpg").convert("RGB"))[None]
    flags = ("--api=frigate-zmq", f"--frigate-address={address}")
    server = start_server(repository, tmp_path, flags, wait=False)
    try:
        with dealer(address) as camera, dealer(address) as crowd:
            # An answer does not wait as long as a server on a busy machine takes to load.
            wait_until(lambda: is_loaded(camera, "digits"))
            for _ in range(400):
                crowd.send(header(model_request=True, model_name="nobody"))
            # Those for whom there is no room learn at once what is known.
            for _ in range(300):
                assert "there is no model 'nobody'" in json.loads(crowd.recv())["message"]
            camera.send_multipart([header(shape=frame.shape, dtype="uint8"), frame.tobytes()])
            assert len(camera.recv_multipart()) == 2
    finally:
        assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_a_model_of_the_operator_answers_to_any_name(plugin, two_models, demo_model, tmp_path):
    address = f"ipc://{tmp_path}/zmq_detector"
    frame = np.asarray(Image.open(demo_model.parent / "scene-1.jpg").convert("RGB"))[None]
    flags = ("--api=frigate-zmq=numbers", f"--frigate-address={address}")
    server = start_server(two_models, tmp_path, flags)
    try:
        with zmq_detector(plugin, address, "/edgetpu_model.tflite") as detector:
            assert np.count_nonzero(detector.detect_raw(frame)[:, 1]) >= 3
        wait_until(lambda: "- ZMQ '/frigate-zmq/detect' model='numbers'" in server.log.read_text())
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--frigate-address=tcp://127.0.0.1:5555"], "no effect without --api frigate-zmq"),
        (
            ["--api=frigate-zmq", "--http-restricted-api=inference:key=secret"],
            "without --keys",
        ),
        (["--api=frigate-zmq", "--frigate-address=5555"], "such as tcp://127.0.0.1:5555"),
        (
            ["--api=frigate-zmq", "--frigate-address=tcp://127.0.0.1:77777"],
            "such as tcp://127.0.0.1:5555",
        ),
        (
            ["--api=frigate-zmq", "--frigate-address=tcp://127.0.0.1:{taken}"],
            "stop the program that uses this address",
        ),
        (
            ["--api=frigate-zmq", "--frigate-address=ipc:///nowhere/socket"],
            "choose an address of this machine with --frigate-address",
        ),
        (["--api=frigate-zmq=digts"], "did you mean digits"),
    ],
)
def test_what_cannot_be_served_is_told_at_the_start(fovea, demo_repository, flags, says):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind("tcp://127.0.0.1:*")
        taken = socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        given = [flag.format(taken=taken) for flag in flags]
        code, _, err = fovea("serve", demo_repository, "--http-port=0", *given)
    assert code != 0
    assert says in err


def test_a_server_with_keys_has_no_door_for_frigate(demo_repository, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    command = ["-m", "fovea_server.cli.main", "serve", demo_repository, f"--keys={keys}"]
    # In a process of its own: what follows the file ends with it.
    run = subprocess.run(
        [sys.executable, *command, "--api=frigate-zmq"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert "works only without keys" in run.stderr
