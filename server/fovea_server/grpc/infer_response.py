"""Writes the answer of an infer request as protobuf bytes.

protobuf writes all but the tensors; those are appended by hand, because protobuf would copy them
three times.
"""

from __future__ import annotations

from collections.abc import Mapping

from tritonclient.grpc import service_pb2 as messages

from fovea_server.grpc.parameters import set_parameter
from fovea_server.tensors.messages import InferResponse
from fovea_server.tensors.regions import RegionPlace
from fovea_server.tensors.wire import wire

FINAL = "triton_final_response"
"""The parameter of every streamed answer that says whether it is the last of its request."""

# Number and wire type of `raw_output_contents` and of `infer_response`, both delimited by length.
_RAW = bytes([6 << 3 | 2])
_STREAMED = bytes([2 << 3 | 2])


def response_bytes(response: InferResponse, shared: Mapping[str, RegionPlace]) -> bytes:
    """Write a `ModelInferResponse`; outputs in shared memory are written there."""
    head = messages.ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    for name, value in response.parameters.items():
        set_parameter(head.parameters[name], value)
    parts: list[bytes | memoryview] = [b""]
    for tensor in response.outputs:
        head.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.name in shared:
            shared[tensor.name].write(tensor.name, wire(tensor))
            parts += (_RAW, b"\0")
        else:
            data = wire(tensor)
            parts += (_RAW, _varint(len(data)), data)
    parts[0] = head.SerializeToString()
    return b"".join(parts)


def streamed_bytes(response: bytes) -> bytes:
    """Wrap an answer in a `ModelStreamInferResponse`."""
    return b"".join((_STREAMED, _varint(len(response)), response))


def streamed_error(request_id: str, message: str) -> bytes:
    """Write a `ModelStreamInferResponse` with an error."""
    answer = messages.ModelStreamInferResponse(error_message=message)
    answer.infer_response.id = request_id
    answer.infer_response.parameters[FINAL].bool_param = True
    data: bytes = answer.SerializeToString()
    return data


def _varint(number: int) -> bytes:
    """Write a length as protobuf does: seven bits a byte, the low ones first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
