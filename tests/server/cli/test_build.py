"""`fovea build` and `fovea sensitivity` as they are typed."""

import json
import re
import shlex

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.conftest import DEMO
from tests.engines.sabotage import plant_outlier
from tests.engines.tiny import METADATA, constant, save, tiny_detector

from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.labels import LABEL_SETS, find_labels
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidModel
from fovea_server.rollout.promotion_documents import Promotion
from fovea_server.rollout.record import HistoryRecord

pytestmark = pytest.mark.slow

ORT = ("--backend", "onnxruntime")


def flat(text):
    return " ".join(text.replace("│", " ").split())


def test_a_build_shows_phases_the_card_and_the_next_command(fovea, tiny_model, tmp_path):
    (tmp_path / "names.txt").write_text("cat\ndog\nbus\n")
    code, out, err = fovea("build", tiny_model)
    assert code == 0, err
    for phase in ("load", "normalise", "compile", "agreement"):
        assert phase in err
    assert "tiny version 1, current" in out
    assert "yolov8" in out
    assert out.splitlines()[-1] == "Serve it: fovea serve"
    assert (tmp_path / "repository" / "tiny" / "1" / "card.json").is_file()
    # What follows from the model anyway makes no second version.
    for same in (
        (),
        ("--size", 64),
        ("--labels", tmp_path / "names.txt"),
        ("--head", "yolov8"),
        ("--max-batch", 1),
        ("--no-nms-tail", "--no-image-front"),
    ):
        code, _, err = fovea("build", tiny_model, *same)
        assert code == 0
        assert "nothing to build" in err, same


def test_which_version_is_served(fovea, tiny_model, tmp_path):
    config = tmp_path / "repository" / "tiny" / "config.pbtxt"

    def said(backend):
        code, out, err = fovea("build", tiny_model, "--backend", backend)
        assert code == 0, err
        return out.split("┘")[-1].strip().splitlines()

    def marks():
        return [e["served"] for e in json.loads(fovea("inspect", "repository", "--json")[1])]

    running, to_do = said("openvino")
    assert to_do == "Serve it: fovea serve"
    assert said("onnxruntime") == [
        "Version 2 replaces version 1 (openvino fp32). To go back: fovea rollback tiny",
        running,
        "Serve it: fovea serve",
    ]
    assert marks() == [False, True]
    older, to_do = said("openvino")
    assert older.startswith("Version 1 is not served. Version 2 (onnxruntime fp32) is newer")
    # As it is told.
    _, told, command = to_do.partition("To serve version 1: fovea ")
    assert told
    assert fovea(*command.split())[0] == 0
    assert marks()[0]
    assert said("openvino") == [running, "Serve it: fovea serve"]
    config.write_text(config.read_text() + "version_policy { specific { versions: [ 1 ] } }")
    newer, _ = said("onnxruntime")
    assert newer.startswith("Version 2 is not served. Version 1 (openvino fp32) is, by the version")
    lines = fovea("inspect", "repository")[1].splitlines()
    assert ["1 current" in line for line in lines].count(True) == 1
    assert "tiny version 2, not served" in fovea("inspect", "repository/tiny/2")[1]
    config.write_text("nonsense")
    [wrong] = said("openvino")
    assert str(config.relative_to(tmp_path)) in wrong


def test_a_build_that_replaces_a_version_is_in_the_history(fovea, tiny_model, tmp_path):
    """And a promoted version stays current."""
    models = ModelRepository(tmp_path / "repository")
    for backend in ("onnxruntime", "openvino", "onnxruntime"):
        code, out, err = fovea("build", tiny_model, "--backend", backend)
        assert (code, "it had" in out) == (0, False), err
    assert "tiny version 1, not served" in out
    assert models.served("tiny") == (2,)
    code, out, err = fovea("rollback", "tiny")
    assert (code, out) == (0, "Version 1 of tiny is current again, in place of version 2.\n"), err
    code, out, err = fovea("build", tiny_model, "--backend", "openvino", "--max-batch", "2")
    assert (code, "Version 1 stays current" in out) == (0, True), err
    assert "To change that: fovea promote tiny 3\n" in out
    told = json.loads(fovea("versions", "tiny", "--history", "--json")[1])
    assert told["current"] == "1"
    built, back = told["events"]
    assert (built["who"], built["version"], built["previous"]) == ("fovea build", "2", "1")
    assert (built["action"], back["action"]) == ("promote", "rollback")
    with HistoryRecord(models, "tiny") as record:
        event = record.event_of(Promotion(version=3))
        assert event is not None
        record.append(event, "a test", "")
    again = fovea("build", tiny_model, "--backend", "openvino", "--max-batch", "2")[1]
    assert "stays current" not in again


