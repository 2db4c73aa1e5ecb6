"""`fovea eval` as it is typed, on the demo detector and its scenes."""

import json
from pathlib import Path

import pytest

import fovea_server
from fovea_server.commands.cli import main

DEMO = Path(fovea_server.__file__).parent / "demo"


@pytest.fixture
def fovea(monkeypatch, capsys):
    """Run the command: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fovea", "eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return (stopped.value.code or 0, *capsys.readouterr())

    return run


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


@pytest.fixture(autouse=True)
def there(place, monkeypatch):
    monkeypatch.chdir(place)


def test_a_table_of_totals_sizes_and_classes(fovea):
    code, out, err = fovea("digits", "--data", "scenes.json", "--images", "images")
    assert code == 0, err
    assert "digits version 1, onnxruntime fp32: 2 images, measured by the overlap of boxes" in out
    for word in ("mAP50-95", "mAP50 ", "mAP50-95 large", "class"):
        assert word in out
    assert "weakest" not in out
    assert "accuracy" in err


def test_a_table_that_leaves_classes_out_says_so_at_its_head(fovea, monkeypatch):
    monkeypatch.setattr("fovea_files.commands.eval._CLASSES_SHOWN", 3)
    code, out, err = fovea("digits", "--data", "scenes.json", "--images", "images")
    assert code == 0, err
    assert "weakest classes" in out
    assert "better classes: --json has them all" in out


def test_both_forms_of_labels_give_the_same_document(fovea):
    figures = []
    for data in (("scenes.json", "--images", "images"), ("labels",), (".",)):
        code, out, err = fovea("digits", "--data", *data, "--json")
        assert code == 0, err
        document = json.loads(out)
        assert list(document) == [
            "model", "version", "backend", "precision",
            "images", "map50_95", "map50", "per_class", "by_size",
            "overlap", "box_map50_95", "box_map50",
        ]  # fmt: skip
        assert document["map50"] > 0.9
        assert document["map50_95"] > 0.6
        assert set(document["per_class"]) <= set("0123456789")
        assert list(document["by_size"]) == ["small", "medium", "large"]
        figures.append(document["map50_95"])
    assert figures == pytest.approx(figures[:1] * 3, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("absent", "--data", "scenes.json"), "no model 'absent' in repository"),
        (("digits", "--data", "scenes.json", "--version", 2), "versions there: 1"),
        (("digits", "--data", "scenes.json", "--repository", "r"), "no model 'digits' in r"),
        (("digits", "--data", "absent.json"), "'absent.json' does not exist"),
        (("digits", "--data", "scenes.json"), "name the folder of the images with --images"),
        (("digits", "--data", "animals.json", "--images", "images"), "has the class 'cat', and"),
        (("digits", "--data", "labels", "--url", "http://127.0.0.1:9"), "is a server running"),
        (("digits", "--data", "labels", "--url", "ftp://127.0.0.1"), "http://127.0.0.1:8000"),
        (("digits", "--data", "labels", "--url", "http://h", "--repository", "r"), "not both"),
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
    assert "labels of objects, and the task of the model is classify" in err
