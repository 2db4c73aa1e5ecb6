"""Compares the responses of a newer version with those of an older one.

Every key is still there, and an absent key stays absent. Numbers agree within the differences
between processors. Texts are equal, but for error messages.
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
    r"inspect .*\.current": "`fovea inspect` names the version in use",
    r"stream .*\.tracked": "streams count the objects that have an id",
    r"versions\.versions\[\d+\]\.canary": "`fovea versions` has the share of a canary",
    r"event \w+\.(class_id|class_name|score)": "events have the keys that frames have",
    r"stream .*\.frames\.broken": "streams count the frames that are broken, and go on",
}
"""Intended new keys: a pattern of the place, and the reason.

A place begins with the name of the request, call or command, as the test prints it.
"""
CHANGED: dict[str, str] = {
    r"event \w+\.label: is gone": "events have class_name, as frames have",
    r"stream recording\.age_ms: was ": "a stream that has ended has no age",
    r"event \w+\.box: was \[": "the box of an event is an object, like that of a frame",
}
"""Intended other values: a pattern of the line that the test prints, and the reason."""
MOMENTARY = (
    *("timing_ms", "inference_stats", "batch_stats", "durations", "last_inference", "pending"),
    *("inference_count", "execution_count", "memory_usage", "inference_id", "time", "stages"),
    *("response_cache", "cache_hit", "cache_miss", "response_stats", "detection_id"),
    *("inferenceMs", "processMs", "analysisRoundTripMs", "timestampUTC"),
)
"""Under these keys only the types are compared: the values depend on the moment or machine."""
_PROSE = ("error", "message", "reason", "card_reason", "faults")
"""Under these keys texts of several words may be reworded; `unloaded` may not.

A reworded text still has the numbers and the quoted names of the old text.
"""
_TRITONS = re.compile(
    r"Request (for unknown model|JSON size)|Model version not ready|Unable to (open|parse)|"
    r"failed to (load|parse)|requested model|\[request id"
)
"""The beginnings of texts that Triton's clients may expect, and that are not reworded."""
_SHOWN = 64


def check_same(old: Any, new: Any, place: str = "", momentary: bool = False) -> None:
    """Fail if a newer response differs from an older one.

    Args:
        old: of the record.
        new: of HEAD.
        place: the name of the request, call or command.
        momentary: compare only the types of values, and not the lengths of lists.
    """
    found = [each for each in _compare(old, new, place, momentary) if not _is_listed(each, CHANGED)]
    assert not found, "\n".join(found)


def _is_listed(text: str, table: Iterable[str]) -> bool:
    return any(re.match(pattern, text) for pattern in table)


def _compare(old: Any, new: Any, place: str, momentary: bool = False) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return _compare_objects(old, new, place, momentary)
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new) and not momentary:
            return [f"{place}: had {len(old)} entries, and has {len(new)}"]
        return [
            line
            for number, pair in enumerate(zip(old, new, strict=False))
            for line in _compare(*pair, f"{place}[{number}]", momentary)
        ]
    if _type(old) == _type(new) and (momentary or old == new or _is_close(place, old, new)):
        return []
    return [f"{place}: was {_shorten(old)}, and is {_shorten(new)}"]


def _compare_objects(
    old: dict[str, Any], new: dict[str, Any], place: str, momentary: bool
) -> list[str]:
    found = []
    for key in dict.fromkeys((*old, *new)):
        at = f"{place}.{key}"
        if key not in new:
            found.append(f"{at}: is gone")
        elif key not in old:
            if not _is_listed(at, ADDED):
                found.append(f"{at}: is new: {_shorten(new[key])}")
        elif key == "counts" and "size" in old and isinstance(old[key], str):
            # Compare run lengths by the pixels that they cover.
            shared = coco.iou([old], [new], [0])[0][0]
            found += [] if shared > 0.95 else [f"{at}: the masks share {shared:.2f}"]
        else:
            compare = _compare_prose if key in _PROSE else _compare
            found += compare(old[key], new[key], at, momentary or key in MOMENTARY)
    return found


def _compare_prose(old: Any, new: Any, place: str, momentary: bool) -> list[str]:
    """Compare a text that may be reworded, or a list of such texts."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for number, pair in enumerate(zip(old, new, strict=True))
            for line in _compare_prose(*pair, f"{place}[{number}]", momentary)
        ]
    reworded = isinstance(old, str) and isinstance(new, str) and " " in old.strip()
    if not reworded or momentary or _TRITONS.match(old):
        return _compare(old, new, place, momentary)
    facts = re.findall(r"'([^']+)'|(\d+)", old)
    lost = [fact for fact in map("".join, facts) if fact not in new]
    if new and not lost:
        return []
    return [f"{place}: was {_shorten(old)}, and is {_shorten(new)}, without {lost}"]


def _type(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


def _is_close(place: str, old: Any, new: Any) -> bool:
    if isinstance(old, float) or isinstance(new, float):
        return bool(abs(old - new) <= 0.005 + 0.004 * max(abs(old), abs(new)))
    if not isinstance(old, str):
        return False
    if old.startswith("{"):
        return not _compare(json.loads(old), json.loads(new), place)
    if re.search(r"\.(data|png|thumbnail)$", place):
        return _is_close_binary(old, new)
    if re.fullmatch(r"-?[\d.]+:\d+", old):  # a value and its class
        (before, old_class), (after, new_class) = (each.split(":", 1) for each in (old, new))
        return old_class == new_class and _is_close(place, float(before), float(after))
    return False


def _is_close_binary(old: str, new: str) -> bool:
    """Compare vectors number by number, and images by their sizes."""
    try:
        before, after = (base64.b64decode(each, validate=True) for each in (old, new))
    except binascii.Error:
        return False
    if before[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0"):
        return _read_size(before) == _read_size(after)
    return len(before) == len(after) and bool(
        np.allclose(np.frombuffer(before, "<f4"), np.frombuffer(after, "<f4"), atol=0.005)
    )


def _read_size(image: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(image)) as opened:
        return opened.size


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
