"""Which models are taken for detectors, of which family, and which are not."""

import onnxruntime
import pytest

from fovea_engines.evaluation.observe import Observer
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.onnx_graph.load import load
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.real

COCO = {"names": str({i: f"class {i}" for i in range(80)}), "stride": "32"}


def image(height=640, width=640, dtype="float32"):
    return [TensorSpec("images", dtype, (-1, 3, height, width))]


def output(*shape, dtype="float32"):
    return [TensorSpec("output0", dtype, (-1, *shape))]


REAL = {
    "yolov8n": ("yolov8", "detect", 80),
    "yolov5n": ("yolov5", "detect", 80),
    "yolov10n": ("yolov10", "detect", 80),
    "yolox_nano": ("yolox", "detect", 80),
    "yolov8n-seg-320": ("yolov8-seg", "segment", 80),
    "yolov8n-pose": ("yolov8-pose", "pose", 1),
    "mobilenetv2": ("classifier-logits", "classify", 1000),
    "u2netp": ("u2net", "saliency", None),
}


@pytest.mark.parametrize("model", REAL)
def test_real_models(shared, model):
    session = onnxruntime.InferenceSession(
        shared / "models" / f"{model}.onnx", providers=["CPUExecutionProvider"]
    )

    def specs(tensors):
        return [
            TensorSpec(t.name, "float32", tuple(d if isinstance(d, int) else -1 for d in t.shape))
            for t in tensors
        ]

    inputs, outputs = specs(session.get_inputs()), specs(session.get_outputs())
    metadata = session.get_modelmeta().custom_metadata_map
    # The numbers of a classifier tell logits from probabilities.
    graph = load(shared / "models" / f"{model}.onnx").proto
    seen = Observer(graph) if model == "mobilenetv2" else None
    told = recognise(inputs, outputs, metadata, observe=seen)
    assert (told.family, told.task, told.num_classes) == REAL[model]
    head = open_head(told, inputs)
    assert (head.family if head else None) == told.family
    if told.family is None:
        assert "decode" in told.reason
    # Without its metadata, a model is recognised by its shapes and by what it computes.
    bare = recognise(inputs, outputs, {}, observe=Observer(graph))
    assert bare.family == told.family


@pytest.mark.parametrize(
    ("inputs", "outputs", "metadata", "family"),
    [
        pytest.param(image(320, 480), output(84, 3150), {}, "yolov8", id="rectangle"),
        pytest.param(image(1280, 1280), output(84, 34000), {}, "yolov8", id="v8 P6"),
        pytest.param(image(1280, 1280), output(102000, 85), {}, "yolov5", id="v5 P6"),
        pytest.param(image(), output(34000, 85), {}, "yolox", id="P2"),
        pytest.param(image(), output(84, 2000), COCO, "yolov8", id="v3-tinyu"),
        pytest.param(image(416, 416), output(2535, 85), COCO, "yolov5", id="v3-tiny"),
        pytest.param(image(416, 416), output(845, 85), {}, "yolox", id="yolox of two strides"),
        pytest.param(image(-1, -1), output(84, 2000), COCO, "yolov8", id="dynamic v3-tinyu"),
        pytest.param(image(), output(5, 8400), {}, "yolov8", id="one class"),
        pytest.param(image(), output(25200, 6), {}, "yolov5", id="v5 one class"),
        pytest.param(image(), output(8400, 6), {}, "yolox", id="yolox one class"),
        pytest.param(image(), output(100, 6), {}, "yolov10", id="end to end"),
        pytest.param(
            [TensorSpec("x", "uint8", (1, 640, 640, 3))], output(84, 8400), {}, "yolov8", id="NHWC"
        ),
        pytest.param(image(-1, -1), output(84, -1), COCO, "yolov8", id="dynamic v8"),
        pytest.param(image(-1, -1), output(-1, 85), COCO, "yolov5", id="dynamic v5"),
        pytest.param(image(-1, -1), output(25200, 85), COCO, "yolov5", id="dynamic size v5"),
        pytest.param(
            image(-1, -1),
            output(300, 6),
            COCO | {"end2end": "True"},
            "yolov10",
            id="dynamic end to end",
        ),
        pytest.param(
            image(-1, -1),
            output(84, 8400),
            {"imgsz": "[640, 640]"},
            "yolov8",
            id="size from metadata",
        ),
        pytest.param(
            image(), output(85, 8400), COCO, "yolov8-obb", id="a column more than the names"
        ),
        pytest.param(image(), output(84, 8400), {"task": "obb"}, "yolov8-obb", id="rotated"),
        pytest.param(image(), output(300, 7), {"task": "obb"}, "yolov10-obb", id="rotated rows"),
        pytest.param(
            image(), output(56, 8400), {"kpt_shape": "[17, 3]"}, "yolov8-pose", id="keypoints"
        ),
        pytest.param(
            image(),
            [*output(116, 8400), TensorSpec("protos", "float32", (-1, 32, 160, 160))],
            {},
            "yolov8-seg",
            id="prototypes of masks",
        ),
        pytest.param(
            image(),
            [*output(25200, 85), TensorSpec("p3", "float32", (-1, 3, 80, 80, 85))],
            {},
            "yolov5",
            id="v5 with a raw level",
        ),
    ],
)
def test_detectors(inputs, outputs, metadata, family):
    told = recognise(inputs, outputs, metadata)
    assert told.family == family
    assert told.reason.startswith("output0 [")
    assert recognise(inputs, outputs, metadata, family).family == family


