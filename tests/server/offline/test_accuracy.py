"""Precision, recall and confusions by hand, and by faster-coco-eval's own count."""

from pathlib import Path

import numpy as np
import pytest

from fovea_engines.evaluation.class_folders import ClassFolders
from fovea_engines.evaluation.class_maps import ClassMaps
from fovea_engines.evaluation.dataset import Dataset
from fovea_engines.evaluation.evaluate import CompactDetections
from fovea_engines.evaluation.labelled_image import LabelledImage
from fovea_engines.evaluation.mean_ap import coco_indices, judge
from fovea_engines.results.detections import Detections
from fovea_preprocess.errors import InvalidOption
from fovea_server.offline.chosen import choose
from fovea_server.offline.confusion import image_confusion, object_confusion

SQUARE = (100.0, 100.0, 200.0, 200.0)
OTHER = (300.0, 100.0, 400.0, 200.0)
THIRD = (100.0, 300.0, 200.0, 400.0)
NAMES = ("cat", "dog", "bus")


def dataset(*objects, crowd=(), **more) -> Dataset:
    """An image with (class id, box) on it; `crowd` holds the places of those that are crowds."""
    boxes = np.array([box for _, box in objects], np.float32).reshape(-1, 4)
    image = LabelledImage(
        path=Path("a.jpg"),
        width=640,
        height=480,
        boxes=boxes,
        class_ids=np.array([class_id for class_id, _ in objects], np.int32),
        crowd=np.isin(np.arange(len(objects)), crowd),
        areas=(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
        **more,
    )
    return Dataset(Path("set"), (image,), NAMES)


def answers(*rows, **more) -> list[CompactDetections]:
    """One answer of (class id, score, box)."""
    found = Detections(
        boxes=np.array([box for *_, box in rows], np.float32).reshape(-1, 4),
        scores=np.array([score for _, score, _ in rows], np.float32),
        class_ids=np.array([class_id for class_id, *_ in rows], np.int32),
        **more,
    )
    return [CompactDetections.of(found)]


def test_what_is_found_missed_taken_for_another_and_found_on_nothing():
    labels = dataset((0, SQUARE), (0, OTHER), (1, THIRD))
    found = answers((0, 0.9, SQUARE), (1, 0.8, OTHER), (2, 0.7, THIRD), (0, 0.6, (0, 0, 50, 50)))
    confusion = object_confusion(labels, found, 0.5)
    assert confusion.counts == {
        "background": {"cat": 1},
        "cat": {"cat": 1, "dog": 1},
        "dog": {"bus": 1},
    }
    assert confusion.names == ["bus", "cat", "dog", "background"]
    cat, dog = confusion.classes["cat"], confusion.classes["dog"]
    assert (cat.labelled, cat.precision, cat.recall) == (2, 0.5, 0.5)
    assert (dog.labelled, dog.precision, dog.recall) == (1, 0.0, 0.0)
    assert confusion.mean("recall") == 0.25
    # What scores less does not count, and its object is missed.
    assert object_confusion(labels, found, 0.75).counts == {
        "cat": {"cat": 1, "dog": 1},
        "dog": {"background": 1},
    }
    assert object_confusion(labels, found, 0.5, others=False).counts["dog"] == {"background": 1}


def test_an_object_goes_to_its_own_class_though_another_scores_more():
    labels = dataset((0, SQUARE))
    confusion = object_confusion(labels, answers((1, 0.9, SQUARE), (0, 0.6, SQUARE)), 0.5)
    assert confusion.counts == {"background": {"dog": 1}, "cat": {"cat": 1}}


def test_a_crowd_and_an_overlap_of_less_than_half():
    labels = dataset((0, SQUARE), (0, OTHER), crowd=(1,))
    aside = (150.0, 100.0, 250.0, 200.0)
    found = answers((0, 0.9, aside), (0, 0.8, OTHER), (0, 0.8, (310, 110, 350, 150)))
    confusion = object_confusion(labels, found, 0.5)
    assert confusion.counts == {"background": {"cat": 1}, "cat": {"background": 1}}


def test_the_confidence_of_the_best_mean_f1():
    labels = dataset((0, SQUARE), (0, OTHER), (1, THIRD))
    found = answers(
        (0, 0.9, SQUARE), (0, 0.5, OTHER), (1, 0.4, THIRD), (0, 0.3, THIRD), (0, 0.2, THIRD)
    )  # fmt: skip
    confusion = object_confusion(labels, found)
    assert 0.3 < confusion.confidence <= 0.4
    assert confusion.mean("f1") == 1
    assert object_confusion(labels, answers()).mean("f1") == 0


def test_masks_keypoints_and_rotated_boxes_are_compared_as_they_are_for_the_map():
    points = np.zeros((1, 5, 3), np.float32)
    points[0] = [150, 150, 2]
    labels = dataset((0, SQUARE), keypoints=points)
    near, far = (
        answers((0, 0.9, SQUARE), keypoints=points + np.float32([dx, 0, 0])) for dx in (0, 90)
    )
    assert object_confusion(labels, near, 0.5).counts == {"cat": {"cat": 1}}
    assert object_confusion(labels, far, 0.5).counts["cat"] == {"background": 1}
    turned = np.array([[150, 150, 100, 20, 0]], np.float32)
    labels = dataset((0, SQUARE), rotated=turned)
    across = turned + np.float32([0, 0, 0, 0, np.pi / 2])
    for found, count in ((turned, {"dog": 1}), (across, {"background": 1})):
        confusion = object_confusion(labels, answers((1, 0.9, SQUARE), rotated=found), 0.5)
        assert confusion.counts["cat"] == count


def test_figures_are_those_of_faster_coco_eval():
    """On objects and answers at random; its macro means take the best of all scores."""
    draws = np.random.default_rng(5)
    corners = draws.uniform(0, 300, (60, 2))
    boxes = np.hstack([corners, corners + draws.uniform(20, 90, (60, 2))])
    labels = dataset(*zip(draws.integers(0, 3, 60).tolist(), boxes.tolist(), strict=True))
    shifted = (boxes + draws.normal(0, 4, boxes.shape)).tolist()
    scores = (draws.permutation(60) + 1) / 61
    kinds = np.where(draws.random(60) < 0.8, labels.images[0].class_ids, draws.integers(0, 3, 60))
    found = answers(*zip(kinds.tolist(), scores.tolist(), shifted, strict=True))

    overlap, indices = coco_indices(labels, found)
    theirs = judge(overlap, indices, labels)
    for index in indices:
        for one in index.dataset["categories"]:
            one["name"] = NAMES[one["id"]]
    theirs.params.iouThrs = np.array([0.5, 0.75])
    theirs.evaluate()
    theirs.accumulate()
    theirs.summarize()
    expected = theirs.extended_metrics
    confusion = object_confusion(labels, found)
    assert 0.3 < confusion.mean("f1") < 0.95
    for figure in ("precision", "recall"):
        assert confusion.mean(figure) == pytest.approx(expected[figure], abs=1e-6)
        for row in expected["class_map"][:-1]:
            own = getattr(confusion.classes[row["class"]], figure)
            assert own == pytest.approx(row[figure], abs=1e-6)


def test_images_have_no_background():
    confusion = image_confusion([("cat", "cat"), ("cat", "dog"), ("dog", "dog"), ("dog", "dog")])
    assert confusion.counts == {"cat": {"cat": 1, "dog": 1}, "dog": {"dog": 2}}
    assert (confusion.names, confusion.confidence) == (["cat", "dog"], None)
    cat = confusion.classes["cat"]
    assert (cat.labelled, cat.precision, cat.recall, cat.f1) == (2, 1, 0.5, pytest.approx(2 / 3))


# Labels with classes that the model lacks, and labels of which some classes are measured.


def labelled(class_ids, names=("cat", "dog", "fork lift")) -> Dataset:
    count = len(class_ids)
    image = LabelledImage(
        path=Path("a.jpg"),
        width=64,
        height=64,
        boxes=np.tile(np.float32([0, 0, 9, 9]), (count, 1)),
        class_ids=np.array(class_ids, np.int32),
        crowd=np.zeros(count, np.bool_),
        areas=np.full(count, 81, np.float32),
        outlines=tuple([[0.0, 0.0, 9.0, 0.0, 9.0, float(n)]] for n in range(count)),
    )
    return Dataset(Path("set"), (image,), names)


def test_labels_that_the_model_has_are_all_measured():
    labels = labelled([0, 1, 1])
    chosen = choose(labels, None, ("dog", "cat"))
    assert chosen.labelled is labels
    assert (chosen.note, dict(chosen.left_out)) == ("", {})


def test_what_the_model_lacks_is_refused_and_the_error_says_what_to_type():
    labels = labelled([0, 1, 1, 2, 2])
    with pytest.raises(InvalidOption) as refused:
        choose(labels, None, ("dog", "cat", "bus"))
    says = str(refused.value)
    assert "the model lacks: fork lift (2 objects)." in says
    chosen = choose(labels, says.rpartition("--classes ")[2], ("dog", "cat", "bus"))
    assert [image.class_ids.tolist() for image in chosen.labelled.images] == [[0, 1, 1]]
    assert len(chosen.labelled.images[0].outlines) == 3
    assert chosen.note == "not measured: fork lift (2 objects), which the model lacks"
    assert chosen.labelled.match_classes(("dog", "cat", "bus")).images[0].class_ids.tolist() == [
        1,
        0,
        0,
    ]


def test_a_class_is_named_as_labels_or_model_do_or_by_the_models_id():
    labels = labelled([0, 1, 1, 2], ("cat", "puppy", "bus"))
    for typed in ("puppy", "DOG", "1"):
        chosen = choose(labels, typed, ("cat", "dog", "bus"))
        assert chosen.labelled.images[0].class_ids.tolist() == [1, 1]
        assert dict(chosen.left_out) == {"cat": 1, "bus": 1}
        assert chosen.note == "not measured: 2 other classes (2 objects)"
    numbered = choose(labelled([0, 5], None), "person", ("person", "car"))
    assert numbered.labelled.images[0].class_ids.tolist() == [0]
    assert numbered.note == "not measured: 5 (1 object), which the model lacks"
    with pytest.raises(InvalidOption, match="person"):
        choose(labelled([0, 5], None), "bus", ("person", "car"))


def test_a_class_without_an_object_is_in_no_mean():
    chosen = choose(labelled([0, 1, 1, 2]), "cat,bus", ("cat", "dog", "bus", "tree"))
    assert dict(chosen.left_out) == {"dog": 2, "fork lift": 1}
    with pytest.raises(InvalidOption, match="bus"):
        choose(labelled([0, 1, 1, 2]), "bus", ("cat", "dog", "bus", "tree"))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("dgo", "has no object of 'dgo'; did you mean 'dog'?"),
        ("bus", r"has no object of 'bus'; it has dog \(2 objects\), cat \(1\), fork lift \(1\)"),
        ("fork lift", "the model has none of these classes"),
        ("cat,", "quotes are not balanced, or a name is empty"),
    ],
)
def test_what_cannot_be_chosen(typed, says):
    with pytest.raises(InvalidOption, match=says):
        choose(labelled([0, 1, 1, 2]), typed, ("cat", "dog"))


def test_folders_of_images_and_maps():
    images = tuple(Path(name) for name in ("cat/a.png", "cat/b.png", "yak/a.png"))
    folders = ClassFolders(Path("set"), images)
    with pytest.raises(InvalidOption, match="yak"):
        choose(folders, None, ("cat", "dog"))
    chosen = choose(folders, "cat", ("cat", "dog"))
    assert chosen.labelled.images == images[:2]
    assert chosen.note == "not measured: yak (1 image), which the model lacks"
    maps = ClassMaps(Path("set"), (), ("cat",))
    assert choose(maps, None, ("dog",)).labelled is maps
    with pytest.raises(InvalidOption, match=r"classes\.txt"):
        choose(maps, "cat", ("cat",))
