"""A double of CVAT's server: what cvat-cli asks of it about one task."""

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TASK = 5
SINCE = "2026-01-01T00:00:00Z"


class CvatDouble(ThreadingHTTPServer):
    """Has one task with images, and keeps the annotations that it is sent.

    Attributes:
        labels: of the task: id, name, type and the sublabels of a skeleton.
        sent: what it was sent: annotations, or a function.
    """

    daemon_threads = True

    def __init__(self, images: list[Path], labels: list[dict[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.images, self.labels = images, labels
        self.sent: dict[str, Any] = {}

    def answer(self, path: str) -> bytes:
        if path == f"/api/tasks/{TASK}/data":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as chunk:
                for image in self.images:
                    chunk.write(image, image.name)
            return packed.getvalue()
        frames = [{"name": each.name, "related_files": 0} for each in self.images]
        nobody = {"id": 1, "username": "me", "url": "http://127.0.0.1/", "first_name": ""}
        documents = {
            "/api/server/about": {
                **dict.fromkeys(("name", "description", "logo_url", "subtitle"), "CVAT"),
                "version": "2.80.0",
            },
            f"/api/tasks/{TASK}": {
                "id": TASK,
                "name": "images",
                "organization": None,
                "owner": nobody | {"last_name": ""},
                "created_date": SINCE,
                "updated_date": SINCE,
                "size": len(frames),
                "data_chunk_size": len(frames),
                "data_original_chunk_type": "imageset",
                "jobs": {"count": 1, "completed": 0, "validation": 0},
                "labels": {"url": "http://127.0.0.1/api/labels"},
            },
            f"/api/tasks/{TASK}/data/meta": {
                "chunks_updated_date": SINCE,
                "frames": frames,
                "deleted_frames": [],
                "chunk_size": len(frames),
                "size": len(frames),
            },
            "/api/labels": {"count": len(self.labels), "results": self.labels, "next": None},
        }
        return json.dumps(documents[path]).encode()


class _Handler(BaseHTTPRequestHandler):
    server: CvatDouble

    def do_GET(self) -> None:
        content = self.server.answer(urlsplit(self.path).path.rstrip("/"))
        kind = "application/zip" if content.startswith(b"PK") else "application/json"
        self._send(content, kind)

    def do_PATCH(self) -> None:
        assert urlsplit(self.path).path.rstrip("/") == f"/api/tasks/{TASK}/annotations"
        self._receive({"version": 0, "tags": [], "shapes": [], "tracks": []})

    def do_POST(self) -> None:
        assert self.path == "/api/functions"
        self._receive({"id": 1, "name": "Fovea"})

    def _receive(self, answer: dict[str, Any]) -> None:
        self.server.sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._send(json.dumps(answer).encode(), "application/json")

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def cvat(images: list[Path], labels: list[dict[str, Any]]) -> Iterator[CvatDouble]:
    """Serve such a task."""
    with CvatDouble(images, labels) as double:
        thread = threading.Thread(target=double.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield double
        finally:
            double.shutdown()
            thread.join()
