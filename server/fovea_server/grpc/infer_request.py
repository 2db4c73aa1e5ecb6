"""Converts an infer request from protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tritonclient.grpc import service_pb2 as messages

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.extensions.regions import Regions, SharedOutput
from fovea_server.grpc.contents import contents_of
from fovea_server.grpc.infer_message import InferMessage
from fovea_server.grpc.parameters import classes_of, region_slice, set_parameters
from fovea_server.tensors.messages import InferRequest, InputTensor, RequestedOutput


def read_request(
    message: InferMessage, version: int | None, regions: Regions
) -> tuple[InferRequest, dict[str, SharedOutput]]:
    """Convert a request from protobuf.

    Args:
        message: as parsed.
        version: of the model, as `message` names it.
        regions: shared memory.

    Returns:
        The request, its raw arrays views into the message; and the place of each output in
        shared memory.

    Raises:
        InvalidRequest: fields contradict each other, or have another type; Triton's text.
        NotFound, RegionFailed: a tensor's shared memory is missing or too small.
    """
    fields, buffers = message.fields, message.raw
    request = InferRequest(fields.model_name, version, [], id=fields.id)
    if fields.parameters:
        set_parameters(request, fields.parameters)
    unread = iter(buffers)
    request.inputs = [
        InputTensor(
            tensor.name,
            tensor.datatype,
            tuple(tensor.shape),
            _data(tensor, request.model_name, unread, regions, raw=bool(buffers)),
        )
        for tensor in fields.inputs
    ]
    return request, _read_outputs(fields.outputs, request, regions)


def _data(
    tensor: messages.ModelInferRequest.InferInputTensor,
    model: str,
    unread: Iterator[bytes | memoryview],
    regions: Regions,
    *,
    raw: bool,
) -> memoryview | Array:
    has_contents = tensor.HasField("contents")
    where = region_slice(tensor) if tensor.parameters else None
    if where is not None:
        if has_contents:
            raise InvalidRequest(
                "unexpected 'content' provided when using shared memory for input tensor "
                f"'{tensor.name}' for model '{model}'"
            )
        return regions.read(*where)
    if has_contents:
        if raw:
            raise InvalidRequest(
                "contents field must not be specified when using raw_input_contents for "
                f"'{tensor.name}' for model '{model}'"
            )
        return contents_of(tensor, model)
    data = next(unread, None)
    if data is None:
        raise InvalidRequest(
            f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request."
        )
    return memoryview(data)


def _read_outputs(
    outputs: Iterable[messages.ModelInferRequest.InferRequestedOutputTensor],
    request: InferRequest,
    regions: Regions,
) -> dict[str, SharedOutput]:
    """Fill in the requested outputs; of an output that is named twice, the first counts."""
    shared: dict[str, SharedOutput] = {}
    named: set[str] = set()
    for output in outputs:
        if output.name in named:
            continue
        named.add(output.name)
        where, classes = None, 0
        if output.parameters:
            where, classes = region_slice(output), classes_of(output)
        if where is not None:
            if classes:
                raise InvalidRequest(
                    "output can't set both 'shared_memory_region' and 'classification'"
                )
            shared[output.name] = regions.output(*where)
        request.outputs.append(RequestedOutput(output.name, classes))
    return shared
