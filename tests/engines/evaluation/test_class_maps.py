"""Maps of classes: what is read, what is refused, and mIoU as scikit-learn computes it."""

from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter
from sklearn.metrics import jaccard_score

from fovea_engines.evaluation.class_maps import ClassMaps, FoundMap, measure_maps
from fovea_engines.evaluation.labels import check_task, read_labelled
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_preprocess.errors import InvalidOption, NotFound

NAMES = {0: "sky", 1: "road", 2: "car", 3: "tree"}


@pytest.fixture
def folder(tmp_path):
    """Two images, and their maps of the levels 0 to 3 and 255."""
    random = np.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (40, 30)).save(tmp_path / "images" / f"{name}.jpg")
        levels = random.choice([0, 1, 2, 3, 255], (30, 40)).astype(np.uint8)
        Image.fromarray(levels).save(tmp_path / "masks" / f"{name}.png")
    return tmp_path


def levels_of(folder, image):
    return np.asarray(Image.open(folder / "masks" / f"{image.stem}.png")).astype(np.uint16)


def half_right(folder):
    """Answers that have half of the pixels from the labels."""
    random = np.random.default_rng(1)

    def segment(image):
        truth, other = levels_of(folder, image), random.integers(0, 4, (30, 40), np.uint16)
        return FoundMap(
            np.where((random.random((30, 40)) < 0.5) & (truth < 4), truth, other), NAMES
        )

    return segment


def test_figures_are_those_of_scikit_learn(folder):
    dataset = read_labelled(folder / "masks")
    assert isinstance(dataset, ClassMaps)
    assert [image.name for image, _ in dataset.images] == ["a.jpg", "b.jpg"]
    found = measure_maps(half_right(folder), dataset)
    segment = half_right(folder)
    pairs = [(levels_of(folder, image), segment(image).ids) for image, _ in dataset.images]
    truth, have = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    truth, have = truth[truth < 4], have[truth < 4]
    scores = jaccard_score(truth, have, average=None)
    assert found.per_class == pytest.approx(dict(zip(NAMES.values(), scores, strict=True)))
    assert found.miou == found.figure == pytest.approx(scores.mean())
    assert found.pixel_accuracy == pytest.approx((truth == have).mean())
    assert list(found.rows) == ["mIoU", "pixel accuracy"]
    assert TypeAdapter(AnyAccuracy).validate_python(asdict(found)) == found  # as cards are read


def test_levels_meet_classes_by_name(folder):
    """Levels of one name are one class, and those of an empty line do not count."""
    (folder / "masks" / "classes.txt").write_text("car\n\nroad\ncar\n")
    dataset = read_labelled(folder / "masks").match_classes(tuple(NAMES.values()))
    ids = {0: 2, 1: 0, 2: 1, 3: 2, 255: 3}

    def segment(image):
        return FoundMap(np.vectorize(ids.get)(levels_of(folder, image)).astype(np.uint16), NAMES)

    found = measure_maps(segment, dataset)
    assert (found.miou, found.pixel_accuracy) == (1, 1)
    assert found.per_class == {"car": 1, "road": 1}
    wrong = measure_maps(lambda image: FoundMap(np.zeros((30, 40), np.uint16), NAMES), dataset)
    assert (wrong.miou, wrong.pixel_accuracy) == (0, 0)
    with pytest.raises(InvalidOption, match="'car'"):
        dataset.match_classes(("sky", "road"))
    before = dataset.sha256()
    (folder / "masks" / "classes.txt").write_text("car\n\nroad\nroad\n")
    assert read_labelled(folder / "masks").sha256() != before


def test_levels_without_names_are_the_models_class_ids(folder):
    maps = read_labelled(folder / "masks")
    assert maps.match_classes(None, 4) is maps
    assert maps.match_classes(tuple(NAMES.values())) is maps
    with pytest.raises(InvalidOption, match=r"a\.png"):
        maps.match_classes(None, 3)


@pytest.mark.parametrize("task", ["saliency", "depth"])
def test_a_task_that_nothing_measures_is_said(folder, task):
    with pytest.raises(InvalidOption, match=f"the model's task, {task};"):
        check_task(read_labelled(folder / "masks"), task)


def test_what_is_no_set_of_maps_is_a_sentence(folder):
    masks = folder / "masks"
    with pytest.raises(InvalidOption):
        check_task(read_labelled(masks), "detect")
    Image.new("RGB", (40, 30)).save(masks / "b.png")
    with pytest.raises(InvalidOption, match=r"b\.png"):
        measure_maps(half_right(folder), read_labelled(masks))
    Image.new("L", (30, 40)).save(masks / "a.png")
    with pytest.raises(InvalidOption, match="40 x 30"):
        measure_maps(lambda _: FoundMap(np.zeros((30, 40), np.uint16), NAMES), read_labelled(masks))
    (folder / "images" / "a.jpg").unlink()
    with pytest.raises(NotFound, match="--images"):
        read_labelled(masks)
