"""Pages are read by a pipeline of three networks as by RapidOCR."""

import csv
import json

import cv2
import numpy as np
import onnxruntime
import pytest
from tests.built import build
from tests.rapidocr import PREPROCESS, reader
from tests.server.pipelines import pages
from tests.server.pipelines.pages import FOLDER, MODELS
from tests.serving import start_server
from typer.testing import CliRunner

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_server.cli.main import app

STAGES = """
[[stages]]
model = "find"
[[stages]]
model = "turn"
crop = "rotated"
[[stages]]
model = "read"
from = "turn"
turn = { "180" = 0.9 }
"""
# RapidOCR leaves out texts of lower scores.
READ_SCORE = 0.5
# Of the drawn ones: every font, light on dark, upside down, and the angles that are largest.
PAGES = (*range(5), 8)
STRETCHED = {"fit": "stretch", "channels": "BGR", "scale": 1 / 255, **PREPROCESS}
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not MODELS["read"].exists(), reason=f"{FOLDER} is absent: `make test-real` installs it"
    ),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder, samples = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("pages")
    cv2.imwrite(str(samples / "page.png"), pages.drawn(PAGES[2]))
    plans = {
        "find": {"family": "ppocr-det", "size": (480, 640), "preprocess": PREPROCESS},
        "turn": {"size": (48, 192), "labels": ("0", "180"), "preprocess": STRETCHED},
        "read": {"size": (48, 960), "rect": True},
    }
    for name, more in plans.items():
        backend = "onnxruntime" if "rect" in more else "openvino"
        build(BuildPlan(MODELS[name], name, folder, backend, images=samples, **more))
    (folder / "lines").mkdir()
    (folder / "lines" / "pipeline.toml").write_text(STAGES)
    return folder


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def check(monkeypatch, server):
    """Check that RapidOCR and the pipeline find the same texts on a page, at least so many."""
    program = reader(monkeypatch)

    def check(page, least):
        wanted = program(page).txts
        assert len(wanted) >= least
        with Client(server.url) as client:
            png = cv2.imencode(".png", page)[1].tobytes()
            texts = [each.text for each in client.predict("lines", png, conf=0.5).detections]
        assert sorted(each.text for each in texts if each.score >= READ_SCORE) == sorted(wanted)

    return check


def test_drawn_pages_have_the_texts_of_rapidocr(check):
    for number in PAGES:
        check(pages.drawn(number), 5)


def test_photographs_have_the_texts_of_rapidocr(check, shared):
    for name in pages.PHOTOGRAPHS:
        check(pages.photograph(shared, name), 1)


def test_lines_are_written_in_every_format(repository, tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "page.png"), pages.drawn(PAGES[2]))
    out = tmp_path / "out"
    asked = ["--repository", str(repository), "--out", str(out), "--conf", "0.5"]
    asked += ["--format", "annotated,coco,csv,yolo"]
    done = CliRunner().invoke(app, ["predict", "lines", str(tmp_path / "page.png"), *asked])
    assert done.exit_code == 0, done.output
    wanted = sorted(reader(monkeypatch)(pages.drawn(PAGES[2])).txts)
    with (out / "predictions.csv").open() as file:
        assert sorted(row["text"] for row in csv.DictReader(file)) == wanted
    rows = json.loads((out / "predictions.json").read_text())["annotations"]
    assert sorted(row["text"] for row in rows) == wanted
    assert len((out / "labels" / "page.txt").read_text().splitlines()) == len(wanted)
    drawn = cv2.imread(str(out / "annotated" / "page.jpg"))
    assert np.abs(drawn.astype(int) - pages.drawn(PAGES[2])).max() > 100


def test_a_line_is_read_at_the_width_that_holds_it(repository):
    source = onnxruntime.InferenceSession(MODELS["read"])
    widths = []
    with Engine.open(repository / "read" / "1") as engine:
        for length in (60, 250, 430, 800, 1300):
            line = np.random.default_rng(length).integers(0, 255, (48, length, 3), np.uint8)
            sized = engine.for_image(line)
            row = np.empty(sized.preprocessor.spec.row_shape, np.float32)
            sized.preprocessor(line, row)
            [want] = source.run(None, {"x": row[None]})
            [found] = engine.outputs_of(line, alone=False).values()
            np.testing.assert_allclose(found, want, atol=1e-4)
            assert row.shape[1] == 48
            widths.append(row.shape[2])
    assert widths == [240, 288, 432, 816, 960]
