"""RF-DETR on the files that its exporter writes."""

from dataclasses import replace

import pytest
from tests.engines.heads.expected import File

from fovea_engines.heads.recognise import recognise
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.real


def test_rows_are_those_of_the_family(shared):
    file = File(shared, "rfdetr")
    assert file.recognise().family == "rfdetr"
    file.assert_expected()


@pytest.mark.parametrize(("family", "first"), [("last", 0), ("first", 1)])
def test_a_background_column_is_no_class(shared, family, first):
    file = File(shared, "rfdetr")
    told = file.recognise(f"rfdetr-background-{family}")
    assert told.num_classes == 90
    for _, rows in file.images.values():
        for row in rows:
            row["class_id"] -= first
    file.assert_expected(told.family)


@pytest.mark.parametrize("more", ["masks", "keypoints", "depth"])
def test_what_is_more_than_boxes_is_not_ignored(shared, more):
    file = File(shared, "rfdetr")
    specs = [*file.outputs, TensorSpec(more, "float32", (1, 50, 3))]
    assert recognise(file.inputs, specs, file.metadata).family != "rfdetr"


@pytest.mark.parametrize(("file", "wanted"), [("rfdetr", ""), ("rfdetr-seg", " and masks")])
def test_renamed_outputs_are_told_their_names(shared, file, wanted):
    read = File(shared, file)
    boxes, *others = read.outputs
    renamed = [replace(boxes, name="output"), *others]
    wanted = f"named labels and dets{wanted}"
    with pytest.raises(UnsupportedModel, match=f"{wanted} .*edit --rename OLD=NEW"):
        recognise(read.inputs, renamed, read.metadata, file)
    assert wanted in recognise(read.inputs, renamed, read.metadata).reason
