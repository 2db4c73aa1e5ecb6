"""What a model's configuration says once its engine is open."""

import json
import shutil
from pathlib import Path

import pytest
from google.protobuf import text_format
from tests.server.registries import ADDER_CONFIG, adder, serving

from fovea_engines.repository.config_pbtxt import config_message
from fovea_server.models.model import ServedModel

pytestmark = pytest.mark.slow

# The recordings are of a Python backend.
VOLATILE = {"platform", "backend", "default_model_filename"}


def loaded(repository: Path, name: str = "plus", **settings: object) -> ServedModel:
    """A model that was served a moment ago."""
    with serving(repository, **settings) as registry:
        assert registry.reason == ""
        return registry.find(name)


def refused(repository: Path, **settings: object) -> str:
    with serving(repository, **settings) as registry:
        assert not registry.ready
        return registry.reason.removeprefix("plus: ")


def test_configurations_are_written_as_recorded(shared):
    recordings = shared / "data" / "triton" / "golden-http.jsonl"
    rows = [json.loads(line) for line in recordings.read_text().splitlines()]
    recorded = {
        row["request"]["path"].split("/")[3]: json.loads(row["body"])
        for row in rows
        if row["request"]["path"].endswith("/config") and row["status"] == 200
    }
    # That one was loaded with another configuration.
    del recorded["simple_nobatch"]
    with serving(shared / "data" / "triton" / "models") as registry:
        for name, want in recorded.items():
            have = json.loads(registry.find(name).config_json)
            assert list(have) == list(want)
            assert [have[k] for k in have if k not in VOLATILE] == [
                want[k] for k in want if k not in VOLATILE
            ]


def test_all_is_filled_in_where_nothing_is_said(tmp_path):
    adder(tmp_path, "plus", metadata={"names": "{0: 'cat'}"})
    message = config_message(loaded(tmp_path).config)
    assert text_format.MessageToString(message, as_one_line=True) == (
        'name: "plus" platform: "onnxruntime_onnx" version_policy { latest { num_versions: 1 } } '
        'max_batch_size: 4 input { name: "X" data_type: TYPE_INT32 dims: 4 } '
        'output { name: "Y" data_type: TYPE_INT32 dims: 4 } '
        'instance_group { name: "plus" count: 1 kind: KIND_CPU } '
        'default_model_filename: "model.onnx" dynamic_batching { preferred_batch_size: 4 } '
        "optimization { input_pinned_memory { enable: true } "
        "output_pinned_memory { enable: true } } "
        'parameters { key: "metadata" value { string_value: '
        "\"{\\'names\\': \\\"{0: \\'cat\\'}\\\"}\" } } "
        'backend: "onnxruntime"'
    )


@pytest.mark.parametrize(
    ("shape", "config", "size", "dims"),
    [
        (("N", 4), "", 4, [4]),
        (("N", 4), "max_batch_size: 2", 2, [4]),
        (("N", "M", 4), "", 4, [-1, 4]),
        ((3, 4), "", 0, [3, 4]),
        ((1, 4), "", 0, [1, 4]),
        ((1, 4), "max_batch_size: 1", 1, [4]),
        (("N",), "", 4, [1]),
        ((), "", 0, [1]),
    ],
)
def test_shapes_say_whether_there_is_a_batch(tmp_path, shape, config, size, dims):
    adder(tmp_path, "plus", shape=shape, config=config)
    config = loaded(tmp_path).config
    assert (config.max_batch_size, list(config.input[0].dims)) == (size, dims)
    assert (config.dynamic_batching is not None) == (size > 1)
    assert (config.input[0].reshape is not None) == (shape == ("N",))


def test_a_reshape_may_add_ones(tmp_path):
    said = ADDER_CONFIG.replace("dims: [ 4 ]", "dims: [ 4 ] reshape { shape: [ 1, 4 ] }")
    adder(tmp_path, "plus", shape=("N", 1, 4), config=said)
    assert list(loaded(tmp_path).config.input[0].reshape.shape) == [1, 4]


def test_numbers_that_json_and_the_schema_lack_pass_through(tmp_path):
    adder(
        tmp_path,
        "plus",
        config="""optimization { priority: 77 } sequence_batching {
            control_input { name: "S" control { fp32_false_true: [nan, inf] } } }""",
    )
    model = loaded(tmp_path)
    document = json.loads(model.config_json)
    [control] = document["sequence_batching"]["control_input"][0]["control"]
    assert control["fp32_false_true"] == [None, None]
    assert document["optimization"]["priority"] == 77
    message = config_message(model.config)
    assert message.optimization.priority == 77
    assert (
        str(message.sequence_batching.control_input[0].control[0].fp32_false_true) == "[nan, inf]"
    )


