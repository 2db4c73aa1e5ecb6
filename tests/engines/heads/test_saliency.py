"""Saliency and depth: the maps that the families' own programs compute, and what is no map."""

import numpy as np
import pytest
from tests.engines.heads.expected import File, sampled

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real

IMAGE = [TensorSpec("input", "float32", (1, 3, 64, 96))]
USUAL = PredictOptions()


def test_u2net_finds_what_rembg_finds(shared):
    file = File(shared, "u2netp")
    told = file.recognise()
    assert (told.family, told.task) == ("u2net", "saliency")
    head, spec = open_head(told, file.inputs), file.spec(told.family)
    for pixels, stored in file.images.values():
        outputs, where = file.run(pixels, spec)
        found = head.decode(outputs, 0, USUAL)
        want = stored["saliency"]
        assert sampled(found.values) == pytest.approx(np.array(want["grid16_yx"]), abs=1e-3)
        assert found.values.mean() == pytest.approx(want["mean"], abs=1e-4)
        alpha = found.to_source(where).pixels()
        assert alpha.shape == pixels.shape[:2]
        assert (alpha.min(), alpha.max()) == pytest.approx((0, 1), abs=0.02)
        assert alpha.mean() == pytest.approx(want["mean"], abs=0.01)


def test_yolo26_depth_finds_the_depths_of_its_family(shared):
    file = File(shared, "yolo26-depth")
    told = file.recognise()
    assert (told.family, told.task) == ("yolo-depth", "depth")
    head, spec = open_head(told, file.inputs), file.spec(told.family)
    for pixels, stored in file.images.values():
        outputs, where = file.run(pixels, spec)
        found = head.decode(outputs, 0, USUAL).to_source(where).pixels()
        want = stored["depth"]
        assert sampled(found) == pytest.approx(np.array(want["grid16_yx"]), rel=1e-3)
        assert (found.min(), found.max()) == pytest.approx((want["min"], want["max"]), rel=1e-3)


def test_without_metadata_a_depth_is_decoded_on_request_only(shared):
    file = File(shared, "yolo26-depth")
    told = file.recognise(metadata=False)
    assert told.family is None
    assert "--head depth or --head yolo-depth" in told.reason
    assert file.recognise("yolo-depth", metadata=False).family == "yolo-depth"


def told_of(*outputs, metadata=None, family=None):
    return recognise(IMAGE, [TensorSpec(*output) for output in outputs], metadata or {}, family)


@pytest.mark.parametrize("name", ["predicted_depth", "depth"])
@pytest.mark.parametrize("shape", [(1, 64, 96), (1, 1, 64, 96)])
def test_a_depth_is_known_by_its_name(name, shape):
    assert told_of((name, "float32", shape)).family == "depth"


@pytest.mark.parametrize("shape", [(1, 64, 96), (1, 1, 64, 96)])
def test_a_map_of_one_channel_may_be_anything(shape):
    told = told_of(("output", "float32", shape))
    assert told.family is None
    assert "--head depth" in told.reason
    assert ("--head u2net or --head isnet" in told.reason) == (len(shape) == 4)
    # Nothing has to be decided: it is served as tensors.
    assert not told.open


def test_metadata_tells_saliency_from_depth():
    output = ("output", "float32", (1, 1, 64, 96))
    assert set(told_of(output, metadata={"task": "saliency"}).open) == {"u2net", "isnet"}
    assert told_of(output, metadata={"task": "depth-estimation"}).family == "depth"


def test_seven_maps_are_a_u2net_if_they_are_probabilities():
    outputs = [(f"d{level}", "float32", (1, 1, 64, 96)) for level in range(7)]
    told = told_of(*outputs)
    assert (told.family, told.outputs) == ("u2net", ("d0",))
    head = open_head(told, IMAGE)
    values = np.linspace(0, 1, 64 * 96, dtype=np.float32).reshape(1, 1, 64, 96)
    assert head.contradiction({"d0": values}) is None
    assert "no probability" in head.contradiction({"d0": values * 9 - 4})


@pytest.mark.parametrize("family", ["u2net", "isnet", "depth", "yolo-depth"])
def test_values_that_are_no_numbers_are_replaced(family):
    head = open_head(told_of(("output", "float32", (1, 1, 64, 96)), family=family), IMAGE)
    values = np.full((1, 1, 64, 96), 2, np.float32)
    values[..., 3:8], values[..., 0], values[..., 1] = 5, np.nan, np.inf
    found = head.decode({"output": values}, 0, USUAL).values
    assert np.isfinite(found).all()
    # Nothing stands out where all is the same.
    same = head.decode({"output": np.full((1, 1, 64, 96), 0.3, np.float32)}, 0, USUAL).values
    assert np.unique(same).tolist() == pytest.approx([0.3] if "depth" in family else [0])


def test_metres_are_not_negative():
    head = open_head(told_of(("output", "float32", (1, 1, 64, 96)), family="yolo-depth"), IMAGE)
    assert "no depth in metres" in head.contradiction({"output": np.full((1, 1, 2, 2), -1.0)})
