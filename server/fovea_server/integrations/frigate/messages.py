"""The messages of Frigate's detectors: a JSON header, and for a frame the bytes of a tensor.

Source: frigate/detectors/plugins/zmq_ipc.py, which documents the protocol.
"""

from __future__ import annotations

from math import prod
from typing import Any, TypeGuard

import cv2
import numpy as np
import orjson
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import FoveaError, ImageTooLarge, InvalidRequest
from fovea_preprocess.image import DecodedImage
from fovea_server.json_text import parse_json
from fovea_server.tensors.messages import ImageResult

# Size of the table of objects that Frigate expects: 20 rows with class, score, y1, x1, y2, x2.
# Coordinates are fractions of the frame.
_ROWS, _COLUMNS = 20, 6
_ANSWER_HEADER = orjson.dumps({"shape": (_ROWS, _COLUMNS), "dtype": "float32"})
_LONGEST_HEADER = 4096
_DTYPES = {"uint8": np.uint8, "float32": np.float32}

# Frigate ignores objects with a score below 0.4, even if its own filters are lower.
OPTIONS = PredictOptions(conf=0.4, max_det=_ROWS, mask="none")
"""Prediction options for every frame."""


def header_of(parts: list[memoryview]) -> dict[str, Any]:
    """Return the header of a message, which has one or two parts.

    Raises:
        InvalidRequest: the message is not a message of Frigate.
    """
    if not 1 <= len(parts) <= 2 or parts[0].nbytes > _LONGEST_HEADER:
        raise InvalidRequest(
            "the message is not from Frigate's detector: send a JSON header and the bytes of a "
            "tensor"
        )
    try:
        header = parse_json(bytes(parts[0]))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the header is not a JSON object ({error})") from None
    if not isinstance(header, dict):
        raise InvalidRequest("the header of the message must be a JSON object")
    if "model_request" in header and len(parts) > 1:
        # Reject the second part, because the request may wait for its model and would keep the part
        # in memory.
        raise InvalidRequest("a model request must have one part: send the header only")
    return header


def image_of(header: dict[str, Any], parts: list[memoryview], most_pixels: int) -> DecodedImage:
    """Decode a frame from a message.

    The frame is RGB in uint8 or float32, with shape [1, height, width, 3] or [1, 3, height, width].
    Floats are in 0..1 (Frigate's `float`) or in 0..255 (`float_denorm`). The image may share the
    memory of the message.

    Raises:
        InvalidRequest: the frame has another type or shape, or is incomplete.
        ImageTooLarge: the frame has more than `most_pixels` pixels.
    """
    shape, dtype = header.get("shape"), header.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidRequest(
            f"the datatype of the tensor is {str(dtype)[:30]}: set input_dtype to int, float or "
            "float_denorm in the model section of Frigate's configuration"
        )
    if not _is_frame(shape):
        raise InvalidRequest(
            f"the shape of the tensor is {str(shape)[:60]}, but must be [1, height, width, 3] or "
            "[1, 3, height, width]: set input_tensor to nhwc or nchw and input_pixel_format to "
            "rgb in the model section of Frigate's configuration"
        )
    size = prod(shape)
    if size // 3 > most_pixels:
        raise ImageTooLarge(
            f"the frame exceeds the limit of {most_pixels / 1e6:g} megapixels: set a "
            "smaller width and height in the model section of Frigate's configuration, or raise "
            "--max-megapixels"
        )
    expected = size * np.dtype(_DTYPES[dtype]).itemsize
    sent = parts[1].nbytes if len(parts) > 1 else 0
    if sent != expected:
        raise InvalidRequest(
            f"the tensor has {sent} bytes, but datatype {dtype} and shape {shape} need "
            f"{expected}: send the whole tensor"
        )
    values = np.frombuffer(parts[1], _DTYPES[dtype])
    pixels = _levels(values) if dtype == "float32" else values
    frame = pixels.reshape(shape)[0]
    return DecodedImage(frame if shape[3] == 3 else frame.transpose(1, 2, 0), 1)


def _is_frame(shape: object) -> TypeGuard[list[int]]:
    if not isinstance(shape, list) or len(shape) != 4 or shape[0] != 1 or 3 not in shape[1::2]:
        return False
    return all(type(size) is int and size > 0 for size in shape)


def _levels(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Convert float values of a frame back to the uint8 pixels from which Frigate computed them."""
    least, most = float(values.min()), float(values.max())
    if not 0 <= least <= most <= 255:
        raise InvalidRequest(
            f"the frame has values from {least:g} to {most:g}, but they must be between 0 and "
            "255: set input_dtype to int, float or float_denorm in the model section of Frigate's "
            "configuration"
        )
    # If a frame in 0..255 has no value above 1, it is nearly black, so the wrong scale does no
    # harm.
    return np.asarray(cv2.convertScaleAbs(values, alpha=255 if most <= 1 else 1), np.uint8)


def rows(result: ImageResult, vocabulary: Vocabulary, options: PredictOptions) -> bytes:
    """Encode the objects in a frame as float32 [20, 6], the best first. Unused rows are zeros."""
    found = result.found
    assert isinstance(found, Detections), "the task of the model has boxes"
    table = np.zeros((_ROWS, _COLUMNS), np.float32)
    x1, y1, x2, y2 = found.boxes.T
    width, height = result.width, result.height
    columns = found.class_ids, found.scores, y1 / height, x1 / width, y2 / height, x2 / width
    table[: len(found)] = np.stack(columns, 1)
    return table.tobytes()


def answer(table: bytes) -> list[bytes]:
    """Return the response message with a table that `rows` has encoded."""
    return [_ANSWER_HEADER, table]


def document(**fields: object) -> list[bytes]:
    """Return a message that contains only JSON."""
    return [orjson.dumps(fields)]


def refusal(error: FoveaError) -> list[bytes]:
    """Return the response to a rejected frame.

    Frigate then detects no objects, and logs a warning.
    """
    text = orjson.dumps({"error": error.code, "message": str(error)})
    # Make the text one byte longer if it has the size of a table, because Frigate would parse it as
    # a table.
    return [text + b" " * (len(text) == 4 * _ROWS * _COLUMNS)]
