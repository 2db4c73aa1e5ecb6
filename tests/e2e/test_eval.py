"""`fovea eval --url`: what a server does not tell is learned from its answers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

pytestmark = pytest.mark.real

MODEL = "yolox_nano"
DETECTORS = (MODEL,)
IMAGES = 6


@pytest.fixture
def few(shared, tmp_path) -> Path:
    """A folder with the first images of coco64, and their labels in both forms."""
    document = json.loads((shared / "data" / "coco64" / "val.json").read_text())
    document["images"] = document["images"][:IMAGES]
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    kept = []
    for image in document["images"]:
        name = image["file_name"]
        (tmp_path / "images" / name).symlink_to(shared / "data" / "coco64" / "val" / name)
        own = [a for a in document["annotations"] if a["image_id"] == image["id"]]
        kept += own
        (tmp_path / "labels" / name).with_suffix(".txt").write_text(
            "\n".join(yolo_line(a, image["width"], image["height"]) for a in own)
        )
    document["annotations"] = kept
    (tmp_path / "val.json").write_text(json.dumps(document))
    return tmp_path


def yolo_line(annotation, width, height) -> str:
    x, y, w, h = annotation["bbox"]
    box = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
    return " ".join(map(str, (annotation["category_id"], *box)))


@pytest.fixture
def measured(fovea) -> Callable[..., dict]:
    """The document of a measurement that succeeds."""

    def run(*arguments: object) -> dict:
        code, out, err = fovea("eval", *arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


def test_classes_have_the_models_names_with_either_labels(
    detector_server, detector_repository, few, measured
):
    coco = ("--data", few / "val.json", "--images", few / "images")
    expected = measured(MODEL, *coco, "--repository", detector_repository)
    assert expected["per_class"]["person"] > 0.2
    for data in (coco, ("--data", few)):
        have = measured(MODEL, *data, "--url", detector_server.url, "--version", 1)
        figures = [have["per_class"].get(name, 0.0) for name in expected["per_class"]]
        assert figures == pytest.approx(list(expected["per_class"].values()), abs=0.001)
        assert have["version"] == "1"
        for key in ("backend", "precision"):
            assert have[key] == expected[key] is not None


def test_a_server_that_keeps_its_metadata_secret_is_measured(
    serve, detector_repository, few, measured
):
    server = serve(
        *(detector_repository, "--http-restricted-api=metadata:key=secret"),
        *("--model-control-mode=explicit", f"--load-model={MODEL}"),
    )
    have = measured(MODEL, "--data", few, "--url", server.url)
    assert (have["version"], have["backend"], have["precision"]) == ("1", None, None)
    assert have["per_class"]["person"] > 0.2


def test_classes_meet_by_name(detector_server, few, measured):
    """As on the server's own, when the labels number other classes, in another order."""
    coco = ("--images", few / "images", "--url", detector_server.url)
    expected = measured(MODEL, "--data", few / "val.json", *coco)
    document = json.loads((few / "val.json").read_text())
    used = {annotation["category_id"] for annotation in document["annotations"]}
    document["categories"] = [
        {"id": 1000 - category["id"], "name": category["name"]}
        for category in document["categories"]
        if category["id"] in used
    ]
    for annotation in document["annotations"]:
        annotation["category_id"] = 1000 - annotation["category_id"]
    (few / "turned.json").write_text(json.dumps(document))
    have = measured(MODEL, "--data", few / "turned.json", *coco)
    assert have["map50_95"] == pytest.approx(expected["map50_95"])


def test_classes_that_the_servers_model_lacks_are_left_out(
    detector_server, detector_repository, few, measured, fovea
):
    """It is said before any image is sent, and the rest has the figures of an engine here."""
    document = json.loads((few / "val.json").read_text())
    names = {category["id"]: category["name"] for category in document["categories"]}
    [chairs] = [number for number, name in names.items() if name == "chair"]
    document["categories"].append({"id": 999, "name": "throne"})
    for annotation in document["annotations"]:
        if annotation["category_id"] == chairs:
            annotation["category_id"] = 999
    (few / "val.json").write_text(json.dumps(document))
    words = MODEL, "--data", few / "val.json", "--images", few / "images"
    code, _, err = fovea("eval", *words, "--url", detector_server.url)
    assert code == 2
    assert "the model lacks: throne (6 objects)" in err
    assert "accuracy" not in err
    chosen = "--classes", "person,book,bed"
    here = measured(*words, *chosen, "--repository", detector_repository)
    there = measured(*words, *chosen, "--url", detector_server.url)
    assert here["left_out"]["throne"] == 6
    for key in ("left_out", "confusion"):
        assert there[key] == here[key]
    assert there["map50_95"] == pytest.approx(here["map50_95"], abs=0.001)
    assert set(there["per_class"]) == {"person", "book", "bed"}


def test_pycocotools_gives_the_figure_of_eval(few, shared, fovea, measured, monkeypatch):
    """The labels say diningtable and tvmonitor, the model says dining table and tv."""
    folder = few / "own" / "yolov8n" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").symlink_to(shared / "models" / "yolov8n.onnx")
    monkeypatch.chdir(few)
    own = "--repository", few / "own"
    expected = measured("yolov8n", "--data", "val.json", "--images", "images", *own)
    assert {"dining table", "tv"} <= expected["per_class"].keys()
    words = "--conf", 0.001, "--out", "found", "--format", "coco"
    code, _, err = fovea("predict", "yolov8n", few / "images", *words, *own)
    assert code == 0, err
    truth = COCO("val.json")
    rows = json.loads(Path("found/predictions.json").read_text())["annotations"]
    ids = sorted(truth.cats)  # both have COCO's 80 classes in one order
    rows = [row | {"category_id": ids[row["category_id"]]} for row in rows]
    judge = COCOeval(truth, truth.loadRes(rows), "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    assert judge.stats[:2] == pytest.approx([expected["map50_95"], expected["map50"]], abs=0.001)


def test_labels_of_other_things_are_a_sentence(detector_server, few, fovea):
    document = json.loads((few / "val.json").read_text())
    for category in document["categories"]:
        category["name"] = f"part {category['id']}"
    (few / "val.json").write_text(json.dumps(document))
    code, _, err = fovea(
        "eval",
        MODEL,
        "--data",
        few / "val.json",
        "--images",
        few / "images",
        "--url",
        detector_server.url,
    )
    assert code == 2
    assert "but the model only has " in err


@pytest.mark.parametrize(
    ("model", "says"),
    [("absent", "no model 'absent'"), (MODEL, "000000000139.jpg: ")],
)
def test_what_the_server_refuses_is_a_sentence(detector_server, few, fovea, model, says):
    image = few / "images" / "000000000139.jpg"
    damaged = image.read_bytes()[:3000]
    image.unlink()
    image.write_bytes(damaged)
    code, out, err = fovea(
        "eval",
        model,
        "--data",
        few / "val.json",
        "--images",
        few / "images",
        "--url",
        detector_server.url,
    )
    assert (code, out) == (1, "")
    assert says in err
    assert err.splitlines()[-1].startswith("error: ")


def test_boxes_do_not_measure_a_classifier_of_a_server(serve, shared, few, fovea):
    folder = few / "repository" / "classifier" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").symlink_to(shared / "models" / "mobilenetv2.onnx")
    server = serve(few / "repository")
    code, _, err = fovea("eval", "classifier", "--data", few, "--url", server.url)
    assert code == 2
    assert "has labels of objects, but the model's task is classify" in err
