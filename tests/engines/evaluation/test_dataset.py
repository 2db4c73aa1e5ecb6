"""Labels that can be read, labels that cannot, and which class is which."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fovea_engines.evaluation.dataset import Dataset, read_dataset
from fovea_engines.evaluation.evaluate import CompactDetections, evaluate
from fovea_engines.evaluation.labels import check_task, read_labelled
from fovea_engines.results.detections import Detections
from fovea_preprocess.errors import FoveaError, InvalidImage, InvalidOption, NotFound

LABELS = ("cat", "dog", "bus")


@pytest.fixture
def images(tmp_path) -> Path:
    """A folder with a.jpg and b.png, 200 x 100 pixels."""
    folder = tmp_path / "images"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (100, 200, 3), np.uint8)
    for name in ("a.jpg", "b.png"):
        Image.fromarray(noise).save(folder / name)
    return folder


def coco(**changes) -> dict:
    """A document with a cat on a.jpg and a dog on b.png."""
    return {
        "images": [
            {"id": 7, "file_name": "a.jpg", "width": 200, "height": 100},
            {"id": 9, "file_name": "b.png", "width": 200, "height": 100},
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 1, "bbox": [10, 20, 30, 40], "area": 600},
            {"id": 2, "image_id": 9, "category_id": 5, "bbox": [0, 0, 200, 100], "iscrowd": 1},
        ],
        "categories": [{"id": 5, "name": "dog"}, {"id": 1, "name": "cat"}],
    } | changes


def annotation(**changes) -> dict:
    return coco(annotations=[coco()["annotations"][0] | changes])


def image(**changes) -> dict:
    return coco(images=[coco()["images"][0] | changes, coco()["images"][1]])


def read_json(folder: Path, document: object, **arguments) -> Dataset:
    file = folder / "val.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_dataset(file, folder / "images").match_classes(**{"labels": None} | arguments)


def read_lines(folder: Path, *lines: str, **arguments) -> Dataset:
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "labels" / "a.txt").write_text("\n".join(lines))
    return read_dataset(folder).match_classes(**{"labels": None} | arguments)


def test_coco(images, tmp_path):
    dataset = read_json(tmp_path, coco(), labels=LABELS)
    first, second = dataset.images
    assert first.path == images / "a.jpg"
    assert (first.width, first.height) == (200, 100)
    assert (first.boxes.tolist(), first.boxes.dtype) == ([[10, 20, 40, 60]], np.float32)
    assert (first.class_ids.tolist(), first.class_ids.dtype) == ([0], np.int32)
    assert (first.crowd.tolist(), first.areas.tolist()) == ([False], [600])
    assert (second.class_ids.tolist(), second.crowd.tolist()) == ([1], [True])
    assert second.areas.tolist() == [20_000]
    assert dataset.class_names == LABELS


def test_yolo(images, tmp_path):
    dataset = read_lines(
        tmp_path, "2 0.5 0.5 0.2 0.4", "", "0 0.1 0.1 0.3 0.2 0.2 0.6", labels=LABELS
    )
    first, second = dataset.images
    assert first.boxes.tolist() == pytest.approx(np.array([[80, 30, 120, 70], [20, 10, 60, 60]]))
    assert first.class_ids.tolist() == [2, 0]
    assert first.areas.tolist() == pytest.approx([1600, 2000])
    assert (second.path.name, len(second.boxes)) == ("b.png", 0)
    alone = read_dataset(tmp_path / "labels").match_classes(LABELS)
    assert [image.path for image in alone.images] == [first.path, second.path]
    (images / "b.txt").write_text("1 0.5 0.5 0.2 0.4")
    together = read_dataset(images)
    assert [image.class_ids.tolist() for image in together.images] == [[], [1]]


def test_yolo_lines_with_keypoints(images, tmp_path):
    lines = "0 0.5 0.5 0.2 0.4 0.5 0.6 2 0.45 0.4 1.0", "0 0.3 0.5 0.2 0.4 0.3 0.6 1 0 0 0"
    first, second = read_lines(tmp_path, *lines).images
    assert first.boxes[0].tolist() == pytest.approx([80, 30, 120, 70])
    expected = [[[100, 60, 2], [90, 40, 1]], [[60, 60, 1], [0, 0, 0]]]
    np.testing.assert_allclose(first.keypoints, expected)
    assert first.outlines is None
    assert second.keypoints.shape == (0, 2, 3)
    # A polygon whose numbers could be keypoints, among others that could not.
    polygon = "0 0 0.2 0.5 0.1 0.9 0.2 1 0.4 0.5 1"
    together = read_lines(tmp_path, polygon, "0 0.1 0.1 0.3 0.2 0.2 0.6").images[0]
    assert together.keypoints is None
    np.testing.assert_allclose(together.boxes[0], [0, 10, 200, 100])
    with pytest.raises(InvalidOption, match="line 1"):
        read_lines(tmp_path, "0 0.5 0.5 0.2 0.4 100 60 2")


def test_classes_txt_names_the_classes_of_yolo_labels(images, tmp_path):
    lines = ("0 0.5 0.5 0.2 0.4", "1 0.5 0.5 0.2 0.4")
    read_lines(tmp_path, *lines)
    for folder in (tmp_path, tmp_path / "labels"):
        (folder / "classes.txt").write_text("bus\ncat\n")
        assert read_lines(tmp_path, *lines, labels=LABELS).images[0].class_ids.tolist() == [2, 0]
        (folder / "classes.txt").unlink()


def test_a_set_that_calls_a_few_classes_otherwise_meets_the_model_by_number(images, tmp_path):
    names = ("cat", "puppy", "bus")
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(names)]
    dataset = read_json(tmp_path, annotation(category_id=2) | {"categories": categories})
    assert dataset.class_names == names
    assert dataset.match_classes(LABELS).images[0].class_ids.tolist() == [1]
    assert dataset.match_classes(LABELS).class_names == LABELS
    for labels in (("bus", "cat", "dog"), (*LABELS, "train")):
        with pytest.raises(InvalidOption, match="'puppy'"):
            dataset.match_classes(labels)


def test_labels_that_are_known_in_part_are_completed_by_the_set(images, tmp_path):
    """As a server tells them: only classes that it found."""
    dataset = read_json(tmp_path, coco())
    assert dataset.class_names == ("cat", "dog")
    in_order = dataset.match_classes(("cat", None))
    assert in_order.class_names == ("cat", "dog")
    assert [image.class_ids.tolist() for image in in_order.images] == [[0], [1]]
    among_others = dataset.match_classes(("bus", None, "dog"))
    assert [image.class_ids.tolist() for image in among_others.images] == [[3], [2]]
    assert among_others.class_names == ("bus", "1", "dog", "cat")
    with pytest.raises(InvalidOption, match="'cat'"):
        dataset.match_classes(("bus", None, "train"))
    assert read_lines(tmp_path, "1 0.5 0.5 0.1 0.1").match_classes(("cat", None)).class_names == (
        "cat",
        "1",
    )


def test_a_category_without_objects_need_not_be_the_models(images, tmp_path):
    """Roboflow's exports begin with one."""
    categories = [{"id": 0, "name": "animals"}, *coco()["categories"]]
    dataset = read_json(tmp_path, coco(categories=categories), labels=("dog", "cat"))
    assert [image.class_ids.tolist() for image in dataset.images] == [[1], [0]]


