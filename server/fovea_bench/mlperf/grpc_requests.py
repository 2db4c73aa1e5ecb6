"""Requests of gRPC, serialised before the test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from fovea_bench.target import Target
from fovea_server.tensors.wire import encode_strings


def grpc_image_requests(target: Target, images: Sequence[bytes]) -> list[bytes]:
    """Build a serialised `ModelInferRequest` for each encoded image."""
    [tensor] = target.metadata()["inputs"]
    requests = []
    for image in images:
        request = messages.ModelInferRequest(model_name=target.model)
        if target.version is not None:
            request.model_version = str(target.version)
        request.inputs.add(name=tensor["name"], datatype="BYTES", shape=[1, 1])
        request.raw_input_contents.append(encode_strings(np.array([image], object)))
        requests.append(request.SerializeToString())
    return requests
