"""The answer of an infer request: JSON, and after it the tensors that travel in binary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from fovea_server.http.infer_request import Wish
from fovea_server.http.messages import BINARY, Answer, Buffer
from fovea_server.http.tensor_json import data_json
from fovea_server.v2.byte_strings import encode
from fovea_server.v2.messages import InferResponse, OutputTensor

if TYPE_CHECKING:
    from fovea_server.v2.regions import Regions

# Below this a copy is cheaper than a view.
_SMALL = 16_384


def infer_answer(response: InferResponse, wish: Wish, regions: Regions) -> Answer:
    """The answer; outputs that are wished for in shared memory are written there.

    Raises:
        InvalidRequest: an output's type does not travel as JSON.
        RegionFailed, NotFound: the shared memory does not hold an output.
    """
    described = _described(response)
    outputs: list[dict[str, Any]] = []
    described["outputs"] = outputs
    body: list[Buffer] = [b""]
    for tensor in response.outputs:
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
        }
        outputs.append(output)
        if tensor.name in wish.regions:
            regions.write(tensor, *wish.regions[tensor.name])
        elif wish.binary.get(tensor.name, wish.by_default):
            data = wire(tensor)
            output["parameters"] = {"binary_data_size": len(data)}
            if data:
                body.append(data)
        else:
            output["data"] = orjson.Fragment(data_json(tensor))
    body[0] = orjson.dumps(described)
    if len(body) == 1:
        return Answer(body=body)
    size = (b"inference-header-content-length", str(len(body[0])).encode())
    return Answer(body=body, media_type=BINARY, headers=[size])


def wire(tensor: OutputTensor) -> Buffer:
    """A tensor in the protocol's binary form; of a large one a view."""
    if tensor.datatype == "BYTES":
        return encode(tensor.array)
    if tensor.array.nbytes < _SMALL:
        return tensor.array.tobytes()
    # As bytes, because a memoryview knows no half or brain floats.
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data


def _described(response: InferResponse) -> dict[str, Any]:
    described: dict[str, Any] = {"id": response.id} if response.id else {}
    described["model_name"] = response.model_name
    described["model_version"] = response.model_version
    if response.parameters:
        described["parameters"] = response.parameters
    return described