def test_what_is_said_stays(tmp_path):
    adder(tmp_path, "plus", config='input { name: "X" data_type: TYPE_INT32 dims: -1 }')
    config = loaded(tmp_path, default_max_batch_size=16).config
    assert config.max_batch_size == 16
    assert (config.input[0].dims, config.output[0].dims) == ((-1,), (4,))


def test_nothing_is_filled_in_where_that_is_asked(tmp_path):
    adder(tmp_path, "plus")
    assert "is missing" in refused(tmp_path, disable_auto_complete_config=True)
    adder(tmp_path, "plus", config=ADDER_CONFIG)
    assert loaded(tmp_path, disable_auto_complete_config=True).config.max_batch_size == 8
    adder(tmp_path, "plus", config="max_batch_size: 8")
    assert "does not list X" in refused(tmp_path, disable_auto_complete_config=True)


def test_a_model_may_have_configurations_to_choose_from(tmp_path):
    folder = adder(tmp_path, "plus", config="max_batch_size: 8")
    (folder / "configs").mkdir()
    (folder / "configs" / "small.pbtxt").write_text("max_batch_size: 2")
    assert loaded(tmp_path, model_config_name="small").config.max_batch_size == 2
    assert loaded(tmp_path, model_config_name="other").config.max_batch_size == 8


def test_the_engine_file_may_have_any_name(tmp_path):
    adder(tmp_path, "plus", file="v2.onnx", config='default_model_filename: "v2.onnx"')
    assert loaded(tmp_path).config.default_model_filename == "v2.onnx"
    (tmp_path / "plus" / "config.pbtxt").write_text('default_model_filename: "v3.onnx"')
    assert "config.pbtxt names the file v3.onnx" in refused(tmp_path)


def test_an_onnx_file_may_be_run_by_another_backend(tmp_path):
    adder(tmp_path, "plus", config='backend: "openvino"')
    config = loaded(tmp_path).config
    assert (config.backend, config.platform, config.input[0].dims) == ("openvino", "", (4,))
    adder(tmp_path, "plus", config='backend: "tensorrt"')
    assert "fits the backend onnxruntime or openvino" in refused(tmp_path)


def test_what_has_no_effect_is_told_in_one_line(tmp_path, caplog):
    adder(
        tmp_path,
        "plus",
        config="""\ufeff
            optimization { execution_accelerators { gpu_execution_accelerator { name: "x" } } }
            instance_group { gpus: [0, 1] kind: KIND_GPU rate_limiter { priority: 1 } }
            parameters { key: "intra_op_thread_count" value { string_value: "2" } }
            parameters { key: "of clients" value { string_value: "2" } }""",
    )
    loaded(tmp_path)
    [told] = [line for line in caplog.messages if "have no effect" in line]
    assert told == (
        "model plus: these settings of its configuration have no effect here: "
        "optimization.execution_accelerators, instance_group.rate_limiter, instance_group.gpus "
        "(one GPU is used), parameters.intra_op_thread_count"
    )


def test_a_built_engine_says_its_own_batch(demo_batches, tmp_path):
    shutil.copytree(demo_batches, tmp_path, dirs_exist_ok=True)
    written = loaded(tmp_path, "digits").config
    (tmp_path / "digits" / "config.pbtxt").unlink()
    derived = loaded(tmp_path, "digits").config
    assert derived.max_batch_size == written.max_batch_size == 4
    assert derived.input == written.input
    (tmp_path / "digits" / "config.pbtxt").write_text("max_batch_size: 5")
    assert "the engine's maximum of 4" in refused(tmp_path)