def test_a_version_is_compared_in_accuracy_with_the_one_it_replaces(fovea, tmp_path):
    given = ("build", DEMO / "digits.onnx", *ORT)
    assert fovea(*given)[0] == 0
    # The labels are what the first version finds.
    scenes = (DEMO / "scene-1.jpg", DEMO / "scene-2.jpg")
    assert fovea("predict", "digits", *scenes, "--out", "found", "--format", "coco")[0] == 0
    labels = ("--data", "found/predictions.json", "--images", DEMO, "--max-drop", "0.5")
    code, out, err = fovea(*given, "--precision", "int8", "--calibration", DEMO, *labels)
    assert code == 0, err
    card = EngineCard.read(tmp_path / "repository" / "digits" / "2" / "card.json")
    int8, fp32 = card.accuracy["int8"].figure, card.accuracy["fp32"].figure
    assert f"Version 2 has mAP50-95 {int8:.3f} (it had {fp32:.3f}).\n" in out


def test_json_is_one_document_on_stdout(fovea, tmp_path):
    model = tiny_detector(tmp_path / "m.onnx", size=("h", "w"))
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    code, out, err = fovea(
        "build", model, "--name", "other", "--repository", tmp_path / "r", *ORT,
        "--size", "64x96", "--max-batch", 2, "--labels", tmp_path / "names.txt",
        "--head", "yolov8", "--json",
    )  # fmt: skip
    assert code == 0, err
    document = json.loads(out)
    assert document["version"] == 1
    card = document["card"]
    assert (card["name"], card["backend"], card["max_batch"]) == ("other", "onnxruntime", 2)
    assert card["labels"] == ["a", "b", "c"]
    assert (card["preprocess"]["height"], card["preprocess"]["width"]) == (64, 96)


# Labels.


@pytest.mark.real
def test_the_names_of_sets_are_those_of_real_models(shared):
    for name, count in LABEL_SETS.items():
        labels = find_labels(name)
        assert len(labels) == count
        assert all(label == label.strip() and label for label in labels)
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


@pytest.mark.real
def test_a_set_of_labels_is_given_by_name(fovea, shared):
    model = shared / "models" / "mobilenetv2.onnx"
    code, _, err = fovea("build", model, "--labels", "imagenet", *ORT)
    assert code == 0, err
    code, out, err = fovea("predict", "mobilenetv2", shared / "data" / "bus.jpg", "--top-k", 2)
    assert code == 0, err
    assert "police van" in out
    assert "minibus" in out
    code, _, err = fovea("build", shared / "models" / "heads" / "rfdetr.onnx", "--labels", "coco")
    assert (code, "--labels coco91" in err) == (2, True), err


def test_labels_that_do_not_fit_are_refused(fovea, tiny_model, tmp_path):
    (tmp_path / "data.yaml").write_text("names: [a]")
    (tmp_path / "names.txt").write_text("near\n")
    depth = helper.make_node("ReduceMax", ["images"], ["depth"], axes=[1])
    shapes = [("images", [1, 3, 64, 64])], [("depth", [1, 1, 64, 64])]
    save(tmp_path / "depth.onnx", [depth], *shapes, opset=13)
    for model, labels, says in (
        (tiny_model, "coco", "80"),
        (tiny_model, "coc", "coco?"),
        (tiny_model, "nothere.txt", "nothere.txt"),
        (tiny_model, "data.yaml", "data.yaml"),
        ("depth.onnx", "names.txt", "--labels"),
    ):
        code, out, err = fovea("build", model, "--labels", labels)
        assert (code, out, says in err) == (2, "", True), err


