"""A server that compares live images with those of the build."""

import json
import shutil
from xml.etree import ElementTree

import httpx
import pytest
from tests.built import build
from tests.crops import crops, jpeg, write_crops
from tests.keyed import until

from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow

BUILT = 60
SEEN = {"scores", "classes", "sizes", "objects", "brightness"}


@pytest.fixture(scope="module")
def repository(demo_model, demo_repository, tmp_path_factory):
    """The demo model as it is built with images, twice, and one of a build without."""
    folder = tmp_path_factory.mktemp("drifting")
    images = write_crops(folder / "crops", BUILT)
    plan = BuildPlan(demo_model, "digits", folder / "r", "onnxruntime", images=images)
    card = build(plan)
    assert card.baseline is not None
    assert (card.baseline.images, card.baseline.images_from) == (BUILT, "crops")
    assert "baseline" in card.build_seconds
    for name, source in (("old", demo_repository), ("chosen", folder / "r")):
        shutil.copytree(source / "digits", folder / "r" / name)
        (folder / "r" / name / "config.pbtxt").unlink()
    return folder / "r"


def predict(server, images, model="digits", **given):
    for image in images:
        answer = httpx.post(server.predict_url(model), content=image, timeout=60, **given)
        assert answer.status_code == 200, answer.text


def quantities(server):
    answer = httpx.get(f"{server.url}/v1/models/digits/drift")
    assert answer.status_code == 200, answer.text
    return {each["quantity"]: each for each in answer.json()["quantities"]}


def test_the_same_is_near_and_another_view_is_far(server, fovea, tmp_path):
    assert {each["distance"] for each in quantities(server).values()} == {None}
    predict(server, map(jpeg, crops(1, 40)))
    same = quantities(server)
    assert set(same) == SEEN
    assert max(each["distance"] or 0 for each in same.values()) < 0.1
    until(lambda: quantities(server)["brightness"]["images"])
    code, out, err = fovea("drift", "digits", "--url", server.url)
    assert code == 0, err
    assert "as built" in out
    assert "drifted" not in out

    predict(server, map(jpeg, crops(2, 80, (0.2, 0.25))))
    far = quantities(server)
    assert far["sizes"]["distance"] > 0.25
    assert far["objects"]["distance"] > 0.25
    for each in far.values():
        for side in ("expected", "live"):
            assert sum(part[side] for part in each["bins"]) == pytest.approx(1, abs=0.01)
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    labels = '{model="digits",quantity="sizes",version="1"}'
    assert f"fovea_drift{labels} {far['sizes']['distance']}" in metrics

    picture = tmp_path / "drift.svg"
    code, out, err = fovea("drift", "digits", "--url", server.url, "--plot", picture, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["images"], report["images_from"], report["left_out"]) == (BUILT, "crops", 0)
    # Two bars for each bin, the ground, and two in the legend.
    bars = [each for each in ElementTree.parse(picture).iter() if each.tag.endswith("rect")]
    assert len(bars) == 3 + 2 * sum(len(each["bins"]) for each in report["quantities"])
    code, out, err = fovea("drift", "digits", "--url", server.url, "--max-distance", 90)
    assert (code, "drifted" in out) == (0, True), err
    code, out, err = fovea("drift", "digits", "--url", server.url, "--max-distance", 0.25)
    assert (code, "drifted" in out) == (1, True), err


def test_answers_with_less_or_other_objects_are_left_out(server):
    for options in ({"conf": 0.6}, {"classes": "7"}, {"tile": "2x2"}):
        predict(server, map(jpeg, crops(1, 2)), "chosen", params=options)
    predict(server, map(jpeg, crops(1, 3)), "chosen", params={"conf": 0.1, "mask": "none"})
    report = httpx.get(f"{server.url}/v1/models/chosen/drift").json()
    images = {each["quantity"]: each["images"] for each in report["quantities"]}
    assert (report["left_out"], images["objects"]) == (6, 3)


def test_a_build_without_images_is_told_what_to_do(server, fovea):
    code, _, err = fovea("drift", "old", "--url", server.url)
    assert (code, "build it again with at least 50" in err) == (2, True), err
    answer = httpx.get(f"{server.url}/v1/models/old/drift")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert httpx.get(f"{server.url}/v1/models/nobody/drift").status_code == 404
    code, _, err = fovea("drift", "digits", "--url", "http://127.0.0.1:1")
    assert (code, "does not respond" in err) == (1, True)
    code, _, err = fovea("drift", "digits", "--url", f"http://127.0.0.1:{server.metrics_port}")
    assert (code, "unexpected response" in err) == (1, True)