def test_an_older_version_loads_beside_what_the_newest_build_has_written(
    demo_repository, demo_batches, tmp_path
):
    """Version 2 takes batches of 4, and its build has written that; version 1 takes one image."""
    shutil.copytree(demo_batches, tmp_path, dirs_exist_ok=True)
    model = tmp_path / "digits"
    (model / "1").rename(model / "2")
    shutil.copytree(demo_repository / "digits" / "1", model / "1")
    written = (model / "config.pbtxt").read_text()
    for version, batch in ((1, 1), (2, 4)):
        chosen = f"version_policy {{ specific {{ versions: [ {version} ] }} }}"
        (model / "config.pbtxt").write_text(f"{written}\n{chosen}\n")
        assert loaded(tmp_path, "digits").config.max_batch_size == batch


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('name: "minus"', "unexpected directory name 'plus' for model 'minus'"),
        ('platform: "pytorch_libtorch"', "unexpected platform type 'pytorch_libtorch' for plus"),
        ('backend: "python"', "backend 'python' of plus is not supported"),
        ('backend: "onnx"', "did you mean onnxruntime?"),
        ('backend: "onnxruntme"', "did you mean onnxruntime?"),
        ('backend: "tensorrt_plan"', "did you mean tensorrt?"),
        ('backend: "tensorrt_llm"', "tensorrt-rtx; convert the model to ONNX"),
        ('platform: "onnx"', "did you mean onnxruntime_onnx?"),
        ('platform: "pytorch_libtorch"', "convert the model to ONNX"),
        (
            'platform: "tensorrt_plan"',
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        ),
        (
            ADDER_CONFIG + ADDER_CONFIG.replace("max_batch_size: 8", ""),
            "'X' is described more than once for plus",
        ),
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for plus"),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }",
            "dynamic batching preferred size must be <= max batch size for plus",
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
            "dynamic batching preferred size must be positive for plus",
        ),
        (
            "dynamic_batching { priority_levels: 2 }",
            "default priority level must be in range [1, 2] for plus",
        ),
        (
            'input { name: "X" data_type: TYPE_INT32 }',
            "model input 'X' must specify 'dims' for plus",
        ),
        (
            'output { name: "Y" dims: 4 }',
            "model output 'Y' must specify 'data_type' for plus",
        ),
        (
            ADDER_CONFIG.replace("dims: [ 4 ]", "dims: [ 2 ] reshape { shape: [ 3 ] }", 1),
            "model input 'X' has different size for dims and reshape for plus",
        ),
        ("ensemble_scheduling {}", "cannot be set for model 'plus' whose platform is not ensemble"),
        ('platform: "ensemble"', "ensemble scheduling must be set for ensemble plus"),
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "batch_input"),
        (
            ADDER_CONFIG.replace("dims: [ 4 ]", "dims: [ 4 ] is_shape_tensor: true", 1),
            "'X' of plus is a shape tensor, which is not supported in batches",
        ),
        (
            "response_cache { enable: true } sequence_batching {}",
            "Response Cache does not currently support model plus with sequence batching",
        ),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(tmp_path, config, told):
    adder(tmp_path, "plus", config=config)
    assert told in refused(tmp_path)


@pytest.mark.parametrize(
    ("said", "instead", "told"),
    [
        ('"X"', '"Z"', "unexpected inference input 'Z', allowed inputs are: X"),
        ('"Y"', '"Z"', "unexpected inference output 'Z', allowed outputs are: Y"),
        (
            "INT32",
            "FP32",
            "unexpected datatype TYPE_INT32 for inference input 'X', expecting TYPE_FP32",
        ),
        (
            "size: 8",
            "size: 0",
            "model 'plus', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model "
            "configuration specifies 1 dimensions (shape [4])",
        ),
        (
            "dims: [ 4 ]",
            "dims: [ 4, 1 ]",
            "configuration specifies 3 dimensions (an initial batch dimension because "
            "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            "[-1,4,1]). NOTE: ",
        ),
    ],
)
def test_a_configuration_that_the_engine_contradicts_is_refused(tmp_path, said, instead, told):
    adder(tmp_path, "plus", config=ADDER_CONFIG.replace(said, instead, 1))
    assert told in refused(tmp_path)


def test_a_fixed_batch_cannot_be_batched(tmp_path):
    adder(tmp_path, "plus", shape=(2, 4), config=ADDER_CONFIG)
    assert "the first dimension must be -1; but shape expected by the model is [2,4]" in refused(
        tmp_path
    )
    adder(tmp_path, "plus", shape=(2, 4), config="max_batch_size: 1")
    assert "model does not support batching while non-zero max_batch_size" in refused(tmp_path)
    adder(tmp_path, "plus", shape=(2, 4), config="max_batch_size: 8")
    assert "model does not support batching while non-zero max_batch_size" in refused(tmp_path)
