"""Every member of TensorRT that the code names is where the code says: in 10.16, 11.4 and RTX."""

from pathlib import Path

import pytest
from tests.engines.backends.tensorrt.api_surface.surface import BINDINGS, Surface, read_surface
from tests.engines.backends.tensorrt.api_surface.uses import Use, uses_in

pytestmark = pytest.mark.real

FILES = sorted(
    (Path(__file__).resolve().parents[5] / "engines/fovea_engines/backends/tensorrt").glob("*.py")
)


@pytest.fixture(scope="module")
def surfaces(stubs) -> dict[str, Surface]:
    return {version: read_surface(version, stubs) for version in BINDINGS}


@pytest.fixture(scope="module")
def together(surfaces) -> Surface:
    return Surface({k: v for surface in surfaces.values() for k, v in surface.members.items()})


@pytest.fixture(scope="module")
def uses(together) -> list[Use]:
    return uses_in(FILES, together)


def missing(uses: list[Use], surface: Surface) -> list[str]:
    """What one TensorRT lacks of what the code takes for granted."""
    needed = [u for u in uses if not u.probed and all(guard in surface for guard in u.guards)]
    members = {f"{u.where} {u.member}" for u in needed if u.member not in surface}
    keywords = {
        f"{u.where} {u.member}({keyword}=)"
        for u in needed
        if u.member in surface
        for keyword in u.keywords
        if keyword not in surface.parameters(u.member)
    }
    return sorted(members | keywords)


def test_the_bindings_are_the_real_ones(surfaces):
    def principals(member: str) -> list[str]:
        return [version for version, surface in surfaces.items() if member in surface]

    assert principals("BuilderFlag.TF32") == ["10.16", "11.4", "rtx"]
    assert principals("BuilderFlag.FP16") == ["10.16"]
    assert principals("BuilderFlag.VERSION_COMPATIBLE") == ["10.16", "11.4", "rtx"]
    assert principals("ComputeCapability.SM89") == ["rtx"]


@pytest.mark.parametrize("version", BINDINGS)
def test_what_the_code_takes_for_granted_is_there(version, uses, surfaces):
    assert missing(uses, surfaces[version]) == []


def test_none_of_what_runs_an_engine_is_overlooked(uses):
    """Of the calls without which nothing is built or run: should the code name them otherwise."""
    named = {use.member for use in uses}
    assert named >= {
        "Builder.build_serialized_network",
        "IBuilderConfig.progress_monitor",
        "ICudaEngine.create_execution_context",
        "IExecutionContext.execute_async_v3",
        "IExecutionContext.set_tensor_address",
        "ILogger.log",
        "IOptimizationProfile.set_shape",
        "IPluginRegistry.load_library",
        "ITimingCache.serialize",
        "OnnxParser.parse",
        "ParserError.node_operator",
        "Runtime.deserialize_cuda_engine",
    }


def test_what_the_code_looks_for_is_somewhere(uses, together):
    assert [f"{u.where} {u.member}" for u in uses if u.probed and u.member not in together] == []
