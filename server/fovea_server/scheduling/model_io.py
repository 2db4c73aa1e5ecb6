"""Checks requests against the interface of a model, and builds its responses."""

from __future__ import annotations

import asyncio
from itertools import count
from math import prod

from fovea_engines.session import Array
from fovea_preprocess.errors import InferenceFailed
from fovea_server.tensors.check import CheckedRequest, RequestCheck, reshape_dims
from fovea_server.tensors.messages import InferRequest, InferResponse, OutputTensor
from fovea_server.tensors.signature import ModelSignature, ModelTensor

# If the strings of a request have more bytes than this, a thread parses them. Parsing so many bytes
# takes about a millisecond.
_MANY = 64 << 10
_NUMBERS = count()

Outputs = dict[str, Array]
"""An array for each output of the engine, by name."""


class ModelIO:
    """The inputs and outputs of one loaded version of a model, as clients see them.

    Each load of the version gets a new identity.
    """

    def __init__(self, name: str, version: int, signature: ModelSignature) -> None:
        self.name = name
        self.identity = next(_NUMBERS).to_bytes(8)
        self.check = RequestCheck(name, signature)
        self.inputs = tuple(tensor.name for tensor in signature.inputs)
        self._version = str(version)
        self._outputs = signature.outputs
        self._has_strings = any(tensor.datatype == "BYTES" for tensor in signature.inputs)
        self._batched = signature.max_batch_size > 0

    async def check_request(self, request: InferRequest) -> CheckedRequest:
        """Check a request; use a thread if the request contains many strings."""
        if self._has_strings and sum(tensor.data.nbytes for tensor in request.inputs) > _MANY:
            return await asyncio.to_thread(self.check, request)
        return self.check(request)

    def respond(self, request: InferRequest, outputs: Outputs) -> InferResponse:
        """Build the response with the requested outputs, in the order of the configuration.

        Raises:
            InferenceFailed: the engine did not return a requested output, or the shape of an output
                does not fit `reshape`.
        """
        wanted = self._outputs
        if request.outputs:
            requested = {output.name for output in request.outputs}
            wanted = tuple(tensor for tensor in wanted if tensor.name in requested)
        tensors = [
            OutputTensor(tensor.name, tensor.datatype, self._reshape(tensor, outputs))
            for tensor in wanted
        ]
        return InferResponse(self.name, self._version, tensors, request.id)

    def _reshape(self, tensor: ModelTensor, outputs: Outputs) -> Array:
        array = outputs.get(tensor.name)
        if array is None:
            raise InferenceFailed(
                f"the engine has no output '{tensor.name}': correct its name in the config.pbtxt "
                f"of '{self.name}'"
            )
        if tensor.reshape is None:
            return array
        lead = array.shape[:1] if self._batched else ()
        dims = tensor.shape[len(lead) :]
        have = array.shape[len(lead) :]
        if len(have) == len(tensor.reshape):
            shape = (*lead, *reshape_dims(tensor.reshape, have, dims))
            if prod(shape) == array.size:
                return array.reshape(shape)
        raise InferenceFailed(
            f"output '{tensor.name}' has shape {list(have)}, but the reshape in the config.pbtxt "
            f"of '{self.name}' is {list(tensor.reshape)}: correct the reshape"
        )
