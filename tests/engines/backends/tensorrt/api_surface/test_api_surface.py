"""Every member of TensorRT that the code names is where the code says: in 10.16, 11.4 and RTX."""

import ast
from collections import ChainMap
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from tests.engines.backends.tensorrt.api_surface.surface import BINDINGS, Surface, read_surface

pytestmark = pytest.mark.real


# Which members of TensorRT a source file names, as far as its text tells.


CLASSES = {
    "builder": "Builder",
    "config": "IBuilderConfig",
    "context": "IExecutionContext",
    "deserializer": "Runtime",
    "engine": "ICudaEngine",
    "error": "ParserError",
    "inspector": "EngineInspector",
    "layer": "ILayer",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "profile": "IOptimizationProfile",
    "registry": "IPluginRegistry",
    "runtime_config": "IRuntimeConfig",
    "tensor": "ITensor",
    "timing_cache": "ITimingCache",
}
MODULE = ""
SEVERAL = "[]"  # before the class of a list's elements
PROBES = {("hasattr", 2), ("getattr", 3)}


@dataclass(frozen=True)
class Use:
    """A member that is named.

    `guards` are members that the function looked for on the lines before: this one need only be
    where they are. `probed` is one that it looks for.
    """

    member: str
    where: str
    keywords: tuple[str, ...] = ()
    guards: frozenset[str] = frozenset()
    probed: bool = False


def uses_in(files: list[Path], surface: Surface) -> list[Use]:
    """All uses in some files; `surface` is of every TensorRT together."""
    trees = {path: ast.parse(path.read_text()) for path in files}
    functions = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef)]
    ours = {function.name for function in functions if _is_any(function.returns)}
    found = []
    for path, tree in trees.items():
        reader = _Reader(path, surface, ours)
        reader.visit(tree)
        reader.uses.clear()  # the first pass learns the attributes of classes
        reader.visit(tree)
        found += reader.uses
    return found


class _Reader(ast.NodeVisitor):
    def __init__(self, path: Path, surface: Surface, ours: set[str]) -> None:
        self.uses: list[Use] = []
        self._path = path
        self._surface = surface
        self._ours = ours
        self._names: ChainMap[str, str | None] = ChainMap({"trt": MODULE})
        self._attributes: dict[str, str | None] = {}
        self._guards: frozenset[str] = frozenset()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self._names, self._guards
        self._names = self._names.new_child()
        for argument in (*node.args.args, *node.args.kwonlyargs):
            self._name(argument.arg, _named(argument.arg, argument.annotation))
        self.generic_visit(node)
        self._names, self._guards = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in filter(None, map(self._type, node.bases)):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    self._use(f"{base}.{method.name}", method)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self._bind(node.target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value is not None:
            self._bind(node.target, node.value)
        elif isinstance(node.target, ast.Name):  # a field of a dataclass
            self._attributes[node.target.id] = _named(node.target.id, node.annotation)

    def visit_For(self, node: ast.For) -> None:
        self._bind_elements(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._bind_elements(node.target, node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> None:
        outer, self._names = self._names, self._names.new_child()
        for generator in node.generators:
            self.visit(generator)
        self.visit(node.elt)
        self._names = outer

    visit_GeneratorExp = visit_ListComp  # noqa: N815

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if (member := self._member(node)) is not None and not node.attr.startswith("__"):
            self._use(member, node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if (looked_up := self._looked_up(node)) is not None:
            # getattr without a default takes the member for granted.
            probed = isinstance(node.func, ast.Name) and (node.func.id, len(node.args)) in PROBES
            self._use(looked_up, node, probed=probed)
            self._guards |= {looked_up} if probed else set()
        elif (member := self._member(node.func)) is not None:
            keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
            self._use(member, node, keywords)

    def _use(
        self, member: str, node: ast.AST, keywords: tuple[str, ...] = (), *, probed: bool = False
    ) -> None:
        where = f"{self._path.name}:{node.lineno}"
        self.uses.append(Use(member, where, keywords, self._guards, probed))

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        kind = self._type(value)
        name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
        if kind is None and self._gives_any(value):
            kind = CLASSES.get(name.lstrip("_"))
        if isinstance(target, ast.Name):
            self._name(name, kind)
        elif isinstance(target, ast.Attribute) and _is_self(target.value):
            self._attributes[name] = kind
        elif isinstance(target, ast.Tuple):
            self._bind_elements(target, value)

    def _bind_elements(self, target: ast.expr, several: ast.expr) -> None:
        kind = self._type(several) or ""
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(each, ast.Name):
                one = kind.removeprefix(SEVERAL) if kind.startswith(SEVERAL) else None
                self._name(each.id, one)
            elif isinstance(each, ast.Starred) and isinstance(each.value, ast.Name):
                self._name(each.value.id, kind or None)

    def _name(self, name: str, kind: str | None) -> None:
        if name != "trt":
            self._names[name] = kind

    def _gives_any(self, value: ast.expr) -> bool:
        """Return whether TensorRT returns it untyped, or our code types it as `Any`."""
        if not isinstance(value, ast.Call):
            return False
        called = getattr(value.func, "attr", getattr(value.func, "id", None))
        return called in self._ours or self._member(value.func) is not None

    def _type(self, node: ast.expr) -> str | None:
        """The class of TensorRT that an expression is or is an object of."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Call):
            return self._surface.type_of(self._looked_up(node) or self._member(node.func))
        if isinstance(node, ast.BoolOp):
            return next(filter(None, map(self._type, node.values)), None)
        if isinstance(node, ast.ListComp):
            kind = self._type(node.elt)
            return None if kind is None else SEVERAL + kind
        if not isinstance(node, ast.Attribute):
            return None
        if node.attr == "trt":
            return MODULE
        if _is_self(node.value):
            return self._attributes.get(node.attr)
        return self._surface.type_of(self._member(node))

    def _member(self, node: ast.expr) -> str | None:
        """Dotted name of the member that an expression names."""
        if not isinstance(node, ast.Attribute) or (principal := self._type(node.value)) is None:
            return None
        return f"{principal}.{node.attr}".lstrip(".")

    def _looked_up(self, node: ast.Call) -> str | None:
        """Return the name that `hasattr` or `getattr` looks up."""
        if isinstance(node.func, ast.Name) and node.func.id in {"hasattr", "getattr"}:
            match node.args:
                case [principal, ast.Constant(value=str(name)), *_]:
                    kind = self._type(principal)
                    return None if kind is None else f"{kind}.{name}".lstrip(".")
        return None


def _named(name: str, annotation: ast.expr | None) -> str | None:
    """The class that a name says, of one object or of several."""
    name = name.lstrip("_")
    if _is_any(annotation):
        return CLASSES.get(name)
    if annotation is not None and ast.unparse(annotation).endswith("[Any]"):
        kind = CLASSES.get(name.removesuffix("s"))
        return None if kind is None else SEVERAL + kind
    return None


def _is_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and "Any" in ast.unparse(annotation).split(" | ")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


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


# Reads a source: follows members through calls, names and attributes.


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
    """Return the names in a source that `SURFACE` lacks, without their lines."""

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
