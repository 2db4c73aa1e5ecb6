"""Super-resolution of Open Model Zoo, served: as a direct call, and tiles without seams."""

from itertools import pairwise

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as http_client
from tests.built import build
from tests.e2e.conftest import images
from tests.e2e.results import png

from fovea_client import ServerError
from fovea_engines.build.plan import BuildPlan
from fovea_engines.results.mosaic import Mosaic
from fovea_preprocess.image import decode_image

pytestmark = [pytest.mark.real, pytest.mark.slow]

PHOTO, TEXT = "single-image-super-resolution-1032.onnx", "text-image-super-resolution-0001.onnx"
SIDE = (180, 320)


def halved(path):
    """A network for images of half the sides, which is a quarter of the work."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim[2:]:
            dim.dim_value //= 2
    for constant in model.graph.initializer:
        if constant.name.endswith(".shape"):
            shape = onnx.numpy_helper.to_array(constant)
            shape = np.where(shape > 100, shape // 2, shape)
            constant.CopyFrom(onnx.numpy_helper.from_array(shape, constant.name))
    return model


@pytest.fixture(scope="module")
def sources(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for file in (PHOTO, TEXT):
        onnx.save(halved(shared / "models" / "chains" / file), folder / file)
    return folder


@pytest.fixture(scope="module")
def repository(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for name, file in (("photo", PHOTO), ("text", TEXT)):
        build(BuildPlan(sources / file, name, folder, "onnxruntime"))
    return folder


def photograph(shared, width, height):
    """A photograph of this size: its pixels, BGR, and a PNG file."""
    pixels = cv2.imread(str(shared / "data" / "bus.jpg"))
    pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return pixels, png(pixels[..., ::-1])


def in_colours_of(pixels, luma):
    """A luma with the colours of an image, BGR, that are enlarged: RGB."""
    _, red, blue = cv2.split(cv2.cvtColor(pixels, cv2.COLOR_BGR2YCrCb))
    size = luma.shape[::-1]
    red, blue = (cv2.resize(one, size, interpolation=cv2.INTER_CUBIC) for one in (red, blue))
    return cv2.cvtColor(cv2.merge([luma, red, blue]), cv2.COLOR_YCrCb2RGB).astype(int)


def test_a_luma_gets_the_colours_of_its_image(client, shared, sources):
    pixels, file = photograph(shared, *SIDE[::-1])
    session = onnxruntime.InferenceSession(sources / TEXT)
    grey = cv2.cvtColor(pixels.astype(np.float32), cv2.COLOR_BGR2GRAY)[None, None]
    luma = (session.run(None, {"images": grey})[0][0, 0] * 255).round().clip(0, 255)
    found = client.predict("text", file).image.picture.pixels.astype(int)
    off = np.abs(found - in_colours_of(pixels, luma.astype(np.uint8)))
    # Where a luma lies between two levels, sums of floats decide.
    assert (off.max() <= 2, (off > 0).mean() < 0.01) == (True, True)


def test_it_says_that_the_network_takes_grey(fovea, repository, shared):
    for model in (shared / "models" / "chains" / TEXT, repository / "text"):
        assert "input is a grey image" in fovea("inspect", model, "--json")[1]
    other = shared / "models" / "chains" / PHOTO
    assert "input is a grey image" not in fovea("inspect", other, "--json")[1]


def test_numbers_are_those_of_a_direct_call(server, client, shared, sources):
    pixels, file = photograph(shared, 240, 135)
    large = cv2.resize(pixels, (960, 540), interpolation=cv2.INTER_CUBIC)
    session = onnxruntime.InferenceSession(sources / PHOTO)
    rows = {
        name: each.transpose(2, 0, 1)[None].astype(np.float32)
        for name, each in (("0", pixels), ("1", large))
    }
    want = session.run(None, rows)[0][0, ::-1].transpose(1, 2, 0)
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as triton:
        found = triton.infer("photo", images(http_client, file, name="0"))
    off = np.abs(found.as_numpy("picture")[0] - want)
    # The second input is rounded to levels: a few halves go down here, and up there.
    assert (off > 1e-3).mean() < 1e-5
    assert off.max() < 0.01
    levels = (want * 255).round().clip(0, 255)
    picture = client.predict("photo", file).image.picture
    drawn = client.annotate("photo", file, "image/png")
    assert (picture.width, picture.height) == (960, 540)
    assert np.abs(picture.pixels - levels).max() <= 1
    np.testing.assert_array_equal(decode_image(drawn).pixels, picture.pixels)


def test_tiles_of_a_large_image_have_no_seam(client, shared):
    # Three tiles each way: one of them has others on both sides.
    width, height = 747, 420
    pixels, file = photograph(shared, width, height)
    source = onnx.load(shared / "models" / "chains" / TEXT)
    for value, factor in ((source.graph.input[0], 1), (source.graph.output[0], 3)):
        for dim, side in zip(value.type.tensor_type.shape.dim[2:], (height, width), strict=True):
            dim.dim_value = factor * side
    whole = onnxruntime.InferenceSession(source.SerializeToString())
    grey = cv2.cvtColor(pixels.astype(np.float32), cv2.COLOR_BGR2GRAY)[None, None]
    luma = (whole.run(None, {"images": grey})[0] * 255).round().clip(0, 255).astype(np.uint8)
    want = in_colours_of(pixels, luma[0, 0])
    found = client.predict("text", file).image.picture.pixels.astype(int)
    assert np.abs(found - want).max() <= 3
    found, want = found.mean(axis=2), want.mean(axis=2)
    mosaic = Mosaic((height, width), SIDE)
    for axis, starts in enumerate(
        ({row[0].top for row in mosaic.rows}, {tile.left for tile in mosaic.rows[0]})
    ):
        steps = np.abs(np.diff(found - want, axis=axis)).mean(axis=1 - axis)
        both = [(after, before + SIDE[axis]) for before, after in pairwise(sorted(starts))]
        assert both
        at = [3 * place - 1 for pair in both for place in pair if 3 * place - 1 < len(steps)]
        inside = np.abs(np.diff(want, axis=axis)).mean(axis=1 - axis)
        assert steps[at].max() < 0.1 * np.median(inside)


def test_a_picture_over_the_limit_is_refused(client):
    with pytest.raises(ServerError, match="11520x6480") as caught:
        client.predict(
            "text", cv2.imencode(".png", np.zeros((2160, 3840, 3), np.uint8))[1].tobytes()
        )
    assert caught.value.status == 413
