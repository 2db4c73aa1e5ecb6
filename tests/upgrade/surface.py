"""Reads what a version shows of itself into tables: help, OpenAPI, metrics, logs, errors.

A table is a dictionary of short keys, so that two versions are compared key by key.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any

Table = dict[str, Any]

ADDITIVE = ("choices", "enum", "labels", "names")
"""A newer version may add to the lists under these names."""
_PANEL = re.compile(r"^\S.*:$")
_OPTION = re.compile(r"^  (-\S.*)$")
_NAMED = re.compile(r"^  ([a-z][\w-]*) {2,}\S")
_METHODS = ("get", "put", "post", "delete", "patch", "options", "head")
_KEPT = (
    *("type", "format", "default", "const", "minimum", "maximum", "exclusiveMinimum", "pattern"),
    *("exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "contentEncoding"),
)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Say of each key of an older table what is gone or another now; additions are none."""
    found = []
    for key, before in old.items():
        if key not in new:
            found.append(f"{key}: is gone")
        elif isinstance(before, dict) and isinstance(new[key], dict):
            found += [
                f"{key}: {name} was {before.get(name)!r}, and is {new[key].get(name)!r}"
                for name in dict.fromkeys((*before, *new[key]))
                if not _is_kept(name, before.get(name), new[key].get(name))
            ]
        elif new[key] != before:
            found.append(f"{key}: was {before!r}, and is {new[key]!r}")
    return found


def unintended(found: Iterable[str], intended: Mapping[str, str]) -> str:
    """Write the differences that no line of the table of intended changes names.

    Args:
        found: the differences.
        intended: the beginning of a difference, and the reason for it.
    """
    return "\n".join(each for each in found if not each.startswith(tuple(intended)))


def _is_kept(name: str, before: Any, after: Any) -> bool:
    if name in ADDITIVE and isinstance(before, list) and isinstance(after, list):
        return set(map(str, before)) <= set(map(str, after))
    if name == "variable" and before is None:
        return True
    return bool(before == after)


def helps(ask: Callable[..., str]) -> dict[str, str]:
    """Read the help of all commands, with those below them.

    Args:
        ask: runs `fovea` with arguments, and returns what it prints.
    """
    found: dict[str, str] = {}
    todo: list[tuple[str, ...]] = [()]
    while todo:
        command = todo.pop(0)
        text = ask(*command, "--help")
        found[" ".join(("fovea", *command))] = text
        if "COMMAND [ARGS]" in text:
            todo += [(*command, name) for name in _commands(text)]
    return found


def _commands(text: str) -> list[str]:
    names, reads = [], False
    for line in text.splitlines():
        if _PANEL.match(line) and not line.startswith("Usage"):
            reads = line != "Options:"
        elif reads and (named := _NAMED.match(line)):
            names.append(named[1])
    return names


def help_table(texts: Mapping[str, str]) -> Table:
    """Read commands, arguments and options, with their defaults."""
    table: Table = {}
    for command, text in texts.items():
        usage = re.search(r"^Usage: (.*?)\n\n", text, re.DOTALL | re.MULTILINE)
        table[command] = {"usage": " ".join(usage[1].split()) if usage else None}
        for head, body in _entries(text):
            table.update(_option(command, head, body))
        without = re.search(r"without effect:\n(.*)", text, re.DOTALL)
        for name in re.findall(r"--[\w-]+", without[1]) if without else ():
            table[f"{command} {name} (without effect)"] = {}
    return table


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Give options and arguments: the line on which each begins, and its description."""
    head, body = "", list[str]()
    # The description before the first panel may have lines that begin with an option.
    for line in dropwhile(lambda line: not _PANEL.match(line), [*text.splitlines(), ""]):
        begins = re.match(r"^  (-{1,2}[a-zA-Z].*|[A-Z][\w.|]*\.{0,3}( {2,}.*)?)$", line)
        if begins or not line.strip() or _PANEL.match(line):
            if head:
                yield head, " ".join(body)
            head, body = "", []
        if begins:
            head, _, first = begins[1].partition("  ")
            body = [first.strip()]
        elif head:
            body.append(line.strip())


def _option(command: str, head: str, body: str) -> Table:
    """Read one option or argument; without white space, as that depends on where lines break."""
    words = re.split(r",? +|(?<=\w) / ", head)
    names = sorted(word for word in words if word.startswith("-"))
    metavar = next((word for word in words if word != "/" and not word.startswith("-")), "")
    notes = re.sub(r"\s", "", body)
    default = re.search(r"default:([^\[\]]*?)(;[\w.<]*[<>=]+[^\]]*|;required)?\]", notes)
    variable = re.search(r"envvar:(\w+)", notes)
    choices = metavar.split("|") if "|" in metavar and names else None
    row = {
        "names": names,
        "choices": choices,
        "value": None if choices else bool(metavar),
        "default": default[1] if default else None,
        "variable": variable[1] if variable else None,
        "required": "required]" in notes,
    }
    # An option may have a new name beside the old one.
    keys = [name for name in names if name.startswith("--")] or [metavar]
    return {f"{command} {key}": row for key in keys}


def openapi_table(document: Mapping[str, Any]) -> Table:
    """Read all operations: parameters, fields of bodies and of answers, statuses."""
    table: Table = {}
    for path, operations in document["paths"].items():
        for method in sorted(set(operations) & set(_METHODS)):
            operation, place = operations[method], f"{method.upper()} {path}"
            table[place] = {"operationId": operation.get("operationId")}
            for each in (*operations.get("parameters", ()), *operation.get("parameters", ())):
                parameter = _resolved(document, each)
                at = f"{place} {parameter['in']} {parameter['name']}"
                table.update(_schema(document, parameter["schema"], at))
                table[at]["required"] = parameter.get("required", False)
                table[at]["explode"] = parameter.get("explode")
            body = _resolved(document, operation.get("requestBody", {}))
            table.update(_content(document, body, f"{place} body"))
            for status, answer in operation["responses"].items():
                at = f"{place} {status}"
                resolved = _resolved(document, answer)
                table[at] = {}
                table.update(_content(document, resolved, at))
                for name in resolved.get("headers", {}):
                    table[f"{at} header {name.lower()}"] = {}
    return table


def newly_required(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List what requests must have now that they need not have had."""
    return [
        f"{key}: is required, and was not there"
        for key, each in new.items()
        if key not in old and each.get("required") and re.search(r" (query|header|path|body) ", key)
        if (operation := " ".join(key.split(" ")[:2])) in old and operation
    ]