@pytest.mark.parametrize(
    ("names", "labels", "says"),
    [
        # Of class 1 nothing is known but its number.
        ({0: "cat", 2: "bus"}, ("cat", "1", "bus"), ""),
        ({0: "cat", 2: "bus", 7: "car"}, None, "names class 7"),
        (["cat", "dog"], ("cat", "dog"), "--labels FILE with 3 lines"),
        (["cat", "dog", "car", "bus"], ("cat", "dog", "car", "bus"), "--labels FILE"),
    ],
)
def test_names_with_gaps_and_of_another_number(fovea, tmp_path, names, labels, says):
    path = tiny_detector(tmp_path / "m.onnx", metadata=METADATA | {"names": str(names)})
    code, out, err = fovea("build", path, *ORT)
    assert code == 0, err
    assert says in flat(out + err)
    card = EngineCard.read(tmp_path / "repository" / "m" / "1" / "card.json")
    assert card.labels == labels
    if says:
        (tmp_path / "own.txt").write_text("cat\ndog\nbus\n")
        code, out, _ = fovea("build", path, *ORT, "--labels", "own.txt", "--json")
        assert code == 0
        assert json.loads(out)["card"]["labels"] == ["cat", "dog", "bus"]


# Files that are not what their owner takes them for: the reason, and the cure.

POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (POINTER, "`git lfs pull`"),
        (b"<!DOCTYPE html>\n<html><head></head></html>", "a web page"),
        (b"\xef\xbb\xbf\n<html lang='en'>", "a web page"),
    ],
)
def test_what_lies_in_the_place_of_a_model_is_told(fovea, tmp_path, content, says):
    (tmp_path / "m.onnx").write_bytes(content)
    code, _, err = fovea("build", "m.onnx")
    assert code == 1
    assert says in flat(err)
    folder = tmp_path / "r" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(InvalidModel, match=re.escape(says)):
        Engine.open(folder)


@pytest.mark.parametrize(("rows", "options"), [(4, ()), (1, ("--max-batch", 3))])
def test_the_cure_of_a_fixed_batch_works(fovea, tmp_path, rows, options):
    tiny_detector(tmp_path / "my file.onnx", batch=rows)
    code, _, err = fovea("build", "my file.onnx")
    assert (code, "--name my_file" in flat(err)) == (2, True)
    code, _, err = fovea("build", "my file.onnx", "--name", "m", *options)
    assert code in (1, 2)
    [command] = re.findall(r"`(fovea edit [^`]*)`", flat(err))
    assert fovea(*shlex.split(command)[1:])[0] == 0
    [made] = tmp_path.glob("*-any-batch.onnx")
    code, _, err = fovea("build", made, "--name", "m", *ORT, "--max-batch", 3)
    assert code == 0, err
    assert EngineCard.read(tmp_path / "repository" / "m" / "1" / "card.json").max_batch == 3


def test_a_detector_that_was_quantised_to_nothing_is_refused(fovea, tmp_path):
    """Its boxes and scores are rounded to steps, as one output."""
    model = onnx.load(tiny_detector(tmp_path / "m.onnx", metadata={}))
    [last] = [node for node in model.graph.node if "output0" in node.output]
    last.output[0] = "float"
    weights = [constant("step", np.float32(64 / 23)), constant("zero", np.uint8(0))]
    model.graph.initializer.extend(weights)
    model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["float", "step", "zero"], ["bytes"]),
            helper.make_node("DequantizeLinear", ["bytes", "step", "zero"], ["back"]),
            helper.make_node("Identity", ["back"], ["output0"]),
        ]
    )
    onnx.save(model, tmp_path / "m.onnx")
    code, _, err = fovea("build", "m.onnx", *ORT)
    assert code == 1
    assert "quantised output output0 is too coarse: its steps are 2.8" in flat(err)
    code, _, err = fovea("build", "m.onnx", *ORT, "--head", "tensors")
    assert code == 0, err


