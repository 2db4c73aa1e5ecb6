"""Class names become class ids."""

import pytest

from fovea_engines.results.class_names import resolve_classes, split_classes
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption

LABELS = ("person", "car", "Car", "car", "traffic light, red", "straße", "6")


@pytest.mark.parametrize(
    ("classes", "ids"),
    [
        (("person",), (0,)),
        (("Person", 7), (0, 7)),
        (("car",), (1, 3)),
        (("car", 3, "Car"), (1, 3, 2)),
        (("traffic light, red",), (4,)),
        (("STRASSE",), (5,)),
        (split_classes('car,"6"'), (1, 3, 6)),
    ],
)
def test_a_name_is_every_class_that_bears_it(classes, ids):
    assert resolve_classes(PredictOptions(classes=classes), LABELS, "m").classes == ids


def test_ids_and_no_classes_need_no_labels():
    for classes in (None, (), (3, 5)):
        options = PredictOptions(classes=classes)
        assert resolve_classes(options, None, "m") is options


@pytest.mark.parametrize(
    ("name", "labels", "advice"),
    [
        ("cat", None, "'m' has no labels"),
        ("CAR", LABELS, "'Car' or 'car'"),
        ("Persn", LABELS, "'person'"),
        ("9", LABELS, "without quotes"),
        ("lead", (" lead",), "' lead' \\(in text: in double quotes\\)"),
        ("zebra", LABELS, "person, car, [^.]*$"),
        ("zebra", ("a", "b") * 6, r"a, [ab, ]*, \.\.\.; GET /v1/models/m lists all 12$"),
    ],
)
def test_an_unusable_name_is_told_with_advice(name, labels, advice):
    with pytest.raises(InvalidOption, match=advice):
        resolve_classes(PredictOptions(classes=(name,)), labels, "m")


@pytest.mark.parametrize("classes", [(7,), (0, "person", 99)])
def test_an_id_that_is_no_class_is_refused(classes):
    with pytest.raises(InvalidOption, match=r"0 to 6$"):
        resolve_classes(PredictOptions(classes=classes), LABELS, "m", len(LABELS))


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ('person, 5,"traffic light, red"', ("person", 5, "traffic light, red")),
        ('7,"7" , 07', (7, "7", 7)),
        ('" lead",  lead ', (" lead", "lead")),
        ("1_0,+2,\u0663,-1", ("1_0", "+2", "\u0663", -1)),
        ('"the ""big"" one",5"', ('the "big" one', '5"')),
    ],
)
def test_text_is_split_at_commas_outside_quotes(text, classes):
    assert split_classes(text) == classes


@pytest.mark.parametrize("text", ["", " ", "a,", ",a", "a,,b", '"a', ' "a', 'a,"', '""', '"a"b'])
def test_text_that_is_no_list_is_refused(text):
    for each in (text, text + " " * 100_000):
        with pytest.raises(ValueError, match="quotes"):
            split_classes(each)