@pytest.mark.parametrize(
    ("inputs", "outputs", "metadata", "because"),
    [
        pytest.param(
            image(), output(8400, 84), COCO, "fits rtmdet and picodet", id="transposed v8, named"
        ),
        pytest.param(image(), output(84, 8401), {}, "8401", id="odd count"),
        pytest.param(image(-1, -1), output(-1, 85), {}, "nothing tells", id="v5 or yolox"),
        pytest.param(image(-1, -1), output(-1, -1), COCO, "classes is dynamic", id="all dynamic"),
        pytest.param(image(), output(4, 8400), {}, "room for no class", id="boxes only"),
        pytest.param(image(), output(84, 8400, dtype="int8"), {}, "int8", id="integers"),
        pytest.param(image(), output(84, 8400), {"task": "gaze"}, "task 'gaze'", id="task"),
        pytest.param(image() + image(), output(84, 8400), {}, "not one batch", id="two inputs"),
        pytest.param(
            [TensorSpec("x", "float32", (-1, 1, 640, 640))],
            output(84, 8400),
            {},
            "colour",
            id="grey input",
        ),
        pytest.param(image(), output(84, 8400) + output(84, 8400), {}, "no family", id="two"),
        pytest.param(image(), [], {}, "no family", id="no output"),
        pytest.param([], output(84, 8400), {}, "not one batch", id="no input"),
    ],
)
def test_others_serve_tensors_and_say_why(inputs, outputs, metadata, because):
    told = recognise(inputs, outputs, metadata)
    assert told.family is None
    assert because in told.reason
    assert open_head(told, inputs) is None


def test_the_user_settles_what_shapes_leave_open():
    dynamic = image(-1, -1), output(-1, 85), {}
    assert recognise(*dynamic, family="yolox").family == "yolox"
    assert recognise(*dynamic, family="yolov5").num_classes == 80
    assert recognise(image(), output(56, 8400), {}, family="yolov8").num_classes == 52


@pytest.mark.parametrize(
    ("outputs", "metadata", "family", "says"),
    [
        (output(84, 8400), {}, "yolov5", "it could be yolov8"),
        (output(3549, 85), {}, "yolox", "no other family fits, so leave --head out"),
        (output(1000), {}, "yolov8", "it could be classifier"),
        (output(56, 8400), {"task": "pose"}, "yolov8", "says task pose"),
    ],
)
def test_a_wrong_override_is_refused(outputs, metadata, family, says):
    with pytest.raises(UnsupportedModel, match=says):
        recognise(image(), outputs, metadata, family=family)


