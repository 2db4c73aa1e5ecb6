"""Semantic segmentation: the maps that the families' own programs compute, and what is no map."""

import numpy as np
import pytest
from tests.engines.heads.expected import File, class_map

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real

IMAGE = [TensorSpec("input", "float32", (1, 3, 64, 96))]
USUAL = PredictOptions()


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "no metadata"])
@pytest.mark.parametrize(
    ("name", "family", "share"),
    [
        ("deeplabv3-mnv2", "deeplab", 1.0),
        # torchvision and Pillow round some levels of the resized image differently.
        ("hf-segformer", "semantic", 0.995),
        ("yolo26-sem", "class-map", 1.0),
    ],
)
def test_classes_are_those_of_the_family(shared, name, family, share, metadata):
    file = File(shared, name)
    told = file.recognise(metadata=metadata)
    assert (told.family, told.task) == (family, "semantic")
    head, spec = open_head(told, file.inputs), file.spec(told.family)
    equal = []
    for pixels, stored in file.images.values():
        outputs, where = file.run(pixels, spec)
        found = head.decode(outputs, 0, USUAL).to_source(where).pixels()
        assert found.shape == pixels.shape[:2]
        equal.append((found == class_map(stored["class_map"])).ravel())
    assert np.concatenate(equal).mean() >= share


def told_of(*outputs, metadata=None, labels=None, family=None):
    known = dict(metadata or {}) | ({"names": str(labels)} if labels else {})
    return recognise(IMAGE, [TensorSpec(*output) for output in outputs], known, family)


@pytest.mark.parametrize(
    ("output", "family"),
    [
        (("logits", "float32", (1, 19, 16, 24)), "semantic"),
        (("out", "float32", (1, 21, 64, 96)), "semantic"),
        (("out", "float32", (1, 64, 96, 21)), "deeplab"),
        (("out", "int64", (1, 64, 96)), "class-map"),
        (("out", "int32", (1, 1, 32, 48)), "class-map"),
        (("out", "uint8", (-1, -1, -1)), "class-map"),
    ],
)
def test_maps_of_classes_are_recognised_by_their_shape(output, family):
    assert told_of(output).family == family


def test_an_auxiliary_output_is_left_out():
    shape = "float32", (1, 21, 64, 96)
    told = told_of(("out", *shape), ("aux", *shape))
    assert (told.family, told.outputs) == ("semantic", ("out",))


@pytest.mark.parametrize(
    "output",
    [
        ("out", "float32", (1, 3, 64, 96)),  # an image
        ("out", "float32", (1, 64, 16, 24)),  # features
        ("out", "float32", (1, 17, 16, 24)),  # heat maps of keypoints
    ],
)
def test_other_maps_are_decoded_on_request_only(output):
    told = told_of(output)
    assert told.family is None
    assert "--head semantic" in told.reason
    assert not told.open
    assert told_of(output, family="semantic").family == "semantic"


def test_names_of_as_many_classes_tell_a_map_of_classes():
    shape = ("out", "float32", (1, 3, 16, 24))
    assert told_of(shape, labels=["road", "lane", "sky"]).family == "semantic"
    assert told_of(shape, labels=["road", "lane"]).family is None
    assert told_of(shape, metadata={"task": "semantic-segmentation"}).family == "semantic"


@pytest.mark.parametrize("output", [("out", "int64", (1, 20, 30)), ("out", "bool", (1, 64, 96))])
def test_what_is_no_map_of_classes(output):
    assert told_of(output).family is None


def test_class_ids_are_whole_numbers():
    told = told_of(("out", "int64", (1, 64, 96)))
    head = open_head(told, IMAGE)
    ids = np.zeros((1, 64, 96), np.int64)
    assert head.contradiction({"out": ids}) is None
    ids[0, 3, 4] = -7
    assert "no class ids" in head.contradiction({"out": ids})
    assert head.decode({"out": ids}, 0, USUAL).pixels()[3, 4] == NOTHING


def test_classes_that_a_request_leaves_out_are_nothing():
    head = open_head(told_of(("out", "int64", (1, 64, 96))), IMAGE)
    ids = np.arange(64 * 96).reshape(1, 64, 96) % 5
    found = head.decode({"out": ids}, 0, PredictOptions(classes=(1, 3)))
    assert set(np.unique(found.pixels())) == {1, 3, NOTHING}
    assert found.summary == "2 classes"


def test_scores_that_are_no_numbers_lose():
    head = open_head(told_of(("logits", "float32", (1, 3, 64, 96))), IMAGE)
    logits = np.zeros((1, 3, 64, 96), np.float32)
    logits[0, 0], logits[0, 1], logits[0, 2] = np.nan, -np.inf, -1
    before = logits.copy()
    assert (head.decode({"logits": logits}, 0, USUAL).pixels() == 2).all()
    assert np.array_equal(logits, before, equal_nan=True)
