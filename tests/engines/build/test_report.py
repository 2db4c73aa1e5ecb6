"""The report beside a card: what it says, and the image with both sets of boxes."""

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from rich.markdown import Markdown
from tests.engines.tiny import tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.int8 import Sensitivity
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.build.report import table, worst_image, write_report
from fovea_engines.engine import Engine
from fovea_engines.evaluation.dataset import read_class_names
from fovea_engines.progress import Progress
from fovea_engines.quantization.ranges import RANGES_FILE, Ranges
from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import Calibration, WorstImage
from fovea_engines.repository.repository import FAILED_FOLDER, ModelRepository
from fovea_preprocess.errors import Disagreement

pytestmark = pytest.mark.real


def tables(text: str) -> list[list[list[str]]]:
    """Every table of a page, as a Markdown viewer sees it: rows of cells."""
    found: list[list[list[str]]] = []
    tokens = Markdown(text).parsed
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("td_open", "th_open"):
            # Anything but text would be markup that a name smuggled in.
            assert {child.type for child in after.children} <= {"text", "text_special"}
            found[-1][-1].append("".join(child.content for child in after.children))
    return found


def accuracy(*values: float, names=("cat", "dog", "bus")) -> Accuracy:
    sizes = {"small": None, "medium": values[0], "large": values[-1]}
    per_class = dict(zip(names, values, strict=True))
    return Accuracy(9, sum(values) / len(values), 0.9, per_class, sizes)


@pytest.fixture(scope="module")
def plan(tiny_model, tmp_path_factory) -> BuildPlan:
    """Of an engine in FP16 that lies in its repository."""
    repository = tmp_path_factory.mktemp("report") / "r"
    made = BuildPlan(tiny_model, "tiny", repository, precision="fp16")
    build(made)
    return made


@pytest.fixture
def engine(plan):
    with Engine.open(plan.repository / "tiny" / "1") as opened:
        yield opened


NAMES = [
    "a|b", r"a\|b", "`code`", "<img src=x onerror=alert(1)>", "*bold*", "__init__", "~~s~~",
    "[text](http://x)", "![image](x)", "&lt;", "$x$", "# title", "1. one", "- item", "\\",
]  # fmt: skip


def test_names_of_users_stay_names():
    rows = [(name, name) for name in NAMES]
    assert tables(table(("one", "other"), rows)) == [[["one", "other"], *map(list, rows)]]
    assert tables(table(("x",), [("a\nb\x1b[31m\u202ec",)])) == [[["x"], ["a b [31m c"]]]


def test_a_build_writes_its_report(built_repository, card):
    text = (built_repository / "tiny" / "1" / "card.md").read_text()
    assert text.startswith("# tiny: FP32 on ")
    assert "**Published**" in text
    origin, agreement = (dict(rows) for rows in tables(text))
    assert card.onnx_sha256[:12] in origin["source"]
    assert "letterboxed to 64x64" in origin["preprocessing"]
    assert origin["head"].startswith("yolov8 (")
    assert agreement["boxes compared, before suppression"] == str(card.agreement.detections)
    assert "on 3 photographs that ship with Fovea: give --images for" in text
    assert card.agreement.images_from == "photographs that ship with Fovea"
    assert not (built_repository / "tiny" / "1" / "worst.jpg").exists()


def test_every_figure_has_its_place(plan, engine, tmp_path):
    names = (r"a|b", "<b>", "`c`")
    worst = WorstImage("chelsea.jpg", 0.5, 2.25, 3, 1)
    card = replace(
        engine.card,
        precision="int8",
        agreement=replace(
            engine.card.agreement, detections=40, missed=3, extra=2, mean_iou=None, worst=(worst,)
        ),
        tensorrt=replace(engine.card.agreement, missed=7),
        calibration=Calibration("entropy", 9, "", "", 4, ("late_1", "late_2"), True),
        accuracy={
            "fp32": accuracy(0.9, 0.8, 0.7, names=names),
            "fp16": accuracy(0.9, 0.8, 0.7, names=names),
            "int8 for TensorRT": accuracy(0.9, 0.5, 0.5, names=names),
            "int8": accuracy(0.9, 0.5, 0.6, names=names),
        },
    )
    ranking = [
        Sensitivity("late", ("late_1", "late_2"), 0.9, 0.1),
        Sensitivity("early", ("early_1",), 0.79, -0.01),
    ]
    write_report(tmp_path, card, plan, prepare(plan, Progress()), engine, ranking)
    text = (tmp_path / "card.md").read_text()
    assert "**Published**: mAP50-95 0.667, and 0.800 in FP32." in text
    origin, agreement, figures, classes, blocks, images = tables(text)
    assert dict(origin)["calibration"] == (
        "entropy of 9 images, measured for an earlier build; "
        "4 layers in INT8, 2 kept in float: late_1, late_2"
    )
    assert agreement[0] == ["", "INT8", "for TensorRT"]
    assert ["missed by the engine", "3", "7"] in agreement
    assert next(row for row in agreement if "IoU" in row[0])[1] == "-"
    assert figures[0] == ["", "fp32", "fp16", "int8", "int8 for TensorRT"]
    assert figures[1] == ["mAP50-95", "0.800", "0.800", "0.667", "0.633"]
    assert ["mAP50-95 small", "-", "-", "-", "-"] in figures
    assert classes == [
        ["class", "fp32", "int8", "change"],
        ["<b>", "0.800", "0.500", "-0.300"],
        ["`c`", "0.700", "0.600", "-0.100"],
    ]
    assert blocks[1:] == [["late", "+0.100", "float"], ["early", "-0.010", "INT8"]]
    assert images == [
        ["image", "lost", "missed", "extra", "quality"],
        ["chelsea.jpg", "2.250", "3", "1", "0.500"],
    ]
    assert "](worst.jpg)" in text
    assert (tmp_path / "worst.jpg").is_file()
    assert not (tmp_path / "card.json").exists()


