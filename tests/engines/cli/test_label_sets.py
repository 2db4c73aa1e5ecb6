"""`--labels` with a set that is known by name: COCO's classes and ImageNet's."""

import json

import pytest

from fovea_engines.repository.labels import LABEL_SETS, find_labels

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", LABEL_SETS)
def test_a_set_has_as_many_names_as_it_says(name):
    labels = find_labels(name)
    assert len(labels) == LABEL_SETS[name]
    assert all(label == label.strip() and label for label in labels)


def test_the_names_are_those_of_real_models(shared):
    truth = json.loads((shared / "data" / "coco64" / "val.json").read_text())
    # These labels have Darknet's words for six of the classes.
    other = {"motorbike", "aeroplane", "sofa", "pottedplant", "diningtable", "tvmonitor"}
    pairs = zip((c["name"] for c in truth["categories"]), find_labels("coco"), strict=True)
    assert {theirs for theirs, ours in pairs if theirs != ours} == other
    named = [label for label in find_labels("coco91") if label != "N/A"]
    assert tuple(named) == find_labels("coco")
    imagenet = (shared / "models" / "imagenet_classes.txt").read_text().splitlines()
    pairs = zip(imagenet, find_labels("imagenet"), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == [
        ("crane", "crane bird"),
        ("maillot", "maillot tank suit"),
    ]


def test_a_classifier_gets_the_names_of_imagenet(fovea, shared):
    model = shared / "models" / "mobilenetv2.onnx"
    code, _, err = fovea("build", model, "--labels", "imagenet", "--backend", "onnxruntime")
    assert code == 0, err
    code, out, err = fovea("predict", "mobilenetv2", shared / "data" / "bus.jpg", "--top-k", 2)
    assert code == 0, err
    assert "police van" in out
    assert "minibus" in out


def test_a_number_that_does_not_fit_is_refused_with_both(fovea, tiny_model):
    for command in (("build",), ("edit", "--out", "o.onnx")):
        code, _, err = fovea(command[0], tiny_model, *command[1:], "--labels", "coco")
        assert code == 2
        assert "80 labels for a model of 3 classes: give one for each" in err


def test_the_set_that_fits_is_named(fovea, shared):
    code, _, err = fovea("build", shared / "models" / "heads" / "rfdetr.onnx", "--labels", "coco")
    assert (code, "80 labels for a model of 91 classes" in err) == (2, True), err
    assert "as --labels coco91 has" in err


def test_names_are_written_into_a_file(fovea, tmp_path, tiny_model):
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    code, out, err = fovea("edit", tiny_model, "--out", "o.onnx", "--labels", "names.txt", "--json")
    assert code == 0, err
    assert json.loads(json.loads(out)["after"]["metadata"]["names"]) == ["a", "b", "c"]
    both = ("--labels", "names.txt", "--meta", "names=['a']")
    code, _, err = fovea("edit", tiny_model, "--out", "o.onnx", *both)
    assert (code, "give --labels or --meta names, not both" in err) == (2, True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("coc", "neither a file nor one of coco, coco91, imagenet: did you mean coco?"),
        ("nothere.txt", "imagenet: give a text file with a label a line"),
        ("data.yaml", "is no list: write a text file with a label a line"),
    ],
)
def test_neither_a_set_nor_a_file(fovea, tmp_path, tiny_model, given, says):
    (tmp_path / "data.yaml").write_text("names: [a]")
    code, _, err = fovea("build", tiny_model, "--labels", given)
    assert (code, says in err) == (2, True), err
