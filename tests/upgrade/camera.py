"""A digit that moves to and fro: as a clip, and as a camera that sends MJPEG over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np

WIDTH, HEIGHT, SIDE, STEP, FPS = 320, 240, 96, 14, 10


def draw_frames(digit: Path) -> list[np.ndarray]:
    """Draw the digit from left to right and back, BGR uint8."""
    image = cv2.imread(str(digit))
    assert image is not None
    small = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    frames = []
    for left in range(0, WIDTH - SIDE, STEP):
        frame = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
        frame[70 : 70 + SIDE, left : left + SIDE] = small
        frames.append(frame)
    return [*frames, *frames[::-1]]


def write_clip(path: Path, digit: Path) -> None:
    code = cv2.VideoWriter.fourcc(*"mp4v")
    writer = cv2.VideoWriter(str(path), code, FPS, (WIDTH, HEIGHT))
    for frame in draw_frames(digit):
        writer.write(frame)
    writer.release()


@contextmanager
def run_camera(digit: Path) -> Iterator[str]:
    """Run the camera; yields its URL."""
    jpegs = [cv2.imencode(".jpg", frame)[1].tobytes() for frame in draw_frames(digit)]
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            number = 0
            with suppress(OSError):
                while not stopping.wait(1 / FPS):
                    jpeg = jpegs[number % len(jpegs)]
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}"
                    self.wfile.write(f"{head}\r\n\r\n".encode() + jpeg + b"\r\n")
                    number += 1

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/video"
        finally:
            stopping.set()
            server.shutdown()
            thread.join()
