"""What is read from a source: members are followed through calls, names and attributes."""

from textwrap import dedent

import pytest
from tests.engines.backends.tensorrt.api_surface.surface import Surface
from tests.engines.backends.tensorrt.api_surface.test_api_surface import missing
from tests.engines.backends.tensorrt.api_surface.uses import uses_in

pytestmark = pytest.mark.real


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
