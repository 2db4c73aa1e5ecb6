"""Average precision of boxes, masks and keypoints: by hand, and by pycocotools."""

import contextlib
import io
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from pydantic import TypeAdapter
from tests.engines.evaluation.test_overlap import turned_boxes

from fovea_engines.engine import Engine
from fovea_engines.evaluation.dataset import Dataset, read_dataset
from fovea_engines.evaluation.evaluate import CompactDetections, detect_all, detect_with
from fovea_engines.evaluation.labelled_image import LabelledImage
from fovea_engines.evaluation.mean_ap import mean_ap
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import whole_masks
from fovea_preprocess.errors import InvalidOption

pytestmark = pytest.mark.slow

SQUARE = (100.0, 100.0, 200.0, 200.0)
OTHER = (300.0, 100.0, 400.0, 200.0)


def labelled(*objects, crowd=(), name="a.jpg"):
    """An image with (class id, box) on it; `crowd` holds the places of those that are crowds."""
    boxes = np.array([box for _, box in objects], np.float32).reshape(-1, 4)
    return LabelledImage(
        path=Path(name),
        width=640,
        height=480,
        boxes=boxes,
        class_ids=np.array([class_id for class_id, _ in objects], np.int32),
        crowd=np.isin(np.arange(len(objects)), crowd),
        areas=(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
    )


def found(*rows):
    """Detections from (class id, score, box)."""
    return Detections(
        boxes=np.array([box for *_, box in rows], np.float32).reshape(-1, 4),
        scores=np.array([score for _, score, _ in rows], np.float32),
        class_ids=np.array([class_id for class_id, *_ in rows], np.int32),
    )


def measure(image, detections, names=("cat", "dog")):
    return mean_ap(Dataset(Path("set"), (image,), names), [CompactDetections.of(detections)])


def moved(box, overlap):
    """The box, moved sideways until its IoU with where it was is `overlap`."""
    shift = (box[2] - box[0]) * (1 - overlap) / (1 + overlap)
    return (box[0] + shift, box[1], box[2] + shift, box[3])


def test_perfect_detections_are_one():
    small = (10.0, 10.0, 30.0, 30.0)
    image = labelled((0, SQUARE), (1, OTHER), (1, small))
    assert measure(image, found((1, 0.9, small), (1, 0.8, OTHER), (0, 0.7, SQUARE))) == Accuracy(
        images=1,
        map50_95=pytest.approx(1.0),
        map50=pytest.approx(1.0),
        per_class={"cat": pytest.approx(1.0), "dog": pytest.approx(1.0)},
        by_size={"small": pytest.approx(1.0), "medium": None, "large": pytest.approx(1.0)},
    )


def test_an_overlap_of_62_percent_hits_at_three_of_ten_thresholds():
    figures = measure(labelled((0, SQUARE)), found((0, 0.9, moved(SQUARE, 0.62))))
    assert figures.map50 == pytest.approx(1.0)
    assert figures.map50_95 == pytest.approx(0.3)
    missed = measure(labelled((0, SQUARE)), found((0, 0.9, moved(SQUARE, 0.45))))
    assert (missed.map50, missed.map50_95) == (0.0, 0.0)
    adapter = TypeAdapter(Accuracy)  # as cards are read
    assert adapter.validate_json(adapter.dump_json(figures), strict=True) == figures


def test_a_duplicate_costs_precision_from_where_it_stands():
    image = labelled((0, SQUARE), (0, OTHER))
    late = found((0, 0.9, SQUARE), (0, 0.8, OTHER), (0, 0.7, SQUARE))
    assert measure(image, late).map50 == pytest.approx(1.0)
    early = found((0, 0.9, SQUARE), (0, 0.8, SQUARE), (0, 0.7, OTHER))
    # Precision 1 up to recall .5 (51 of the 101 points), 2/3 from there.
    assert measure(image, early).map50 == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_a_missed_object_costs_recall():
    image = labelled((0, SQUARE), (0, OTHER))
    assert measure(image, found((0, 0.9, SQUARE))).map50 == pytest.approx(51 / 101)
    assert measure(image, found()).map50 == 0.0


def test_classes_count_alike_and_only_those_of_the_labels():
    image = labelled((0, SQUARE), (0, OTHER), (1, OTHER))
    figures = measure(image, found((0, 0.9, SQUARE), (0, 0.9, OTHER), (2, 0.9, OTHER)))
    assert figures.per_class == {"cat": 1.0, "dog": 0.0}
    assert figures.map50_95 == pytest.approx(0.5)
    assert measure(image, found(), names=None).per_class == {"0": 0.0, "1": 0.0}


def test_the_best_100_of_each_class_count():
    image = labelled((0, SQUARE), (1, OTHER))
    misses = [(0, 0.9, OTHER)] * 100
    figures = measure(image, found(*misses, (0, 0.5, SQUARE), (1, 0.1, OTHER)))
    assert figures.per_class == {"cat": 0.0, "dog": pytest.approx(1.0)}
    figures = measure(image, found(*misses[1:], (0, 0.5, SQUARE)))
    assert figures.per_class == {"cat": pytest.approx(0.01), "dog": 0.0}


def test_a_crowd_counts_neither_for_nor_against():
    image = labelled((0, SQUARE), (0, OTHER), (1, OTHER), crowd=(1, 2))
    inside = (310.0, 110.0, 350.0, 150.0)
    rows = [(0, 0.9, OTHER), (0, 0.9, inside), (0, 0.5, SQUARE), (1, 0.9, OTHER)]
    figures = measure(image, found(*rows))
    assert figures.map50_95 == pytest.approx(1.0)
    assert figures.per_class == {"cat": pytest.approx(1.0)}


@pytest.fixture(scope="module")
def coco64(shared) -> Path:
    return shared / "data" / "coco64"


@pytest.fixture(scope="module", params=["yolov5n", "yolox_nano"])
def engine(shared, tmp_path_factory, request):
    """One with labels, one without."""
    folder = tmp_path_factory.mktemp("plain") / request.param / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").symlink_to(shared / "models" / f"{request.param}.onnx")
    with Engine.open(folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def detections(engine, coco64):
    """What the engine finds, by name of the image."""
    dataset = read_dataset(coco64 / "val.json", coco64 / "val").match_classes(engine.labels)
    everything = detect_all(detect_with(engine), dataset, Progress())
    return {image.path.name: one for image, one in zip(dataset.images, everything, strict=True)}


def figures_of(dataset, detections):
    return mean_ap(dataset, [detections[image.path.name] for image in dataset.images])


def judged(truth_file: Path, rows: list[dict[str, object]], kind: str) -> list[float]:
    """mAP50-95, mAP50, and by size, as pycocotools computes them."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(truth_file))
        judge = COCOeval(truth, truth.loadRes(rows), kind)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return [judge.stats[i] for i in (0, 1, 3, 4, 5)]


def test_figures_are_those_of_pycocotools(engine, coco64, detections):
    ids = {i["file_name"]: i["id"] for i in json.loads((coco64 / "val.json").read_text())["images"]}
    rows = [
        {
            "image_id": ids[name],
            "category_id": class_id,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "score": score,
        }
        for name, one in detections.items()
        for (x1, y1, x2, y2), score, class_id in zip(
            one.found.boxes.tolist(),
            one.found.scores.tolist(),
            one.found.class_ids.tolist(),
            strict=True,
        )
    ]
    dataset = read_dataset(coco64 / "val.json", coco64 / "val").match_classes(engine.labels)
    figures = figures_of(dataset, detections)
    assert figures.images == 64
    sizes = [figures.by_size[size] for size in ("small", "medium", "large")]
    ours = [figures.map50_95, figures.map50, *sizes]
    assert ours == pytest.approx(judged(coco64 / "val.json", rows, "bbox"), abs=1e-4)
    assert np.mean(list(figures.per_class.values())) == pytest.approx(figures.map50_95)
    assert figures.map50_95 > 0.3
    # A hundred an image is the limit of a class, not of what a detector is asked for.
    assert max(len(one.found) for one in detections.values()) > 100


def test_yolo_labels_of_the_same_boxes_give_the_same_figures(engine, coco64, detections, tmp_path):
    document = json.loads((coco64 / "val.json").read_text())
    (tmp_path / "images").symlink_to(coco64 / "val")
    (tmp_path / "labels").mkdir()
    for image in document["images"]:
        width, height = image["width"], image["height"]
        lines = []
        for annotation in document["annotations"]:
            if annotation["image_id"] != image["id"]:
                continue
            x, y, w, h = annotation["bbox"]
            box = [(x + w / 2) / width, (y + h / 2) / height, w / width, h / height]
            polygon = [x / width, y / height, (x + w) / width, (y + h / 2) / height,
                       x / width, (y + h) / height]  # fmt: skip
            shape = polygon if annotation["id"] % 3 == 0 else box
            lines.append(" ".join([str(annotation["category_id"]), *(f"{v:.9f}" for v in shape)]))
        # An image with nothing on it needs no file.
        if lines:
            text = "\n".join(lines) + "\n\n"
            (tmp_path / "labels" / image["file_name"]).with_suffix(".txt").write_text(text)
    coco = read_dataset(coco64 / "val.json", coco64 / "val").match_classes(engine.labels, 80)
    expected = figures_of(coco, detections)
    for data, images in ((tmp_path, None), (tmp_path / "labels", coco64 / "val")):
        yolo = read_dataset(data, images).match_classes(engine.labels, 80)
        assert len(yolo.images) == 64
        have = figures_of(yolo, detections)
        assert have.map50_95 == pytest.approx(expected.map50_95, abs=1e-4)
        assert have.by_size == pytest.approx(expected.by_size, abs=1e-4)
        assert list(have.per_class.values()) == pytest.approx(
            list(expected.per_class.values()), abs=1e-3
        )


def test_gaps_and_order_of_category_ids_do_not_matter(engine, coco64, detections, tmp_path):
    """As in COCO's own val2017, whose 80 ids go from 1 to 90."""
    document = json.loads((coco64 / "val.json").read_text())
    expected = figures_of(
        read_dataset(coco64 / "val.json", coco64 / "val").match_classes(engine.labels), detections
    )
    labels = tuple(category["name"] for category in document["categories"])
    gaps = sorted(random.Random(1).sample(range(1, 91), 80))
    for place, category in enumerate(document["categories"]):
        category["id"] = gaps[place]
    for annotation in document["annotations"]:
        annotation["category_id"] = gaps[annotation["category_id"]]
    (tmp_path / "gaps.json").write_text(json.dumps(document))
    by_number = read_dataset(tmp_path / "gaps.json", coco64 / "val").match_classes(None, 80)
    assert figures_of(by_number, detections).map50_95 == expected.map50_95

    turned = {category["id"]: 100 - category["id"] for category in document["categories"]}
    for category in document["categories"]:
        category["id"] = turned[category["id"]]
    for annotation in document["annotations"]:
        annotation["category_id"] = turned[annotation["category_id"]]
    (tmp_path / "turned.json").write_text(json.dumps(document))
    by_name = read_dataset(tmp_path / "turned.json", coco64 / "val").match_classes(labels)
    assert figures_of(by_name, detections).map50_95 == expected.map50_95


BOX = [20, 10, 60, 70]
POLYGON = [20, 10, 60, 10, 60, 70, 20, 70]


@pytest.fixture(scope="module")
def segmented(shared, tmp_path_factory):
    """The dataset of YOLO's polygons, and what a segmenter finds on its images."""
    folder = tmp_path_factory.mktemp("plain") / "segmenter" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").symlink_to(shared / "models" / "yolov8n-seg-320.onnx")
    coco64 = shared / "data" / "coco64"
    with Engine.open(folder) as engine:
        dataset = read_dataset(coco64 / "labels-seg", coco64 / "val").match_classes(engine.labels)
        yield dataset, detect_all(detect_with(engine), dataset, Progress())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_masks_are_measured_as_pycocotools_does(segmented, tmp_path):
    dataset, answers = segmented
    document = as_coco(dataset)
    (tmp_path / "labels.json").write_text(json.dumps(document))
    rows = [
        {"image_id": n, "category_id": class_id, "segmentation": mask, "score": score}
        for n, answer in enumerate(answers)
        for mask, class_id, score in zip(
            answer.masks, answer.found.class_ids.tolist(), answer.found.scores.tolist(), strict=True
        )
    ]
    figures = mean_ap(dataset, answers)
    assert figures.overlap == "mask IoU"
    sizes = [figures.by_size[size] for size in ("small", "medium", "large")]
    ours = [figures.map50_95, figures.map50, *sizes]
    assert ours == pytest.approx(judged(tmp_path / "labels.json", rows, "segm"), abs=1e-4)
    assert figures.box_map50_95 > figures.map50_95 > 0.2
    read = read_dataset(tmp_path / "labels.json", dataset.images[0].path.parent)
    assert mean_ap(read, answers) == figures


def as_coco(dataset):
    """The same labels as a COCO file, in which the class ids are the categories' places."""
    rows = [
        (n, image, k) for n, image in enumerate(dataset.images) for k in range(len(image.boxes))
    ]
    names = dict(enumerate(dataset.class_names))
    return {
        "images": [
            {"id": n, "file_name": image.path.name, "width": image.width, "height": image.height}
            for n, image in enumerate(dataset.images)
        ],
        "categories": [{"id": class_id, "name": name} for class_id, name in names.items()],
        "annotations": [
            {
                "id": number,
                "image_id": n,
                "category_id": int(image.class_ids[k]),
                "bbox": xywh(*image.boxes[k].tolist()),
                "area": float(image.areas[k]),
                "iscrowd": 0,
                "segmentation": image.outlines[k],
            }
            for number, (n, image, k) in enumerate(rows, start=1)
        ],
    }


def xywh(x1, y1, x2, y2):
    return [x1, y1, x2 - x1, y2 - y1]


def marked_image(**marks):
    return LabelledImage(
        Path("a.jpg"),
        100,
        80,
        np.array([BOX], np.float32),
        np.zeros(1, np.int32),
        np.zeros(1, np.bool_),
        np.full(1, 2400, np.float32),
        **marks,
    )


def marked(**marks):
    boxes, scores = np.array([BOX], np.float32), np.full(1, 0.9, np.float32)
    return CompactDetections.of(replace(Detections(boxes, scores, np.zeros(1, np.int32)), **marks))


def measured(image, answer):
    return mean_ap(Dataset(Path("set"), (image,), ("thing",)), [answer])


def test_a_mask_that_is_half_of_the_object_is_half_right():
    values = np.full((1, 80, 100), -1, np.float32)
    values[0, 10:70, 20:44] = 1
    image = marked_image(outlines=([POLYGON],))
    figures = measured(image, marked(masks=whole_masks(values, (80, 100))))
    assert (figures.overlap, figures.box_map50_95) == ("mask IoU", 1)
    # It overlaps by .6: right at .50, .55 and .60.
    assert figures.map50_95 == pytest.approx(0.3)
    assert list(figures.rows)[:3] == ["mask mAP50-95", "mask mAP50", "box mAP50-95"]


def test_without_outlines_boxes_are_measured():
    values = np.full((1, 80, 100), -1, np.float32)
    figures = measured(marked_image(), marked(masks=whole_masks(values, (80, 100))))
    assert (figures.overlap, figures.map50_95, figures.box_map50_95) == ("IoU", 1, None)


@pytest.mark.parametrize("count", [17, 5])
def test_keypoints_are_measured_by_their_similarity(count):
    points = np.zeros((1, count, 3), np.float32)
    points[0, :, 0] = np.linspace(20, 60, count)
    points[0, :, 1] = 40
    points[..., 2] = 2
    image = marked_image(keypoints=points)
    same = measured(image, marked(keypoints=points))
    assert (same.overlap, same.map50_95, same.box_map50_95) == ("OKS", 1, 1)
    assert (same.by_size["small"], same.by_size["medium"]) == (None, 1)
    far = points + np.float32([200, 0, 0])
    assert measured(image, marked(keypoints=far)).map50_95 == 0
    assert measured(image, marked()).overlap == "IoU"
    nothing = np.array([], np.intp)
    bare = CompactDetections.of(marked(keypoints=points).found.take(nothing))
    both = Dataset(Path("set"), (image, image.take(nothing)), ("thing",))
    beside = mean_ap(both, [marked(keypoints=points), bare])
    assert (beside.overlap, beside.map50_95) == ("OKS", 1)


def test_keypoints_are_read_from_coco(tmp_path):
    (tmp_path / "a.jpg").touch()
    marks = {"bbox": [20, 10, 40, 60], "area": 2400, "image_id": 1, "category_id": 1}
    document = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 80}],
        "categories": [{"id": 1, "name": "person"}],
        "annotations": [{**marks, "keypoints": [30, 20, 2, 40, 50, 0]}, marks],
    }
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(document))
    [image] = read_dataset(file).images
    assert image.keypoints.tolist() == [[[30, 20, 2], [40, 50, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert image.outlines is None
    document["annotations"][1]["keypoints"] = [30, 20, 2]
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidOption):
        read_dataset(file)


WIDTH, HEIGHT = 400, 200
OBJECTS = [(100, 80, 90, 20, 0.6), (300, 100, 60, 50, 2.5 - math.pi)]


def corners(row):
    cx, cy, w, h, angle = row
    return cv2.boxPoints(((cx, cy), (w, h), math.degrees(angle))) / [WIDTH, HEIGHT]


@pytest.fixture
def rotated(tmp_path):
    """An image with two objects of one class, in YOLO's format of corners."""
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "images" / "a.png")
    lines = (" ".join(map(str, [0, *corners(row).ravel()])) for row in OBJECTS)
    (tmp_path / "labels" / "a.txt").write_text("\n".join(lines))
    return read_dataset(tmp_path)


def test_rotated_boxes_are_measured_by_their_rectangles(rotated):
    def measured(*rows):
        return mean_ap(rotated, [CompactDetections.of(turned_boxes(*rows))])

    assert np.allclose(rotated.images[0].rotated, OBJECTS, atol=1e-2)
    figures = measured(*OBJECTS)
    assert figures.map50_95 == pytest.approx(1)
    # 90 x 20 is between 32 x 32 and 96 x 96, and so is 60 x 50.
    assert figures.by_size == {"small": None, "medium": pytest.approx(1), "large": None}
    # Of the 101 recalls, those up to .5 are reached.
    assert measured(OBJECTS[0]).map50_95 == pytest.approx(51 / 101)
    # An IoU of 1 / 1.3 passes .50 to .75, six of ten.
    longer = [(cx, cy, w * 1.3, h, angle) for cx, cy, w, h, angle in OBJECTS]
    assert measured(*longer).map50_95 == pytest.approx(0.6)
    assert measured((*OBJECTS[0][:4], -OBJECTS[0][4])).map50 == 0
    upright = replace(rotated, images=tuple(replace(one, rotated=None) for one in rotated.images))
    with pytest.raises(InvalidOption):
        mean_ap(upright, [CompactDetections.of(turned_boxes(*OBJECTS))])
