"""Write the types of the page's JavaScript client from the OpenAPI document.

    python -m tools.typescript

What stands above the mark in fovea.d.ts is written by hand, and stays; everything below is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FILE = Path(__file__).parents[1] / "server/fovea_server/ui/fovea.d.ts"
MARK = "// `python -m tools.typescript` writes the types below from the schemas of /openapi.json.\n"

# What the client takes and answers; all others are parts of these.
_ROOTS = (
    *("PredictJson", "PredictAnswer", "SearchAnswer"),
    *("ModelSummary", "Model", "ModelStatistics", "OwnKey"),
    *("StreamSettings", "StreamChange", "StreamStatus"),
)
_PLAIN = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}

Schema = dict[str, Any]


def updated(text: str, document: Schema) -> str:
    """Return a text of declarations with those of a document below the mark."""
    schemas = document["components"]["schemas"]
    return text.partition(MARK)[0] + MARK + "".join(_declarations(schemas))


def _declarations(schemas: dict[str, Schema]) -> Iterator[str]:
    for name in _reached(schemas):
        schema = schemas[name]
        yield f"\n{_comment(schema)}export "
        if "properties" in schema:
            yield f"interface {name} {_interface(schema)}\n"
        else:
            yield f"type {name} = {_type(schema)};\n"


def _reached(schemas: dict[str, Schema]) -> list[str]:
    """Return the roots and their parts, in the order in which they are named."""
    names = list(_ROOTS)
    for name in names:
        parts = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schemas[name]))
        names += [part for part in dict.fromkeys(parts) if part not in names]
    return names


def _interface(schema: Schema) -> str:
    required = schema.get("required", ())
    lines = [
        f"{_comment(each, '  ')}  {name}{'' if name in required else '?'}: {_type(each)};\n"
        for name, each in schema["properties"].items()
    ]
    return f"{{\n{''.join(lines)}}}"


def _type(schema: Schema) -> str:
    match schema:
        case {"$ref": reference}:
            return reference.rpartition("/")[2]
        case {"anyOf": choices} | {"oneOf": choices}:
            return " | ".join(dict.fromkeys(map(_type, choices)))
        case {"const": value}:
            return json.dumps(value)
        case {"enum": values}:
            return " | ".join(map(json.dumps, values))
        case {"type": "array"}:
            return _array(_type(schema.get("items", {})), schema)
        case {"type": "object", "patternProperties": patterns}:
            return f"Record<string, {' | '.join(map(_type, patterns.values()))}>"
        case {"type": "object"}:
            return f"Record<string, {_type(schema.get('additionalProperties', {}))}>"
        case {"type": plain}:
            return _PLAIN[plain]
    return "unknown"


def _array(part: str, schema: Schema) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least == most is not None:
        return f"[{', '.join([part] * most)}]"
    return f"({part})[]" if " | " in part else f"{part}[]"


def _comment(schema: Schema, indent: str = "") -> str:
    text = schema.get("description")
    return f"{indent}/** {text} */\n" if text else ""


def document() -> Schema:
    """Make the OpenAPI document without a server."""
    from fovea_server.app import build_app
    from fovea_server.http.application import create_api
    from fovea_server.http.v1 import openapi
    from fovea_server.settings import Settings

    with TemporaryDirectory() as empty:
        settings = Settings(model_repository=(Path(empty),))
        return openapi.document(create_api(build_app(settings)))


if __name__ == "__main__":
    FILE.write_text(updated(FILE.read_text(), document()))
