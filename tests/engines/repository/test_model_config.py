"""config.pbtxt as a dataclass, back as a message, and changed while the rest of its text stays."""

from dataclasses import replace

import pytest
from google.protobuf import text_format

from fovea_engines.repository.config_edit import edit_text
from fovea_engines.repository.config_pbtxt import (
    config_message,
    drop_version_policy,
    fields_in_source,
    model_config_messages,
    parse_config,
    read_config,
)
from fovea_engines.repository.model_config import (
    ModelInstanceGroup,
    ModelParameter,
    ModelVersionPolicy,
    Specific,
)
from fovea_engines.repository.model_config_scheduling import (
    ModelDynamicBatching,
    ModelQueuePolicy,
    StrategyDirect,
)
from fovea_preprocess.errors import InvalidModel

TEXT = """
    name: "m" version_policy { specific { versions: [9000000000, 2] } }
    input { name: "X" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, -1, -1] reshape { } }
    instance_group { count: 2 gpus: [0, 1] rate_limiter { resources { name: "r" count: 3 } } }
    instance_group { profile: "1" }
    sequence_batching {
        direct { minimum_slot_utilization: 0.1 }
        control_input { name: "S" control { fp32_false_true: [0, 1.5] } }
        state { input_name: "A" use_growable_memory: true initial_state { zero_data: true } }
    }
    parameters { key: "a.b" value { } } parameters { key: "a" value { string_value: "2" } }
    optimization { cuda { graphs: true } input_pinned_memory { } }
    model_warmup { name: "s" inputs { key: "X" value { random_data: true dims: 1 } } }
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.pbtxt").write_text(TEXT)
    return read_config(tmp_path / "config.pbtxt")


def message(text: str) -> object:
    return text_format.Parse(text, model_config_messages().ModelConfig())


def test_fields_have_their_values_or_the_defaults_of_the_schema(config):
    assert config.version_policy.specific.versions == (9_000_000_000, 2)
    assert config.served([1, 2, 3]) == (2,)
    assert (config.input[0].dims, config.input[0].engine_dims) == ((3, -1, -1), ())
    assert config.sequence_batching.direct == StrategyDirect(0, 0.1)
    assert config.sequence_batching.control_input[0].control[0].kind == "CONTROL_SEQUENCE_START"
    assert config.parameters["a"].string_value == "2"
    assert config.model_warmup[0].inputs["X"].random_data is True
    assert config.dynamic_batching is None
    assert ModelQueuePolicy().rejects


def test_all_fields_of_the_file_are_in_the_message(config):
    assert config_message(config) == message(TEXT)


def test_changes_are_in_the_message_beside_fields_that_are_not_in_the_dataclass(config):
    first, second = config.instance_group
    changed = replace(
        config,
        backend="openvino",
        instance_group=(replace(first, gpus=(), name="m_0"), second, ModelInstanceGroup(count=1)),
    )
    expected = message(TEXT + ' backend: "openvino" instance_group { count: 1 }')
    expected.instance_group[0].name = "m_0"
    del expected.instance_group[0].gpus[:]
    assert config_message(changed) == expected


def test_the_names_of_fields_in_the_file(config):
    names = fields_in_source(config)
    assert {"instance_group.rate_limiter", "parameters.a.b", "optimization.cuda"} <= names
    assert "max_batch_size" not in names


def test_configurations_that_differ_in_the_version_policy_alone_compare_equal(config, tmp_path):
    text = TEXT.replace("specific { versions: [9000000000, 2] }", "all { }")
    (tmp_path / "config.pbtxt").write_text(text)
    other = read_config(tmp_path / "config.pbtxt")
    assert other != config
    assert drop_version_policy(other) == drop_version_policy(config)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "3.4028235e+38", "0.1"])
def test_floats_of_any_size_are_in_the_message(tmp_path, value):
    text = f"sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}"
    (tmp_path / "config.pbtxt").write_text(text)
    config, again = (read_config(tmp_path / "config.pbtxt") for _ in range(2))
    changed = config_message(replace(config, name="m"))
    # As text, because NaN is not equal to itself.
    assert str(changed) == str(message(f'name: "m" {text}'))
    assert drop_version_policy(config) == drop_version_policy(again)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            "instance_group { } instance_group { kind: 77 }",
            "77 is not a kind of instance_group: use one of KIND_AUTO, KIND_GPU",
        ),
        (
            "dynamic_batching { default_queue_policy { timeout_action: 9 } }",
            "9 is not a timeout_action of dynamic_batching.default_queue_policy",
        ),
        (
            "dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: 9 } } }",
            "9 is not a timeout_action of dynamic_batching.priority_queue_policy",
        ),
        (
            'model_warmup { inputs { key: "value" value { data_type: 99 } } }',
            "99 is not a data_type of model_warmup.inputs: use one of TYPE_INVALID, TYPE_BOOL",
        ),
        ("sequence_batching { control_input { control { kind: -1 } } }", "-1 is not a kind of"),
    ],
)
def test_a_number_that_an_enum_of_the_schema_does_not_have_is_refused(tmp_path, text, refusal):
    (tmp_path / "config.pbtxt").write_text(text)
    with pytest.raises(InvalidModel) as raised:
        read_config(tmp_path / "config.pbtxt")
    assert str(raised.value).startswith(refusal)
    with pytest.raises(InvalidModel):
        parse_config('{"instance_group": [{"kind": 9}]}')


EDITED = """\
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
def edited(tmp_path):
    (tmp_path / "config.pbtxt").write_text(EDITED)
    return tmp_path / "config.pbtxt"


def reread(path, text):
    path.write_text(text)
    return replace(read_config(path), source="{}")


def test_a_change_leaves_the_rest_of_the_text(edited, tmp_path):
    config = read_config(edited)
    assert edit_text(EDITED, config) == EDITED
    two = replace(config, max_batch_size=2)
    assert edit_text(EDITED, two) == EDITED.replace("size: 8", "size: 2")
    assert "dynamic_batching" not in edit_text(EDITED, replace(config, dynamic_batching=None))
    absent = replace(read_config(tmp_path / "absent" / "config.pbtxt"), max_batch_size=4)
    assert edit_text("", absent) == "max_batch_size: 4\n"


def test_every_kind_of_field(edited):
    config = read_config(edited)
    batching = config.dynamic_batching or ModelDynamicBatching()
    parameters = {"metadata": config.parameters["metadata"], "new": ModelParameter("1")}
    changed = replace(
        config,
        version_policy=ModelVersionPolicy(specific=Specific((3,))),
        dynamic_batching=replace(batching, max_queue_delay_microseconds=0),
        parameters=parameters,
    )
    text = edit_text(EDITED, changed)
    assert reread(edited, text) == replace(changed, source="{}")
    for kept in (
        "# of the night shift",
        "# { not a brace",
        "dims: [ 3, 640, 640 ] } ]",
        "# the end",
    ):
        assert kept in text
    assert EDITED.splitlines()[8] in text
    assert "NUM_STREAMS" not in text
