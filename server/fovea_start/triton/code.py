"""Reads Python without running it: its calls in the order of execution, and its constants."""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from fovea_preprocess.errors import InvalidModel
from fovea_start.triton.models import inside

Known = float | str | bool | tuple["Known", ...]

_MOST_BYTES, _MOST_FILES, _LARGEST = 1 << 20, 20, 1e9
_STEP = "TritonPythonModel"
# Calls that only convert their first argument, and methods that only convert their object.
_SAME = {"float", "int", "str", "tuple", "list", "array", "asarray", "float32", "tensor", "Tensor"}
_SAME_METHODS = {"reshape", "astype", "view", "to", "unsqueeze", "cuda", "copy"}
# Modules whose constants have names, such as INTER_AREA.
_NAMING = ("nvidia", "cv2", "PIL", "torchvision")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_VARIABLE = ast.Name("?", ast.Load())


class StepCode:
    """The source of a step, with the modules beside it that it imports.

    Triton calls `initialize` and `execute`; `run` is what these do, operands first. A name is a
    constant where all that its scope assigns to it, or all calls pass as it, is one constant.

    Args:
        file: the step's own file.
        root: folder of the repository, beyond which nothing is read.
        parameters: of its config.pbtxt, which the code may ask for.

    Raises:
        InvalidModel: the source is too long, or is not Python.
    """

    def __init__(self, file: Path, root: Path, parameters: Mapping[str, str]) -> None:
        self._root, self._parameters = root, parameters
        self._functions: dict[str, _Function] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._imports: dict[str, str] = {}
        # Scope and name -> what is assigned to it, and what calls pass as it.
        self._assigned: dict[tuple[ast.AST | None, str], list[ast.expr]] = defaultdict(list)
        self._passed: dict[tuple[ast.AST | None, str], list[ast.expr]] = defaultdict(list)
        self._places: dict[ast.AST, tuple[_Function | None, Path]] = {}
        self._files: set[Path] = set()
        self._values: dict[ast.AST, Known | None] = {}
        try:
            main = self._load(file)
            self._used = {n.id for n in self._places if isinstance(n, ast.Name) and _is_read(n)}
            for node in tuple(self._places):
                self._bind(node)
            self.run = tuple(self._run(main))
        except RecursionError as error:
            raise InvalidModel(f"{file} nests too deep to be read") from error

    def where(self, node: ast.AST) -> str:
        """Return the file, below the repository, and the line of a node."""
        file = self._places[node][1].relative_to(self._root)
        return f"{file}:{getattr(node, 'lineno', 1)}"

    def named(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield every name that something is assigned to or passed as, and that expression."""
        for bound in (self._passed, self._assigned):
            for (_, name), values in bound.items():
                yield from ((name.removeprefix("self."), one) for one in values)

    def name(self, node: ast.AST) -> str:
        """Return the full name of what is called or read; "?" stands for that of an object."""
        match node:
            case ast.Name(id=name):
                own = name in self._functions or name in self._classes
                return self._imports.get(name, name if own else "?")
            case ast.Attribute(value=value, attr=attribute):
                return f"{self.name(value)}.{attribute}"
        return "?"

    def argument(self, call: ast.Call, position: int, *names: str) -> Known | None:
        """Return an argument by one of its names or its place; None if it is no constant."""
        for keyword in call.keywords:
            if keyword.arg in names:
                return self.value(keyword.value)
        return self.value(call.args[position]) if 0 <= position < len(call.args) else None

    def value(self, node: ast.AST | None) -> Known | None:
        """Return the constant that an expression is; None if it depends on anything else."""
        if node is None or node in self._values:
            return None if node is None else self._values[node]
        self._values[node] = None  # as long as it depends on itself
        self._values[node] = self._value(node)
        return self._values[node]

    def _value(self, node: ast.AST) -> Known | None:
        match node:
            case ast.Constant(value=bool() | str() as constant):
                return constant
            case ast.Constant(value=int() | float() as number):
                return float(number) if abs(number) < _LARGEST else None
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _computed(ast.Mult(), self.value(operand), -1.0)
            case ast.BinOp(left=left, op=op, right=right):
                return _computed(op, self.value(left), self.value(right))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return _all([self.value(part) for part in parts])
            case ast.Dict(keys=[ast.Constant(value=0), *_], values=parts):  # names by class id
                return _all([self.value(part) for part in parts])
            case ast.Name(id=name):
                return self._resolved(self._places.get(node, (None,))[0], name)
            case ast.Subscript() | ast.Attribute() | ast.Call():
                return self._value_in(node)
        return None

    def _value_in(self, node: ast.AST) -> Known | None:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                return self._resolved(None, f"self.{name}")
            case ast.Attribute(attr=name):
                return name if self.name(node).startswith(_NAMING) else None
            case ast.Subscript(
                value=ast.Subscript(slice=ast.Constant(value=str() as name)),
                slice=ast.Constant(value="string_value"),
            ):
                text = self._parameters.get(name, "")
                return float(text) if text.replace(".", "", 1).isdecimal() else text or None
            case ast.Subscript(value=value, slice=ast.Constant(value=int() as index)):
                whole = self.value(value)
                return whole[index] if isinstance(whole, tuple) and index < len(whole) else None
            case ast.Subscript(value=value, slice=ast.Tuple()):  # adds axes
                return self.value(value)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _SAME_METHODS:
                return self.value(value)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]):
                return self.value(first) if name in _SAME else None
        return None

    def _resolved(self, scope: ast.AST | None, name: str) -> Known | None:
        for place in (scope, None):
            for bound in (self._passed, self._assigned):
                if given := bound.get((place, name)):
                    values = {self.value(each) for each in given}
                    return values.pop() if len(values) == 1 else None
        return None

    def _load(self, file: Path) -> ast.Module:
        self._files.add(file)
        if file.stat().st_size > _MOST_BYTES:
            raise InvalidModel(f"{file} is over {_MOST_BYTES >> 20} MB, and no step that is read")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of strings such as "\d"
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, MemoryError) as error:
            line, reason = getattr(error, "lineno", 1), getattr(error, "msg", "it cannot be parsed")
            raise InvalidModel(f"{file}:{line} is not Python that can be read: {reason}") from error
        self._place(tree, None, file)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    self._imports[alias.asname or first] = alias.name if alias.asname else first
                    self._beside(alias.name, file)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                for alias in node.names:
                    if not self._beside(module or alias.name, file):
                        self._imports[alias.asname or alias.name] = f"{module}.{alias.name}"
        return tree

    def _beside(self, module: str, importer: Path) -> bool:
        """Read a module that lies with the step; return whether there is one."""
        for place in (importer.parent, importer.parent.parent):
            file = inside(self._root, place / f"{module.replace('.', '/')}.py")
            if file is not None:
                if file not in self._files and len(self._files) < _MOST_FILES:
                    self._load(file)
                return True
        return False

    def _place(self, node: ast.AST, scope: _Function | None, file: Path) -> None:
        self._places[node] = (scope, file)
        if isinstance(node, _Function):
            self._functions.setdefault(node.name, node)
            scope = node
        elif isinstance(node, ast.ClassDef):
            self._classes.setdefault(node.name, node)
        for child in ast.iter_child_nodes(node):
            # All places share one context, and one object for each operator.
            if not isinstance(child, ast.expr_context | ast.operator):
                self._place(child, scope, file)

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=target) | ast.For(target=target):
                self._assign(target, _VARIABLE)
            case ast.FunctionDef(args=arguments):
                last = arguments.args[len(arguments.args) - len(arguments.defaults) :]
                for argument, default in zip(last, arguments.defaults, strict=False):
                    self._assigned[node, argument.arg].append(default)
            case ast.Call(func=func, args=given, keywords=keywords):
                if (called := self._function(func)) is not None:
                    names = [each.arg for each in called.args.args if each.arg != "self"]
                    named = [(keyword.arg or "", keyword.value) for keyword in keywords]
                    for name, value in (*zip(names, given, strict=False), *named):
                        self._passed[called, name].append(value)

    def _assign(self, target: ast.AST, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                self._assigned[self._places[target][0], name].append(value)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                self._assigned[None, f"self.{name}"].append(value)
            case ast.Tuple(elts=parts):
                values = value.elts if isinstance(value, ast.Tuple) else [_VARIABLE] * len(parts)
                for part, one in zip(parts, values, strict=False):
                    self._assign(part, one)

    def _function(self, node: ast.AST) -> _Function | None:
        match node:
            case ast.Name(id=name):
                return self._functions.get(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                beside = any(self._imports.get(owner) == file.stem for file in self._files)
                own = beside or owner in ("self", "cls") or owner in self._classes
                return self._functions.get(name) if own else None
        return None

    def _run(self, main: ast.Module) -> Iterator[ast.AST]:
        step = self._classes.get(_STEP)
        methods = {m.name: m for m in (step.body if step else ()) if isinstance(m, _Function)}
        called: list[ast.AST] = [methods[n] for n in ("initialize", "execute") if n in methods]
        # Triton serialises the pipelines of DALI that are decorated for it.
        called += [
            f for f in self._functions.values() if f.decorator_list and f.name not in methods
        ]
        entered: set[ast.AST] = set()
        for node in (main, *called):
            yield from self._enter(node, entered)

    def _enter(self, node: ast.AST | None, entered: set[ast.AST]) -> Iterator[ast.AST]:
        if node is None or node in entered:
            return
        entered.add(node)
        for child in getattr(node, "body", ()):
            method = isinstance(node, ast.ClassDef) and isinstance(child, _Function)
            yield from (self._enter if method else self._visit)(child, entered)

    def _visit(self, node: ast.AST, entered: set[ast.AST]) -> Iterator[ast.AST]:
        """Yield what is executed: operands first, functions and classes where they are named."""
        if isinstance(node, _Function | ast.ClassDef):
            return
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name not in self._used:
                return  # such as a normalisation that is made and never applied
            case ast.Call(func=func, args=given, keywords=keywords):
                children: list[ast.AST] = [*given, *keywords, func]
            case _:
                children = list(ast.iter_child_nodes(node))
        for child in children:
            yield from self._visit(child, entered)
        yield node
        if isinstance(node, ast.Name | ast.Attribute) and _is_read(node):
            yield from self._enter(self._function(node), entered)
            if isinstance(node, ast.Name) and node.id != _STEP:
                yield from self._enter(self._classes.get(node.id), entered)


def _is_read(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _all(parts: list[Known | None]) -> Known | None:
    known = tuple(part for part in parts if part is not None)
    return known if len(known) == len(parts) else None


def _computed(op: ast.operator, left: Known | None, right: Known | None) -> Known | None:
    if isinstance(left, tuple):
        others = right if isinstance(right, tuple) else (right,) * len(left)
        return _all([_computed(op, *pair) for pair in zip(left, others, strict=False)])
    if isinstance(right, tuple):
        return _all([_computed(op, left, one) for one in right])
    if isinstance(left, float) and isinstance(right, float):
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div() if right:
                return left / right
    return None
