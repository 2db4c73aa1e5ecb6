"""Every member of TensorRT that the code names is where the code says: in 10.16, 11.4 and RTX."""

from pathlib import Path
from textwrap import dedent

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


# What is read from a source: members are followed through calls, names and attributes.


def member(kind=None, *parameters):
    return {"type": kind, "parameters": ["self", *parameters]}


SURFACE = Surface(
    {
        "Builder": member("Builder", "logger"),
        "Builder.create_network": member("INetworkDefinition", "flags"),
        "BuilderFlag": member("BuilderFlag"),
        "BuilderFlag.TF32": member("BuilderFlag"),
        "ICudaEngine": member("ICudaEngine"),
        "ICudaEngine.name": member("str"),
        "ILayer": member("ILayer"),
        "ILayer.name": member("str"),
        "INetworkDefinition": member("INetworkDefinition"),
        "INetworkDefinition.get_layer": member("ILayer", "index"),
        "INetworkDefinition.num_layers": member("int"),
        "IProgressMonitor": member("IProgressMonitor"),
        "IProgressMonitor.phase_start": member("None"),
        "OnnxParser": member("OnnxParser"),
        "OnnxParser.get_error": member("IParserError", "index"),
        "ParserError": member("ParserError"),
        "ParserError.desc": member("str"),
        "get_plugin_registry": member("accessor"),
        "IPluginRegistry": member("IPluginRegistry"),
    }
)


@pytest.fixture
def lacking(tmp_path):
    """What a source names that `SURFACE` has not, without its line."""

    def read(source, surface=SURFACE):
        path = tmp_path / "source.py"
        path.write_text(dedent(source))
        uses = uses_in([path], SURFACE)
        return sorted(found.partition(" ")[2] for found in missing(uses, surface))

    return read


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ("trt.BuilderFlag.TF32", []),
        ("trt.BuilderFlag.FP16", ["BuilderFlag.FP16"]),
        ("trt.Builder(log).create_network(1)", []),
        ("trt.Builder(log).create_network(flags=1)", []),
        ("trt.Builder(log).create_network(flag=1)", ["Builder.create_network(flag=)"]),
        ("network = trt.Builder(0).create_network(0)\nnetwork.mark()", ["INetworkDefinition.mark"]),
        ("def f(network: Any):\n    network.mark = 1", ["INetworkDefinition.mark"]),
        ("def f(network: Graph):\n    network.mark = 1", []),
        ("def f(network):\n    network.mark = 1", []),
        ("def f(self):\n    self._runtime.trt.Gone", ["Gone"]),
        ("def f(errors: list[Any]):\n    first, *others = errors\n    first.a", ["ParserError.a"]),
        ("def f(errors: list[Any]):\n    return [error.b for error in errors]", ["ParserError.b"]),
        ("def f(parser: Any):\n    return parser.get_error(0).why()", ["ParserError.why"]),
        ("registry = trt.get_plugin_registry()\nregistry.gone()", ["IPluginRegistry.gone"]),
        ("class M(trt.IProgressMonitor):\n    def phase_start(self): ...", []),
        (
            "class M(trt.IProgressMonitor):\n    def phase_began(self): ...",
            ["IProgressMonitor.phase_began"],
        ),
        (
            """
            def load() -> Any: ...
            engine = load()
            engine.name, engine.size
            """,
            ["ICudaEngine.size"],
        ),
        (
            """
            class Session:
                def run(self):
                    self._engine.size
                def __init__(self, engine: Any):
                    self._engine = engine
            """,
            ["ICudaEngine.size"],
        ),
        (
            """
            def f(network: Any, layers: Sequence[Layer]):
                for layer in [network.get_layer(i) for i in range(network.num_layers)]:
                    layer.kind
                for layer in layers:
                    layer.ours
            """,
            ["ILayer.kind"],
        ),
    ],
)
def test_members_are_followed(source, lacks, lacking):
    assert lacking(source) == lacks


PROBING = """
def f(trt, network: Any):
    network.before
    if hasattr(trt, "Target"):
        network.after
    if getattr(network, "other", None):
        pass
def g(network: Any):
    network.elsewhere
    getattr(network, "granted")
"""


def test_what_follows_a_probe_is_asked_for_where_the_probe_succeeds(lacking):
    always = [f"INetworkDefinition.{name}" for name in ("before", "elsewhere", "granted")]
    assert lacking(PROBING) == always
    with_target = Surface(SURFACE.members | {"Target": member("Target")})
    assert lacking(PROBING, with_target) == ["INetworkDefinition.after", *always]