def test_a_digest_is_of_images_and_labels(images, tmp_path):
    digest = read_json(tmp_path, coco()).sha256()
    assert read_json(tmp_path, json.dumps(coco(), indent=3)).sha256() == digest
    assert read_json(tmp_path, annotation(bbox=[10, 20, 31, 40])).sha256() != digest
    Image.new("RGB", (200, 100)).save(images / "b.png")
    assert read_json(tmp_path, coco()).sha256() != digest


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "val.json, the whole: Invalid JSON"),
        ([1], "val.json, the whole"),
        ({"images": []}, "val.json: the key annotations is missing"),
        (coco(categories=[]), "annotations.0: category_id 1 is not in"),
        (annotation(image_id=8), "annotations.0: image_id 8 is not in"),
        (annotation(bbox=[10, 20, 30]), "annotations.0.bbox"),
        (annotation(bbox=[10, 20, -30, 40]), "annotations.0.bbox.2"),
        (annotation(bbox=[-5e299, 20, 1e300, 40]), "annotations.0.bbox.2"),
        (annotation(bbox=[10, float("nan"), 30, 40]), "annotations.0.bbox.1"),
        (annotation(bbox=[310, 20, 30, 40]), r"annotations.0: the box \[310 20 340 60\] lies outs"),
        (annotation(category_id="x"), "annotations.0.category_id"),
        (image(width=0), "images.0.width"),
        (image(id=9), "images: 2 entries have the id 9"),
        (image(file_name="gone.jpg"), r"images.0: .*gone.jpg does not exist.*--images"),
        (annotation(iscrowd=1), "val.json has no labelled object on its 2 images"),
        (coco(images=[], annotations=[]), "val.json has no labelled object on its 0 images"),
        (coco(categories=[{"id": 1, "name": "cow"}, {"id": 5, "name": "dog"}]), "class 'cow'"),
    ],
)
def test_malformed_coco_is_a_sentence(images, tmp_path, document, says):
    with pytest.raises(FoveaError, match=says):
        read_json(tmp_path, document, labels=LABELS)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cat 0.5 0.5 0.1 0.1", "a.txt, line 2: 'cat' is not a class id"),
        ("-1 0.5 0.5 0.1 0.1", "line 2: '-1' is not a class id"),
        ("1e30 0.5 0.5 0.1 0.1", "line 2: '1e30' is not a class id"),
        ("nan 0.5 0.5 0.1 0.1", "line 2: 'nan' is not a class id"),
        ("0 0.5 0.5 0.1", "line 2: the class must be followed by a box"),
        ("0 0.5 0.5 0.1 0.1 0.9", "line 2: the class must be followed by a box"),
        ("0", "line 2: the class must be followed by a box.*nothing"),
        ("0 0.5 x 0.1 0.1", "line 2: the class must be followed by a box"),
        ("0 0.5 0.5 0.1 0.1 0.5 0.5 2", "line 2: .* number of keypoints"),
        ("0 0.5 nan 0.1 0.1", "line 2: coordinates must be fractions"),
        ("0 0.5 0.5 inf 0.1", "line 2: coordinates must be fractions"),
        ("0 100 50 20 20", "line 2: coordinates must be fractions.*divide pixels"),
    ],
)
def test_malformed_yolo_lines_are_a_sentence(images, tmp_path, line, says):
    good = "0 0.5 0.5 0.2 0.4"
    with pytest.raises(InvalidOption, match=says):
        read_lines(tmp_path, good, line)


