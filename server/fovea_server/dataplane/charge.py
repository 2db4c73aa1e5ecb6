"""Counts the images of requests for their keys, over HTTP and gRPC alike."""

from __future__ import annotations

from collections.abc import Callable

from fovea_server.models.model import ServedModel
from fovea_server.tensors.messages import InferRequest
from fovea_server.traffic.call import CALL

# Of a network whose batch has no limit: a wrong shape costs no more.
_MAX_ROWS = 1024


def charge(model: ServedModel, count: Callable[[], int]) -> None:
    """Count images for the key of the current request, if it has one.

    Raises:
        Forbidden: the key is not for this model, which an API may have chosen itself.
        RateLimited: its rate or its quota has no room for them.
    """
    call = CALL.get()
    if call is not None and call.principal is not None:
        call.principal.check_model(model.name)
        images = count()
        paid = min(images, call.paid)
        call.paid -= paid
        if due := images - paid:
            call.principal.charge(due)
            call.images += due


def rows_of(model: ServedModel, request: InferRequest) -> int:
    """Return the images in a request of tensors, whose shapes are not checked yet."""
    most = model.signature.max_batch_size
    sizes = {tensor.name: tensor.shape for tensor in model.signature.inputs}
    rows = [
        tensor.shape[0]
        for tensor in request.inputs
        # Without a batch dimension of Triton's, the first one may be the network's own.
        if tensor.shape and (most or sizes.get(tensor.name, ())[:1] == (-1,))
    ]
    return max(1, min(max(rows, default=1), most or _MAX_ROWS))
