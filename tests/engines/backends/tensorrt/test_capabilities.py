"""For which GPUs an engine is built."""

import pytest
from tests.engines.rtx import trt

from fovea_engines.backends.tensorrt.builder import build_plan
from fovea_engines.backends.tensorrt.log import Log
from fovea_engines.backends.tensorrt.runtime import RTX, TENSORRT, Runtime, load_runtime
from fovea_engines.device import Gpu
from fovea_engines.repository.options import BuilderOptions, parse_capabilities
from fovea_preprocess.errors import InvalidOption


@pytest.fixture(scope="module")
def runtime():
    return load_runtime(RTX)


class StandInForTensorRT:
    """Stands in for TensorRT 11, which cannot be had here; it has no ComputeCapability."""

    __version__ = "11.4.0"


@pytest.fixture
def tensorrt():
    return Runtime(TENSORRT, StandInForTensorRT(), None, Log())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("80,86,89,120", ("80", "86", "89", "120")),
        ("8.0, 8.9 ,12.0", ("80", "89", "120")),
        ("SM80,sm_89,80", ("80", "89")),
    ],
)
def test_they_are_typed_in_any_of_their_ways(text, found):
    assert parse_capabilities(text) == found


def test_rtx_lists_what_it_builds_for(runtime):
    assert {"75", "80", "86", "89", "120"} <= set(runtime.compute_capabilities)
    runtime.check_capabilities(runtime.compute_capabilities)


@pytest.mark.parametrize("text", ["90", "80,90", "9.0", "70", "", "89,", "seven"])
def test_others_are_refused_with_a_list(runtime, text):
    with pytest.raises(InvalidOption, match="75, 80, 86, 89, 120") as refused:
        runtime.check_capabilities(parse_capabilities(text))
    assert ("H100 or H200, build with --backend tensorrt" in str(refused.value)) == (
        parse_capabilities(text)[-1] == "90"
    )


def test_without_a_gpu_one_must_be_given(runtime, monkeypatch):
    monkeypatch.setattr("fovea_engines.backends.tensorrt.runtime.gpu_here", lambda: None)
    with pytest.raises(InvalidOption, match="80,89"):
        build_plan(b"", BuilderOptions(), runtime)


def test_with_a_gpu_it_is_the_one_that_is_here(runtime, monkeypatch):
    monkeypatch.setattr(
        "fovea_engines.backends.tensorrt.runtime.gpu_here", lambda: Gpu("NVIDIA L4", "89")
    )
    runtime.check_capabilities(())
    config = runtime.builder().create_builder_config()
    runtime.set_target(config, ())
    assert config.num_compute_capabilities == 1
    assert config.get_compute_capability(0) == trt.ComputeCapability.CURRENT


def test_a_gpu_that_no_plan_would_run_on_is_refused_before_the_build(runtime, monkeypatch):
    """As an H200 did, for which RTX 1.7 builds a plan that it then does not load."""
    gpu = Gpu("NVIDIA H200", "90")
    monkeypatch.setattr("fovea_engines.backends.tensorrt.runtime.gpu_here", lambda: gpu)
    with pytest.raises(InvalidOption, match="'90'"):
        runtime.check_capabilities(())
    runtime.check_capabilities(("89",))


def test_a_gpu_newer_than_the_list_is_built_for(runtime, monkeypatch):
    newer = str(max(map(int, runtime.compute_capabilities)) + 10)
    monkeypatch.setattr(
        "fovea_engines.backends.tensorrt.runtime.gpu_here", lambda: Gpu("a newer one", newer)
    )
    runtime.check_capabilities(())


def test_the_builder_is_told_all_of_them(runtime):
    config = runtime.builder().create_builder_config()
    runtime.set_target(config, ("80", "89"))
    told = [config.get_compute_capability(i) for i in range(config.num_compute_capabilities)]
    assert told == [trt.ComputeCapability.SM80, trt.ComputeCapability.SM89]


def test_tensorrt_builds_for_the_gpu_that_is_here(tensorrt):
    tensorrt.check_capabilities(())
    tensorrt.set_target(None, ())
    with pytest.raises(InvalidOption, match="--compute-capability"):
        tensorrt.check_capabilities(("89",))
