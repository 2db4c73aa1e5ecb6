"""Maps over HTTP: classes, what stands out and depths, as their own programs find them."""

import io
import json

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from faster_coco_eval.core import mask as coco
from PIL import Image
from tests.built import build
from tests.engines.heads.expected import class_map, sampled
from tests.listed import check_listed
from tests.serving import start_server
from typer.testing import CliRunner

from fovea_client import Client, ServerError
from fovea_engines.build.plan import BuildPlan
from fovea_server.cli.main import app

pytestmark = pytest.mark.real

VOC = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair"),
    *("cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
COCO_IDS = dict(
    zip(
        VOC[1:],
        (5, 2, 16, 9, 44, 6, 3, 17, 62, 21, 67, 18, 19, 4, 1, 64, 20, 63, 7, 72),
        strict=True,
    )
)
BACKENDS = {
    "deeplabv3-mnv2": "openvino",
    "hf-segformer": "onnxruntime",
    "yolo26-sem": "openvino",
    "u2netp": "openvino",
    "yolo26-depth": "onnxruntime",
}
IMAGES = ("bus.jpg", "000000001000.jpg")


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    for name, backend in BACKENDS.items():
        source = shared / "models" / ("heads" if name != "u2netp" else "") / f"{name}.onnx"
        labels = VOC if name == "deeplabv3-mnv2" else None
        build(BuildPlan(source, name, folder, backend, labels=labels))
    return folder


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as made:
        yield made


@pytest.fixture(scope="module")
def stored(shared):
    """Stored answers by model, then by image."""
    heads = shared / "models" / "heads"
    return {
        name: json.loads((heads / f"{name}.expected.json").read_text())["images"]
        for name in BACKENDS
    }


@pytest.fixture(scope="module")
def paths(shared):
    data = shared / "data"
    return {name: data / ("" if name == "bus.jpg" else "coco64/val") / name for name in IMAGES}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("name", ["deeplabv3-mnv2", "hf-segformer", "yolo26-sem"])
def test_classes(client, stored, paths, name, image):
    want = class_map(stored[name][image]["class_map"])
    prediction = client.predict(name, paths[image], mask="png")
    assert prediction.task == "semantic"
    found = prediction.image.semantic
    assert found.class_ids.shape == want.shape
    assert (found.class_ids == want).mean() >= 0.995
    areas = [one.pixels for one in found.classes]
    assert areas == sorted(areas, reverse=True)
    assert sum(areas) == want.size
    assert sum(one.share for one in found.classes) == pytest.approx(1, abs=1e-3)


def test_forms_of_classes_agree(client, paths):
    """Run lengths, polygons and the file are of the same pixels."""
    ask = {"model": "deeplabv3-mnv2", "image": paths["bus.jpg"]}
    ids = client.predict(**ask, mask="png").image.semantic.class_ids
    usual = client.predict(**ask).image.semantic
    assert usual.png is None
    for one in usual.classes:
        lengths = {"size": list(one.mask.size), "counts": one.mask.counts.encode()}
        assert (coco.decode(lengths) == (ids == one.class_id)).all()
    outlines = client.predict(**ask, mask="polygon").image.semantic.classes
    assert outlines[0].mask.polygons
    assert all(len(outline) >= 6 for one in outlines for outline in one.mask.polygons)
    bare = client.predict(**ask, mask="none").image.semantic
    assert [one.class_name for one in bare.classes[:3]] == ["background", "bus", "person"]
    assert all(one.mask is None for one in bare.classes)
    with pytest.raises(ValueError, match='ask for mask="png"'):
        _ = bare.class_ids


def test_classes_that_are_asked_for(client, paths):
    found = client.predict(
        "deeplabv3-mnv2", paths["bus.jpg"], classes=["bus", "cat"], mask="png"
    ).image.semantic
    assert [one.class_name for one in found.classes] == ["bus"]
    assert set(np.unique(found.class_ids)) == {6, 255}
    with pytest.raises(ServerError, match="no class 'tram'"):
        client.predict("deeplabv3-mnv2", paths["bus.jpg"], classes=["tram"])
    with pytest.raises(ServerError, match="mask=polygon has no effect on model 'u2netp'"):
        client.predict("u2netp", paths["bus.jpg"], mask="polygon")
    with pytest.raises(ServerError, match="mask is 'bmp'"):
        client.predict("deeplabv3-mnv2", paths["bus.jpg"], mask="bmp")


@pytest.mark.parametrize("image", IMAGES)
def test_what_stands_out(client, stored, paths, image):
    prediction = client.predict("u2netp", paths[image])
    assert prediction.task == "saliency"
    found, want = prediction.image.saliency, stored["u2netp"][image]["saliency"]
    assert found.share == pytest.approx(want["mean"], abs=0.01)
    assert found.alpha.mean() / 255 == pytest.approx(found.share, abs=1e-3)
    with Image.open(paths[image]) as photograph:
        assert found.alpha.shape == photograph.size[::-1]
    assert client.predict("u2netp", paths[image], mask="none").image.saliency.png is None


def test_a_png_cuts_out_what_stands_out(client, paths):
    alpha = client.predict("u2netp", paths["bus.jpg"]).image.saliency.alpha
    with Image.open(io.BytesIO(client.annotate("u2netp", paths["bus.jpg"], "image/png"))) as cut:
        assert cut.mode == "RGBA"
        assert (np.asarray(cut)[..., 3] == alpha).all()
        with Image.open(paths["bus.jpg"]) as photograph:
            off = np.asarray(cut)[..., :3].astype(int) - np.asarray(photograph.convert("RGB"))
    assert np.abs(off).mean() < 1
    assert client.annotate("u2netp", paths["bus.jpg"]).startswith(b"\xff\xd8")


@pytest.mark.parametrize("image", IMAGES)
def test_depths(client, stored, paths, image):
    prediction = client.predict("yolo26-depth", paths[image])
    assert prediction.task == "depth"
    found, want = prediction.image.depth, stored["yolo26-depth"][image]["depth"]
    assert found.unit == "m"
    assert (found.min, found.max) == pytest.approx((want["min"], want["max"]), rel=1e-3)
    step = (found.max - found.min) / 65535
    grid = np.array(want["grid16_yx"])
    assert sampled(found.values) == pytest.approx(grid, rel=1e-3, abs=2 * step)


@pytest.mark.parametrize(
    ("name", "output", "datatype"),
    [
        ("deeplabv3-mnv2", "class_map", "UINT16"),
        ("u2netp", "saliency", "FP32"),
        ("yolo26-depth", "depth", "FP32"),
    ],
)
def test_maps_as_tensors(server, client, stored, paths, name, output, datatype):
    """Images of different sizes share a tensor; what lies beyond the smaller is zero."""
    encoded = np.array([paths[image].read_bytes() for image in IMAGES], object)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as made:
        told = made.get_model_metadata(name)["inputs"][0]["name"]
        sent = triton.InferInput(told, [2], "BYTES")
        sent.set_data_from_numpy(encoded)
        answer = made.infer(name, [sent])
    check_listed(server, name, answer)
    assert {one["name"]: one["datatype"] for one in answer.get_response()["outputs"]} == {
        output: datatype,
        "sizes": "INT32",
    }
    maps, sizes = answer.as_numpy(output), answer.as_numpy("sizes")
    assert sizes.tolist() == [[1080, 810], [480, 640]]
    assert maps.shape == (2, 1080, 810)
    assert not maps[1, 480:].any()
    small = maps[1, :480, :640]
    image = client.predict(name, paths[IMAGES[1]], mask="png").image
    if name == "deeplabv3-mnv2":
        assert (small == image.semantic.class_ids).all()
    elif name == "u2netp":
        assert small * 255 == pytest.approx(image.saliency.alpha, abs=0.51)
    else:
        assert sampled(small) == pytest.approx(
            np.array(stored[name][IMAGES[1]]["depth"]["grid16_yx"]), rel=1e-3
        )


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["image/jpeg", "image/png"])
def test_maps_are_drawn(client, paths, name, kind):
    with Image.open(io.BytesIO(client.annotate(name, paths["bus.jpg"], kind))) as drawn:
        assert drawn.size == (810, 1080)


