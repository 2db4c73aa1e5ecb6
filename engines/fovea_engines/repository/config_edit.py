"""Changes fields in the text of a config.pbtxt, and keeps all other text unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fovea_engines.repository.config_pbtxt import config_message, model_config_messages
from fovea_engines.repository.model_config import ModelConfig

# Tokens of protobuf's text format: comments, strings, names, and single characters.
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?P<name>[A-Za-z_]\w*)|\S""",
    re.DOTALL,
)
_OPENING, _CLOSING = "{[<", "}]>"


def edit_text(text: str, config: ModelConfig) -> str:
    """Return the text of a config.pbtxt after changes of some fields.

    Comments and layout are kept, except inside fields that change. Each entry of `parameters`
    counts as a separate field.

    Args:
        text: text of a valid config.pbtxt.
        config: configuration that was read from `text` and then changed.
    """
    message = config_message(config)
    wanted, have = _parts(message), _parts(_parse(text))
    missing, pieces, at = dict(wanted), [], 0
    for start, end in _fields(text):
        named = _parts(_parse(text[start:end]))
        # Write all items of a repeated field at the position of the first item.
        new = [missing.pop(name) for name in named if name in missing]
        if any(wanted.get(name) != have[name] for name in named):
            pieces += [text[at:start], _text(new).rstrip("\n")]
            at = end
    edited = "".join([*pieces, text[at:]])
    if missing:
        kept = f"{edited.rstrip()}\n" if edited.strip() else ""
        edited = kept + _text(missing.values())
    # If the text uses syntax that this code does not support, return a new text. Then only comments
    # and layout are lost.
    return edited if _parts(_parse(edited)) == wanted else _text(wanted.values())


def _fields(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end position of each top-level field in a text.

    A name at the top level always starts a field, because no top-level field of the schema has a
    bare name as its value.
    """
    depth, start, end = 0, -1, -1
    for token in _TOKEN.finditer(text):
        if token["comment"]:
            continue
        if depth == 0 and token["name"]:
            if start >= 0:
                yield start, end
            start = token.start()
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        end = token.end()
    if start >= 0:
        yield start, end


def _parse(text: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(text, model_config_messages().ModelConfig())


def _parts(message: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    """Split a message into its fields. Each entry of `parameters` is a separate field.

    Returns:
        Path of each field, e.g. ("parameters", "key") -> JSON object with only this field.
    """
    from google.protobuf import json_format

    plain = json_format.MessageToDict(message, preserving_proto_field_name=True)
    parameters = plain.pop("parameters", {})
    return {(name,): {name: value} for name, value in plain.items()} | {
        ("parameters", key): {"parameters": {key: value}} for key, value in parameters.items()
    }


def _text(parts: Iterable[Mapping[str, Any]]) -> str:
    from google.protobuf import json_format, text_format

    message = model_config_messages().ModelConfig()
    for part in parts:
        json_format.ParseDict(part, message)
    text: str = text_format.MessageToString(message)
    return text