def _content(document: Mapping[str, Any], part: Mapping[str, Any], place: str) -> Table:
    table: Table = {}
    for kind, each in part.get("content", {}).items():
        table.update(_schema(document, each.get("schema", {}), f"{place} {kind}"))
    return table


def _resolved(document: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in part:
        found: Any = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def _schema(
    document: Mapping[str, Any], schema: Mapping[str, Any], place: str, above: tuple[str, ...] = ()
) -> Table:
    reference = schema.get("$ref", "")
    if reference and reference in above:
        return {place: {"again": True}}
    above = (*above, reference) if reference else above
    schema = _resolved(document, schema)
    row = {name: schema[name] for name in _KEPT if name in schema}
    if "enum" in schema:
        row["enum"] = sorted(map(str, schema["enum"]))
    table: Table = {place: row}
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        table.update(_schema(document, each, f"{place}.{name}", above))
        table[f"{place}.{name}"]["required"] = name in required
    parts = [("[]", schema.get("items")), (".*", schema.get("additionalProperties"))]
    for word in ("anyOf", "oneOf", "allOf"):
        parts += [(f"<{_kind(document, each)}>", each) for each in schema.get(word, ())]
    for suffix, part in parts:
        if isinstance(part, dict):
            table.update(_schema(document, part, f"{place}{suffix}", above))
    return table


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Name an alternative by what it is, not by its place in the list nor its name."""
    found = _resolved(document, schema)
    if "const" in found:
        return json.dumps(found["const"])
    name = str(found.get("type", "any"))
    if name == "object":
        return f"object of {','.join(sorted(found.get('required', ())))}"
    return f"array of {_kind(document, found['items'])}" if "items" in found else name


def metrics_table(text: str) -> Table:
    """Read the names and types of metrics, and the names of their labels."""
    table: Table = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        table[name] = {"type": kind, "labels": []}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        bare = re.sub(r"_(bucket|sum|count)$", "", name)
        row = table[name if name in table else bare]
        found = ",".join(sorted(set(re.findall(r'(\w+)="', labels)) - {"le", "quantile"}))
        row["labels"] = sorted({*row["labels"], found})
    return table


def log_table(text: str) -> Table:
    """Read which fields the lines of each log have."""
    table: Table = {"every line": {"names": None}}
    for line in text.splitlines():
        fields = json.loads(line)
        every, name = table["every line"], fields["logger"]
        every["names"] = sorted(set(every["names"] or fields) & set(fields))
        kind = f"{name}, gRPC" if "/inference." in str(fields.get("path")) else name
        row = table.setdefault(kind, {"names": []})
        row["names"] = sorted({*row["names"], *fields})
    return table


def error_table() -> Table:
    """Walk the tree of errors: the code of each, and its statuses on the three carriers.

    Their modules may move: they are found by the names of the root and of the functions.
    """
    root = _found(r"^class FoveaError\(", "FoveaError")
    named = {"v1": "http_status", "v2": "v2_http_status", "grpc": "grpc_status"}
    tell = {each: _found(rf"^def {name}\(", name) for each, name in named.items()}
    table: Table = {}
    for kind in _below(root):
        if kind.__module__.startswith("fovea_"):
            error = kind.__new__(kind)
            table[kind.code] = {each: status(error) for each, status in tell.items()}
    return table


def _found(line: str, name: str) -> Any:
    """Import the attribute that some module of the product defines."""
    for folder in map(Path, sys.path):
        for package in sorted(folder.glob("fovea*/")):
            for file in sorted(package.rglob("*.py")):
                if re.search(line, file.read_text(), re.MULTILINE):
                    parts = file.relative_to(folder).with_suffix("").parts
                    return getattr(importlib.import_module(".".join(parts)), name)
    raise AssertionError(f"no module of the product has {name}")


def _below(kind: type) -> Iterator[Any]:
    yield kind
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield from _below(each)
