"""A server starts without the packages that only builds, gRPC and traces need."""

import subprocess
import sys


def test_the_application_loads_no_package_that_it_does_not_need_yet():
    code = (
        "import sys, fovea_server.http.application, fovea_server.serve;"
        "print([m for m in ('onnx', 'onnxslim', 'onnxruntime', 'openvino', 'grpc',"
        " 'opentelemetry.sdk')"
        " if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
