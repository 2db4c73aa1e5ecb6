"""Labels with classes that the model lacks, and labels of which some classes are measured."""

from pathlib import Path

import numpy as np
import pytest

from fovea_engines.evaluation.class_folders import ClassFolders
from fovea_engines.evaluation.class_maps import ClassMaps
from fovea_engines.evaluation.dataset import Dataset
from fovea_engines.evaluation.labelled_image import LabelledImage
from fovea_preprocess.errors import InvalidOption
from fovea_server.offline.chosen import choose


def dataset(class_ids, names=("cat", "dog", "fork lift")) -> Dataset:
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
    labels = dataset([0, 1, 1])
    chosen = choose(labels, None, ("dog", "cat"))
    assert chosen.labelled is labels
    assert (chosen.note, dict(chosen.left_out)) == ("", {})


def test_what_the_model_lacks_is_refused_and_the_error_says_what_to_type():
    labels = dataset([0, 1, 1, 2, 2])
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
    labels = dataset([0, 1, 1, 2], ("cat", "puppy", "bus"))
    for typed in ("puppy", "DOG", "1"):
        chosen = choose(labels, typed, ("cat", "dog", "bus"))
        assert chosen.labelled.images[0].class_ids.tolist() == [1, 1]
        assert dict(chosen.left_out) == {"cat": 1, "bus": 1}
        assert chosen.note == "not measured: 2 other classes (2 objects)"
    numbered = choose(dataset([0, 5], None), "person", ("person", "car"))
    assert numbered.labelled.images[0].class_ids.tolist() == [0]
    assert numbered.note == "not measured: 5 (1 object), which the model lacks"
    with pytest.raises(InvalidOption, match="person"):
        choose(dataset([0, 5], None), "bus", ("person", "car"))


def test_a_class_without_an_object_is_in_no_mean():
    chosen = choose(dataset([0, 1, 1, 2]), "cat,bus", ("cat", "dog", "bus", "tree"))
    assert dict(chosen.left_out) == {"dog": 2, "fork lift": 1}
    with pytest.raises(InvalidOption, match="bus"):
        choose(dataset([0, 1, 1, 2]), "bus", ("cat", "dog", "bus", "tree"))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("dgo", "has no object of 'dgo'; did you mean 'dog'?"),
        ("bus", r"has no object of 'bus'; it has dog \(2 objects\), cat \(1\), fork lift \(1\)"),
        ("fork lift", "the model has none of these classes"),
        ("cat,", "the quotes do not match, or a name is empty"),
    ],
)
def test_what_cannot_be_chosen(typed, says):
    with pytest.raises(InvalidOption, match=says):
        choose(dataset([0, 1, 1, 2]), typed, ("cat", "dog"))


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
