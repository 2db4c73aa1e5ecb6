"""The answer of an infer request, as the bytes of its protobuf.

Everything but the tensors is left to protobuf; those are laid down behind it by hand, because
protobuf would copy them three times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import service_pb2 as messages

from fovea_engines.backends.base import Array
from fovea_server.grpc.parameters import set_parameter
from fovea_server.v2.byte_strings import encode
from fovea_server.v2.messages import InferResponse, OutputTensor
from fovea_server.v2.regions import Regions, RegionSlice

FINAL = "triton_final_response"
"""The parameter of every streamed answer that says whether it is the last of its request."""

# Number and wire type of `raw_output_contents` and of `infer_response`, both delimited by length.
_RAW = bytes([6 << 3 | 2])
_STREAMED = bytes([2 << 3 | 2])


def response_bytes(
    response: InferResponse, slices: Mapping[str, RegionSlice], regions: Regions
) -> bytes:
    """A `ModelInferResponse`; outputs that have a place in shared memory are written there.

    Raises:
        NotFound, InvalidRequest, RegionFailed: the shared memory does not hold an output.
    """
    head = messages.ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    for name, value in response.parameters.items():
        set_parameter(head.parameters[name], value)
    # numpy's arrays are buffers, too.
    parts: list[Any] = [b""]
    for tensor in response.outputs:
        head.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.name in slices:
            regions.write(tensor, *slices[tensor.name])
            parts += (_RAW, b"\0")
        else:
            data, size = _wire(tensor)
            parts += (_RAW, _varint(size), data)
    parts[0] = head.SerializeToString()
    return b"".join(parts)


def streamed_bytes(response: bytes) -> bytes:
    """A `ModelStreamInferResponse` with an answer in it."""
    return b"".join((_STREAMED, _varint(len(response)), response))


def streamed_error(request_id: str, message: str) -> bytes:
    """A `ModelStreamInferResponse` that says what was wrong with a request."""
    answer = messages.ModelStreamInferResponse(error_message=message)
    answer.infer_response.id = request_id
    answer.infer_response.parameters[FINAL].bool_param = True
    data: bytes = answer.SerializeToString()
    return data


def _wire(tensor: OutputTensor) -> tuple[bytes | Array, int]:
    """A buffer with the tensor's binary form, and its size."""
    if tensor.datatype == "BYTES":
        data = encode(tensor.array)
        return data, len(data)
    return tensor.array, tensor.array.nbytes


def _varint(number: int) -> bytes:
    """As protobuf writes lengths: seven bits a byte, the low ones first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
