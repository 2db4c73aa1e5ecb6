"""An opened engine: with a card and, in a plain Triton repository, without."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tests.engines.heads.expected import NEAR, unmatched
from tests.engines.tiny import tiny_detector

from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError, InvalidModel, NotFound

pytestmark = pytest.mark.real


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (48, 100, 3), np.uint8)


def test_detects_in_pixels_of_the_image(built_repository, pixels):
    with Engine.open(built_repository / "tiny" / "1") as engine:
        found = engine.detect(pixels, PredictOptions(conf=0.1))
        assert engine.labels == ("cat", "dog", "bus")
    assert len(found)
    assert found.boxes.dtype == np.float32
    assert (found.boxes >= 0).all()
    assert (found.boxes <= (100, 48, 100, 48)).all()
    assert (np.diff(found.scores) <= 0).all()
    assert found.boxes[:, 2].max() > 64  # not in pixels of the 64x64 input


def test_without_a_card_it_finds_the_same(tiny_model, built_repository, tmp_path, pixels):
    folder = tmp_path / "plain" / "1"
    folder.mkdir(parents=True)
    shutil.copy(tiny_model, folder / "model.onnx")
    with Engine.open(folder) as plain, Engine.open(built_repository / "tiny" / "1") as built:
        assert plain.card.name == "plain"
        assert plain.card.agreement is None
        assert plain.labels == built.labels
        want, have = built.detect(pixels), plain.detect(pixels)
    np.testing.assert_allclose(have.boxes, want.boxes, atol=0.01)
    np.testing.assert_array_equal(have.class_ids, want.class_ids)


def test_without_a_card_labels_and_batch_come_from_beside(tmp_path):
    folder = tmp_path / "plain" / "1"
    folder.mkdir(parents=True)
    tiny_detector(folder / "model.onnx", metadata={"stride": "32"})
    (tmp_path / "plain" / "labels.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "plain" / "config.pbtxt").write_text("max_batch_size: 8")
    with Engine.open(folder) as engine:
        assert engine.labels == ("one", "two", "three")
        assert engine.session.max_batch == engine.card.max_batch == 8


def test_without_a_card_or_a_size_it_serves_tensors(tmp_path):
    folder = tmp_path / "plain" / "1"
    folder.mkdir(parents=True)
    tiny_detector(folder / "model.onnx", size=("height", "width"))
    with Engine.open(folder) as engine:
        assert (engine.head, engine.preprocessor, engine.card.task) == (None, None, "tensors")
        assert "could not be run; to get boxes, build it with" in engine.card.reason
        assert engine.session.outputs[0].shape == (-1, 7, -1)


def test_openvino_files_without_a_card_open(built_repository, tmp_path, pixels):
    folder = tmp_path / "plain" / "1"
    shutil.copytree(built_repository / "tiny" / "1", folder)
    (folder / "card.json").unlink()
    with Engine.open(folder) as engine:
        assert engine.card.backend == "openvino"
        assert engine.labels is None
        assert engine.detect(pixels).boxes.shape[1] == 4


@pytest.mark.parametrize("file", ["model.xml", "model.bin"])
def test_a_changed_engine_is_refused(built_repository, tmp_path, file):
    folder = tmp_path / "1"
    shutil.copytree(built_repository / "tiny" / "1", folder)
    data = bytearray((folder / file).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / file).write_bytes(data)
    with pytest.raises(InvalidModel, match="sha256"):
        Engine.open(folder)
    (folder / file).unlink()
    with pytest.raises(NotFound, match=file):
        Engine.open(folder)


@pytest.mark.parametrize("files", [{}, {"../model.xml": "0"}, {"/etc/passwd": "0"}, {"": "0"}])
def test_a_card_names_files_of_its_own_folder(built_repository, tmp_path, files):
    folder = tmp_path / "1"
    shutil.copytree(built_repository / "tiny" / "1", folder)
    card = json.loads((folder / "card.json").read_text())
    card["files"] = files
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(InvalidModel):
        Engine.open(folder)


def test_an_empty_folder_has_no_engine(tmp_path):
    with pytest.raises(NotFound):
        Engine.open(tmp_path)


def test_tritons_own_models_open_without_a_card(shared):
    opened = 0
    for model in sorted((shared / "data" / "triton" / "models").glob("*/1/model.onnx")):
        try:
            with Engine.open(model.parent) as engine:
                assert engine.card.inputs == engine.session.inputs
                opened += 1
        except FoveaError:
            pytest.fail(f"{model} does not open")
    assert opened > 10


def test_opening_imports_neither_onnx_nor_the_build(built_repository):
    code = (
        "import sys, pathlib; from fovea_engines.engine import Engine\n"
        "Engine.open(pathlib.Path(sys.argv[1])).close()\n"
        "print([m for m in ('onnx', 'onnxslim', 'onnxruntime', 'grpc', 'rich', 'google.protobuf')"
        " if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(built_repository / "tiny" / "1")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(("name", "family"), [("dfine", "rtdetr"), ("paddle", "paddle")])
def test_a_plain_detector_gets_the_size_beside_its_image(shared, tmp_path, name, family):
    source = shared / "models" / "heads" / f"{name}.onnx"
    (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / name / "1" / "model.onnx").symlink_to(source)
    stored = json.loads(source.with_suffix(".expected.json").read_text())["images"]["bus.jpg"]
    pixels = read_image(shared / "data" / "bus.jpg")
    with Engine.open(tmp_path / name / "1") as engine:
        assert (engine.card.family, len(engine.card.inputs) > 1) == (family, True)
        found = engine.detect(pixels, PredictOptions(conf=0.25 - NEAR))
        left = unmatched((found.boxes, found.scores, found.class_ids), stored, pixels.shape)
        assert not [row for row in left if row[1] >= 0.25 + NEAR]
        # Each image of a batch gets its own.
        rows = np.zeros((2, *engine.preprocessor.spec.row_shape), np.float32)
        sizes = {spec.name: engine.feeds(rows)[spec.name] for spec in engine.card.inputs[1:]}
        assert {len(value) for value in sizes.values()} == {2}