def test_a_detector_of_grey_images_finds_what_it_finds_in_grey(fovea, tmp_path):
    colour = onnx.load(tiny_detector(tmp_path / "colour.onnx", batch=1))
    model = onnx.load(tmp_path / "colour.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    shares = np.array([0.299, 0.587, 0.114], np.float32)
    for network, one in ((model, True), (colour, False)):
        for tensor in network.graph.initializer:
            if tensor.name in ("w8", "w16", "w32"):
                kernel = numpy_helper.to_array(tensor)[:, :1]
                kernel = kernel if one else kernel * shares[None, :, None, None]
                tensor.CopyFrom(numpy_helper.from_array(kernel.copy(), tensor.name))
    onnx.save(model, tmp_path / "grey.onnx")
    onnx.save(colour, tmp_path / "colour.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    found = []
    for name in ("grey", "colour"):
        code, _, err = fovea("build", f"{name}.onnx", *ORT)
        assert code == 0, err
        with Engine.open(tmp_path / "repository" / name / "1") as engine:
            assert engine.card.family == "yolov8"
            found.append(engine.detect(pixels))
    assert len(found[0]) == len(found[1]) > 0
    np.testing.assert_allclose(found[0].boxes, found[1].boxes, atol=1e-2)
    np.testing.assert_allclose(found[0].scores, found[1].scores, atol=1e-4)


# Sensitivity.


@pytest.fixture
def spoilt(network, tmp_path):
    """A network with one bad layer."""
    model = onnx.load(network)
    assert plant_outlier(model, 1) == "layer.2"
    onnx.save(model, tmp_path / "my model [x].onnx")
    return tmp_path / "my model [x].onnx"


def test_sensitivity_ranks_blocks_and_a_build_keeps_what_it_says(fovea, spoilt, images, tmp_path):
    arguments = ("--calibration", images, *ORT, "--calibrator", "minmax")
    code, out, err = fovea("sensitivity", spoilt, *arguments)
    assert code == 0, err
    for phase in ("load", "calibrate", "sensitivity"):
        assert phase in err
    rows = [line.split() for line in out.splitlines() if "layer." in line]
    assert rows[0][:2] == ["layer.2", "1"]
    assert len(rows) == 7  # six blocks, and the closing line
    assert float(rows[0][3]) > 0.3
    assert out.splitlines()[-1].endswith("with: --exclude-nodes layer.2")
    # Nothing was published, and no repository was made.
    assert not (tmp_path / "repository").exists()
    found = json.loads(fovea("sensitivity", spoilt, *arguments, "--json")[1])
    assert found["keep_float"] == ["layer.2"]
    assert found["agreement"] < 0.8 < found["agreement_kept"]
    assert found["blocks"][0] == {
        "block": "layer.2",
        "layers": ["layer.2"],
        "quality": found["agreement_kept"],
        "gain": pytest.approx(found["agreement_kept"] - found["agreement"]),
    }
    build = ("build", spoilt, "--name", "m", "--precision", "int8", *arguments, "--json")
    code, out, err = fovea(*build)
    assert code == 0, err
    assert json.loads(out)["card"]["calibration"]["kept_float"] == found["keep_float"]


def test_sensitivity_of_models_without_a_choice(fovea, tiny_model, network, images):
    code, out, err = fovea("sensitivity", network, "--calibration", images)
    assert code == 0, err
    assert "--exclude-nodes none" in flat(out)
    code, _, err = fovea("sensitivity", tiny_model, "--calibration", images)
    assert code == 1
    assert "no layer of the model gains from INT8" in err
    options = ("--precision", "int8", "--calibration", images, *ORT)
    assert fovea("build", network, *options)[0] == 0
    code, _, err = fovea("sensitivity", "repository/network/1/model.onnx", "--calibration", images)
    assert code == 1
    assert "quantised by its exporter" in err
