"""A digit that goes to and fro: as a clip, and as a camera that sends MJPEG over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np

WIDTH, HEIGHT, SIDE, STEP, RATE = 320, 240, 96, 14, 10


def frames(digit: Path) -> list[np.ndarray]:
    """Draw the digit at places from left to right, and back."""
    read = cv2.imread(str(digit))
    assert read is not None
    small = cv2.resize(read, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    there = []
    for left in range(0, WIDTH - SIDE, STEP):
        picture = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
        picture[70 : 70 + SIDE, left : left + SIDE] = small
        there.append(picture)
    return [*there, *there[::-1]]


def write_clip(path: Path, digit: Path) -> None:
    code = cv2.VideoWriter.fourcc(*"mp4v")
    writer = cv2.VideoWriter(str(path), code, RATE, (WIDTH, HEIGHT))
    for picture in frames(digit):
        writer.write(picture)
    writer.release()


class _Handler(BaseHTTPRequestHandler):
    server: "_Camera"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        number = 0
        with suppress(OSError):
            while not self.server.stopping.is_set():
                jpeg = self.server.pictures[number % len(self.server.pictures)]
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                self.wfile.write(head.encode() + jpeg + b"\r\n")
                number += 1
                self.server.stopping.wait(1 / RATE)

    def log_message(self, *_: object) -> None:
        pass


class _Camera(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, digit: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stopping = threading.Event()
        self.pictures = [cv2.imencode(".jpg", each)[1].tobytes() for each in frames(digit)]


@contextmanager
def camera(digit: Path) -> Iterator[str]:
    """Run the camera; gives its address."""
    with _Camera(digit) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/video"
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()
