"""`fovea watch`: lines of JSON, the table, the page, and what is wrong."""

import json
import re
import signal
import socket
import subprocess
import sys

import cv2
import httpx
import numpy as np
import pytest
from tests.server.streams.conftest import mjpeg_camera, write_moving_scene
from tests.server.streams.receiver import Receiver, receiving
from tests.serving import free_ports

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-m", "fovea_server.cli.main", "watch", "digits"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Twelve frames of the demo's scene, which moves, ten a second."""
    path = tmp_path_factory.mktemp("clip") / "clip.avi"
    write_moving_scene(path, 12, 3)
    return str(path)


def test_a_line_for_each_frame(fovea, demo_repository, clip):
    code, out, errors = fovea(
        *("watch", "digits", clip, "--repository", demo_repository),
        *("--track", "bytetrack", "--json"),
    )
    assert code == 0, errors
    lines = [json.loads(each) for each in out.splitlines()]
    assert [each["frame"] for each in lines] == list(range(12))
    assert [each["time_s"] for each in lines] == pytest.approx([n / 10 for n in range(12)])
    ids = [[one["track_id"] for one in each["detections"]] for each in lines]
    assert set(ids[0]) == {None}
    assert min(each for row in ids for each in row if each is not None) == 1
    assert ids[-1]
    assert sorted(ids[-1]) == sorted(set(ids[-1]) - {None})
    assert {each["stream"] for each in lines} == {"source1"}


def test_a_line_for_each_event(fovea, demo_repository, clip):
    receiver = Receiver()
    with receiving(receiver) as port:
        code, out, errors = fovea(
            *("watch", "digits", clip, "--repository", demo_repository, "--json"),
            *("--line", "middle=0.5,0,0.5,1", "--zone", "all=0,0,1,0,1,1,0,1:anchor=center"),
            *("--event", "entered", "--event", "left", "--webhook", f"http://127.0.0.1:{port}/"),
        )
    assert code == 0, errors
    lines = [json.loads(each) for each in out.splitlines()]
    assert {each["name"] for each in lines} == {"all"}
    kinds = [each["kind"] for each in lines]
    assert kinds.count("entered") == kinds.count("left") > 2
    assert receiver.events == lines


def test_events_that_nobody_takes_are_named(fovea, demo_repository, clip, monkeypatch):
    monkeypatch.setattr("fovea_server.cli.watch._LAST_EVENTS_S", 2.0)
    receiver, (dead,) = Receiver(), free_ports(1)
    receiver.faults = [500, 500]
    command = "watch", "digits", clip, "--repository", demo_repository, "--json"
    command += "--zone", "all=0,0,1,0,1,1,0,1:anchor=center", "--webhook"
    code, out, errors = fovea(*command, f"http://127.0.0.1:{dead}/")
    count = len(out.splitlines())
    assert (code, count > 2) == (1, True)
    lacks = f"{count} events to the webhook: the receiver does not respond (ConnectError)"
    assert f"waiting to deliver {lacks} (stop with Ctrl-C)" in errors
    assert f"error: not delivered: {lacks}" in errors
    # One that is back soon has them all.
    with receiving(receiver) as port:
        code, out, errors = fovea(*command, f"http://127.0.0.1:{port}/")
    assert (code, len(receiver.events)) == (0, count), errors
    assert "not delivered" not in errors


def test_ctrl_c_ends_the_wait_for_a_receiver(demo_repository, clip):
    (dead,) = free_ports(1)
    process = subprocess.Popen(
        [
            *(*PROGRAM, clip, "--repository", demo_repository, "--json", "--event", "appeared"),
            *("--webhook", f"http://127.0.0.1:{dead}/"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert any("waiting to deliver" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (1, False)
    assert "error: not delivered: " in errors


def test_who_reads_no_more_ends_it_without_a_word(demo_repository, mjpeg):
    command = [*PROGRAM, f"http://{mjpeg}/video", "--repository", demo_repository, "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as watch:
        assert watch.stdout.readline().startswith("{")
        watch.stdout.close()
        errors = watch.stderr.read()
    assert watch.returncode == 1
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_a_port_that_is_in_use_is_named(fovea, demo_repository, clip):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = "watch", "digits", clip, "--repository", demo_repository, "--show", port
        code, _, errors = fovea(*command)
    assert code == 2
    assert f"--show {port} is not available (Address already in use)" in " ".join(errors.split())


def test_the_page_ends_with_the_video(demo_repository, clip):
    (port,) = free_ports(1)
    command = [*PROGRAM, clip, "--repository", demo_repository, "--show", str(port), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_the_table_has_counts_reasons_and_why_no_object_has_an_id(fovea, demo_repository, clip):
    command = "watch", "digits", clip, "--repository", demo_repository
    code, out, errors = fovea(*command, "--line", "middle=0.5,0,0.5,1", "--track-new", "1")
    assert code == 0, errors
    assert re.search(r"middle +│ in \d, out \d ", out)
    # The sentence is broken into the lines of a cell.
    assert {"objects", "ID:", "score", "track_new"} <= set(re.split(r"[\s│]+", out))
    code, out, _ = fovea(*command, "nobody.mp4", "--track", "bytetrack", "--every", "500ms")
    assert code == 1
    text = " ".join(out.split())
    assert all(each in text for each in ("ended", "failed", "not exist", " 3 "))
    assert "track_new" not in text


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("nobody", "0"), "nobody"),
        (("digits", "ftp://a"), "rtsp://"),
        (("digits", "0", "--every", "1s", "--fps", "2"), "remove one of them"),
        (("digits", "0", "--every", "200"), "as 200ms or 2s"),
        (("digits", "0", "--track", "x"), "bytetrack"),
        (("digits", "0", "--conf", "2"), "conf"),
        # The model is asked before a source is opened.
        (("digits", "0", "--classes", "zeor"), "has no class 'zeor'"),
        (("digits", "nobody.mp4"), "nobody.mp4 does not exist"),
        (("digits", "0", "--line", "a=0,0,1,1:classes=0,zeor"), "line a: model 'digits' has no"),
    ],
)
def test_what_is_wrong_is_named(fovea, demo_repository, command, words):
    code, _out, errors = fovea("watch", *command, "--repository", demo_repository)
    assert code == 2
    assert words in errors


def test_the_page_shows_the_frames(demo_repository, mjpeg):
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [
            *(*PROGRAM, f"http://me:s3cret@{mjpeg}/video", "--json"),
            *("--repository", demo_repository, "--show", str(port)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert json.loads(process.stdout.readline())["frame"] == 0
    url = f"http://127.0.0.1:{port}"
    page = httpx.get(url).text
    assert f"http://{mjpeg}/video" in page
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 400
    with httpx.stream("GET", f"{url}/0") as answer:
        received = b""
        for piece in answer.iter_bytes():
            received += piece
            if b"--frame" in received[10:]:
                break
    jpeg = received[received.index(b"\xff\xd8") :]
    assert cv2.imdecode(np.frombuffer(jpeg, np.uint8), 1).shape == (120, 160, 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "s3cret" not in errors + page


def test_states_are_lines_without_a_terminal(demo_repository):
    (port,) = free_ports(1)
    source = f"http://127.0.0.1:{port}/video"
    process = subprocess.Popen(
        [*PROGRAM, source, "--repository", demo_repository], stderr=subprocess.PIPE, text=True
    )
    waiting = next(line for line in process.stderr if "waiting" in line)
    assert (
        waiting == f"{source}: waiting: the connection was refused: check the host and the port\n"
    )
    with mjpeg_camera(port):
        assert any(line == f"{source}: live\n" for line in process.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
