"""Compares what a newer version answers with what an older one did.

Every key that was there is there, and an absent key stays absent. Numbers agree within what another
processor computes. Texts are the same, but for the sentences of errors.
"""

import base64
import binascii
import io
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco  # type: ignore[import-untyped]

ADDED: dict[str, str] = {
    r"inspect .*\.current": "`fovea inspect` tells which version answers",
    r"stream .*\.tracked": "streams say how many objects have an id",
    r"event \w+\.(class_id|class_name|score)": "events have the names that frames have",
    r"stream .*\.frames\.broken": "streams count the frames that are broken, and go on",
}
"""Keys that may be there beside those of the record: a pattern of the place, and the reason.

A place begins with the name of the request, call or command, as the test prints it.
"""
CHANGED: dict[str, str] = {
    r"event \w+\.label: is gone": "events have class_name, as frames have",
    r"stream recording\.age_ms: was ": "a stream that has ended has no age",
    r"event \w+\.box: was \[": "the box of an event is an object, as that of a frame",
}
"""Places whose values are others on purpose: a pattern of the place, and the reason."""
MOMENTARY = (
    *("timing_ms", "inference_stats", "batch_stats", "durations", "last_inference", "pending"),
    *("inference_count", "execution_count", "memory_usage", "inference_id", "time", "stages"),
    *("response_cache", "cache_hit", "cache_miss", "response_stats", "detection_id"),
    *("inferenceMs", "processMs", "analysisRoundTripMs", "timestampUTC"),
)
"""Keys under which the kinds of values count alone: they are of one moment or one machine."""
_BIG_ENDS = 64


def differences(old: Any, new: Any, place: str = "", momentary: bool = False) -> list[str]:
    """Say where a newer answer is another."""
    return [each for each in _differences(old, new, place, momentary) if not _listed(each, CHANGED)]


def _listed(text: str, table: Iterable[str]) -> bool:
    return any(re.match(pattern, text) for pattern in table)


def _differences(old: Any, new: Any, place: str, momentary: bool) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(old, new, place, momentary)
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new) and not momentary:
            return [f"{place}: had {len(old)} entries, and has {len(new)}"]
        pairs = enumerate(zip(old, new, strict=False))
        return [
            each
            for number, (before, after) in pairs
            for each in _differences(before, after, f"{place}[{number}]", momentary)
        ]
    if _kind(old) != _kind(new):
        return [f"{place}: was {_short(old)}, and is {_short(new)}"]
    if momentary or old == new or _is_close(place, old, new):
        return []
    return [f"{place}: was {_short(old)}, and is {_short(new)}"]


def _of_objects(old: dict[str, Any], new: dict[str, Any], place: str, momentary: bool) -> list[str]:
    found = []
    for key in dict.fromkeys((*old, *new)):
        at = f"{place}.{key}"
        if key not in new:
            found.append(f"{at}: is gone")
        elif key not in old:
            if not _listed(at, ADDED):
                found.append(f"{at}: is new: {_short(new[key])}")
        elif key == "counts" and "size" in old and isinstance(old[key], str):
            found += _of_masks(old, new, place)
        else:
            sentence = key in ("error", "message") and isinstance(old[key], str)
            found += _differences(old[key], new[key], at, momentary or sentence or key in MOMENTARY)
    return found


def _of_masks(old: dict[str, Any], new: dict[str, Any], place: str) -> list[str]:
    """Compare run lengths by the pixels that they cover."""
    shared = coco.iou([old], [new], [0])[0][0]
    return [] if shared > 0.95 else [f"{place}.counts: the masks share {shared:.2f}"]


def _kind(value: Any) -> str:
    return (
        "number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else type(value).__name__
    )


def _is_close(place: str, old: Any, new: Any) -> bool:
    if isinstance(old, float) or isinstance(new, float):
        return bool(abs(old - new) <= 0.005 + 0.004 * max(abs(old), abs(new)))
    if isinstance(old, str) and old.startswith("{"):
        return not differences(json.loads(old), json.loads(new), place)
    if isinstance(old, str) and re.search(r"\.(data|png|thumbnail)$", place):
        return _is_close_binary(old, new)
    if isinstance(old, str) and re.fullmatch(r"-?[\d.]+:\d+", old):  # a value and its class
        return _is_close(place, float(old.split(":")[0]), float(new.split(":")[0]))
    return False


def _is_close_binary(old: str, new: str) -> bool:
    """Compare vectors number by number, and pictures by their size."""
    try:
        before, after = (base64.b64decode(each, validate=True) for each in (old, new))
    except binascii.Error:
        return False
    if before[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0"):
        return _size(before) == _size(after)
    return len(before) == len(after) and bool(
        np.allclose(np.frombuffer(before, "<f4"), np.frombuffer(after, "<f4"), atol=0.005)
    )


def _size(picture: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(picture)) as image:
        return image.size


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _BIG_ENDS else f"{text[:_BIG_ENDS]}..."
