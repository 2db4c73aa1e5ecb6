"""`fovea predict --url` of a server whose answers are not what a Fovea server answers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

MODEL = {
    "name": "m",
    "version": "1",
    "ready": True,
    "reason": None,
    "versions": [],
    "task": "segment",
    "accepts_images": True,
    "backend": None,
    "precision": None,
    "label_count": 2,
    "labels": ["cat", "dog"],
    "inputs": [],
    "outputs": [],
    "max_batch_size": 1,
    "preprocess": None,
    "card": None,
    "card_reason": "odd",
}
OBJECT = {
    "box": {"x1": 1.0, "y1": 0.0, "x2": 3.0, "y2": 2.0},
    "score": 0.5,
    "class_id": 1,
    "class_name": "dog",
    "mask": {"size": [2, 4], "counts": "242"},
}


class Echo(BaseHTTPRequestHandler):
    """Answers each image with its own bytes."""

    def do_GET(self) -> None:
        self._answer(json.dumps(MODEL).encode())

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def answer(*images: dict[str, Any], size: object = 4) -> bytes:
    place = {"width": size, "height": 2, "orientation": 1}
    timing = dict.fromkeys(("decode", "letterbox", "queue", "infer", "postprocess", "total"), 1.0)
    rows = [image if "error" in image else place | image for image in images]
    document = {"model": "m", "version": "1", "task": "segment", "images": rows}
    return json.dumps(document | {"timing_ms": timing}).encode()


def one(**fields: object) -> dict[str, Any]:
    return {"detections": [OBJECT | fields]}


GOOD = {"a": one(), "z": {"detections": []}}
BAD = {
    "html": b"<html>",
    "empty": b"",
    "list": b"[]",
    "none": answer(),
    "two": answer(one(), one()),
    "error": answer({"error": {"code": "invalid_image", "message": "odd"}}),
    "bare": b'{"images": []}',
    "box": answer(one(box={"x1": 1})),
    "class": answer(one(class_id=10**12)),
    "nan": answer(one(score=float("nan"))),
    "surrogate": answer(one(class_name="\ud800")),
    "size": answer(one(), size=10**30),
    "mask": answer(one(mask={"size": [2000, 4], "counts": "242"})),
    "runs": answer(one(mask={"size": [2, 4], "counts": "T"})),
    "deep": b"[" * 100_000,
}


def test_a_damaged_answer_is_the_error_of_its_image(fovea, url: str, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for name, found in GOOD.items():
        (images / f"{name}.jpg").write_bytes(answer(found))
    for name, body in BAD.items():
        (images / f"{name}.jpg").write_bytes(body)
    given = ("predict", "m", "images", "--url", url, "--out", "out", "--format", "coco,yolo,csv")

    code, _, err = fovea(*given)

    assert code == 1
    assert f"error: {len(BAD)} of {len(GOOD) + len(BAD)} images failed" in err
    lines = map(json.loads, (tmp_path / "out/predictions.jsonl").read_text().splitlines())
    failed = {Path(line["file"]).stem: line["error"] for line in lines if "error" in line}
    assert failed.keys() == BAD.keys()
    assert {error["code"] for error in failed.values()} <= {"invalid_result", "invalid_image"}
    coco = json.loads((tmp_path / "out/predictions.json").read_text())
    assert [each["bbox"] for each in coco["annotations"]] == [[1.0, 0.0, 2.0, 2.0]]
    assert len((tmp_path / "out/predictions.csv").read_text().splitlines()) == 2
    # What is kept can be gone on with.
    (images / "zz.jpg").write_bytes(answer(one()))
    assert fovea(*given, "--resume")[0] == 1
    coco = json.loads((tmp_path / "out/predictions.json").read_text())
    assert len(coco["annotations"]) == 2

    code, out, err = fovea("predict", "m", "images", "--url", url)
    assert code == 1
    assert "images/a.jpg  4 x 2  1 dog" in out
    assert "images/html.jpg: the answer is not a prediction" in err
