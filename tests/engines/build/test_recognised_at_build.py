"""A build recognises a head by sample images, asks where they differ, and notes its guesses."""

import cv2
import numpy as np
import onnx
import pytest
from tests.engines.detect.test_contradictions import Surgeon
from tests.engines.tiny import tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.progress import Progress
from fovea_preprocess.errors import InvalidOption, UnsupportedModel


class Notes(Progress):
    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def grey(tmp_path):
    """A folder of one image that shows nothing."""
    folder = tmp_path / "grey"
    folder.mkdir()
    cv2.imwrite(str(folder / "grey.png"), np.full((64, 64, 3), 128, np.uint8))
    return folder


def plan(source, tmp_path, **options):
    return BuildPlan(source, "m", tmp_path / "models", "onnxruntime", **options)


def saved(surgeon, path):
    onnx.save(surgeon.finished(), path)
    return path


def clothes(shared, **options):
    path = shared / "models" / "heads" / "ultralytics-rtdetr-clothes.onnx"
    return Surgeon(path, metadata=False, **options)


def test_images_that_show_nothing_are_followed_by_the_photographs(shared, tmp_path, grey):
    """The rows are fractions, as the photographs show: on the grey image there is no row."""
    source = saved(clothes(shared)("Identity"), tmp_path / "m.onnx")
    assert build(plan(source, tmp_path, images=grey)).family == "ultralytics-rtdetr"


def test_a_build_asks_where_no_image_shows_anything(shared, tmp_path, grey):
    source = saved(clothes(shared)("Mul", np.float32(0)), tmp_path / "m.onnx")
    with pytest.raises(InvalidOption, match="give --images that show what it finds") as asked:
        build(plan(source, tmp_path, images=grey))
    assert "--head yolov10 or --head ultralytics-rtdetr" in str(asked.value)


def test_a_dynamic_size_is_said(tmp_path):
    progress = Notes()
    model = tiny_detector(tmp_path / "tiny.onnx", size=("h", "w"))
    build(plan(model, tmp_path), progress)
    assert "the size is dynamic: built for 640x640; --size HxW for another" in progress.notes
    progress = Notes()
    build(plan(model, tmp_path, size=(64, 64)), progress)
    assert not any("dynamic" in note for note in progress.notes)


def test_a_size_that_cannot_be_computed_is_followed_by_one_that_can(shared, tmp_path):
    source = shared / "models" / "heads" / "yolo5face-500m.onnx"
    with pytest.raises(UnsupportedModel, match=r"at 640x640.*build with --size 320x320"):
        build(plan(source, tmp_path))
    assert build(plan(source, tmp_path, size=(320, 320))).family == "yolov5-face"


def test_a_guessed_preprocessing_is_in_the_card(shared, tmp_path):
    source = shared / "models" / "heads" / "efficientnms.onnx"
    progress = Notes()
    card = build(plan(source, tmp_path), progress)
    assert card.preprocess_from.startswith("a guess: families differ")
    assert any("the preprocessing is a guess" in note for note in progress.notes)
    assert "a guess: families differ" in (tmp_path / "models/m/1/card.md").read_text()
    [candidate] = (one for one in card.head_candidates if one.against is None)
    assert (candidate.family, candidate.strength) == ("efficientnms", "names")
    chosen = build(plan(source, tmp_path, preprocess={"channels": "BGR"}))
    assert chosen.preprocess_from == "by --preprocess"


def test_class_ids_beyond_the_labels_are_refused(shared, tmp_path):
    source = shared / "models" / "heads" / "efficientnms.onnx"
    with pytest.raises(InvalidOption, match=r"finds class \d+ .* only 0 to 0: give --labels"):
        build(plan(source, tmp_path, labels=("shirt",)))


def test_a_plain_folder_serves_tensors_where_nothing_tells(shared, tmp_path):
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    saved(clothes(shared)("Mul", np.float32(0)), folder / "model.onnx")
    with Engine.open(folder) as engine:
        assert engine.head is None
        assert "show nothing that it finds" in engine.card.reason
        assert "`fovea build --head FAMILY`" in engine.card.reason
        assert "yolov10" in [one.family for one in engine.card.head_candidates]
