"""Ranges in TensorRT 10's own cache; the calibrator is in api_surface/test_calibrator.py."""

import struct

import numpy as np
import pytest

from fovea_engines.build.calibration.ranges import Origin, Ranges
from fovea_engines.build.calibration.tensorrt10 import cache_bytes, read_cache
from fovea_engines.build.precision.encoding import Encoding, Steps
from fovea_preprocess.errors import InvalidOption

VERSION = "10.16.1.11"


def ranges(**tensors: tuple[float, float]) -> Ranges:
    return Ranges(Origin("m", "p", "i", "percentile"), 3, tensors)


def test_the_format_is_tensorrts():
    given = ranges(images=(0.0, 1.0), **{"input_1:0": (-2.0, 1.0), "a: b": (0.0, 0.0)})
    assert cache_bytes(given, VERSION).decode().splitlines() == [
        "TRT-101601-EntropyCalibration2",
        "images: 3c010204",
        "input_1:0: 3c810204",
        "a: b: 00000000",
    ]


def test_what_is_written_is_read():
    random = np.random.default_rng(0)
    given = ranges(
        **{
            f"t{i}": (-float(low), float(high))
            for i, (low, high) in enumerate(random.random((50, 2)))
        }
    )
    scales = read_cache(cache_bytes(given, "10.0.1"))
    assert list(scales) == list(given.tensors)
    for name, (low, high) in given.tensors.items():
        assert scales[name] * 127 == pytest.approx(max(-low, high), rel=1e-6)
        # The graph for TensorRT says the same, but for scales rounded up to float16.
        signed = float(Steps.of(low, high, Encoding.SIGNED).scale)
        assert scales[name] <= signed * (1 + 1e-6)
        assert signed == pytest.approx(scales[name], rel=2e-3)


def test_a_cache_that_tensorrt_wrote_is_read():
    """The example of samples/sampleINT8/README.md in NVIDIA's repository."""
    text = "TRT-7000-EntropyCalibration2\ndata: 3c008912\nip1: 3db6bd6e\nprob: 3c010a14\nx: 0\n"
    scales = read_cache(text.encode())
    assert list(scales) == ["data", "ip1", "prob", "x"]
    assert scales["data"] == struct.unpack(">f", bytes.fromhex("3c008912"))[0]
    # A probability reaches 1.
    assert scales["prob"] * 127 == pytest.approx(1, rel=1e-3)
    assert scales["x"] == 0


@pytest.mark.parametrize(
    ("cache", "says"),
    [
        (b"", "begins with ''"),
        (b"\x00\x01\x02", "no calibration cache"),
        (b"data: 3c008912\n", "begins with 'data"),
        (b"TRT-101601-EntropyCalibration2\ndata 3c008912\n", "'data 3c008912' is no tensor"),
        (b"TRT-101601-EntropyCalibration2\ndata: 0.5\n", "'data: 0.5' is no tensor"),
    ],
)
def test_what_is_no_cache_is_refused(cache, says):
    with pytest.raises(InvalidOption, match=says):
        read_cache(cache)


@pytest.mark.parametrize("version", ["11.4.0.106", "8.6.1", "", "ten"])
def test_a_cache_is_for_tensorrt_10(version):
    with pytest.raises(InvalidOption, match="TensorRT 10"):
        cache_bytes(ranges(images=(0.0, 1.0)), version)