def test_a_family_that_there_is_not_is_named_with_those_near_it():
    with pytest.raises(InvalidOption, match=r"did you mean yolov8 or \S+\?$"):
        recognise(image(), output(84, 8400), {}, family="yolov88")


def test_a_head_reads_the_output_that_the_runtime_names():
    renamed = [TensorSpec("renamed:0", "float32", (-1, 84, 8400))]
    told = recognise(image(), renamed, {}, "yolov8")
    assert open_head(told, image()).outputs == ("renamed:0",)


def test_a_raw_grid_needs_a_size():
    inputs, outputs = image(-1, -1), output(-1, 85)
    told = recognise(inputs, outputs, {}, family="yolox")
    with pytest.raises(UnsupportedModel, match="--size"):
        open_head(told, inputs)
    assert open_head(told, image(416, 320)).size == (416, 320)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ("{0: 'a', 1: 'b'}", ("a", "b")),
        ("{1: 'b', 0: 'a'}", ("a", "b")),
        ('{"0": "a", "1": "b"}', ("a", "b")),
        ("['a', 'b']", ("a", "b")),
        ("('a', 'b')", ("a", "b")),
        ("{0: 7, 1: 'b'}", ("7", "b")),
        ("{0: 'a', 2: 'b'}", None),
        ("{0: 'a'}", None),
        ("{0: ['a'], 1: 'b'}", None),
        ("{0: 'a', 1: 'b'", None),
        ("__import__('os').abort()", None),
        ("(" * 5000, None),
        ("'ab'", None),
        ("", None),
    ],
)
def test_labels(names, labels):
    assert labels_from_metadata({"names": names}, 2) == labels


def test_labels_of_any_number():
    assert labels_from_metadata({"names": "['a']"}, None) == ("a",)
    assert labels_from_metadata({}, None) is None
    lines = {"character": "person\ntraffic light\n"}  # as PaddlePaddle's exporters have them
    assert labels_from_metadata(lines, None) == ("person", "traffic light")
    assert labels_from_metadata(lines, 3) is None


def test_sizes():
    assert default_preprocess("yolov8", image(480, 640), {}).row_shape == (3, 480, 640)
    free = image(-1, -1)
    by_metadata = default_preprocess("yolov8", free, {"imgsz": "[320, 640]"})
    assert by_metadata.row_shape == (3, 320, 640)
    assert default_preprocess("yolov8", free, {"imgsz": "320"}).row_shape == (3, 320, 320)
    given = default_preprocess("yolov8", free, {"imgsz": "320"}, (640, 352))
    assert given.row_shape == (3, 640, 352)
    half_free = default_preprocess("yolov8", image(480, -1), {"imgsz": "640"})
    assert half_free.row_shape == (3, 480, 640)


@pytest.mark.parametrize(
    ("inputs", "metadata", "size", "error", "says"),
    [
        (image(), {}, (320, 320), InvalidOption, "fixed at 640x640"),
        (image(-1, 640), {}, (320, 320), InvalidOption, "fixed at anyx640"),
        (image(-1, -1), {}, (330, 320), InvalidOption, "multiples of 32"),
        (image(-1, -1), {"stride": "64"}, (320, 352), InvalidOption, "multiples of 64"),
        (image(-1, -1), {}, None, UnsupportedModel, "--size"),
        (image(-1, -1), {"imgsz": "[640]"}, None, UnsupportedModel, "--size"),
        (image(dtype="int64"), {}, None, UnsupportedModel, "int64"),
        ([TensorSpec("x", "float32", (1, 1000))], {}, None, UnsupportedModel, "colour"),
    ],
)
def test_sizes_and_inputs_that_are_refused(inputs, metadata, size, error, says):
    with pytest.raises(error, match=says):
        default_preprocess("yolov8", inputs, metadata, size)


def test_layout_and_type_come_from_the_input():
    spec = default_preprocess("yolov8", [TensorSpec("x", "uint8", (1, 480, 640, 3))], {})
    assert (spec.layout, spec.dtype, spec.scale) == ("NHWC", "uint8", 1.0)
    assert default_preprocess("yolov5", image(dtype="float16"), {}).dtype == "float16"
