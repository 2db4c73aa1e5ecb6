"""Ranges in the form that TensorRT 10 calibrates with.

TensorRT 11 takes precision from the graph alone, as `fovea build --tensorrt` writes it, and so
can TensorRT 10. This is for networks of TensorRT 10 that are built with precision flags.
"""

from __future__ import annotations

import re
import struct
from types import ModuleType
from typing import Any

import numpy as np

from fovea_engines.build.calibration.ranges import Ranges
from fovea_preprocess.errors import BackendUnavailable, InvalidOption

_STEPS = 127


def cache_bytes(ranges: Ranges, version: str) -> bytes:
    """Ranges as a calibration cache, for `entropy_calibrator` or ``trtexec --int8 --calib=FILE``.

    A line names the version and the calibrator; then each tensor has its scale, the largest
    magnitude over 127, as the bits of a float32 in hexadecimal (samples/sampleINT8/README.md of
    github.com/NVIDIA/TensorRT, "Calibration file"; ReadDynamicRange in
    core/providers/tensorrt/tensorrt_execution_provider_utils.h of ONNX Runtime reads it).
    Tensors are called as in the normalised float graph. Those that are not listed stay float.

    Args:
        ranges: of the tensors that layers take.
        version: of TensorRT, as `tensorrt.__version__` says it; another one ignores the cache.

    Raises:
        InvalidOption: the version is none of TensorRT 10.
    """
    match = re.match(r"(10)\.(\d+)\.(\d+)", version)
    if match is None:
        raise InvalidOption(
            f"TensorRT is {version!r}; a calibration cache is for TensorRT 10, e.g. 10.13.2"
        )
    major, minor, patch = map(int, match.groups())
    # NV_TENSORRT_VERSION of NvInfer.h.
    lines = [f"TRT-{10000 * major + 100 * minor + patch}-EntropyCalibration2"]
    for name, (low, high) in ranges.tensors.items():
        scale = np.float32(max(abs(low), abs(high)) / _STEPS)
        lines.append(f"{name}: {struct.pack('>f', scale).hex()}")
    return "\n".join([*lines, ""]).encode()


def read_cache(cache: bytes) -> dict[str, float]:
    """The scale of each tensor in a calibration cache; 127 times that is its largest magnitude.

    Raises:
        InvalidOption: it is no calibration cache.
    """
    header, *lines = cache.decode(errors="replace").splitlines() or [""]
    if not re.fullmatch(r"TRT-\d+-\w+", header):
        raise InvalidOption(f"no calibration cache of TensorRT begins with {header[:40]!r}")
    scales = {}
    for line in lines:
        # A name may hold colons itself. TensorRT leaves out leading zeros.
        match = re.fullmatch(r"(.+): ([0-9a-f]{1,8})", line)
        if match is None:
            raise InvalidOption(f"{line[:80]!r} is no tensor with its scale")
        [scales[match[1]]] = struct.unpack(">f", bytes.fromhex(match[2].zfill(8)))
    return scales


def entropy_calibrator(trt: ModuleType, cache: bytes) -> Any:
    """An `IInt8EntropyCalibrator2` that gives TensorRT ranges, and never asks for an image.

    Args:
        trt: the module `tensorrt`.
        cache: from `cache_bytes`, for this very version.

    Returns:
        For `IBuilderConfig.int8_calibrator`; TensorRT does not keep it alive, so hold on to it.

    Raises:
        BackendUnavailable: this TensorRT has no calibrators.
    """
    base = getattr(trt, "IInt8EntropyCalibrator2", None)
    if base is None:
        raise BackendUnavailable(
            f"TensorRT {trt.__version__} has no calibrators: give it the file of `fovea build "
            "--precision int8 --tensorrt FILE.onnx`, which holds the ranges"
        )
    methods = {
        "get_batch_size": lambda self: 1,
        # No more images. TensorRT asks only when it does not take the cache.
        "get_batch": lambda self, names: None,
        "read_calibration_cache": lambda self: cache,
        "write_calibration_cache": lambda self, written: None,
    }
    return type("CachedRanges", (base,), methods)()