def test_labels_of_a_class_that_nobody_has_are_a_sentence(images, tmp_path):
    lines = ("0 0.5 0.5 0.2 0.4", "3 0.5 0.5 0.2 0.4")
    with pytest.raises(InvalidOption, match="class 3"):
        read_lines(tmp_path, *lines, labels=LABELS, num_classes=3)
    (tmp_path / "classes.txt").write_text("cat\ndog\nbus\n")
    with pytest.raises(InvalidOption, match="line 2"):
        read_lines(tmp_path, *lines)


def test_labels_that_are_not_there_are_a_sentence(images, tmp_path):
    with pytest.raises(FoveaError, match=r"absent\.json"):
        read_dataset(tmp_path / "absent.json")
    with pytest.raises(FoveaError, match=r"absent is not a folder"):
        read_dataset(tmp_path, tmp_path / "absent")
    with pytest.raises(FoveaError, match="YOLO"):
        read_dataset(images)
    with pytest.raises(FoveaError, match="no labelled object"):
        read_lines(tmp_path)
    (tmp_path / "labels" / "c.txt").write_text("0 0.5 0.5 0.1 0.1")
    with pytest.raises(FoveaError, match="--images"):
        read_dataset(tmp_path)
    (tmp_path / "labels" / "c.txt").write_bytes(b"\xff\xfe\x00")
    (images / "c.jpg").write_bytes((images / "a.jpg").read_bytes())
    with pytest.raises(FoveaError, match=r"c\.txt"):
        read_dataset(tmp_path)


def test_classes_that_cannot_be_told_apart_are_a_sentence(images, tmp_path):
    with pytest.raises(InvalidOption, match="'cat'"):
        read_json(tmp_path, coco(), labels=("cat", "dog", "cat"))
    with pytest.raises(InvalidOption, match="2 classes"):
        read_json(tmp_path, coco(), num_classes=80)


def nothing(image) -> CompactDetections:
    image.pixels()
    boxes, scores = np.empty((0, 4), np.float32), np.empty(0, np.float32)
    return CompactDetections.of(Detections(boxes, scores, np.empty(0, np.int32)))


