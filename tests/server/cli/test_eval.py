"""`fovea eval` as it is typed, on the demo detector and its scenes."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest
from tests.conftest import DEMO

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a plain repository, labels of the demo scenes in both forms, images."""
    root = tmp_path_factory.mktemp("eval")
    (root / "repository" / "digits" / "1").mkdir(parents=True)
    (root / "repository" / "digits" / "1" / "model.onnx").symlink_to(DEMO / "digits.onnx")
    (root / "images").mkdir()
    (root / "labels").mkdir()
    document = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 10 + digit, "name": str(digit)} for digit in range(10)],
    }
    scenes = json.loads((DEMO / "scenes.json").read_text())
    for number, (name, digits) in enumerate(scenes.items()):
        (root / "images" / name).symlink_to(DEMO / name)
        document["images"].append({"id": number, "file_name": name, "width": 640, "height": 480})
        lines = []
        for digit in digits:
            x1, y1, x2, y2 = digit["box"]
            document["annotations"].append(
                {
                    "image_id": number,
                    "category_id": 10 + int(digit["class_name"]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                }
            )
            shape = (x1 + x2) / 1280, (y1 + y2) / 960, (x2 - x1) / 640, (y2 - y1) / 480
            lines.append(" ".join([digit["class_name"], *map(str, shape)]))
        (root / "labels" / name).with_suffix(".txt").write_text("\n".join(lines))
    (root / "scenes.json").write_text(json.dumps(document))
    return root


@pytest.fixture
def fovea(fovea, place, monkeypatch):
    """Run the command beside the repository."""
    monkeypatch.chdir(place)
    return partial(fovea, "eval")


def test_a_table_of_totals_sizes_and_classes(fovea):
    code, out, err = fovea("digits", "--data", "scenes.json", "--images", "images")
    assert code == 0, err
    assert "digits version 1, onnxruntime fp32: 2 images, measured by the overlap of boxes" in out
    for word in ("mAP50-95", "mAP50 ", "mAP50-95 large", "class"):
        assert word in out
    assert "weakest" not in out
    assert "accuracy" in err


def test_both_forms_of_labels_give_the_same_document(fovea):
    figures = []
    for data in (("scenes.json", "--images", "images"), ("labels",), (".",)):
        code, out, err = fovea("digits", "--data", *data, "--json")
        assert code == 0, err
        document = json.loads(out)
        assert list(document) == [
            "model", "version", "backend", "precision", "split",
            "images", "map50_95", "map50", "per_class", "by_size",
            "overlap", "box_map50_95", "box_map50",
            "left_out", "operating_point", "classes", "confusion",
        ]  # fmt: skip
        assert document["map50"] > 0.9
        assert document["map50_95"] > 0.6
        assert set(document["per_class"]) <= set("0123456789")
        assert list(document["by_size"]) == ["small", "medium", "large"]
        figures.append(document["map50_95"])
    assert figures == pytest.approx(figures[:1] * 3, abs=1e-6)


@pytest.mark.parametrize("split", ["valid", "test", "train"])
def test_the_split_is_named(fovea, place, tmp_path, split):
    (tmp_path / "data.yaml").write_text(
        f"{{path: {place}, {split}: images, names: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}}"
    )
    code, out, err = fovea("digits", "--data", tmp_path / "data.yaml")
    assert code == 0, err
    assert f"2 images of {split}" in out
    assert ("contain only the split train" in out) == (split == "train")
    assert json.loads(fovea("digits", "--data", tmp_path, "--json")[1])["split"] == split


def test_objects_precision_recall_and_confusions(fovea, place, tmp_path):
    words = "digits", "--data", "scenes.json", "--images", "images"
    plot = tmp_path / "confusion.svg"
    code, out, err = fovea(*words, "--json", "--plot", plot)
    assert code == 0, err
    document = json.loads(out)
    labelled = Counter(
        each["class_name"]
        for digits in json.loads((DEMO / "scenes.json").read_text()).values()
        for each in digits
    )
    classes = document["classes"]
    assert {name: each["objects"] for name, each in classes.items()} == labelled
    point = document["operating_point"]
    assert point["best_f1"]
    assert 0.001 <= point["confidence"] < 1
    for figure in ("precision", "recall"):
        assert point[figure] == pytest.approx(fmean(each[figure] for each in classes.values()))
        assert point[figure] > 0.8
    rows = {name: sum(row.values()) for name, row in document["confusion"].items()}
    assert {name: rows[name] for name in labelled} == labelled
    drawn = ElementTree.fromstring(plot.read_text())
    cells = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")]
    one = next(iter(labelled))
    right = document["confusion"][one][one]
    assert f"{one}, found as {one}: {right} of {labelled[one]}" in cells

    code, out, err = fovea(*words, "--json", "--conf", 0.9)
    assert code == 0, err
    strict = json.loads(out)
    assert strict["map50_95"] == document["map50_95"]
    assert strict["operating_point"]["confidence"] == 0.9
    assert not strict["operating_point"]["best_f1"]
    assert strict["operating_point"]["recall"] <= point["recall"]

    code, out, err = fovea(*words, "--conf", 0.9)
    assert "at confidence 0.9, set by --conf, and overlap .50" in out
    assert next(line.split() for line in out.splitlines() if "objects" in line)[5::2] == [
        *("objects", "precision", "recall"),
    ]


def test_some_classes_alone_have_the_figures_that_they_have_among_all(fovea, place):
    words = "digits", "--data", "scenes.json", "--images", "images"
    everything = json.loads(fovea(*words, "--json")[1])
    two = sorted(everything["per_class"])[:2]
    code, out, err = fovea(*words, "--classes", ",".join(f'"{name}"' for name in two), "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["per_class"] == {name: everything["per_class"][name] for name in two}
    assert document["map50_95"] == pytest.approx(fmean(document["per_class"].values()))
    others = {n: c["objects"] for n, c in everything["classes"].items() if n not in two}
    assert document["left_out"] == others
    assert set(document["confusion"]) <= {*two, "background"}
    assert f"not measured: {len(others)} other classes ({sum(others.values())} objects)" in err

    _, out, _ = fovea(*words, "--classes", ",".join(f'"{name}"' for name in two))
    assert f"without {len(others)} classes of the labels" in " ".join(out.split())
    assert "rows are labels, columns are predictions" in out


def test_classes_that_the_model_lacks_are_left_out_when_they_are_asked_to(fovea, place):
    document = json.loads((place / "scenes.json").read_text())
    document["categories"].append({"id": 99, "name": "forklift"})
    document["annotations"].append(document["annotations"][0] | {"category_id": 99})
    (place / "more.json").write_text(json.dumps(document))
    words = "digits", "--data", "more.json", "--images", "images", "--json"
    code, out, err = fovea(*words)
    assert (code, out) == (2, "")
    assert "classes that the model lacks: forklift (1 object)" in err
    code, out, err = fovea(*words, "--classes", " ".join(err.split()).rpartition("--classes ")[2])
    assert code == 0, err
    assert json.loads(out)["left_out"] == {"forklift": 1}
    assert "not measured: forklift (1 object), which the model lacks" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("absent", "--data", "scenes.json"), "'absent'"),
        (("digits", "--data", "scenes.json", "--version", 2), "its versions are 1"),
        (("digits", "--data", "scenes.json", "--repository", "r"), "'digits' in r"),
        (("digits", "--data", "scenes.json"), "--images"),
        (("digits", "--data", "animals.json", "--images", "images"), "'cat'"),
        (("digits", "--data", "labels", "--url", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("digits", "--data", "labels", "--plot", "matrix.png"), ".svg"),
        (("digits", "--data", "labels", "--conf", "2"), "1"),
        (("digits", "--data", "labels", "--classes", "cat"), "'cat'"),
    ],
)
def test_an_error_is_a_sentence(fovea, place, arguments, says):
    document = json.loads((place / "scenes.json").read_text())
    document["categories"] = [c | {"name": "cat"} for c in document["categories"]]
    (place / "animals.json").write_text(json.dumps(document))
    code, out, err = fovea(*arguments, "--json")
    assert code in (1, 2)
    assert out == ""
    assert says in err


def test_boxes_do_not_measure_a_classifier(fovea, shared, tmp_path):
    (tmp_path / "classifier" / "1").mkdir(parents=True)
    (tmp_path / "classifier" / "1" / "model.onnx").symlink_to(shared / "models/mobilenetv2.onnx")
    code, _, err = fovea("classifier", "--data", "labels", "--repository", tmp_path)
    assert code == 2
    assert "labels of objects, but the model's task is classify" in err