def red(image):
    """How many pixels of the left and of the right half are of the frame's red."""
    levels = image.astype(int)
    framed = levels[..., 0] - levels[..., 1:].max(axis=2) > 150
    middle = image.shape[1] // 2
    return int(framed[:, :middle].sum()), int(framed[:, middle:].sum())


def test_what_agrees_is_grey_and_what_differs_is_framed(plan, engine, tmp_path):
    same = worst_image(plan, prepare(plan, Progress()), engine, "chelsea.jpg")
    assert red(same) == (0, 0)
    assert (same == same[..., :1]).all()
    other = replace(plan, source=tiny_detector(tmp_path / "other.onnx", seed=1))
    left, right = red(worst_image(other, prepare(other, Progress()), engine, "chelsea.jpg"))
    assert min(left, right) > 500


@pytest.mark.parametrize("data", ["classes.txt", "labels.json"])
def test_classes_without_a_name_are_called_as_the_labels_call_them(plan, engine, tmp_path, data):
    names = ["cat", "dog", "bus"]
    (tmp_path / "classes.txt").write_text("\n".join(names))
    categories = [{"id": 10 * i, "name": name} for i, name in enumerate(names)]
    document = {"images": [], "annotations": [], "categories": categories[::-1]}
    (tmp_path / "labels.json").write_text(json.dumps(document))
    plan = replace(plan, source=tiny_detector(tmp_path / "other.onnx", seed=1))
    prepared = prepare(plan, Progress())
    named = worst_image(plan, prepared, engine, "chelsea.jpg")
    engine.labels = None
    assert (named != worst_image(plan, prepare(plan, Progress()), engine, "chelsea.jpg")).any()
    data = tmp_path if data == "classes.txt" else tmp_path / data
    read = read_class_names(data)
    shown = worst_image(plan, prepare(plan, Progress()), engine, "chelsea.jpg", read)
    assert (named == shown).all()


def test_images_of_any_shape_fit(plan, engine, tmp_path):
    for name, size in ("high", (3000, 40)), ("dot", (1, 1)), ("wide", (40, 3000)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.full((*size, 3), 90, np.uint8))
    plan = replace(plan, images=tmp_path)
    prepared = prepare(plan, Progress())
    for file in tmp_path.iterdir():
        shown = worst_image(plan, prepared, engine, file.name)
        assert shown.shape[0] <= 1000
        assert 600 < shown.shape[1] <= 2000


def test_a_classifier_has_no_image_of_boxes(shared, tmp_path):
    plan = BuildPlan(
        shared / "models" / "mobilenetv2.onnx", "m", tmp_path, "onnxruntime", precision="fp16"
    )
    card = build(plan)
    text = (tmp_path / "m" / "1" / "card.md").read_text()
    agreement = dict(tables(text)[1])
    assert agreement["first class the same"] == f"{card.agreement.same_top:.1%}"
    assert "worst.jpg" not in text
    assert not (tmp_path / "m" / "1" / "worst.jpg").exists()


def test_a_refused_build_leaves_the_report_of_a_real_detector(shared, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for file in sorted((shared / "data" / "coco64" / "val").glob("*.jpg"))[:4]:
        (images / file.name).symlink_to(file)
    plan = BuildPlan(
        shared / "models" / "yolov8n.onnx", "yolov8n", tmp_path / "good", precision="int8",
        calibration=images, images=images, keep_float=(),
    )  # fmt: skip
    build(plan)
    ranges = Ranges.read(tmp_path / "good" / "yolov8n" / "1" / RANGES_FILE)
    # The model's own input stays as it is: it would be refused at once.
    small = {
        name: (low, high) if name == "images" else (low / 20, high / 20)
        for name, (low, high) in ranges.tensors.items()
    }
    (tmp_path / "small.json").write_bytes(replace(ranges, tensors=small).encode())
    with pytest.raises(Disagreement, match="failed-build"):
        build(replace(plan, repository=tmp_path / "r", calibration=tmp_path / "small.json"))
    failed = tmp_path / "r" / "yolov8n" / FAILED_FOLDER
    found = EngineCard.read(failed / "card.json").agreement
    text = (failed / "card.md").read_text()
    assert "**REFUSED**: INT8 has an agreement" in text
    assert dict(tables(text)[1])["missed by the engine"] == str(found.missed)
    _, *rows = tables(text)[-1]
    assert [row[0] for row in rows] == [one.name for one in found.worst]
    assert [row[2:4] for row in rows] == [[str(n.missed), str(n.extra)] for n in found.worst]
    lost = [float(row[1]) for row in rows]
    assert len(lost) > 1
    assert lost == sorted(lost, reverse=True)
    # Its shape tells that it is the right one.
    image = cv2.imread(str(images / found.worst[0].name))
    height, width = cv2.imread(str(failed / "worst.jpg")).shape[:2]
    assert (height > width / 2) == (image.shape[0] > image.shape[1])
    assert ModelRepository(tmp_path / "r").versions("yolov8n") == ()
