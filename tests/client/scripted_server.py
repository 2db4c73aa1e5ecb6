"""A double of a server that answers from a script."""

import json
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = {
    "model": "digits",
    "version": "1",
    "task": "detect",
    "images": [
        {
            "width": 320,
            "height": 200,
            "orientation": 1,
            "detections": [
                {
                    "box": {"x1": 1.0, "y1": 2.0, "x2": 30.5, "y2": 40.0},
                    "score": 0.9,
                    "class_id": 7,
                    "class_name": "seven",
                }
            ],
        }
    ],
    "timing_ms": dict.fromkeys(
        ("decode", "letterbox", "queue", "infer", "postprocess", "total"), 1.0
    ),
}
BUSY = {"error": {"code": "queue_full", "message": "256 images are waiting"}}

Reply = tuple[int, dict[str, str], bytes]


class ScriptedServer(ThreadingHTTPServer):
    """Answers from `replies` in turn, the last one again and again; keeps what it was sent.

    In place of the status 0 it closes the connection. With `drip_s` it waits that long before each
    byte of the content.
    """

    daemon_threads = True
    request_queue_size = 100  # of connections that are not accepted yet

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[Reply] = [(200, {}, json.dumps(ANSWER).encode())]
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.delay_s = 0.0
        self.drip_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, body))
        time.sleep(self.server.delay_s)
        replies = self.server.replies
        status, answer_headers, content = replies.pop(0) if len(replies) > 1 else replies[0]
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in answer_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not self.server.drip_s:
            self.wfile.write(content)
            return
        with suppress(OSError):
            for byte in content:
                time.sleep(self.server.drip_s)
                self.wfile.write(bytes([byte]))

    do_GET = do_POST  # noqa: N815  the base class looks for these names

    def log_message(self, format: str, *args: object) -> None:
        pass
