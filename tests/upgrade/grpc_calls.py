"""The gRPC calls of the record."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.upgrade.http_requests import INPUTS, MODELS, SIMPLE, read_image
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

Call = Callable[[grpc.InferenceServerClient], Any]


def list_calls(images: Path) -> dict[str, Call]:
    """List all calls by their names in the record."""
    scene = read_image("digits", images)
    calls: dict[str, Call] = {
        "live": lambda client: client.is_server_live(),
        "ready": lambda client: client.is_server_ready(),
        "server": lambda client: client.get_server_metadata(as_json=True),
        "index": lambda client: client.get_model_repository_index(as_json=True),
        "log": lambda client: client.get_log_settings(as_json=True),
        "trace": lambda client: client.get_trace_settings(as_json=True),
        "regions": lambda client: client.get_system_shared_memory_status(as_json=True),
        "statistics": lambda client: client.get_inference_statistics(as_json=True),
        "infer simple": _infer_simple,
        "no such model": partial(_infer, "nothing", [b"no image"]),
        "no such metadata": lambda client: client.get_model_metadata("nothing"),
        "bad image": partial(_infer, "digits", [b"no image"]),
        "bad option": partial(_infer, "digits", [scene], conf=7.0),
        "options": partial(_infer, "digits", [scene], conf=0.7, max_det=2),
        "load": lambda client: client.load_model("nothing"),
        "load of broken": lambda client: client.load_model("broken"),
        "not ready": partial(_infer, "broken", [b"no image"]),
        "region": lambda client: client.register_system_shared_memory("no", "/fovea-not-there", 4),
        "too many": partial(_infer, "digits", [scene] * 9),
    }
    for model in MODELS:
        if model != "broken":
            calls[f"metadata {model}"] = partial(_read_model, "get_model_metadata", model)
            calls[f"config {model}"] = partial(_read_model, "get_model_config", model)
        if model not in ("broken", "simple"):
            calls[f"infer {model}"] = partial(_infer, model, [read_image(model, images)])
    return calls


def send(client: grpc.InferenceServerClient, call: Call) -> Any:
    """Send a call; return its response or error in the form of the record."""
    try:
        return call(client)
    except InferenceServerException as error:
        return {"status": error.status(), "message": error.message()}


def _read_model(method: str, model: str, client: grpc.InferenceServerClient) -> Any:
    return getattr(client, method)(model, as_json=True)


def _infer(
    model: str, images: list[bytes], client: grpc.InferenceServerClient, **parameters: Any
) -> Any:
    tensor = grpc.InferInput(INPUTS.get(model, "images"), [len(images)], "BYTES")
    tensor.set_data_from_numpy(np.array(images, object))
    return _parse(client.infer(model, [tensor], parameters=parameters or None))


def _infer_simple(client: grpc.InferenceServerClient) -> Any:
    inputs = []
    for each in SIMPLE:
        tensor = grpc.InferInput(each["name"], each["shape"], each["datatype"])
        tensor.set_data_from_numpy(np.array([each["data"]], np.float32))
        inputs.append(tensor)
    return _parse(client.infer("simple", inputs, request_id="42"))


def _parse(result: grpc.InferResult) -> Any:
    response = result.get_response(as_json=True)
    response.pop("raw_output_contents", None)
    for output in response["outputs"]:
        values = result.as_numpy(output["name"]).ravel().tolist()
        output["data"] = [each.decode() if isinstance(each, bytes) else each for each in values]
    return json.loads(json.dumps(response))
