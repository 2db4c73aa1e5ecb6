"""Changes fields of a config.pbtxt, and leaves the rest of its text as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fovea_engines.repository.config_pbtxt import config_message, model_config_messages
from fovea_engines.repository.model_config import ModelConfig

# Of protobuf's text format: comments, strings, names, and single characters.
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?P<name>[A-Za-z_]\w*)|\S""",
    re.DOTALL,
)
_OPENING, _CLOSING = "{[<", "}]>"
_MAP = "parameters"


class _Field(NamedTuple):
    """One mention of a field at the top of the text: text[start:end]."""

    name: str
    start: int
    end: int


def edited_text(text: str, config: ModelConfig) -> str:
    """Return the text of a config.pbtxt, with the fields that differ in a configuration.

    Comments and layout stay, but inside fields that change. Parameters change one by one.

    Args:
        text: of a valid file.
        config: read from it, then changed.
    """
    message = config_message(config)
    wanted, have = _plain(message), _plain(_parsed(text))
    changed = {name for name in wanted.keys() | have.keys() if wanted.get(name) != have.get(name)}
    fields = {name: wanted[name] for name in changed - {_MAP} if name in wanted}
    parameters = dict(wanted.get(_MAP, {}))
    pieces, at = [], 0
    for field in _fields(text):
        new: dict[str, Any] = {}
        if field.name == _MAP:
            own = _plain(_parsed(text[field.start : field.end]))[_MAP]
            kept = {key: parameters.pop(key) for key in own if key in parameters}
            if kept == own:
                continue
            new = {_MAP: kept} if kept else {}
        elif field.name not in changed:
            continue
        elif field.name in fields:
            # One that is repeated is written whole, in place of its first mention.
            new = {field.name: fields.pop(field.name)}
        pieces += [text[at : field.start], _text(new).rstrip("\n")]
        at = field.end
    edited = "".join([*pieces, text[at:]])
    if rest := fields | ({_MAP: parameters} if parameters else {}):
        edited = f"{edited.rstrip()}\n{_text(rest)}" if edited.strip() else _text(rest)
    # Should a way to write the format be unknown here, the layout is lost and nothing else.
    return edited if _plain(_parsed(edited)) == wanted else _text(wanted)


def _fields(text: str) -> Iterator[_Field]:
    """Find the fields at the top; no such field of the schema has a name for its value."""
    depth = 0
    field: _Field | None = None
    for token in _TOKEN.finditer(text):
        if token["comment"]:
            continue
        if depth == 0 and token["name"]:
            if field is not None:
                yield field
            field = _Field(token["name"], token.start(), token.end())
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        if field is not None:
            field = field._replace(end=token.end())
    if field is not None:
        yield field


def _parsed(text: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(text, model_config_messages().ModelConfig())


def _plain(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    plain: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return plain


def _text(plain: Mapping[str, Any]) -> str:
    from google.protobuf import json_format, text_format

    message = json_format.ParseDict(plain, model_config_messages().ModelConfig())
    text: str = text_format.MessageToString(message)
    return text