def test_labels_are_of_the_upright_image(images, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(images / "a.jpg") as image:
        image.save(images / "a.jpg", exif=exif)
    dataset = read_lines(tmp_path, "0 0.5 0.5 1.0 0.5", labels=LABELS)
    assert dataset.images[0].boxes.tolist() == [[0, 50, 100, 150]]
    assert evaluate(nothing, dataset).map50_95 == 0.0
    with pytest.raises(InvalidOption, match="100 x 200"):
        evaluate(nothing, read_json(tmp_path, coco()))


def test_a_damaged_image_is_named(images, tmp_path):
    dataset = read_json(tmp_path, coco())
    (images / "b.png").write_bytes((images / "b.png").read_bytes()[:999])
    with pytest.raises(InvalidImage, match=r"b.png: "):
        evaluate(nothing, dataset)
    with pytest.raises(InvalidImage, match=r"b.png: "):
        read_lines(tmp_path, "0 0.5 0.5 0.1 0.1")


def test_keypoints_without_visibility_are_not_taken_for_polygons(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.jpg")
    file = tmp_path / "a.txt"
    file.write_text("0 .5 .5 .4 .4 .4 .4 .6 .6")
    with pytest.raises(InvalidOption):
        check_task(read_labelled(tmp_path), "pose")
    check_task(read_labelled(tmp_path), "segment")
    for words in ("0 .5 .5 .4 .4 .4 .4 2 .6 .6 2", "0 .5 .5 .4 .4"):
        file.write_text(words)
        check_task(read_labelled(tmp_path), "pose")


@pytest.mark.parametrize(
    ("names", "path"),
    [(["cup", "cat"], None), ({0: "cup", 1: "cat"}, "/no/ds"), (None, ".")],
)
def test_a_data_yaml_as_yolo_is_trained_with(tmp_path, names, path):
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (tmp_path / kind / split).mkdir(parents=True)
    Image.new("RGB", (20, 10)).save(tmp_path / "images/val/a.png")
    (tmp_path / "labels/val/a.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    # YAML holds JSON.
    document: dict[str, object] = {
        "path": path,
        "train": "images/train",
        "val": "images/val",
        "names": names,
    }
    text = json.dumps(document).replace('"0"', "0").replace('"1"', "1")
    (tmp_path / "data.yaml").write_text(text)
    if names is None:
        with pytest.raises(InvalidOption, match="`names`"):
            read_dataset(tmp_path / "data.yaml")
        # So is the folder, by itself.
        assert len(read_dataset(tmp_path).images) == 1
        return
    found = read_dataset(tmp_path / "data.yaml")
    assert (found.class_names, found.images[0].class_ids.tolist()) == (("cup", "cat"), [1])
    np.testing.assert_allclose(found.images[0].boxes, [[5, 2.5, 15, 7.5]])


def dataset_at(folder: Path, *names: str) -> None:
    """Write images of 20 x 10 pixels at these paths, and labels of class 1 as YOLO has them."""
    for name in names:
        image = folder / name
        labels = folder / name.replace("images/", "labels/").replace(".png", ".txt")
        for file in (image, labels):
            file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10)).save(image)
        labels.write_text("1 0.5 0.5 0.5 0.5\n")


TRAIN = "train/images/t.png"


@pytest.mark.parametrize(
    ("text", "split", "found"),
    [
        ("{train: train/images, valid: valid/images}", "valid", ["valid/images/a.png"]),
        ("{train: train/images, validation: valid/images}", "validation", ["valid/images/a.png"]),
        ("{train: train/images, val: , test: valid/images}", "test", ["valid/images/a.png"]),
        ("{train: ../train/images, val: ../valid/images}", "val", ["valid/images/a.png"]),
        ("{val: 'valid\\images'}", "val", ["valid/images/a.png"]),
        ("{val: list.txt}", "val", ["valid/images/a.png", "images/x/y/b.png"]),
        ("{path: valid, val: ../list.txt}", "val", ["valid/images/a.png", "images/x/y/b.png"]),
        ("{val: [images, valid/images]}", "val", ["images/x/y/b.png", "valid/images/a.png"]),
        ("{val: images}", "val", ["images/x/y/b.png"]),
        ("{val: null, train: train/images}", "train", [TRAIN]),
    ],
)
def test_the_split_of_a_data_yaml(tmp_path, text, split, found):
    dataset_at(tmp_path, TRAIN, "valid/images/a.png", "images/x/y/b.png")
    (tmp_path / "list.txt").write_bytes("\ufeff./valid/images/a.png\r\n\nimages/x/y/b.png".encode())
    names = text.replace("}", ", names: [no, 'on']}")
    (tmp_path / "data.yaml").write_text(f"\ufeff{names}", "utf-8")
    read = read_dataset(tmp_path / "data.yaml")
    assert (read.split, read.class_names) == (split, ("no", "on"))
    assert [str(each.resolve().relative_to(tmp_path)) for each in read.paths] == found
    assert all(each.class_ids.tolist() == [1] for each in read.images)


@pytest.mark.parametrize(
    ("names", "read"),
    [
        ("[0, 1]", ("0", "1")),
        ("[no, 1.50]", ("no", "1.50")),
        ("{1: 2024-01-01, 0: 010}", ("010", "2024-01-01")),
        ("{0: a, 2: c}", ("a", "1", "c")),
    ],
)
def test_names_are_as_they_are_written(tmp_path, names, read):
    dataset_at(tmp_path, "images/a.png")
    (tmp_path / "data.yaml").write_text(f"{{val: images, names: {names}}}")
    assert read_dataset(tmp_path / "data.yaml").class_names == read
    # So are those of the file beside a folder of labels.
    assert read_dataset(tmp_path).class_names == read


def test_a_trainer_calls_no_and_yes_false_and_true(tmp_path):
    dataset_at(tmp_path, "images/a.png")
    (tmp_path / "data.yaml").write_text("{val: images, names: [no, yes]}")
    read = read_dataset(tmp_path / "data.yaml").match_classes(("False", "True"))
    assert (read.class_names, read.images[0].class_ids.tolist()) == (("False", "True"), [1])


def test_a_folder_of_roboflow_is_read_by_its_data_yaml(tmp_path):
    dataset_at(tmp_path, TRAIN, "valid/images/a.png")
    (tmp_path / "README.roboflow.txt").write_text("...")
    text = "{train: ../train/images, val: ../valid/images, names: [x, y]}"
    (tmp_path / "data.yaml").write_text(text)
    read = read_labelled(tmp_path)
    assert (read.split, [path.name for path in read.paths]) == ("val", ["a.png"])


@pytest.mark.parametrize("split", ["val", "valid", "val2017", "test", "train"])
def test_folders_of_labels_are_of_a_split(tmp_path, split):
    other = "train2017" if split != "train" else "unlabelled"
    dataset_at(tmp_path, *(f"images/{name}/{name}.png" for name in (split, other)))
    read = read_dataset(tmp_path)
    assert (read.split, [path.stem for path in read.paths]) == (split, [split])


def test_labels_in_folders_and_files_of_a_mac(tmp_path):
    dataset_at(tmp_path, "images/cam 1/a.png", "images/b.png")
    for hidden in ("images/._b.png", "labels/._b.txt", "labels/cam 1/._a.txt", "images/.x/c.png"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(b"\0\5\x16\7")
    read = read_dataset(tmp_path)
    assert [path.name for path in read.paths] == ["b.png", "a.png"]
    assert all(len(each.boxes) == 1 for each in read.images)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks(images, tmp_path, encoding):
    (tmp_path / "val.json").write_text(json.dumps(coco()), encoding)
    assert len(read_dataset(tmp_path / "val.json", images).images) == 2
    for name, text in {"labels/a.txt": "0 0.5 0.5 0.2 0.4", "classes.txt": "katze\nhünd"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding)
    assert read_dataset(tmp_path).class_names == ("katze", "hünd")


def test_what_predict_writes_is_read_with_the_images_of_another_folder(images, tmp_path):
    """Its data.yaml names images/ beside labels/, which need not be there."""
    out = tmp_path / "out"
    (out / "labels").mkdir(parents=True)
    (out / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.4")
    (out / "data.yaml").write_text('train: images\nval: images\nnames:\n  0: "cat"\n')
    for data in (out, out / "data.yaml"):
        read = read_dataset(data, images)
        assert (read.class_names, [len(each.boxes) for each in read.images]) == (("cat",), [1, 0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1", "cannot be read as YAML"),
        ("5", "is not a data.yaml"),
        ("{val: [a, b], names: [x]}", "its val images are not in"),
        ("{nc: 2, names: [x, y]}", "has no folder of images"),
        ("{val: {a: b}, names: [x]}", "`val` must be a folder"),
        ("{val: nowhere, names: [x]}", "its val images are not in"),
    ],
)
def test_a_data_yaml_that_is_wrong_is_a_sentence(tmp_path, text, said):
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises((InvalidOption, NotFound), match=said):
        read_dataset(tmp_path / "data.yaml")
