"""Converts parsed JSON to typed values and back. The fields of the classes define the JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from fovea_client.answers import ImageError, ImageResult, Tensor

Read = Callable[[Any], Any]
T = TypeVar("T")


def read(kind: type[T], value: Any) -> T:
    """Read a value of a class from parsed JSON.

    Fields that the class does not have are ignored: newer servers may add fields. A field with a
    default may be missing or null.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: the JSON does not fit the class.
    """
    result: T = _reader(cast("Any", kind))(value)
    return result


def image_result(value: dict[str, Any]) -> ImageResult | ImageError:
    """Read the JSON of one image in a response: its results, or its error.

    Example:
        body = requests.post(url, data=image).json()
        result = image_result(body["images"][0])
    """
    if "error" in value:
        return read(ImageError, value["error"])
    return read(ImageResult, value)


def as_json(result: ImageResult | ImageError) -> dict[str, Any]:
    """Return the JSON of one image, in the form that `image_result` reads.

    Example:
        text = json.dumps(as_json(prediction.image))
    """
    if isinstance(result, ImageError):
        return {"error": _to_json(result)}
    answer: dict[str, Any] = _to_json(result)
    if len(answer) == len(_required_fields(ImageResult)):
        answer["detections"] = []  # `_to_json` omits empty lists, but a detector's list must stay
    return answer


@cache
def _reader(kind: Any) -> Read:
    """Return the function that reads values of a type."""
    if own := _OWN.get(kind):
        return own
    if is_dataclass(kind):
        return _reader_of_fields(kind)
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin is tuple and arguments[-1] is ...:
        each = _reader(arguments[0])
        return lambda value: tuple(map(each, value))
    if origin is tuple:
        parts = tuple(map(_reader, arguments))
        return lambda value: tuple(part(one) for part, one in zip(parts, value, strict=True))
    if origin in (Union, UnionType):
        some = _reader_of_one([each for each in arguments if each is not NoneType])
        if NoneType not in arguments:
            return some
        return lambda value: None if value is None else some(value)
    return cast("Read", origin or kind)


def _reader_of_fields(kind: Any) -> Read:
    types, needed = get_type_hints(kind), _required_fields(kind)
    readers = {each.name: _reader(types[each.name]) for each in fields(kind)}
    always = [(name, part) for name, part in readers.items() if name in needed]
    others = [(name, part) for name, part in readers.items() if name not in needed]

    def fields_of(value: Any) -> Any:
        given = [part(value[name]) for name, part in always]
        if not others:
            return kind(*given)
        more = {name: part(value[name]) for name, part in others if value.get(name) is not None}
        return kind(*given, **more)

    return fields_of


def _reader_of_one(kinds: Sequence[Any]) -> Read:
    """Return a function that reads JSON as one of several classes.

    The function uses the first class whose required fields are all present.
    """
    if len(kinds) == 1:
        return _reader(kinds[0])
    readers = [({each.name for each in fields(kind)}, _reader(kind)) for kind in kinds]

    def first(value: Any) -> Any:
        for names, one in readers:
            if names.issubset(value):
                return one(value)
        raise ValueError(f"it must be one of {', '.join(kind.__name__ for kind in kinds)}")

    return first


@cache
def _required_fields(kind: Any) -> frozenset[str]:
    """Return the names of the fields without a default."""
    return frozenset(each.name for each in fields(kind) if each.default is MISSING)


def _to_json(value: Any) -> Any:
    """Convert a value to JSON: write bytes as base64, and leave out empty optional fields.

    `dataclasses.asdict` is not used: it copies each value deeply, for every image.
    """
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case list() | tuple():
            return [_to_json(each) for each in value]
        case Tensor(name=name, data=data):
            about = {"name": name, "datatype": data.dtype.name, "shape": list(data.shape)}
            return about | {"data": data.ravel().tolist()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    always = _required_fields(type(value))
    parts = ((each.name, getattr(value, each.name)) for each in fields(value))
    return {
        name: _to_json(part)
        for name, part in parts
        if name in always or (part is not None and part != ())
    }


def _file(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _tensor(value: dict[str, Any]) -> Tensor:
    data = np.asarray(value["data"], np.dtype(str(value["datatype"]))).reshape(value["shape"])
    return Tensor(str(value["name"]), data)


_OWN: dict[Any, Read] = {
    Any: lambda value: value,
    bytes: _file,
    Mapping[str, Any]: dict,
    Mapping[str, float]: dict,
    Tensor: _tensor,
    ImageResult | ImageError: image_result,
}
