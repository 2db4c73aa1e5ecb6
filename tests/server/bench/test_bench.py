"""Requests as they go over the wire."""

import asyncio
import json
from xml.etree import ElementTree

import numpy as np
import orjson
import pytest
from PIL import Image

from fovea_engines.evaluation.labels import read_labelled
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_server.bench.chart import Axis, Series, chart, round_ticks
from fovea_server.bench.level import Level
from fovea_server.bench.load import ClosedLoop, OpenLoop
from fovea_server.bench.requests import image_requests, parse_shapes, tensor_request
from fovea_server.bench.sender import Connection
from fovea_server.bench.target import Target
from fovea_server.cli.bench_tables import draw
from fovea_server.offline.accuracy import answered_accuracy

URL = "https://example.org:8443/models/"
MODEL = Target(URL, "m", None)


def split(request: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def metadata(*inputs: tuple[str, str, list[int]]) -> dict:
    return {"inputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in inputs]}


def test_images_are_bodies_behind_the_servers_own_path():
    requests = image_requests(Target(URL, "a b", 2), [b"one", b"three"], {"conf": 0.001})
    first, headers, body = split(requests[1])
    assert first == "POST /models/v1/models/a%20b/versions/2/predict?conf=0.001 HTTP/1.1"
    assert headers["Host"] == "example.org:8443"
    assert (headers["Content-Length"], body) == ("5", b"three")


def test_tensors_are_of_the_models_types_and_sizes():
    known = metadata(
        *(("a", "FP32", [-1, 3]), ("b", "BF16", [2]), ("c", "BOOL", [4]), ("d", "INT8", [-1, 2])),
        ("e", "BYTES", [3]),
    )
    request = tensor_request(MODEL, known, {"d": (5, 2)})
    first, headers, body = split(request)
    assert first == "POST /models/v2/models/m/infer HTTP/1.1"
    assert int(headers["Content-Length"]) == len(body)
    length = int(headers["Inference-Header-Content-Length"])
    document = orjson.loads(body[:length])
    assert [each["shape"] for each in document["inputs"]] == [[1, 3], [2], [4], [5, 2], [3]]
    sizes = [each["parameters"]["binary_data_size"] for each in document["inputs"]]
    assert sizes[:4] == [12, 4, 4, 10]
    assert sum(sizes) == len(body) - length
    values = np.frombuffer(body[length:][:12], np.float32)
    assert np.isfinite(values).all()
    assert values.any()


def test_a_size_that_varies_must_be_said():
    known = metadata(("x", "FP32", [-1, 3, -1, 640]))
    with pytest.raises(InvalidOption, match="--shape"):
        tensor_request(MODEL, known, {})
    for shape in ((1, 3, 640), (1, 4, 5, 640)):
        with pytest.raises(InvalidOption):
            tensor_request(MODEL, known, {"x": shape})
    assert tensor_request(MODEL, known, {"x": (1, 3, 5, 640)})


def test_an_unknown_type_is_named():
    with pytest.raises(UnsupportedModel, match="FP8"):
        tensor_request(MODEL, metadata(("x", "FP8", [1])), {})


def test_shapes_are_parsed():
    assert parse_shapes(["a:1,2", "b:c:3"]) == {"a": (1, 2), "b:c": (3,)}
    for text in ("a", "a:", "a:1,", "a:-1", ":1"):
        with pytest.raises(InvalidOption, match="NAME:DIMS"):
            parse_shapes([text])


# Accuracy of answers whose class names are those of other things than the labels'.


CLASSES = [{"class_id": 0, "class_name": "tench", "score": 0.9}]
ANSWER = {
    "model": "m",
    "version": "1",
    "task": "classify",
    "images": [{"width": 8, "height": 8, "orientation": 1, "classes": CLASSES}],
    "timing_ms": dict.fromkeys(
        ("decode", "letterbox", "queue", "infer", "postprocess", "total"), 1.0
    ),
}


@pytest.mark.parametrize("folder", ["tench", "n01440764"])
def test_folders_that_no_answer_names_are_refused(tmp_path, folder):
    (tmp_path / folder).mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / folder / "a.jpg")
    labelled, answers = read_labelled(tmp_path), {0: json.dumps(ANSWER).encode()}
    if folder == "tench":
        assert answered_accuracy(answers, labelled).top1 == 1
        return
    with pytest.raises(InvalidOption, match="tench"):
        answered_accuracy(answers, labelled)


# A connection reads answers however they arrive.


PIECES = {
    "whole": [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nboxes"],
    "byte by byte": [bytes([b]) for b in b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nboxes"],
    "chunked": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo",
        b"\r\n3\r\nxes\r\n0\r\n\r\n",
    ],
}


async def asked(pieces, times=1):
    async def answer(reader, writer):
        for _ in range(times):
            if not await reader.readuntil(b"\r\n\r\n"):
                return
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        connection = await Connection.connect("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            return [await connection.ask(b"GET / HTTP/1.1\r\n\r\n") for _ in range(times)]
        finally:
            connection.close()


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES.keys())
def test_an_answer_is_read(pieces):
    assert asyncio.run(asked(pieces, times=2)) == [(200, b"boxes", 0.0)] * 2


def test_an_answer_says_when_to_ask_again():
    head = b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    assert asyncio.run(asked([head])) == [(429, b"", 7.0)]


def test_who_hangs_up_is_told_of():
    for pieces in ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nboxes"], [b"SSH-2.0\r\n"], []):
        with pytest.raises(ConnectionResetError):
            asyncio.run(asked(pieces))


# Charts are SVG, with what was asked for in them.


SVG = "{http://www.w3.org/2000/svg}"


def test_points_lines_and_names_are_drawn():
    axis = Axis("x < y", [0, 5, 10])
    series = [Series("<one>", [(0, 0), (10, 10)]), Series("two", [(5, 5)], joined=False)]
    drawing = ElementTree.fromstring(chart("a & b", axis, axis, series, limit=2.5))
    [line] = drawing.findall(f"{SVG}polyline")
    (left, low), (right, high) = (map(float, p.split(",")) for p in line.attrib["points"].split())
    [point] = drawing.findall(f"{SVG}circle")
    assert float(point.attrib["cx"]) == pytest.approx((left + right) / 2)
    assert float(point.attrib["cy"]) == pytest.approx((low + high) / 2)
    assert left < right
    assert high < low
    texts = [text.text for text in drawing.findall(f"{SVG}text")]
    assert {"a & b", "<one>", "two", "x < y", "0", "5", "10"} <= set(texts)


@pytest.mark.parametrize("most", [0, 0.7, 1, 3, 1234])
def test_ticks_enclose_the_values(most):
    ticks = round_ticks(most)
    assert ticks[0] == 0
    assert most <= ticks[-1]
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 9


def test_latencies_are_a_curve_for_each_level():
    levels = [Level(ClosedLoop(1)), Level(OpenLoop(5.0)), Level(ClosedLoop(2))]
    levels[0].sample.latencies.extend(number / 1e3 for number in range(1, 1001))
    levels[1].sample.latencies.append(0.2)
    drawing = ElementTree.fromstring(draw("t", levels) or "")
    assert len(drawing.findall(f"{SVG}polyline")) == 2
    assert draw("t", levels[2:]) is None


def test_percentiles_are_observed_values():
    level = Level(ClosedLoop(1))
    assert level.latency_ms(50) is None
    level.sample.latencies.extend([0.001, 0.002, 0.003, 1.0])
    assert [level.latency_ms(p) for p in (0, 50, 99, 100)] == [1.0, 3.0, 1000.0, 1000.0]
