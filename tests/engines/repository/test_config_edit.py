"""Fields of a config.pbtxt change, and the rest of its text stays."""

from dataclasses import replace

import pytest

from fovea_engines.repository.config_edit import edit_text
from fovea_engines.repository.config_pbtxt import read_config
from fovea_engines.repository.model_config import ModelParameter, ModelVersionPolicy, Specific
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching

TEXT = """\
# of the night shift: do not touch
name: "people"   # { not a brace
max_batch_size: 8
input [ { name: 'images', data_type: TYPE_FP32, dims: [ 3, 640, 640 ] } ]
dynamic_batching {
  preferred_batch_size: 4  # measured
  max_queue_delay_microseconds: 100
}
parameters { key: "metadata" value { string_value: "{'a': \\"max_batch_size: 3\\"}" } }
parameters: < key: "NUM_STREAMS", value: { string_value: "4" } >;
# the end
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "config.pbtxt").write_text(TEXT)
    return tmp_path / "config.pbtxt"


def reread(path, text):
    path.write_text(text)
    return replace(read_config(path), source="{}")


def test_nothing_changes_where_nothing_is_changed(path):
    assert edit_text(TEXT, read_config(path)) == TEXT


def test_one_number(path):
    config = replace(read_config(path), max_batch_size=2)
    assert edit_text(TEXT, config) == TEXT.replace("size: 8", "size: 2")


def test_every_kind_of_field(path):
    config = read_config(path)
    batching = config.dynamic_batching or ModelDynamicBatching()
    parameters = {"metadata": config.parameters["metadata"], "new": ModelParameter("1")}
    changed = replace(
        config,
        version_policy=ModelVersionPolicy(specific=Specific((3,))),
        dynamic_batching=replace(batching, max_queue_delay_microseconds=0),
        parameters=parameters,
    )
    text = edit_text(TEXT, changed)
    assert reread(path, text) == replace(changed, source="{}")
    for kept in (
        "# of the night shift",
        "# { not a brace",
        "dims: [ 3, 640, 640 ] } ]",
        "# the end",
    ):
        assert kept in text
    assert TEXT.splitlines()[8] in text
    assert "NUM_STREAMS" not in text


def test_a_field_goes(path):
    changed = replace(read_config(path), dynamic_batching=None)
    assert "dynamic_batching" not in edit_text(TEXT, changed)


def test_a_file_that_is_not_there(tmp_path):
    config = replace(read_config(tmp_path / "config.pbtxt"), max_batch_size=4)
    assert edit_text("", config) == "max_batch_size: 4\n"
