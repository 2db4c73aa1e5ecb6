"""`fovea predict` on images, with a server and without one."""

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import DEMO

from fovea_preprocess.image import decode_image

pytestmark = pytest.mark.slow

SCENE = DEMO / "scene-1.jpg"


@pytest.fixture(params=["--repository", "--url"])
def source(request, demo_repository):
    """Both ways to an answer, which must not differ; an address needs no scheme."""
    if request.param == "--repository":
        return request.param, demo_repository
    server = request.getfixturevalue("demo_server")
    return request.param, server.url.removeprefix("http://")


def test_a_table_an_image(fovea, source, tmp_path):
    code, out, err = fovea("predict", "digits", SCENE, *source, "--out", "out")
    assert code == 0, err
    annotated = decode_image((tmp_path / "out/annotated/scene-1.jpg").read_bytes())
    assert annotated.pixels.shape == (480, 640, 3)
    code, out, err = fovea("predict", "digits", SCENE, *source)
    assert "640 x 480" in out
    labels = [
        each["class_name"] for each in json.loads((DEMO / "scenes.json").read_text())[SCENE.name]
    ]
    rows = [line.split() for line in out.splitlines() if line.startswith("│")]
    assert sorted(row[1] for row in rows) == sorted(labels)
    code, out, err = fovea("predict", "digits", SCENE, *source, "--classes", 7)
    assert (code, "nothing found" in out) == (0, True), err


def test_the_current_version_predicts(fovea, demo_versions, tmp_path):
    repository = shutil.copytree(demo_versions, tmp_path / "repository")
    for version in (1, 2):
        assert fovea("promote", "digits", version, "--repository", repository)[0] == 0
        _, out, _ = fovea("predict", "digits", SCENE, "--repository", repository, "--json")
        assert json.loads(out)["version"] == str(version)


def test_one_document_for_all_images(fovea, source, tmp_path):
    same = tmp_path / "same.jpg"
    same.symlink_to(SCENE)
    options = ("--classes", "5,0", "--max-det", 1, "--json")
    code, out, err = fovea("predict", "digits", SCENE, same, *source, *options)
    assert code == 0, err
    document = json.loads(out)
    assert list(document) == ["model", "version", "task", "images", "timing_ms"]
    assert (document["model"], document["version"], document["task"]) == ("digits", "1", "detect")
    assert [image.pop("file") for image in document["images"]] == [str(SCENE), str(same)]
    assert document["images"][0] == document["images"][1]
    [found] = document["images"][0]["detections"]
    assert found["class_name"] == "5"
    assert found["score"] == pytest.approx(0.93, abs=0.02)
    assert list(found["box"].values()) == pytest.approx([555, 138, 627, 251], abs=5)
    assert document["timing_ms"]["total"] > document["timing_ms"]["infer"] > 0


def test_a_bad_image_fails_only_itself(fovea, source, tmp_path):
    cut, absent = tmp_path / "cut.jpg", tmp_path / "absent.jpg"
    cut.write_bytes(SCENE.read_bytes()[:3000])
    files = (cut, absent, SCENE)
    code, out, err = fovea("predict", "digits", *files, *source, "--json")
    assert (code, "2 of 3" in err) == (1, True), err
    *failed, good = json.loads(out)["images"]
    assert [image["error"]["code"] for image in failed] == ["invalid_image", "not_found"]
    assert len(good["detections"]) == 9
    code, out, err = fovea("predict", "digits", *files, *source)
    assert code == 1
    for named in (str(cut), str(absent), "2 of 3"):
        assert named in err
    assert "scene-1.jpg" in out


def test_saved_images_overwrite_nothing(fovea, source, tmp_path):
    here, there = tmp_path / "bus.jpg", tmp_path / "other/bus.jpg"
    there.parent.mkdir()
    for copy in (here, there):
        copy.write_bytes(SCENE.read_bytes())
    assert fovea("predict", "digits", here, there, *source, "--out", tmp_path)[0] == 0
    assert here.read_bytes() == SCENE.read_bytes()
    assert (tmp_path / "annotated/bus.jpg").exists()
    assert (tmp_path / "annotated/other/bus.jpg").exists()


@pytest.mark.parametrize(
    ("model", "arguments", "told"),
    [
        ("digits", ("--classes", "tne"), "tne"),
        ("digits", ("--classes", ""), "classes"),
        ("digits", ("--classes", "-1"), "classes"),
        ("digits", ("--version", 7), "version 7"),
        ("no-such-model", (), "no-such-model"),
    ],
)
def test_what_the_model_lacks_is_named(fovea, source, model, arguments, told):
    code, _, err = fovea("predict", model, SCENE, *source, *arguments)
    assert code in (1, 2)
    assert told in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--conf", "1.5"), "0 to 1"),
        (("--conf", "much"), "'much'"),
        (("--max-det", "0"), "1 to 3000"),
        (("--url", "ftp://127.0.0.1"), "http://127.0.0.1:8000"),
        (("--url", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("--classes", "person,"), "names or ids"),
    ],
)
def test_wrong_arguments_are_a_sentence(fovea, arguments, says):
    code, _, err = fovea("predict", "digits", SCENE, *arguments)
    assert code in (1, 2)
    assert says in err.splitlines()[-1]


# The server is not a Fovea server.

ANSWERED = {
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
        self._answer(json.dumps(ANSWERED).encode())

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class EchoServer(ThreadingHTTPServer):
    # The command opens more connections at once than five, the usual backlog.
    request_queue_size = 128


@pytest.fixture
def echo() -> Iterator[str]:
    with EchoServer(("127.0.0.1", 0), Echo) as server:
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


def test_a_damaged_answer_is_the_error_of_its_image(fovea, echo: str, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for name, found in GOOD.items():
        (images / f"{name}.jpg").write_bytes(answer(found))
    for name, body in BAD.items():
        (images / f"{name}.jpg").write_bytes(body)
    given = ("predict", "m", "images", "--url", echo, "--out", "out", "--format", "coco,yolo,csv")

    code, _, err = fovea(*given)

    assert code == 1
    assert f"{len(BAD)} of {len(GOOD) + len(BAD)}" in err
    lines = map(json.loads, (tmp_path / "out/predictions.jsonl").read_text().splitlines())
    failed = {Path(line["file"]).stem: line["error"] for line in lines if "error" in line}
    assert failed.keys() == BAD.keys()
    assert {error["code"] for error in failed.values()} <= {"invalid_result", "invalid_image"}
    coco = json.loads((tmp_path / "out/predictions.json").read_text())
    assert [each["bbox"] for each in coco["annotations"]] == [[1.0, 0.0, 2.0, 2.0]]
    assert len((tmp_path / "out/predictions.csv").read_text().splitlines()) == 2
    # --resume continues from the kept results.
    (images / "zz.jpg").write_bytes(answer(one()))
    assert fovea(*given, "--resume")[0] == 1
    coco = json.loads((tmp_path / "out/predictions.json").read_text())
    assert len(coco["annotations"]) == 2

    code, out, err = fovea("predict", "m", "images", "--url", echo)
    assert code == 1
    assert "images/a.jpg  4 x 2  1 dog" in out
    assert "images/html.jpg" in err
