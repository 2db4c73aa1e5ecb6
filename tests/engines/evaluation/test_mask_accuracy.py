"""Average precision of masks and keypoints, by pycocotools and by hand."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from fovea_engines.engine import Engine
from fovea_engines.evaluation.dataset import Dataset, read_dataset
from fovea_engines.evaluation.evaluate import CompactDetections, detect_all, detect_with
from fovea_engines.evaluation.labelled_image import LabelledImage
from fovea_engines.evaluation.mean_ap import mean_ap
from fovea_engines.progress import Progress
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import whole_masks
from fovea_preprocess.errors import InvalidOption

pytestmark = pytest.mark.slow

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
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "labels.json"))
        judge = COCOeval(truth, truth.loadRes(rows), "segm")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    figures = mean_ap(dataset, answers)
    assert figures.overlap == "mask IoU"
    sizes = [figures.by_size[size] for size in ("small", "medium", "large")]
    ours = [figures.map50_95, figures.map50, *sizes]
    assert ours == pytest.approx([judge.stats[i] for i in (0, 1, 3, 4, 5)], abs=1e-4)
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


def labelled(**marks):
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


def found(**marks):
    boxes, scores = np.array([BOX], np.float32), np.full(1, 0.9, np.float32)
    return CompactDetections.of(replace(Detections(boxes, scores, np.zeros(1, np.int32)), **marks))


def measured(image, answer):
    return mean_ap(Dataset(Path("set"), (image,), ("thing",)), [answer])


def test_a_mask_that_is_half_of_the_object_is_half_right():
    values = np.full((1, 80, 100), -1, np.float32)
    values[0, 10:70, 20:44] = 1
    image = labelled(outlines=([POLYGON],))
    figures = measured(image, found(masks=whole_masks(values, (80, 100))))
    assert (figures.overlap, figures.box_map50_95) == ("mask IoU", 1)
    # It overlaps by .6: right at .50, .55 and .60.
    assert figures.map50_95 == pytest.approx(0.3)
    assert list(figures.rows)[:3] == ["mask mAP50-95", "mask mAP50", "box mAP50-95"]


def test_without_outlines_boxes_are_measured():
    values = np.full((1, 80, 100), -1, np.float32)
    figures = measured(labelled(), found(masks=whole_masks(values, (80, 100))))
    assert (figures.overlap, figures.map50_95, figures.box_map50_95) == ("IoU", 1, None)


@pytest.mark.parametrize("count", [17, 5])
def test_keypoints_are_measured_by_their_similarity(count):
    points = np.zeros((1, count, 3), np.float32)
    points[0, :, 0] = np.linspace(20, 60, count)
    points[0, :, 1] = 40
    points[..., 2] = 2
    image = labelled(keypoints=points)
    same = measured(image, found(keypoints=points))
    assert (same.overlap, same.map50_95, same.box_map50_95) == ("OKS", 1, 1)
    assert (same.by_size["small"], same.by_size["medium"]) == (None, 1)
    far = points + np.float32([200, 0, 0])
    assert measured(image, found(keypoints=far)).map50_95 == 0
    assert measured(image, found()).overlap == "IoU"
    nothing = np.array([], np.intp)
    bare = CompactDetections.of(found(keypoints=points).found.take(nothing))
    both = Dataset(Path("set"), (image, image.take(nothing)), ("thing",))
    beside = mean_ap(both, [found(keypoints=points), bare])
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
    with pytest.raises(InvalidOption, match="the same points for every object"):
        read_dataset(file)
