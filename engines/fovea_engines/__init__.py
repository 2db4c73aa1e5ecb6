"""Converts ONNX models to engines, and runs engines: images to arrays, arrays to detections."""

import os
import sys
from typing import Any, cast

# ONNX Runtime and OpenVINO would send telemetry. This file turns both off before any other package
# imports them: ONNX Runtime reads its variable at import, and OpenVINO falls back to a stub that
# sends nothing.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", cast(Any, None))
