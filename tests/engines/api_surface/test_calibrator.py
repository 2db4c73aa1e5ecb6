"""The calibrator of ranges as a class of the real bindings."""

import json

from tests.engines.api_surface.surface import run_python

# Calls through the base class go to C++ and back, as TensorRT's own do.
CALIBRATE = """
import json
import tensorrt_bindings as trt
from fovea_engines.build.calibration.ranges import Origin, Ranges
from fovea_engines.build.calibration.tensorrt10 import cache_bytes, entropy_calibrator

ranges = Ranges(Origin("m", "p", "i", "percentile"), 3, {"images": (0.0, 1.0)})
cache = cache_bytes(ranges, trt.__version__)
calibrator = entropy_calibrator(trt, cache)
base = trt.IInt8EntropyCalibrator2
print(json.dumps([
    isinstance(calibrator, base),
    base.get_algorithm(calibrator).name,
    base.get_batch_size(calibrator),
    base.get_batch(calibrator, ["images"]),
    calibrator.read_calibration_cache().decode(),
    calibrator.write_calibration_cache(b"other"),
    calibrator.read_calibration_cache() == cache,
]))
"""

REFUSE = """
import tensorrt_bindings as trt
from fovea_engines.build.calibration.tensorrt10 import entropy_calibrator
from fovea_preprocess.errors import BackendUnavailable
try:
    entropy_calibrator(trt, b"")
except BackendUnavailable as error:
    print(error)
"""


def test_tensorrt_10_takes_it_and_is_given_the_cache_and_no_images(stubs):
    assert json.loads(run_python("10.16", stubs, "-W", "ignore", "-c", CALIBRATE)) == [
        True,
        "ENTROPY_CALIBRATION_2",
        1,
        [],
        "TRT-101601-EntropyCalibration2\nimages: 3c010204\n",
        None,
        True,
    ]


def test_tensorrt_11_has_no_calibrators_and_needs_none(stubs):
    said = run_python("11.4", stubs, "-c", REFUSE)
    assert said.startswith("TensorRT 11.4.0.106 has no calibrators: give it the file of ")
    assert "--tensorrt FILE" in said
