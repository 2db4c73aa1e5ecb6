"""Converts ONNX models to engines, and runs engines: images to arrays, arrays to detections."""

import os
import sys
from typing import Any, cast

# ONNX Runtime and OpenVINO send telemetry by default. This file disables it before another module
# imports these packages. ONNX Runtime reads the environment variable at import. OpenVINO sends
# nothing if it cannot import `openvino_telemetry`.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", cast(Any, None))
