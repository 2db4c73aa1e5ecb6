"""Reads the interface of a version into tables: help, OpenAPI, metrics, logs and errors.

A table has a row for each key, so that two versions are compared key by key.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any

Table = dict[str, dict[str, Any]]

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


def differences(old: Table, new: Table) -> list[str]:
    """List the rows of an older table that are gone or changed; new rows do not count."""
    found = []
    for key, before in old.items():
        if key not in new:
            found.append(f"{key}: is gone")
            continue
        after = new[key]
        found += [
            f"{key}: {name} was {before.get(name)!r}, and is {after.get(name)!r}"
            for name in dict.fromkeys((*before, *after))
            if not _is_kept(name, before.get(name), after.get(name))
        ]
    return found


def _is_kept(name: str, before: Any, after: Any) -> bool:
    if name in ADDITIVE and isinstance(before, list) and isinstance(after, list):
        return set(map(str, before)) <= set(map(str, after))
    return (name == "variable" and before is None) or bool(before == after)


def read_helps(run: Callable[..., str]) -> dict[str, str]:
    """Read the help of all commands and their subcommands.

    Args:
        run: runs `fovea` with arguments, and returns its output.
    """
    found: dict[str, str] = {}
    todo: list[tuple[str, ...]] = [()]
    while todo:
        command = todo.pop(0)
        text = run(*command, "--help")
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
    """Yield the first line of each option and argument, and its description."""
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
    """Read an option or argument, without spaces: they depend on the line breaks."""
    words = re.split(r",? +|(?<=\w) / ", head)
    names = sorted(word for word in words if word.startswith("-"))
    metavar = next((word for word in words if word != "/" and not word.startswith("-")), "")
    notes = re.sub(r"\s", "", body)
    prose = re.search(r"default: [\w'.]+,? \w", body)  # it may be reworded
    default = re.search(r"default:([^\[\]]*?)(;[\w.<]*[<>=]+[^\]]*|;required)?\]", notes)
    variable = re.search(r"envvar:(\w+)", notes)
    choices = metavar.split("|") if "|" in metavar and names else None
    row = {
        "names": names,
        "choices": choices,
        "value": None if choices else bool(metavar),
        "default": "prose" if prose else default[1] if default else None,
        "variable": variable[1] if variable else None,
        "required": "required]" in notes,
    }
    # An option may get a second name.
    keys = [name for name in names if name.startswith("--")] or [metavar]
    return {f"{command} {key}": row for key in keys}


def openapi_table(document: Mapping[str, Any]) -> Table:
    """Read all operations: parameters, fields of requests and responses, statuses."""
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


def newly_required(old: Table, new: Table) -> list[str]:
    """List the new required fields and parameters of requests."""
    return [
        f"{key}: is new and required"
        for key, each in new.items()
        if key not in old and each.get("required")
        if re.search(r" (query|header|path|body) ", key) and " ".join(key.split(" ")[:2]) in old
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
        parts += [(f"<{_name(document, each)}>", each) for each in schema.get(word, ())]
    for suffix, part in parts:
        if isinstance(part, dict):
            table.update(_schema(document, part, f"{place}{suffix}", above))
    return table


def _name(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Name an alternative by its type: its place in the list and its name may change."""
    found = _resolved(document, schema)
    if "const" in found:
        return json.dumps(found["const"])
    name = str(found.get("type", "any"))
    if name == "object":
        return f"object of {','.join(sorted(found.get('required', ())))}"
    return f"array of {_name(document, found['items'])}" if "items" in found else name


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
    """Read the fields of each log."""
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
    """Read the code of each error, and its statuses in /v1, /v2 and gRPC.

    Modules may move: `_find` looks for the names of the root class and the functions.
    """
    root = _find(r"^class FoveaError\(", "FoveaError")
    named = {"v1": "http_status", "v2": "v2_http_status", "grpc": "grpc_status"}
    read = {each: _find(rf"^def {name}\(", name) for each, name in named.items()}
    table: Table = {}
    for kind in _subclasses(root):
        if kind.__module__.startswith("fovea_"):
            error = kind.__new__(kind)
            table[kind.code] = {each: status(error) for each, status in read.items()}
    return table


def _find(line: str, name: str) -> Any:
    """Import an attribute from the module of the product that defines it."""
    for folder in map(Path, sys.path):
        for package in sorted(folder.glob("fovea*/")):
            for file in sorted(package.rglob("*.py")):
                if re.search(line, file.read_text(), re.MULTILINE):
                    parts = file.relative_to(folder).with_suffix("").parts
                    return getattr(importlib.import_module(".".join(parts)), name)
    raise AssertionError(f"no module of the product has {name}")


def _subclasses(kind: type) -> Iterator[Any]:
    yield kind
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield from _subclasses(each)
