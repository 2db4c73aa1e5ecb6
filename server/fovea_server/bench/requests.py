"""Makes requests with images or tensors, as bytes to send on a connection."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import orjson

from fovea_client import with_key
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_server.bench.target import Target
from fovea_server.tensors.wire import NUMPY, encode_strings

_SEED = 1
_SHAPE = re.compile(r"(?P<name>.+):(?P<dims>\d+(,\d+)*)")


def image_requests(
    target: Target, images: Sequence[bytes], options: Mapping[str, float | str] | None = None
) -> list[bytes]:
    """Make a predict request of /v1 for each encoded image.

    `options` are query parameters; the server has defaults for options that are missing.
    """
    path = f"/v1{target.path}/predict" + (f"?{urlencode(options)}" if options else "")
    kind = "Content-Type: application/octet-stream"
    return [_head(target.url, path, [kind], len(image)) + image for image in images]


def tensor_request(
    target: Target, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> bytes:
    """Make an infer request of the v2 protocol with random tensors, as binary data.

    Args:
        target: the model.
        metadata: metadata of the model from v2.
        shapes: shapes of inputs, by name. An input that is missing has its shape in the metadata,
            and a batch size of 1 if the batch dimension is variable.

    Raises:
        InvalidOption: a shape is missing, or does not fit the model.
        UnsupportedModel: the datatype of an input is unknown.
    """
    if strangers := shapes.keys() - {each["name"] for each in metadata["inputs"]}:
        known = ", ".join(each["name"] for each in metadata["inputs"])
        raise InvalidOption(
            f"--shape sets the unknown input {min(strangers)!r}: the inputs of {target.model} are "
            f"{known}"
        )
    inputs, bodies = [], []
    random = np.random.default_rng(_SEED)
    for each in metadata["inputs"]:
        name, datatype = each["name"], each["datatype"]
        shape = _shape(each, shapes.get(name))
        bodies.append(_elements(name, datatype, shape, random))
        size = {"binary_data_size": len(bodies[-1])}
        inputs.append({"name": name, "shape": shape, "datatype": datatype, "parameters": size})
    document = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    body = b"".join([document, *bodies])
    length = f"Inference-Header-Content-Length: {len(document)}"
    return _head(target.url, f"/v2{target.path}/infer", [length], len(body)) + body


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse shapes such as "images:1,3,640,640"; raise InvalidOption if a text has another form."""
    shapes = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise InvalidOption(
                f"--shape is {text!r}, but must be NAME:DIMS, such as images:1,3,640,640"
            )
        shapes[match["name"]] = tuple(map(int, match["dims"].split(",")))
    return shapes


def _shape(tensor: Mapping[str, Any], given: tuple[int, ...] | None) -> list[int]:
    name, dims = tensor["name"], tensor["shape"]
    if given is not None:
        fits = len(given) == len(dims)
        if not fits or any(d not in (-1, g) for d, g in zip(dims, given, strict=True)):
            raise InvalidOption(
                f"--shape {name}:{','.join(map(str, given))} does not fit the model's input with "
                f"the shape {dims} (-1 allows any size)"
            )
        return list(given)
    if -1 in dims[1:]:
        raise InvalidOption(
            f"input {name!r} has dynamic sizes {dims}: set them with --shape "
            f"{name}:{','.join('N' if d == -1 else str(d) for d in dims)}"
        )
    return [1 if size == -1 else size for size in dims]


def _elements(name: str, datatype: str, shape: list[int], random: np.random.Generator) -> bytes:
    if (dtype := NUMPY.get(datatype)) is None:
        raise UnsupportedModel(f"input {name!r} has the unknown datatype {datatype}")
    if dtype.kind not in "iubO":
        return random.random(shape, np.float32).astype(dtype).tobytes()
    values = random.integers(0, 2 if dtype.kind == "b" else 100, shape, np.int8)
    if dtype.hasobject:
        return encode_strings(np.char.encode(values.astype(str)).astype(object))
    return values.astype(dtype).tobytes()


def _head(url: str, path: str, lines: Sequence[str], length: int) -> bytes:
    server = urlsplit(url)
    first = f"POST {server.path.rstrip('/')}{path} HTTP/1.1"
    key = [f"{name}: {value}" for name, value in with_key({}).items()]
    all_lines = [first, f"Host: {server.netloc}", *key, *lines, f"Content-Length: {length}"]
    return "\r\n".join([*all_lines, "", ""]).encode()