@pytest.mark.parametrize("name", ["deeplabv3-mnv2", "u2netp", "yolo26-depth"])
def test_predict_prints_the_servers_json_without_a_server(server, repository, paths, name):
    options = ["--repository", str(repository), "--json", "--mask", "png"]
    told = CliRunner().invoke(app, ["predict", name, str(paths["bus.jpg"]), *options])
    [here] = json.loads(told.stdout)["images"]
    body = paths["bus.jpg"].read_bytes()
    answer = httpx.post(server.predict_url(name), content=body, params={"mask": "png"}, timeout=60)
    assert here.pop("file") == str(paths["bus.jpg"])
    assert here == answer.json()["images"][0]


def test_accuracy_by_names_here_and_through_a_server(server, repository, shared, tmp_path, fovea):
    """VOC's classes on COCO's panoptic maps: an id of COCO's other classes is VOC's background."""
    coco64 = shared / "data" / "coco64"
    names = ["", *["background"] * 200]
    for name, number in COCO_IDS.items():
        names[number] = name
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "masks" / "classes.txt").write_text("\n".join(names))
    for file in sorted((coco64 / "masks-semantic").glob("*.png"))[:6]:
        (tmp_path / "masks" / file.name).symlink_to(file)
        (tmp_path / "images" / f"{file.stem}.jpg").symlink_to(coco64 / "val" / f"{file.stem}.jpg")
    words = ["eval", "deeplabv3-mnv2", "--data", tmp_path / "masks", "--json"]
    code, out, err = fovea(*words, "--repository", repository)
    assert code == 0, err
    here = json.loads(out)
    assert here["pixel_accuracy"] > 0.7
    assert here["per_class"]["background"] > 0.7
    assert here["miou"] > 0.2
    there = json.loads(fovea(*words, "--url", server.url)[1])
    assert there["miou"] == pytest.approx(here["miou"], abs=1e-6)
    code, _, err = fovea("eval", "u2netp", "--data", tmp_path / "masks", "--url", server.url)
    assert code == 2
    assert "the task of the model is saliency, and nothing measures its accuracy yet" in err
    code, _, err = fovea(*words, "--url", server.url, "--tile", "2x2")
    assert (code, "tile has no effect on model" in err) == (1, True)
    (tmp_path / "masks" / "classes.txt").write_text("meadow\n" + "\n".join(names[1:]))
    code, _, err = fovea(*words, "--url", server.url)
    assert (code, "has the class 'meadow', and the model has not" in err) == (2, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deeplabv3-mnv2", ["background", "bus", "28.6%"]),
        ("u2netp", ["of the image is foreground"]),
        ("yolo26-depth", ["depth 0.181 to 126 m"]),
    ],
)
def test_predict_shows_a_map(repository, paths, name, said):
    options = ["--repository", str(repository)]
    told = CliRunner().invoke(app, ["predict", name, str(paths["bus.jpg"]), *options])
    assert all(text in told.stdout for text in said), told.output
