"""What metadata, a family and --preprocess say: labels, size, and how pixels are made."""

import json

import pytest

from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.presets import PRESETS, default_preprocess, read_preprocess
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption, NotFound, UnsupportedModel

FLOAT = [TensorSpec("images", "float32", (1, 3, 64, 64))]
BYTES = [TensorSpec("images", "uint8", (1, 64, 64, 3))]


def image(height=640, width=640, dtype="float32"):
    return [TensorSpec("images", dtype, (-1, 3, height, width))]


@pytest.fixture
def file(tmp_path):
    """Write a preprocess file; its path as it is typed."""

    def write(content: object) -> str:
        path = tmp_path / "trained.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"chanels": "BGR"}, "'chanels'.*channels"),
        ({"height": 320}, "'height'.*input"),
        ({"fit": "foo"}, "fit .*center-crop"),
        ({"anchor": None}, "anchor .*top-left"),
        ({"pad": 999}, "pad .*0 to 255"),
        ({"pad": 114.5}, "pad "),
        ({"pad": True}, "pad "),
        ({"max_scale": 0}, "max_scale "),
        ({"fit": "center-crop", "crop_ratio": -1}, "crop_ratio .*1 to 4"),
        ({"channels": "rgb"}, "channels .*BGR"),
        ({"scale": "0.5"}, "scale .*1"),
        ('{"scale": NaN}', "scale "),
        ('{"scale": 1e999}', "scale "),
        ({"mean": ["0.1", "0.2", "0.3"]}, "mean .*-255 to 255"),
        ({"mean": [1, 2]}, "mean .*three"),
        ({"std": [0, 0, 0]}, "std .*0.001 to 255"),
        *(([1], "JSON"), (None, "JSON"), ("x", "JSON")),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_with_what_is_right(file, content, names):
    path = file(content)
    with pytest.raises(InvalidOption, match=names) as refused:
        read_preprocess(path)
    assert str(refused.value).startswith(f"--preprocess {path}: ")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "folder.json").mkdir()
    for name in ("folder.json", "absent.json"):
        with pytest.raises(NotFound, match=name.partition(".")[0]):
            read_preprocess(str(tmp_path / name))
    with pytest.raises(InvalidOption, match="'x'"):
        read_preprocess("x")


def test_fields_of_a_file_are_laid_over_those_of_the_family(file):
    family = default_preprocess("yolox", FLOAT, {})
    spec = default_preprocess("yolox", FLOAT, {}, trained=read_preprocess(file({"pad": 0})))
    assert (spec.pad, spec.channels, spec.scale, spec.anchor) == (0, "BGR", 1.0, "top-left")
    assert default_preprocess("yolox", FLOAT, {}, trained=read_preprocess(file({}))) == family


def test_values_of_a_file_are_whole(file):
    family = default_preprocess("classifier", FLOAT, {})
    assert family.mean[0] == 0.485
    trained = read_preprocess(file({"scale": 1, "channels": "BGR"}))
    spec = default_preprocess("classifier", FLOAT, {}, trained=trained)
    assert (spec.scale, spec.mean, spec.std, spec.fit) == (1, (0,) * 3, (1,) * 3, family.fit)
    trained = read_preprocess(file({"scale": 1, "mean": [1, 2, 3]}))
    spec = default_preprocess("classifier", FLOAT, {}, trained=trained)
    assert (spec.mean, spec.std) == ((1, 2, 3), (1, 1, 1))
    with pytest.raises(InvalidOption, match='scale": 1'):
        read_preprocess(file({"mean": [1, 2, 3]}))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_replaces_that_of_the_family(name):
    trained = read_preprocess(name)
    spec = default_preprocess("yolox", FLOAT, {}, trained=trained)
    assert spec == default_preprocess(None, FLOAT, {}, trained=PRESETS[name])


def test_values_of_a_uint8_input_cannot_be_changed(file):
    mean = {"mean": [0.5, 0.5, 0.5], "scale": 1}
    for fields in ({**PRESETS["imagenet"], "scale": 1}, mean, {"scale": 0.5}):
        with pytest.raises(InvalidOption):
            default_preprocess(None, BYTES, {}, trained=read_preprocess(file(dict(fields))))


def test_a_uint8_input_takes_what_leaves_its_values_alone(file):
    trained = read_preprocess(file({"fit": "center-crop", "std": [1, 1, 1], "scale": 1}))
    spec = default_preprocess(None, BYTES, {}, trained=trained)
    assert (spec.fit, spec.scale, spec.dtype) == ("center-crop", 1.0, "uint8")
    assert default_preprocess(None, BYTES, {}, trained=read_preprocess("yolo")).scale == 1.0
    # Nor does it take the mean of its family.
    spec = default_preprocess("mmdeploy", BYTES, {})
    assert (spec.channels, spec.scale, spec.mean, spec.std) == ("BGR", 1.0, (0,) * 3, (1,) * 3)


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


@pytest.mark.parametrize(
    ("sides", "metadata", "given", "expected"),
    [
        ((480, 640), {}, None, (480, 640)),
        ((-1, -1), {"imgsz": "[320, 640]"}, None, (320, 640)),
        ((-1, -1), {"imgsz": "320"}, None, (320, 320)),
        ((-1, -1), {"imgsz": "320"}, (640, 352), (640, 352)),
        ((480, -1), {"imgsz": "640"}, None, (480, 640)),
    ],
)
def test_sizes(sides, metadata, given, expected):
    spec = default_preprocess("yolov8", image(*sides), metadata, given)
    assert spec.row_shape == (3, *expected)


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
