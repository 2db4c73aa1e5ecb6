"""Cameras: a server of RTSP, and one of MJPEG over HTTP."""

import subprocess
import threading
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.conftest import DEMO
from tests.serving import free_ports
from tests.system import skip_for_want_of

SERVER = Path(__file__).parent / "rtsp_server.py"
PYTHON = "/usr/bin/python3"
_SERVER = 'import gi; gi.require_version("GstRtspServer", "1.0"); gi.require_version("Gst", "1.0")'
_FIND = "from gi.repository import Gst; Gst.init(); 1 / bool(Gst.Registry.get().find_plugin('rtp'))"


def moving_scene(frames, step):
    """The demo's scene, BGR, which moves to the right."""
    scene = cv2.imread(str(DEMO / "scene-1.jpg"))
    height, width = scene.shape[:2]
    for n in range(frames):
        shift = np.float32([[1, 0, step * n], [0, 1, 0]])
        yield cv2.warpAffine(scene, shift, (width, height))


def write_moving_scene(path, frames, step, fps=10):
    """Write the moving scene as a video."""
    pictures = list(moving_scene(frames, step))
    height, width = pictures[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), fps, (width, height))
    for picture in pictures:
        writer.write(picture)
    writer.release()


@contextmanager
def rtsp_server(ports):
    process = subprocess.Popen([PYTHON, SERVER, *map(str, ports)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline().startswith(b"listening")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def rtsp_ports():
    """Two ports for a server of RTSP; without one the test skips."""
    problem = "there is no server of RTSP"
    if not _runs("import gi"):
        skip_for_want_of("python3-gi", problem)
    if not _runs(_SERVER):
        skip_for_want_of("gir1.2-gst-rtsp-server-1.0", problem)
    if not _runs(f"{_SERVER}; {_FIND}"):
        skip_for_want_of("gstreamer1.0-plugins-good", problem)
    return free_ports(2)


def _runs(code):
    with suppress(FileNotFoundError):
        return not subprocess.run([PYTHON, "-c", code], check=False).returncode
    return False


@pytest.fixture(scope="module")
def rtsp(rtsp_ports):
    """Addresses of a running server: of what is open, and of what asks for a password."""
    with rtsp_server(rtsp_ports):
        yield [f"127.0.0.1:{port}" for port in rtsp_ports]


@cache
def to_and_fro():
    """Pictures of the scene that moves to the right and comes back."""
    there = list(moving_scene(40, 4))
    return [*there, *there[::-1]]


class MjpegHandler(BaseHTTPRequestHandler):
    """/video sends a frame every 20 ms, and its number with it as a shade of grey in steps of 8.

    /loop redirects for ever, and /away to /video. /stalled stops behind its second frame, and /mute
    before its first byte; /locked and /nothing are refused, and /page is no video. /huge has frames
    of 8K. /scene has one of the moving scene, to and fro, every 100 ms. Each fifth part of /broken
    is no picture. /playlist is one of HLS, which leads to /private; /still is one JPEG. /ftp
    redirects to another protocol.
    """

    def do_GET(self):
        path, stopping = self.path, self.server.stopping
        self.server.asked.append(path)
        if path == "/ftp":
            return self._answer(302, "Location", "ftp://127.0.0.1/video")
        if path == "/playlist":
            self._answer(200, "Content-Type", "application/vnd.apple.mpegurl")
            secret = f"http://127.0.0.1:{self.server.server_port}/private/segment.ts"
            head = "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n"
            return self.wfile.write(f"{head}{secret}\n#EXT-X-ENDLIST\n".encode())
        if path == "/still":
            self._answer(200, "Content-Type", "image/jpeg")
            return self.wfile.write((DEMO / "scene-1.jpg").read_bytes())
        if path in ("/loop", "/away"):
            return self._answer(302, "Location", "/video" if path == "/away" else "/loop")
        if path in ("/locked", "/nothing"):
            return self._answer({"/locked": 401, "/nothing": 404}[path], "Content-Length", "0")
        if path == "/page":
            self._answer(200, "Content-Type", "text/html")
            return self.wfile.write(b"<!doctype html>" + b" no video" * 1000)
        if path == "/mute":
            return stopping.wait()
        self._answer(200, "Content-Type", "multipart/x-mixed-replace; boundary=frame")
        number = 0
        scene = to_and_fro() if path == "/scene" else None
        every_s = self.server.every_s if scene is None else 0.1
        with suppress(OSError):
            while not stopping.is_set():
                size = (4320, 7680, 3) if path == "/huge" else (120, 160, 3)
                grey = np.full(size, 8 * number % 256, np.uint8)
                picture = grey if scene is None else scene[number % len(scene)]
                jpeg = cv2.imencode(".jpg", picture)[1].tobytes()
                if path == "/broken" and number % 5 == 4:
                    jpeg = bytes(500)
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                self.wfile.write(head.encode() + jpeg + b"\r\n")
                number += 1
                stopping.wait(60 if path == "/stalled" and number == 2 else every_s)
        return None

    def _answer(self, status, name, value):
        self.send_response(status)
        self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def mjpeg_camera(port=0, every_s=0.02, asked=None):
    """A camera of MJPEG over HTTP, until the end of the context; yields its port.

    Args:
        asked: takes the path of each request.
    """
    with ThreadingHTTPServer(("127.0.0.1", port), MjpegHandler) as server:
        server.stopping, server.every_s = threading.Event(), every_s
        server.asked = [] if asked is None else asked
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def mjpeg():
    """Address of a camera of MJPEG over HTTP."""
    with mjpeg_camera() as port:
        yield f"127.0.0.1:{port}"
